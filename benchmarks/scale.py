"""How much is measured: every count and every time limit of the benchmarks, once.

Room: the benchmark's processes. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts of requests and rows, times in seconds."""

    rounds: int
    latency_calls: int
    throughput_calls: int
    enqueue_calls: int
    settle_seconds: float
    followers: int
    follow_seconds: float
    idle_seconds: float
    rows: int
    list_calls: int
    replacements: int
    cli_runs: int
    limit_seconds: float  # of one contestant's round, or one measurement of ours


FULL = Scale(
    rounds=3,
    latency_calls=500,
    throughput_calls=2000,
    enqueue_calls=400,
    settle_seconds=1.0,
    followers=200,
    follow_seconds=20.0,
    idle_seconds=20.0,
    rows=200_000,
    list_calls=20,
    replacements=20,
    cli_runs=15,
    limit_seconds=240.0,
)

QUICK = Scale(
    rounds=1,
    latency_calls=100,
    throughput_calls=500,
    enqueue_calls=100,
    settle_seconds=0.5,
    followers=200,
    follow_seconds=5.0,
    idle_seconds=5.0,
    rows=20_000,
    list_calls=5,
    replacements=5,
    cli_runs=5,
    limit_seconds=90.0,
)

WARM_UP_CALLS = 50
EXECUTORS = 4
CONCURRENCY = 64
START_SECONDS = 30.0  # longest start that is waited for
CALL_SECONDS = 30.0  # longest single call
