"""Own operations that tests load with --operations tests.operations_under_test: good ones, slow ones, nasty ones."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal, NoReturn

from skyserve_exec import ExitCode, RequestInterrupted, current_request, operation
from skyserve_exec.request_context import TailHandOff

KEPT: list[bytearray] = []  # what a careless operation keeps for ever
How = Literal["child", "session", "double_fork"]


# --- plain ----------------------------------------------------------------------------------------------------------


@operation()
def noop() -> None:
    """Nothing."""


@operation(schedule_type="long")
def noop_long() -> None:
    """Nothing, in a process of its own."""


@operation()
def echo(value: Any = None) -> Any:
    """What came in."""
    return value


@operation()
def typed(words: list[str], least: int = 1, ratio: float = 0.5, flag: bool = False) -> dict[str, int]:
    """Parameters of several types."""
    return {word: len(word) for word in words if len(word) >= least and (flag or ratio)}


@operation()
def where() -> dict[str, Any]:
    """Who runs this."""
    return _where()


@operation(schedule_type="long")
def where_long() -> dict[str, Any]:
    """Who runs this, in the long pool."""
    return _where()


@operation()
def exit_code(code: int, result: Any = None) -> ExitCode:
    """A request with an exit code of its own."""
    return ExitCode(code, result)


# --- slow -----------------------------------------------------------------------------------------------------------


@operation()
def sleep_for(seconds: float, marker: str = "", cleanup_seconds: float = 0.0) -> float:
    """Writes the file `marker` at its start, sleeps, and takes `cleanup_seconds` to end when interrupted."""
    return _sleep(seconds, marker, cleanup_seconds)


@operation(schedule_type="long")
def sleep_long(seconds: float, marker: str = "", cleanup_seconds: float = 0.0) -> float:
    """The same in the long pool."""
    return _sleep(seconds, marker, cleanup_seconds)


@operation(restartable=True)
def sleep_again(seconds: float, marker: str = "") -> int:
    """Run again when its executor or server dies; the attempt it succeeded in."""
    if marker:
        with Path(marker).open("a") as file:
            file.write(f"{current_request().attempt}\n")
    time.sleep(seconds)
    return current_request().attempt


@operation(deadline=0.5)
def sleep_past_deadline(seconds: float = 30.0, marker: str = "") -> None:
    """Longer than its deadline."""
    _sleep(seconds, marker, 0.0)


@operation()
def ignore_term(seconds: float, marker: str = "", how: Literal["signal", "except"] = "signal") -> str:
    """Does not let itself be interrupted: by a signal disposition, or by catching everything."""
    if how == "signal":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _touch(marker)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(BaseException):
            time.sleep(deadline - time.monotonic())
    return "not interrupted"


# --- output ---------------------------------------------------------------------------------------------------------


@operation()
def print_lines(count: int, interval: float = 0.0, text: str = "line") -> int:
    """Numbered lines."""
    for number in range(count):
        print(f"{text} {number}")
        if interval:
            time.sleep(interval)
    return count


@operation()
def print_bytes(data: str, chunk: int = 0, interval: float = 0.0) -> int:
    """Exact bytes (base64), all at once or in chunks."""
    raw = base64.b64decode(data)
    step = chunk or len(raw) or 1
    for start in range(0, len(raw), step):
        sys.stdout.buffer.write(raw[start : start + step])
        sys.stdout.buffer.flush()
        if interval:
            time.sleep(interval)
    return len(raw)


@operation()
def print_everywhere() -> None:
    """Every way in which an operation and its children write."""
    print("from print")
    print("from stderr", file=sys.stderr)
    sys.stdout.flush()
    os.write(1, b"from descriptor 1\n")
    os.write(2, b"from descriptor 2\n")
    logging.getLogger("some.library").warning("from logging")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("some.library").info("from configured logging")
    subprocess.run(["sh", "-c", "echo from child; echo from child stderr >&2"], check=True)
    print("no newline at the end", end="")


# --- ends -----------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise ValueError("no text for you")


@operation()
def raise_error(kind: str = "ValueError", message: str = "wrong on purpose") -> NoReturn:
    """Fails in one of many ways."""
    if kind == "RecursionError":
        _recurse()
    if kind == "chained":
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise RuntimeError(message) from error
    kinds: dict[str, BaseException] = {
        "ValueError": ValueError(message),
        "OddError": OddError(message),
        "KeyboardInterrupt": KeyboardInterrupt(message),
        "SystemExit": SystemExit(7),
        "GeneratorExit": GeneratorExit(message),
        "MemoryError": MemoryError(message),
        "BaseExceptionGroup": BaseExceptionGroup(message, [ValueError("one"), KeyboardInterrupt()]),
    }
    raise kinds[kind]


@operation()
def raise_odd_message(kind: Literal["surrogate", "long", "controls"]) -> NoReturn:
    """Fails with a message that is hard to carry."""
    raise ValueError({"surrogate": "a \ud800 b", "long": "x" * 1_000_000, "controls": "nul \x00 and \x1b[31m"}[kind])


@operation()
def unencodable(kind: str) -> Any:
    """A result that JSON cannot hold."""
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    values: dict[str, Any] = {
        "object": object(),
        "set": {1, 2},
        "bytes": b"\xff",
        "nan": float("nan"),
        "loop": loop,
        "deep": deep,
        "surrogate": "\ud800",
        "keys": {(1, 2): 3},
        "big_integer": 1 << 100,
        "huge": "x" * (6 * 1024 * 1024),
    }
    return values[kind]


@operation()
def crash(how: str, mb: int = 0) -> None:
    """The executor dies under the request."""
    _crash(how, mb)


@operation(restartable=True)
def crash_until(attempt: int) -> int:
    """Dies in every attempt before this one."""
    if current_request().attempt < attempt:
        _crash("kill", 0)
    return current_request().attempt


# --- what is left behind --------------------------------------------------------------------------------------------


@operation()
def grow_memory(mb: int, keep: bool = False, seconds: float = 0.0) -> int:
    """Takes real memory, and keeps it if told so."""
    block = bytearray(mb * 1024 * 1024)
    block[::4096] = b"x" * len(block[::4096])
    if keep:
        KEPT.append(block)
    time.sleep(seconds)
    return os.getpid()


@operation()
def spawn_sleep(how: How = "child", seconds: float = 600.0, wait: bool = False, pid_file: str = "") -> int:
    """Starts a sleeping process: a child, one in its own session, or one whose parent is gone."""
    pid = _spawn_sleep(how, seconds)
    if pid_file:
        Path(pid_file).write_text(f"{pid}\n")
    if wait:
        time.sleep(seconds)
    return pid


@operation()
def leave_thread(seconds: float = 600.0) -> int:
    """Leaves a thread that goes on."""
    threading.Thread(target=time.sleep, args=(seconds,), daemon=True, name="left behind").start()
    return os.getpid()


@operation()
def leave_descriptors(count: int) -> int:
    """Leaves descriptors open."""
    for _ in range(count):
        os.open("/dev/null", os.O_RDONLY)
    return os.getpid()


@operation()
def change_everything(directory: str) -> int:
    """Leaves nothing of its process as it was."""
    os.environ["SKYSERVE_TEST_CHANGED"] = "yes"
    os.environ.pop("HOME", None)
    os.chdir(directory)
    os.umask(0o777)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger().addHandler(logging.NullHandler())
    logging.disable(logging.CRITICAL)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return os.getpid()


@operation()
def report_everything() -> dict[str, Any]:
    """What `change_everything` may have left."""
    print("this line must arrive")
    umask = os.umask(0)
    os.umask(umask)
    return {
        "pid": os.getpid(),
        "changed": os.environ.get("SKYSERVE_TEST_CHANGED"),
        "home": os.environ.get("HOME"),
        "cwd": str(Path.cwd()),
        "umask": umask,
        "signals": {name: str(signal.getsignal(signal.Signals[name])) for name in ("SIGUSR1", "SIGINT", "SIGALRM")},
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, set())],
        "log_level": logging.getLogger().level,
        "log_handlers": [type(handler).__name__ for handler in logging.getLogger().handlers],
        "log_disabled": logging.root.manager.disable,
        "stdin": Path("/proc/self/fd/0").readlink().as_posix(),
    }


# --- tails ----------------------------------------------------------------------------------------------------------


@operation(restartable=True)
def hand_off(script: str, again: int = 0, code: int = 0) -> TailHandOff | ExitCode:
    """Follows `sh -c script` as a tail session, `again` more times, then ends with `code`."""
    resume = current_request().resume
    done = 0 if resume is None else int(resume["done"])
    if done <= again:
        return TailHandOff(argv=("sh", "-c", script), resume={"done": done + 1}, env={"TAIL_NUMBER": str(done)})
    return ExitCode(code, {"tails": done})


@operation()
def hand_off_badly(what: Literal["resume", "argv", "empty", "nul", "env"]) -> TailHandOff:
    """A hand-off that no other process could carry out."""
    argv: tuple[Any, ...] = {"argv": ("true", 1), "empty": (), "nul": ("true", "a\0b")}.get(what, ("true",))
    resume: dict[str, Any] = {"what": object() if what == "resume" else what}
    env: dict[str, Any] = {"NUMBER": 1} if what == "env" else {}
    return TailHandOff(argv=argv, resume=resume, env=env)


# --- steps ----------------------------------------------------------------------------------------------------------


def _touch(marker: str) -> None:
    if marker:
        # Whole or not at all: an interrupt may come at any line.
        new = Path(f"{marker}.new")
        new.write_text(f"{time.time()} {os.getpid()}\n")
        new.replace(marker)


def _sleep(seconds: float, marker: str, cleanup_seconds: float) -> float:
    _touch(marker)
    try:
        time.sleep(seconds)
    except RequestInterrupted as interruption:
        print(f"interrupted by {type(interruption).__name__}", flush=True)
        time.sleep(cleanup_seconds)
        _touch(f"{marker}.cleaned" if marker else "")
        raise
    return seconds


def _where() -> dict[str, Any]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "boot_mark": os.environ.get("SKYSERVE_RUN_ID"),
        "test_mark": os.environ.get("SKYSERVE_TEST_MARK"),
        "threads": {name: os.environ.get(name) for name in names},
        "request_id": current_request().request_id,
        "modules": sorted(sys.modules),
        "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
    }


def _spawn_sleep(how: How, seconds: float) -> int:
    argv = ["sleep", str(seconds)]
    if how == "child":
        return subprocess.Popen(argv).pid
    if how == "session":
        return subprocess.Popen(argv, start_new_session=True).pid
    line = f"sleep {seconds} </dev/null >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["sh", "-c", line], check=True, capture_output=True, start_new_session=True).stdout)


def _crash(how: str, mb: int) -> None:
    print("last words", flush=True)
    block = bytearray(b"x") * (mb * 1024 * 1024)
    if how == "exit":
        os._exit(3)
    if how == "sys_exit":
        sys.exit(3)
    signum = {"segv": signal.SIGSEGV, "kill": signal.SIGKILL, "abort": signal.SIGABRT, "term": signal.SIGTERM}[how]
    os.kill(os.getpid(), signum)
    time.sleep(30)
    del block


def _recurse() -> None:
    _recurse()
