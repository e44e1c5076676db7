"""The watch over the event loop: a real loop that is really blocked."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skyserve_exec.server.stall_watch import StallWatch
from tests.waiting import wait_until

LIMIT = 0.1


def run_blocked(block: Callable[[], object], *, limit: float = LIMIT) -> StallWatch:
    """Runs a loop in which one callback does `block`."""

    async def main() -> StallWatch:
        watch = StallWatch(limit)
        watch.start(asyncio.get_running_loop())
        await asyncio.sleep(limit)
        block()
        await asyncio.sleep(limit * 2)
        watch.stop()
        return watch

    return asyncio.run(main())


def sleep_in_a_callback() -> None:
    time.sleep(LIMIT * 5)


def work_without_the_interpreter_lock_for_others() -> None:
    """One call into C that holds the lock: no thread can look at the frame meanwhile."""
    list(map(str, range(4_000_000)))


def test_HT02_a_blocked_loop_is_one_line_with_its_frame(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watch = run_blocked(sleep_in_a_callback)
    assert watch.count == 1
    assert LIMIT * 4 < watch.longest < LIMIT * 20
    (record,) = caplog.records
    assert "sleep_in_a_callback" in record.message
    assert "test_server_stall_watch.py:" in record.message
    assert "blocked for 0." in record.message
    assert "\n" not in record.message


def test_work_in_c_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    watch = run_blocked(work_without_the_interpreter_lock_for_others)
    assert watch.count >= 1
    assert "work_without" in caplog.text


def test_a_loop_that_turns_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    watch = run_blocked(lambda: hashlib.sha256(b"x" * 1000).digest(), limit=0.5)
    assert watch.count == 0
    assert caplog.records == []


PROGRAM = """
import asyncio, sys
from skyserve_exec.server.stall_watch import StallWatch

async def main():
    watch = StallWatch(0.2)
    watch.start(asyncio.get_running_loop())
    print("up", flush=True)
    while not await asyncio.to_thread(sys.stdin.readline):
        pass
    await asyncio.sleep(0.5)
    watch.stop()
    print(watch.count, flush=True)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_is_no_stall(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        stopped = time.monotonic()
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: time.monotonic() - stopped > 1.0, what="it was stopped for a second")
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0\n"
