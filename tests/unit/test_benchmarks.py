"""The pure parts of the benchmarks: percentiles, the lean client's parser, the table.

Room: pytest, no processes.
"""

from __future__ import annotations

import pytest

from benchmarks.load_client import Target, answer_in
from benchmarks.memory import memory_of
from benchmarks.report import GOALS, Goal, grid, text_of
from benchmarks.statistics_of_runs import over_rounds, percentile, summary_of

MACHINE = {
    "cpus": 2,
    "cpu_model": "some",
    "memory_gb": 4.0,
    "kernel": "6",
    "python": "3",
    "sqlite": "3",
    "packages": {"huey": "3"},
    "directory_filesystem": "ext4",
    "commit_full_p50_ms": 0.1,
    "loop_ms": 30.0,
    "load_average": 0.0,
}


def test_percentile_is_the_nearest_rank() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert (percentile(samples, 50), percentile(samples, 99), percentile(samples, 100)) == (50, 99, 100)
    assert percentile([7.0], 1) == 7.0
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_summary_is_in_milliseconds() -> None:
    assert summary_of("x", [0.001, 0.002, 0.003]) == {"x_p50_ms": 2.0, "x_p99_ms": 3.0, "x_max_ms": 3.0}


def test_rounds_keep_their_values_and_gain_a_median() -> None:
    merged = over_rounds([{"a": 1.0, "b": 5.0}, {"a": 9.0}, {"a": 2.0}])
    assert merged == {"a": {"median": 2.0, "rounds": [1.0, 9.0, 2.0]}, "b": {"median": 5.0, "rounds": [5.0]}}


def test_a_response_is_complete_with_its_last_byte() -> None:
    whole = b"HTTP/1.1 202 Accepted\r\nContent-Type: x\r\nCONTENT-Length: 5\r\n\r\nhello"
    assert all(answer_in(whole[:size]) is None for size in range(len(whole)))
    answer = answer_in(whole)
    assert answer is not None
    assert (answer.status, answer.body) == (202, b"hello")


def test_a_request_names_host_token_and_length() -> None:
    target = Target("127.0.0.1", 80, "secret")
    head, _, body = target.request("POST", "/noop", {"a": 1}, keep=False).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /noop HTTP/1.1"
    assert {b"Host: 127.0.0.1:80", b"Authorization: Bearer secret", b"Connection: close"} <= set(lines)
    assert f"Content-Length: {len(body)}".encode() in lines


def test_memory_of_a_process_that_is_gone_is_nothing() -> None:
    assert memory_of(2**22 + 1).pss == 0


def test_the_grid_aligns() -> None:
    assert grid([["", "a"], ["name", "100"]]) == "        a\nname  100"


def test_a_report_says_which_goals_are_met() -> None:
    ours = {"durability": "full", "figures": over_rounds([{"latency_p50_ms": 1.5, "throughput_per_s": 1500.0}])}
    peer = {"durability": "none", "figures": over_rounds([{"latency_p50_ms": 1.0, "throughput_per_s": 900.0}])}
    report = {"machine": MACHINE, "contestants": {"ours": ours, "peer": peer}, "alone": {}, "failures": ["x: y"]}
    lines = [line.split() for line in text_of(report).splitlines()]
    assert ["no-op", "p50", "ms", "1.50", "<=", "2.00", "met"] in lines
    assert ["no-ops", "/s", "at", "64", "1,500.00", ">=", "2,000.00", "MISSED"] in lines
    assert ["no-op", "p50,", "the", "best", "peer", "1.50", "1.00", "MISSED"] in lines
    assert ["no-ops", "/s,", "the", "best", "peer", "1,500.00", "900.00", "met"] in lines
    assert ["x:", "y"] in lines


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.measure}-{goal.figure}")
def test_a_goal_is_met_at_its_limit(goal: Goal) -> None:
    assert goal.is_met(goal.limit)
    assert not goal.is_met(goal.limit - 1 if goal.at_least else goal.limit + 1)
