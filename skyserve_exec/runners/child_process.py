"""One command as a child process: started without losing sight of it, waited for, and ended with its whole tree.

Room: executor, inside a running operation; an interrupt (an exception raised from SIGTERM) may come at any line.
"""

from __future__ import annotations

import os
import select
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from skyserve_exec.errors import NotFound, Unavailable
from skyserve_exec.system import proctree
from skyserve_exec.system.signals import ALL_CATCHABLE

INTERRUPTS = {signal.SIGTERM, signal.SIGINT, signal.SIGALRM}
GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL; below the request's own grace
POLL_SECONDS = 0.02
COMMAND_MARKER = "SKYSERVE_COMMAND_ID"  # in the environment of all that descends from one command
IN_DIRECTORY = 'cd -- "$0" && exec "$@"'


def run_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    descriptors: tuple[int, int, int],
    timeout: float | None,
) -> int:
    """Runs a command in a session of its own; returns its exit code, 128+N when signal N ended it.

    Raises:
        NotFound: there is no such program.
        Unavailable: it took longer than `timeout` seconds; it has been ended.
    """
    command_id = uuid.uuid4().hex
    code = None
    # An interrupt between the start and the `try`, or between the end and its record, would lose sight of the child.
    with interrupts_deferred() as mask:
        pid = _spawn(argv, {**env, COMMAND_MARKER: command_id}, cwd, descriptors)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            has_ended = _wait(pid, timeout)
            signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        except BaseException:
            _end_tree(pid, command_id)
            raise
        if has_ended:
            code = _exit_code(os.waitpid(pid, 0)[1])
        else:
            _end_tree(pid, command_id)
    if code is None:
        raise Unavailable(f"{argv[0]} did not end within {timeout:g} s")
    return code


@contextmanager
def interrupts_deferred() -> Iterator[set[signal.Signals]]:
    """What must not be torn apart: an interrupt that comes in here is raised when it ends. Gives the mask before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield {signal.Signals(number) for number in mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, descriptors: tuple[int, int, int]) -> int:
    words = list(argv) if cwd is None else ["/bin/sh", "-c", IN_DIRECTORY, cwd, *argv]
    moves = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(descriptors)]
    try:
        return os.posix_spawnp(
            words[0], words, env, file_actions=moves, setsid=True, setsigmask=(), setsigdef=ALL_CATCHABLE
        )
    except FileNotFoundError:
        raise NotFound(f"there is no program {words[0]}") from None


def _wait(pid: int, timeout: float | None) -> bool:
    """Until it has ended; False after `timeout`. It is not reaped yet, so its pid stays its own."""
    pin = os.pidfd_open(pid)
    try:
        return bool(select.select([pin], [], [], timeout)[0])
    finally:
        os.close(pin)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_tree(pid: int, command_id: str) -> None:
    """SIGTERM to all of it, a grace, SIGKILL; returns when nothing of it is left."""
    members = _members(pid, command_id)
    # All of its group at once: a shell must not start another child between two signals.
    proctree.signal_pid(-pid, signal.SIGTERM)
    for member in members:
        if _group_of(member) != pid:
            proctree.signal_pid(member, signal.SIGTERM)
    if not _wait_until(lambda: not _members(pid, command_id), GRACE_SECONDS):
        while left := _members(pid, command_id):
            for member in left:
                proctree.signal_pid(member, signal.SIGKILL)
            _wait_until(lambda: not _members(pid, command_id), POLL_SECONDS)
    os.waitpid(pid, 0)


def _members(pid: int, command_id: str) -> set[int]:
    """What is alive of the command's tree: it, what descends from it, and what carries its mark wherever it moved."""
    marked = {int(name) for name in os.listdir("/proc") if name.isdigit() and _is_marked(int(name), command_id)}
    found = marked | {pid} | set(proctree.descendants_of(pid))
    return {member for member in found if proctree.state_of(member) not in {"Z", "X", ""}}


def _is_marked(pid: int, command_id: str) -> bool:
    return proctree.has_environment(pid, COMMAND_MARKER, command_id) and not proctree.is_detached(pid)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
