"""How soon an executor that is gone is there again.

Room: the process of this measurement. Kills executors of the server it started, and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from benchmarks.load_client import Connection
from benchmarks.ours import WAIT, is_result
from benchmarks.ours_server import TITLE, OurServer, title_of
from benchmarks.processes import wait_until
from benchmarks.scale import Scale
from benchmarks.statistics_of_runs import summary_of

PAUSE = 0.0005
BETWEEN_KILLS = 0.4  # with 4 slots in turn none is younger than 1.5 s: young ones that die are taken for failing starts


def measure(scale: Scale) -> dict[str, float]:
    """SIGKILL of an idle executor until its successor has its name, until the next result; long requests in turn."""
    figures: dict[str, float] = {}
    server = OurServer(short=4)
    try:
        server.wait_healthy()
        samples = [_kill_and_wait(server, f"short-{number % 4}") for number in range(scale.replacements)]
        figures |= summary_of("short_replaced", samples)
    finally:
        server.launched.stop()
    server = OurServer(short=1, options=("--long-executors", "1"))
    try:
        server.wait_healthy()
        after = [_kill_and_call(server) for _ in range(scale.replacements)]
        figures |= summary_of("kill_to_next_result", [seconds for seconds, _failed in after])
        figures["failed_after_kills"] = float(sum(failed for _seconds, failed in after))
        figures |= _long_in_turn(server, scale)
    finally:
        server.launched.stop()
    return figures


def _kill_and_wait(server: OurServer, slot: str) -> float:
    time.sleep(BETWEEN_KILLS)
    wait_until(lambda: slot in server.executors("short"), 10, f"{slot} is there", 0.005)
    known = _pids()
    old = server.executors("short")[slot]
    begin = time.perf_counter()
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: _is_replaced(slot, known), 10, f"{slot} is replaced", PAUSE)
    return time.perf_counter() - begin


def _is_replaced(slot: str, known: set[int]) -> bool:
    # Only new processes are looked at, so one look takes a fraction of a millisecond.
    words = (title_of(pid).removeprefix(TITLE).split() for pid in _pids() - known)
    return any(found[:1] == ["executor"] and found[-1] == slot for found in words)


def _pids() -> set[int]:
    return {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()}


def _kill_and_call(server: OurServer) -> tuple[float, int]:
    """Seconds from the kill to the next result, and how many requests failed before it."""
    target = server.located()
    connection = Connection(target)
    request = target.request("POST", "/noop", {}, WAIT)
    if not is_result(connection.exchange(request)):
        raise ValueError("no result before the kill")
    wait_until(lambda: "short-0" in server.executors("short"), 10, "short-0 is there", 0.005)
    old = server.executors("short")["short-0"]
    begin = time.perf_counter()
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{old}").exists(), 10, "the killed one is reaped", PAUSE)
    for failed in range(100):
        if is_result(connection.exchange(request)):
            connection.close()
            return time.perf_counter() - begin, failed
    raise ValueError("100 requests failed after an executor was killed")


def _long_in_turn(server: OurServer, scale: Scale) -> dict[str, float]:
    """Long no-ops one after the other in a pool of one: each takes an executor for itself."""
    target = server.located()
    connection = Connection(target)
    request = target.request("POST", "/noop_long", {}, WAIT)
    samples = []
    for _ in range(scale.replacements * 2):
        begin = time.perf_counter()
        answer = connection.exchange(request)
        samples.append(time.perf_counter() - begin)
        if not is_result(answer):
            raise ValueError(f"answer {answer.status} for a long no-op: {answer.body[:300]!r}")
    connection.close()
    return summary_of("long_noop", samples)
