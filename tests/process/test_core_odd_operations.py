"""Operations that close the streams, fork, or leave with odd exit codes harm nobody else."""

from __future__ import annotations

from pathlib import Path

from tests.server_under_test import running_server

MODULE = """
import os, sys, time
from skyserve_exec import ExitCode, operation


@operation()
def close_streams() -> str:
    sys.stdout.close()
    sys.stderr.close()
    return "closed"


@operation()
def lose_streams() -> str:
    del sys.stdout
    sys.stderr = None
    return "lost"


@operation()
def say(text: str) -> str:
    print(text)
    print(text, file=sys.stderr)
    return text


@operation()
def fork() -> str:
    if os.fork() == 0:
        return "child"
    time.sleep(0.3)
    return "parent"


@operation()
def end_with(code: int) -> ExitCode:
    return ExitCode(code)


@operation()
def leave_with(code: int) -> None:
    sys.exit(code)
"""


def test_odd_operations_harm_no_other(tmp_path: Path) -> None:
    (tmp_path / "odd_operations.py").write_text(MODULE)
    with running_server(tmp_path, "--operations", "odd_operations", "--short-executors", "1") as server:
        for name, result in {"close_streams": "closed", "lose_streams": "lost"}.items():
            assert server.result(name) == result
            request_id = server.submit("say", text="said")
            assert server.get(request_id)["result"] == "said"
            assert server.log(request_id) == b"said\nsaid\n"
        assert server.result("fork") == "parent"
        assert server.run("end_with", code=255)["exit_code"] == 255
        for code in (256, -1):
            record = server.run("end_with", code=code)
            assert (record["status"], record["error"]["type"]) == ("FAILED", "BadExitCode")
        assert server.run("leave_with", code=256 + 3)["exit_code"] == 3
