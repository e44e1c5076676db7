"""What every place where commands run must do; one suite for all runners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from skyserve_exec.errors import BadInput, Conflict, NotFound, RequestCancelled, Unavailable
from skyserve_exec.runners import ignore_rules
from skyserve_exec.runners.command_runner import CommandRunner, Copied
from skyserve_exec.runners.local import LocalRunner
from tests.processes import alive, everything, look
from tests.waiting import wait_until

NOWHERE = Path("/nonexistent")


@pytest.fixture(params=["local"])
def runner(request: pytest.FixtureRequest) -> CommandRunner:
    return {"local": LocalRunner}[request.param]()


@pytest.fixture
def _cancel_by_sigterm() -> Iterator[None]:
    """As in an executor: SIGTERM raises in the main thread."""

    def cancel(signum: int, frame: FrameType | None) -> None:
        raise RequestCancelled("cancelled")

    before = signal.signal(signal.SIGTERM, cancel)
    yield
    signal.signal(signal.SIGTERM, before)


def marked(mark: str) -> list[int]:
    return [seen.pid for seen in everything() if f"TEST_MARK={mark}" in seen.environment and not seen.is_zombie]


# --- running --------------------------------------------------------------------------------------------------------


def test_output_exit_code_and_input(runner: CommandRunner, tmp_path: Path) -> None:
    script = "cat; pwd; echo $GIVEN; echo wrong >&2; exit 3"
    done = runner.run(["sh", "-c", script], stdin=b"in\n", env={"GIVEN": "ü"}, cwd=str(tmp_path))
    assert (done.code, done.stdout, done.stderr) == (3, f"in\n{tmp_path}\nü\n".encode(), b"wrong\n")
    assert done.last_words == "wrong"
    assert runner.run(["sh", "-c", "kill -9 $$"]).code == 137
    assert runner.run(["sh", "-c", "exit 5"]).last_words == "exit code 5"


def test_words_are_not_shell_text(runner: CommandRunner, tmp_path: Path) -> None:
    folder = tmp_path / "a 'b\" $(touch x)"
    folder.mkdir()
    assert runner.run(["printf", "%s|", "$HOME; ls", "*", ""], cwd=str(folder)).stdout == b"$HOME; ls|*||"


def test_unknown_programs_are_named(runner: CommandRunner) -> None:
    with pytest.raises(NotFound, match="no-such-program"):
        runner.run(["no-such-program"])


def test_a_large_output_of_both_kinds_does_not_block(runner: CommandRunner) -> None:
    done = runner.run(["sh", "-c", "seq 1 300000; seq 1 300000 >&2"], stdin=b"x" * 1_000_000, timeout=30)
    assert len(done.stdout) == len(done.stderr) == 1_988_895


def test_CX10_nobody_waits_for_what_a_survivor_holds_open(runner: CommandRunner) -> None:
    started = time.monotonic()
    done = runner.run(["sh", "-c", "sleep 1000 & echo $!"], timeout=30)
    assert time.monotonic() - started < 5
    os.kill(int(done.stdout), signal.SIGKILL)


@pytest.mark.parametrize("script", ["sleep 1000", "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & sleep 1001"])
def test_what_takes_too_long_is_ended_with_its_whole_tree(runner: CommandRunner, script: str) -> None:
    mark = f"timeout-{time.monotonic_ns()}"
    with pytest.raises(Unavailable, match=r"did not end within 0\.3 s"):
        runner.run(["sh", "-c", script], env={"TEST_MARK": mark}, timeout=0.3)
    assert marked(mark) == []


@pytest.mark.usefixtures("_cancel_by_sigterm")
@pytest.mark.parametrize("script", ["sleep 1000", "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & sleep 1001"])
def test_an_interrupt_ends_the_whole_tree(runner: CommandRunner, script: str) -> None:
    mark = f"interrupt-{time.monotonic_ns()}"

    def interrupt() -> None:
        wait_until(lambda: marked(mark), what="the command runs")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(RequestCancelled):
        runner.stream(["sh", "-c", script], env={"TEST_MARK": mark})
    thread.join()
    assert marked(mark) == []


@pytest.mark.usefixtures("_cancel_by_sigterm")
def test_an_interrupt_at_any_moment_loses_no_child(runner: CommandRunner) -> None:
    mark = f"race-{time.monotonic_ns()}"
    for step in range(40):
        timer = threading.Timer(step * 0.0003, os.kill, (os.getpid(), signal.SIGTERM))
        try:
            timer.start()
            while True:
                runner.run(["sleep", "0.005"], env={"TEST_MARK": mark})
        except RequestCancelled:
            timer.join()
    assert marked(mark) == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_commands_start_with_default_signals_and_none_of_our_descriptors(runner: CommandRunner) -> None:
    with open(os.devnull) as held:
        words = runner.run(["sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd"]).stdout.split()
        assert str(held.fileno()).encode() not in words[4:]
    blocked, ignored = int(words[1], 16), int(words[3], 16)
    # 32 and 33 are the C library's own.
    assert (blocked, ignored & ~(0b11 << 31)) == (0, 0)


def test_the_environment_has_nothing_of_the_servers_own(runner: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SKYSERVE_RUN_ID": "life",
        "SKYSERVE_TOKEN": "secret",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "8",
        "SPT_NOENV": "1",
        "MINE": "kept",
    }.items():
        monkeypatch.setenv(name, value)
    plain = runner.run(["env"]).stdout.decode().splitlines()
    assert {"MINE=kept", "MKL_NUM_THREADS=8", "SKYSERVE_RUN_ID=life"} <= set(plain)
    names = {line.partition("=")[0] for line in plain}
    assert not names & {"SKYSERVE_TOKEN", "OMP_NUM_THREADS", "SPT_NOENV", "SKYSERVE_DETACHED"}
    detached = runner.run(["env"], detached=True).stdout.decode().splitlines()
    assert "SKYSERVE_DETACHED=1" in detached
    assert "SKYSERVE_RUN_ID=life" not in detached


def test_streamed_output_goes_where_ours_goes_at_once(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from skyserve_exec.runners.local import LocalRunner\n"
        "print('before')\n"
        "script = 'echo out; echo err >&2; cat; while [ ! -e go ]; do sleep 0.02; done; exit 4'\n"
        "print('code', LocalRunner().stream(['sh', '-c', script]))\n"
    )
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen([sys.executable, "-c", program], stdout=file, stderr=file, cwd=tmp_path) as process,
    ):
        wait_until(lambda: log.read_bytes() == b"before\nout\nerr\n", what="the output is there while it runs")
        (tmp_path / "go").touch()
        process.wait(timeout=10)
    assert log.read_bytes() == b"before\nout\nerr\ncode 4\n"


def test_a_detached_command_goes_on_by_itself(runner: CommandRunner, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = runner.start_detached(["sh", "-c", "echo $0 up; sleep 1000", "it is"], log=str(log))
    wait_until(lambda: log.exists() and log.read_text() == "it is up\n", what="it has started")
    seen = look(pid)
    assert seen is not None
    assert seen.is_detached
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), what="it is gone")


def test_a_follow_vector_runs_without_the_runner(runner: CommandRunner) -> None:
    assert subprocess.check_output(runner.follow_argv(["printf", "%s", "a b"])) == b"a b"


def test_a_probe_says_what_there_is(runner: CommandRunner) -> None:
    probe = runner.probe()
    assert 0 < probe.cpus <= (os.cpu_count() or 1)
    assert probe.memory > 0.1
    assert runner.run([probe.shell, "-c", "exit 7"]).code == 7
    assert runner.run([runner.python, "-S", "-E", "-c", "pass"]).code == 0


# --- files ----------------------------------------------------------------------------------------------------------


def test_files_are_written_privately_and_only_when_they_differ(runner: CommandRunner, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    runner.write_files(str(folder), {"a/b": b"one", "c": b""})
    first = (folder / "a/b").stat()
    assert first.st_mode & 0o777 == 0o600
    runner.write_files(str(folder), {"a/b": b"one", "c": b"two"})
    assert (folder / "a/b").stat().st_ino == first.st_ino
    assert (folder / "c").read_bytes() == b"two"
    assert runner.exists(str(folder / "c"))
    assert not runner.exists(str(folder / "d"))


def test_removing_a_folder_follows_no_link_and_needs_no_permission(runner: CommandRunner, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    folder = tmp_path / "cluster"
    (folder / "cache/inner").mkdir(parents=True)
    (folder / "cache/inner/file").touch()
    (folder / "link").symlink_to(precious)
    (folder / "cache/link").symlink_to(precious / "file")
    (folder / "cache/inner").chmod(0o500)
    (folder / "cache").chmod(0o500)
    runner.remove_folder(str(folder))
    runner.remove_folder(str(folder))
    assert (precious / "file").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    folder.symlink_to(precious)
    runner.remove_folder(str(folder))
    assert (precious / "file").read_text() == "kept"
    assert not folder.is_symlink()


class Folders:
    """A source with something of everything, and a target."""

    def __init__(self, runner: CommandRunner, top: Path) -> None:
        self.runner = runner
        self.source, self.target, self.state = top / "source", top / "target", top / "state"
        for folder in (self.source / "sub/empty", self.state):
            folder.mkdir(parents=True)
        (self.source / "file").write_text("one")
        (self.source / "sub/script").write_text("#!/bin/sh\n")
        (self.source / "sub/script").chmod(0o755)
        (self.source / "sub/link").symlink_to("../file")
        (self.source / "dangling").symlink_to("/nowhere/at/all")
        (self.source / "folder-link").symlink_to("sub")

    def copy(self) -> Copied:
        return self.runner.copy_folder(self.source, str(self.target), keep_out=self.state)

    def names(self) -> set[str]:
        return {str(path.relative_to(self.target)) for path in self.target.rglob("*")}


@pytest.fixture
def folders(runner: CommandRunner, tmp_path: Path) -> Folders:
    return Folders(runner, tmp_path)


def test_a_copy_has_everything_and_links_stay_links(folders: Folders) -> None:
    copied = folders.copy()
    assert (copied.files, copied.unchanged, copied.removed) == (5, 0, 0)
    assert folders.names() == {"file", "sub", "sub/empty", "sub/script", "sub/link", "dangling", "folder-link"}
    assert (folders.target / "sub/script").stat().st_mode & 0o777 == 0o755
    assert (folders.target / "sub/link").readlink() == Path("../file")
    assert (folders.target / "folder-link").readlink() == Path("sub")
    source, target = (folders.source / "file").stat(), (folders.target / "file").stat()
    assert source.st_mtime_ns == target.st_mtime_ns


def test_a_second_copy_writes_and_removes_only_what_changed(folders: Folders) -> None:
    folders.copy()
    (folders.target / "result").write_text("of a job")
    (folders.target / "sub/checkpoint").write_text("of a job")
    (folders.source / "file").write_text("three")
    (folders.source / "sub/script").unlink()
    (folders.source / "dangling").unlink()
    copied = folders.copy()
    assert (copied.files, copied.bytes, copied.unchanged, copied.removed) == (1, 5, 2, 2)
    expected = {"file", "sub", "sub/empty", "sub/link", "folder-link", "result", "sub/checkpoint"}
    assert folders.names() == expected
    assert (folders.target / "file").read_text() == "three"


def test_a_folder_that_is_gone_takes_only_its_own_files_along(folders: Folders) -> None:
    folders.copy()
    (folders.target / "sub/checkpoint").write_text("of a job")
    for path in ("sub/script", "sub/link", "folder-link"):
        (folders.source / path).unlink()
    (folders.source / "sub/empty").rmdir()
    (folders.source / "sub").rmdir()
    folders.copy()
    assert folders.names() == {"file", "dangling", "sub", "sub/checkpoint"}


def test_nothing_is_written_or_removed_through_a_link(folders: Folders, tmp_path: Path) -> None:
    folders.copy()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "script").write_text("kept")
    # A job has put a link where the source has a folder.
    folders.runner.remove_folder(str(folders.target / "sub"))
    (folders.target / "sub").symlink_to(precious)
    (folders.target / "file").unlink()
    (folders.target / "file").symlink_to(precious / "script")
    (folders.source / "sub/script").unlink()
    folders.copy()
    assert (precious / "script").read_text() == "kept"
    assert sorted(path.name for path in precious.iterdir()) == ["script"]
    assert not (folders.target / "sub").is_symlink()
    assert (folders.target / "file").read_text() == "one"


def test_a_removed_folder_behind_a_link_is_left_alone(folders: Folders, tmp_path: Path) -> None:
    folders.copy()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "script").write_text("kept")
    folders.runner.remove_folder(str(folders.target / "sub"))
    (folders.target / "sub").symlink_to(precious)
    folders.runner.remove_folder(str(folders.source / "sub"))
    folders.copy()
    assert (precious / "script").read_text() == "kept"


def test_files_of_a_job_that_are_in_the_way_are_not_lost(folders: Folders) -> None:
    folders.copy()
    (folders.target / "file").unlink()
    (folders.target / "file").mkdir()
    (folders.target / "file/result").write_text("of a job")
    with pytest.raises(Conflict, match="file"):
        folders.copy()
    assert (folders.target / "file/result").read_text() == "of a job"


def test_an_open_file_is_replaced_and_not_overwritten(folders: Folders) -> None:
    folders.copy()
    with (folders.target / "file").open() as held:
        (folders.source / "file").write_text("other text")
        folders.copy()
        assert held.read() == "one"


def test_sockets_and_pipes_are_skipped(folders: Folders) -> None:
    os.mkfifo(folders.source / "pipe")
    assert folders.copy().skipped == 1
    assert "pipe" not in folders.names()


def test_names_of_any_bytes(folders: Folders) -> None:
    odd = os.fsdecode(b"odd \xff\n'name")
    (folders.source / odd).write_text("x")
    folders.copy()
    assert (folders.target / odd).read_text() == "x"
    (folders.source / odd).unlink()
    assert folders.copy().removed == 1
    assert not (folders.target / odd).exists()


def test_the_state_directory_is_not_copied_into_itself(runner: CommandRunner, tmp_path: Path) -> None:
    state = tmp_path / "home/.sky/server"
    (state / "clusters/x").mkdir(parents=True)
    (tmp_path / "home/file").touch()
    target = state / "clusters/x/workdir"
    runner.copy_folder(tmp_path / "home", str(target), keep_out=state)
    assert {path.name for path in target.rglob("*")} == {"file", ".sky"}
    with pytest.raises(BadInput, match="inside the server's state directory"):
        runner.copy_folder(state / "clusters", str(target), keep_out=state)


@pytest.mark.parametrize("source", [NOWHERE, Path("/etc/passwd")])
def test_a_source_that_is_no_folder_is_named(runner: CommandRunner, tmp_path: Path, source: Path) -> None:
    with pytest.raises(BadInput, match=str(source)):
        runner.copy_folder(source, str(tmp_path / "target"), keep_out=NOWHERE)
    assert not (tmp_path / "target").exists()


def test_ignored_files_are_left_out(folders: Folders) -> None:
    (folders.source / ".gitignore").write_text("*.log\n/sub/empty/\n!keep.log\n")
    (folders.source / "sub/.gitignore").write_text("script\n")
    for name in ("a.log", "keep.log", "sub/b.log"):
        (folders.source / name).touch()
    assert folders.copy().ignored == 4
    assert {"keep.log", "sub/link", ".gitignore"} <= folders.names()
    assert not folders.names() & {"a.log", "sub/b.log", "sub/empty", "sub/script"}
    (folders.source / ".skyignore").write_text("file\n")
    folders.copy()
    assert {"a.log", "sub/script"} <= folders.names()
    assert "file" not in folders.names()


@pytest.mark.parametrize(
    ("patterns", "path", "ignored"),
    [
        ("*.pyc", "a/b/c.pyc", True),
        ("*.pyc", "c.pyd", False),
        ("/build", "build", True),
        ("/build", "a/build", False),
        ("docs/*.txt", "docs/a.txt", True),
        ("docs/*.txt", "docs/sub/a.txt", False),
        ("docs/*.txt", "other/docs/a.txt", False),
        ("**/cache", "a/b/cache", True),
        ("**/cache", "cache", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**", "a/x/y", True),
        ("a/**", "a", False),
        ("folder/", "folder", False),  # the path is a file here
        ("?at", "cat", True),
        ("?at", "at", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[!a-c]x", "dx", True),
        ("[]]x", "]x", True),
        (r"\#not-a-comment", "#not-a-comment", True),
        ("# comment", "# comment", False),
        (r"\!important", "!important", True),
        ("trailing   ", "trailing", True),
        (r"space\ ", "space ", True),
        ("*.log\n!keep.log", "keep.log", False),
        ("!keep.log\n*.log", "keep.log", True),
        ("a.b", "axb", False),
        ("[z-a]", "z", False),
        ("*", "anything", True),
        ("", "x", False),
    ],
)
def test_patterns_mean_what_git_says(patterns: str, path: str, ignored: bool) -> None:
    assert ignore_rules.is_ignored(path, False, ignore_rules.parse(patterns, "")) == ignored


def test_a_folder_of_thousands_of_files_is_copied_in_seconds(runner: CommandRunner, tmp_path: Path) -> None:
    for folder in range(100):
        (tmp_path / f"source/{folder}").mkdir(parents=True)
        for file in range(50):
            (tmp_path / f"source/{folder}/{file}").write_bytes(b"x" * 100)
    started = time.monotonic()
    assert runner.copy_folder(tmp_path / "source", str(tmp_path / "target"), keep_out=NOWHERE).files == 5000
    first = time.monotonic() - started
    assert runner.copy_folder(tmp_path / "source", str(tmp_path / "target"), keep_out=NOWHERE).unchanged == 5000
    print(f"5,000 files: {first:.2f} s, again: {time.monotonic() - started - first:.2f} s")
    assert time.monotonic() - started < 20
