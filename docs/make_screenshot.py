"""Makes docs/screenshot.svg: runs the real `sky` on a terminal of its own, in a private home, and draws what it shows.

    python docs/make_screenshot.py

Needs the port 46580 to be free and `sky` beside this interpreter. The picture uses whatever monospace font there is.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = Path(__file__).parent / "screenshot.svg"
COLUMNS, LINES = 88, 50
TITLE = "sky"
SCENES = (
    "sky launch -c dev examples/hello.yaml",
    "sky exec dev -n fails -- 'echo working; exit 3'; echo \"exit code $?\"",
    "sky exec dev -n train -d -- 'sleep 60'",
    "sky queue dev",
    "sky api status",
)
LAST = "sky down -y dev; sky api stop"
CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n])")
# As rich draws it, but without fonts from the network.
SVG = """\
<svg class="rich-terminal" xml:space="preserve" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", "Liberation Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Draws the picture; the server it started is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sky-screenshot-") as home:
        try:
            shown = "\n".join(f"\x1b[1;32m$\x1b[0m \x1b[1m{line}\x1b[0m\n{on_terminal(line, home)}" for line in SCENES)
        finally:
            on_terminal(LAST, home)
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(shown), no_wrap=True)
        console.save_svg(str(PICTURE), title=TITLE, theme=MONOKAI, code_format=SVG, unique_id="sky")


def on_terminal(line: str, home: str) -> str:
    """What a terminal shows when the shell has run this line in it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SKY", "PYTHON"))}
    environment = kept | {"HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        ["sh", "-c", line],
        cwd=ROOT,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    data = bytearray()
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the last process that had the terminal has closed it
            break
        if not chunk:
            break
        data += chunk
    process.wait()
    os.close(ours)
    return screen_of(data.decode(errors="replace"))


def screen_of(text: str) -> str:
    """The lines that are left when the moves of the cursor are done: a spinner takes itself away."""
    lines, row, start = [""], 0, 0
    for control in CONTROL.finditer(text):
        lines[row] += text[start : control.start()]
        start = control.end()
        numbers, letter, move = control.groups()
        if letter == "m":
            lines[row] += control.group()
        elif letter == "K":
            lines[row] = ""
        elif letter == "A":
            row = max(0, row - int(numbers or 1))
        elif move == "\n":
            row += 1
            lines += [""] * (row == len(lines))
    lines[row] += text[start:]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
