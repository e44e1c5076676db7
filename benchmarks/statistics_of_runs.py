"""Percentiles of one run, and medians over the rounds.

Room: the benchmark's processes. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` of all samples do not exceed (nearest rank).

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = max(1, math.ceil(len(ordered) * percent / 100))
    return ordered[rank - 1]


def summary_of(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the longest of durations in seconds, as figures in milliseconds."""
    return {
        f"{name}_p50_ms": percentile(seconds, 50) * 1000,
        f"{name}_p99_ms": percentile(seconds, 99) * 1000,
        f"{name}_max_ms": max(seconds) * 1000,
    }


def over_rounds(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """For every figure its median over the rounds that have it, and the single values in order."""
    names = list(dict.fromkeys(name for figures in rounds for name in figures))
    merged: dict[str, dict[str, object]] = {}
    for name in names:
        values = [figures[name] for figures in rounds if name in figures]
        merged[name] = {"median": median(values), "rounds": values}
    return merged
