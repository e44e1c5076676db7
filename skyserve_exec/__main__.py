"""`python -m skyserve_exec` is the command `sky`.

Room: the command line.
"""

from __future__ import annotations

from skyserve_exec.client.cli import main

if __name__ == "__main__":
    main()
