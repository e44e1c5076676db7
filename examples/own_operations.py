"""Functions as operations. Start the server with: sky api start --operations examples.own_operations"""

from __future__ import annotations

import subprocess
import time
from collections import Counter

from skyserve_exec import ExitCode, RequestInterrupted, current_request, operation


@operation()
def count_words(text: str, least: int = 1) -> dict[str, int]:
    """How often each word of at least so many letters occurs."""
    return dict(Counter(word for word in text.lower().split() if len(word) >= least))


@operation(schedule_type="long", restartable=True, deadline=3600)
def count_down(start: int = 10) -> str:
    """Prints a line a second; says in its log when it is told to stop."""
    print(f"request {current_request().request_id}, attempt {current_request().attempt}")
    try:
        for left in range(start, 0, -1):
            print(left)
            time.sleep(1)
    except RequestInterrupted as interrupt:
        print(f"cleaning up: {interrupt}")
        raise
    return "done"


@operation()
def shell(command: str) -> ExitCode:
    """Runs a shell command; its output is the request's log, its exit code the request's."""
    return ExitCode(subprocess.run(["sh", "-c", command], check=False).returncode)
