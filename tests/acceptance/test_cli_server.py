"""sky api start, stop and info; and that nothing but start and launch starts a server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyserve_exec
from skyserve_exec import errors
from tests.acceptance.sky_command import Sky, ended, own_home
from tests.processes import alive, marked
from tests.server_under_test import is_free, read_json
from tests.waiting import wait_until

START = ("api", "start", "--long-executors", "1", "--short-executors", "1")
SLOW_END = """
import time
from skyserve_exec import operation, RequestInterrupted
@operation()
def slow_end(seconds: float) -> None:
    try:
        time.sleep(600)
    except RequestInterrupted:
        time.sleep(seconds)
        raise
"""


@pytest.fixture
def sky(tmp_path: Path) -> Iterator[Sky]:
    with own_home(tmp_path) as sky:
        yield sky


def server_pid(sky: Sky) -> int:
    return int(read_json(sky.state_dir / "server.json")["pid"])


def module(sky: Sky, name: str, text: str) -> tuple[str, str]:
    """A module of own operations in the directory where the commands run."""
    (sky.home / f"{name}.py").write_text(
        f"{text}\nfrom skyserve_exec import operation\n@operation()\ndef mine(): ...\n"
    )
    return "--operations", name


# --- start ----------------------------------------------------------------------------------------------------------


def test_start_info_stop(sky: Sky) -> None:
    begun = time.monotonic()
    done = sky.run(*START)
    print(f"healthy after {time.monotonic() - begun:.2f} s")
    information = read_json(sky.state_dir / "server.json")
    pid = information["pid"]
    assert done.err == f"The server has started at {information['endpoint']} (pid {pid}).\n"
    assert os.getsid(pid) == pid, "the server leads a session of its own"
    assert str(Path(f"/proc/{pid}/fd/0").readlink()) == "/dev/null"
    health = sky.json("api", "info")
    assert health["status"] == "healthy"
    assert health["pid"] == pid
    text = sky.run("api", "info").out
    assert "Status:          healthy" in text
    assert "from server.json" in text
    again = sky.run(*START)
    assert "already running" in again.err
    assert server_pid(sky) == pid
    done = sky.run("api", "stop")
    assert f"The server (pid {pid}) has ended after" in done.out
    assert is_free(sky.state_dir / "server.lock")
    assert not alive(pid)
    assert "No server is running" in sky.run("api", "stop").out


@pytest.mark.parametrize(
    "words",
    [
        ("status",), ("queue",), ("logs", "x"), ("cancel", "x", "-a"), ("down", "-a"), ("exec", "x", "--", "true"),
        ("api", "status"), ("api", "info"), ("api", "logs", "abc"), ("api", "cancel", "-a"), ("api", "call", "x"),
    ],
)  # fmt: skip
def test_other_commands_start_nothing(sky: Sky, words: tuple[str, ...]) -> None:
    done = sky.run(*words, code=errors.EXIT_UNREACHABLE)
    assert (
        done.err
        == f"Error: no server is running (state directory {sky.state_dir})\nHint: Start one with: sky api start\n"
    )
    assert not sky.state_dir.exists()
    assert marked(sky.mark) == []


def test_SU07_a_server_with_other_options_is_an_error_that_lists_them(sky: Sky) -> None:
    sky.run(*START)
    port = read_json(sky.state_dir / "server.json")["endpoint"].rpartition(":")[2]
    done = sky.run("api", "start", "--long-executors", "3", "--host", "::1", "--port", "7", code=errors.EXIT_CONFLICT)
    line = done.err.splitlines()[0]
    assert "a server with other options runs already at http://127.0.0.1:" in line
    assert "host is 127.0.0.1, not ::1" in line
    assert f"port is {port}, not 7" in line
    assert "long_executors is 1, not 3" in line
    assert "short_executors" not in line
    assert "sky api stop" in done.err
    sky.run("api", "start", "--port", port, "--long-executors", "1")
    sky.run("api", "start", "--long-executors", "0")


def test_SU06_a_used_port_fails_at_once_and_names_it(sky: Sky) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        begun = time.monotonic()
        done = sky.run(*START, "--port", port, code=errors.EXIT_CONFLICT)
        assert time.monotonic() - begun < 3
    assert port in done.err
    assert "before it was healthy" in done.err
    assert len(done.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--port", "99999"), "port: 99999 is not between 0 and 65535"),
        (("--port", "x"), "invalid value for '--port'"),
        (("--cancel-grace-seconds", "nan"), "cancel_grace_seconds: nan is not between"),
        (("--state-dir", "/dev/null/x"), "state_dir: /dev/null/x cannot be used"),
        (("--frob",), "no such option: --frob"),
    ],
)
def test_bad_options_start_nothing(sky: Sky, words: tuple[str, ...], message: str) -> None:
    done = sky.run("api", "start", *words, code=errors.EXIT_USAGE)
    assert message in done.err.splitlines()[0]
    assert marked(sky.mark) == []


def test_a_bad_setting_in_the_environment_is_named(sky: Sky) -> None:
    done = sky.run("api", "start", code=errors.EXIT_USAGE, SKYSERVE_PORT="eighty")
    assert "port: 'eighty' is not a int" in done.err
    assert "SKYSERVE_PORT" in done.err


def test_own_operations_that_cannot_be_imported_are_named(sky: Sky) -> None:
    done = sky.run(*START, "--operations", "no_such_module", code=None)
    assert done.code != 0
    assert "no_such_module" in done.err.splitlines()[0]
    wait_until(lambda: marked(sky.mark) == [], what="nothing is left running")


def test_SU02_a_crash_is_reported_soon_with_the_last_lines_and_how_it_ended(sky: Sky) -> None:
    text = "import os, signal, time, logging\ntime.sleep(2)\nos.kill(os.getppid(), signal.SIGKILL)"
    begun = time.monotonic()
    done = sky.run(*START, *module(sky, "crashing", text), code=errors.EXIT_UNREACHABLE)
    assert time.monotonic() - begun < 2 + 3
    assert "the server ended with signal 9 (Killed) before it was healthy" in done.err
    assert "listening on http://127.0.0.1:" in done.err, "the last lines of its log"
    assert str(sky.state_dir / "server.log") in done.err
    wait_until(lambda: marked(sky.mark) == [], what="nothing is left running")


def test_SU02_a_slow_start_is_waited_for_while_the_process_lives(sky: Sky) -> None:
    terminal = sky.terminal(*START, *module(sky, "slow", "import time\ntime.sleep(5)"))
    terminal.expect("Starting the server[^\r\n]*: 3 s")
    code, rest = ended(terminal)
    assert code == 0
    assert "The server has started" in rest


def test_ctrl_c_while_starting_says_how_to_stop_it(sky: Sky) -> None:
    terminal = sky.terminal(*START, *module(sky, "slow", "import time\ntime.sleep(5)"))
    terminal.expect("Starting the server")
    terminal.sendintr()
    code, rest = ended(terminal)
    assert code == errors.EXIT_INTERRUPTED
    assert "The server is still starting." in rest
    assert "sky api stop" in rest
    sky.run("api", "start")
    assert sky.json("api", "info")["status"] == "healthy"


def test_foreground_logs_to_the_terminal_and_ends_with_ctrl_c(sky: Sky) -> None:
    terminal = sky.terminal(*START, "--foreground")
    terminal.expect("listening on http")
    wait_until(lambda: sky.run("api", "info", code=None).code == 0, what="it answers", seconds=20)
    assert server_pid(sky) == terminal.pid
    terminal.sendintr()
    code, _ = ended(terminal)
    assert code == 0
    wait_until(lambda: marked(sky.mark) == [], what="nothing is left running")


def test_a_second_foreground_server_is_refused(sky: Sky) -> None:
    sky.run(*START)
    done = sky.run(*START, "--foreground", code=errors.EXIT_CONFLICT)
    assert str(sky.state_dir) in done.err


def test_files_of_the_current_directory_do_not_shadow_libraries(sky: Sky) -> None:
    for name in ("typing", "json", "queue", "yaml", "orjson"):
        (sky.home / f"{name}.py").write_text("raise ImportError('shadowed')")
    sky.run(*START)
    sky.run("launch", "-c", "x", "--", "true")


# --- launch starts it -----------------------------------------------------------------------------------------------


def test_SH18_launch_starts_a_server_that_outlives_it(sky: Sky) -> None:
    terminal = sky.terminal("launch", "-c", "x", "--", "echo started; sleep 1000")
    terminal.expect("The server has started")
    terminal.expect("\nstarted")
    pid = server_pid(sky)
    terminal.sendintr()
    code, _ = ended(terminal)
    assert code == errors.EXIT_INTERRUPTED
    assert alive(pid)
    assert sky.json("queue", "x", "-s")[0]["status"] == "RUNNING"


def test_launch_starts_nothing_for_bad_input_or_a_named_server(sky: Sky) -> None:
    sky.run("launch", "-c", "a/b", "--", "true", code=2)
    (sky.home / "bad.yaml").write_text("run: true\nfile_mounts: {}\n")
    done = sky.run("launch", "bad.yaml", code=2)
    assert "bad.yaml line 1: run: should be a valid string" in done.err or "line 2: file_mounts" in done.err
    done = sky.run("launch", "--endpoint", "http://127.0.0.1:9", "--", "true", code=errors.EXIT_UNREACHABLE)
    assert "the server at http://127.0.0.1:9 does not answer: connection refused" in done.err
    assert not sky.state_dir.exists()


def test_parallel_launches_start_one_server(sky: Sky) -> None:
    launches = [sky.popen("launch", "-c", f"c{number}", "--", f"echo {number}") for number in range(4)]
    outputs = [launch.communicate(timeout=90) for launch in launches]
    assert [out for out, _ in outputs] == [b"0\n", b"1\n", b"2\n", b"3\n"], outputs
    assert len([seen for seen in marked(sky.mark) if seen.title.startswith("sky: serve")]) == 1


# --- stop -----------------------------------------------------------------------------------------------------------


def test_SU04_stop_ends_only_the_server_of_this_state_directory(tmp_path: Path) -> None:
    with own_home(tmp_path / "a") as first, own_home(tmp_path / "b") as second, contextlib.ExitStack() as stack:
        editor = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import time; time.sleep(600)",
                "skyserve_exec.serve",
                "--state-dir",
                str(first.state_dir),
            ]
        )
        stack.callback(editor.wait)
        stack.callback(editor.kill)
        first.run(*START)
        second.run(*START)
        other = server_pid(second)
        first.run("api", "stop")
        assert alive(other)
        assert editor.poll() is None
        assert second.json("api", "info")["pid"] == other


def test_stop_does_not_believe_a_foreign_pid(sky: Sky) -> None:
    sky.run(*START)
    pid = server_pid(sky)
    path = sky.state_dir / "server.json"
    true_text = path.read_text()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        path.write_text(true_text.replace(str(pid), str(bystander.pid)))
        done = sky.run("api", "stop", "--timeout", "1", code=errors.EXIT_REFUSED)
        assert "has not ended within 1 s" in done.err
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert alive(pid)
    path.write_text(true_text)


def test_SU12_stop_returns_only_when_the_process_is_gone(sky: Sky) -> None:
    sky.run(*START, *module(sky, "slow_end", SLOW_END), "--shutdown-grace-seconds", "30")
    sky.run("api", "call", "slow_end", "--arg", "seconds=3", "--async")
    wait_until(lambda: sky.json("api", "status", "--status", "RUNNING")["requests"], what="it runs")
    pid = server_pid(sky)
    done = sky.run("api", "stop", "--timeout", "0.5", code=errors.EXIT_REFUSED)
    assert f"the server (pid {pid}) has not ended within 0.5 s" in done.err
    assert alive(pid)
    sky.run("api", "stop")
    assert not alive(pid)
    assert is_free(sky.state_dir / "server.lock")


def test_start_waits_for_a_server_that_is_stopping(sky: Sky) -> None:
    options = (*module(sky, "slow_end", SLOW_END), "--shutdown-grace-seconds", "30")
    sky.run(*START, *options)
    sky.run("api", "call", "slow_end", "--arg", "seconds=3", "--async")
    wait_until(lambda: sky.json("api", "status", "--status", "RUNNING")["requests"], what="it runs")
    before = server_pid(sky)
    stop = sky.popen("api", "stop")
    wait_until(lambda: b"stopping: SIGTERM" in (sky.state_dir / "server.log").read_bytes(), what="it stops")
    sky.run(*START, *options)
    assert stop.wait(30) == 0
    stop.communicate()
    assert server_pid(sky) != before
    assert not alive(before)
    assert sky.json("api", "info")["status"] == "healthy"


@pytest.mark.parametrize("rounds", [6, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_SU12_stop_and_start_in_parallel_end_consistently(sky: Sky, rounds: int) -> None:
    for number in range(rounds):
        commands = [sky.popen(*START), sky.popen("api", "stop"), sky.popen(*START), sky.popen("api", "stop")]
        outputs = [command.communicate(timeout=60) for command in commands]
        for command, (_, err) in zip(commands, outputs, strict=True):
            # A start may lose its server to a stop, and says so; a stop always ends well.
            lost = command in commands[::2] and b"stopped by somebody else while it was starting" in err
            assert command.returncode == (errors.EXIT_UNREACHABLE if lost else 0), (number, outputs)
        serving = [seen for seen in marked(sky.mark) if seen.title.startswith("sky: serve")]
        if is_free(sky.state_dir / "server.lock"):
            assert serving == []
            assert sky.run("api", "info", code=None).code == errors.EXIT_UNREACHABLE
        else:
            assert [seen.pid for seen in serving] == [server_pid(sky)]
            assert sky.json("api", "info")["status"] == "healthy"


def test_stop_while_it_starts(sky: Sky) -> None:
    start = sky.popen(*START, *module(sky, "slow", "import time\ntime.sleep(3)"))
    wait_until((sky.state_dir / "server.lock").exists, what="the server boots")
    wait_until(lambda: not is_free(sky.state_dir / "server.lock"), what="the server holds its lock")
    sky.run("api", "stop")
    _, err = start.communicate(timeout=30)
    assert start.returncode == errors.EXIT_UNREACHABLE
    assert b"stopped by somebody else while it was starting" in err
    wait_until(lambda: marked(sky.mark) == [], what="nothing is left running")


# --- several, and newer ---------------------------------------------------------------------------------------------


def test_SU13_two_servers_are_told_apart_by_flag_environment_and_config(tmp_path: Path) -> None:
    with own_home(tmp_path / "a") as first, own_home(tmp_path / "b") as second:
        for sky in (first, second):
            sky.run(*START)
        url = read_json(second.state_dir / "server.json")["endpoint"]
        token = (second.state_dir / "token").read_text().strip()
        pid = server_pid(second)
        assert first.json("api", "info")["pid"] == server_pid(first)
        by_state = first.run("api", "info", "-o", "json", "--state-dir", str(second.state_dir)).json
        assert by_state["pid"] == pid
        by_flag = first.run("--endpoint", url, "api", "info", "-o", "json", SKYSERVE_TOKEN=token).json
        assert by_flag["pid"] == pid
        by_environment = first.run("api", "info", "-o", "json", SKYSERVE_TOKEN=token, SKYSERVE_ENDPOINT=url).json
        assert by_environment["found_by"] == "the environment"
        (first.home / ".sky").mkdir(exist_ok=True)
        (first.home / ".sky/config.yaml").write_text(f"api_server:\n  endpoint: {url}\n")
        by_config = first.run("api", "info", "-o", "json", SKYSERVE_TOKEN=token).json
        assert by_config["pid"] == pid
        done = first.run("api", "info", code=errors.EXIT_UNAUTHORIZED)
        assert "token" in done.err
        (first.home / ".sky/config.yaml").unlink()


def test_SU10_a_newer_version_on_disk_is_warned_about(tmp_path: Path) -> None:
    package = tmp_path / "lib/skyserve_exec"
    shutil.copytree(Path(skyserve_exec.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    with own_home(tmp_path / "home", PYTHONPATH=str(tmp_path / "lib")) as sky:
        sky.run(*START)
        assert "Warning" not in sky.run("api", "info").err
        version = package / "version.py"
        version.write_text(version.read_text().replace("0.1.0", "0.2.0"))

        def warned() -> str | None:
            said = sky.run("api", "info").err
            return said if "is installed" in said else None

        warning = wait_until(warned, what="the warning", seconds=15)
        assert "the server runs version 0.1.0, but 0.2.0 is installed" in warning
        assert "sky api stop; sky api start" in warning
