"""The first steps of a forked child: its own session, default signals, no descriptor but the ones meant for it.

Room: executor or tail, between fork and its real work.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import setproctitle

from skyserve_exec import logsetup
from skyserve_exec.executor.captured_output import set_up_streams
from skyserve_exec.messages import SpawnTail
from skyserve_exec.system import deathwatch, fds
from skyserve_exec.system.signals import restore_defaults

OOM_SCORE = 500  # the kernel takes executors and tails before serve (proc(5), oom_score_adj)
COMMAND_NOT_FOUND = 127


def become_executor(slot: str, parent: int, channel: int) -> None:
    """Turns the forked child into an executor."""
    _leave_the_parent(parent)
    deathwatch.adopt_orphans()
    logsetup.leave_to_operations()  # closes its file by itself, before the number can be another's
    fds.close_all_but({0, 1, 2, channel})
    setproctitle.setproctitle(f"sky: executor {slot}")
    set_up_streams()


def become_tail(order: SpawnTail, parent: int) -> None:
    """Turns the forked child into a tail session. Never returns."""
    try:
        _leave_the_parent(parent)
        log = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        fds.close_all_but({0, 1, 2})
        os.chdir(order.cwd)
        os.execvpe(order.argv[0], order.argv, dict(os.environ) | order.env)
    except BaseException as error:
        os.write(2, f"cannot start {order.argv[0]}: {error}\n".encode())
    finally:
        os._exit(COMMAND_NOT_FOUND)


def _leave_the_parent(parent: int) -> None:
    os.setsid()
    deathwatch.die_with_parent(parent)
    restore_defaults()
    with suppress(OSError):  # not on this kernel, or not allowed: it then chooses by size alone
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null > 2:
        os.close(null)
