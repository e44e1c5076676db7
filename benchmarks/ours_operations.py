"""The operations that this project's server runs in the benchmarks.

Room: the spawner and its executors.
"""

from __future__ import annotations

import time

from skyserve_exec import operation

LONGEST_SECONDS = 180.0


@operation()
def noop() -> int:
    """Does nothing; a number as in the other contestants."""
    return 1


@operation(schedule_type="long")
def noop_long() -> int:
    """Does nothing, in an executor that serves this one request."""
    return 1


@operation()
def hold(seconds: float) -> None:
    """Keeps a short executor busy and prints nothing."""
    time.sleep(min(seconds, LONGEST_SECONDS))


@operation(schedule_type="long")
def ticks(seconds: float, per_second: float) -> int:
    """Prints lines at a steady pace, each with the monotonic time at which it was printed; returns how many."""
    begin = time.monotonic()
    count = int(min(seconds, LONGEST_SECONDS) * per_second)
    for number in range(count):
        time.sleep(max(0.0, begin + number / per_second - time.monotonic()))
        print(f"tick {time.monotonic_ns()} .", flush=True)
    return count
