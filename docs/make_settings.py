"""Writes docs/settings.md from the table of settings; --check only says whether it is up to date.

    python docs/make_settings.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from skyserve_exec.settings import TABLE, Setting

WORDS = {True: "on", False: "off"}
PAGE = Path(__file__).parent / "settings.md"
HEAD = """\
# Settings

<!-- Written by docs/make_settings.py from the table in skyserve_exec/settings.py: change it there. -->

Every setting is an option of `sky api start` and a variable of its environment; the option wins. A value that is not of
its type or out of its range is refused by its name, and nothing is started. What a running server uses is in
`sky api info -o json` and in its `server.json`.

| option | variable | type | default | range | meaning |
|---|---|---|---|---|---|
"""
TAIL = """
For clients (`sky`, the SDK) only:

| variable | meaning |
|---|---|
| `SKYSERVE_ENDPOINT` | Server to talk to, such as `http://127.0.0.1:46580`; `--endpoint` wins. |
| `SKYPILOT_API_SERVER_ENDPOINT` | The same, where `SKYSERVE_ENDPOINT` is not set. |
| `SKYSERVE_TOKEN` | Token of that server; without it the file `token` of the state directory is read. |
"""


def render() -> str:
    """The whole page."""
    return HEAD + "".join(map(_row, TABLE)) + TAIL


def _row(setting: Setting) -> str:
    option = setting.option if setting.type is not bool else f"{setting.option} / --no-{setting.option[2:]}"
    bounds = "" if setting.low is None else f"{_number(setting.low)} to {_number(setting.high)}"
    default = WORDS.get(setting.default, setting.default) if setting.type in {bool, str} else _number(setting.default)
    cells = (f"`{option}`", f"`{setting.env}`", setting.type.__name__, default, bounds, setting.help)
    return f"| {' | '.join(map(str, cells))} |\n"


def _number(value: float | None) -> str:
    return "" if value is None else str(value).removesuffix(".0")


def main() -> int:
    wanted = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
        return 0
    if PAGE.exists() and PAGE.read_text() == wanted:
        return 0
    print(f"{PAGE} is not what the table says; run: python {Path(__file__).relative_to(Path.cwd())}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
