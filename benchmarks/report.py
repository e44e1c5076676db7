"""The report: JSON for machines, a table for people, and how this project stands to its goals.

Room: the `python -m benchmarks` process. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table that compares."""

    figure: str
    label: str
    digits: int = 1


ROWS = (
    Row("latency_p50_ms", "no-op, one at a time, p50 ms", 2),
    Row("latency_p99_ms", "no-op, one at a time, p99 ms", 2),
    Row("throughput_per_s", "no-ops with result /s", 0),
    Row("throughput_cpu_all_ms", "  CPU ms each, with client", 2),
    Row("throughput_cpu_client_ms", "  of it the client", 2),
    Row("enqueue_per_s", "single submits /s", 0),
    Row("enqueue_p99_ms", "  p99 ms", 2),
    Row("enqueue_c64_per_s", "64 submits at a time /s", 0),
    Row("start_to_healthy_ms", "start to healthy ms", 0),
    Row("start_to_first_result_ms", "start to first result ms", 0),
    Row("idle_processes", "processes", 0),
    Row("idle_tree_pss_mb", "idle tree PSS MB"),
    Row("idle_tree_uss_mb", "idle tree USS MB"),
    Row("idle_executor_pss_mb", "one executor PSS MB"),
    Row("idle_executor_uss_mb", "one executor USS MB"),
    Row("loaded_tree_pss_mb", "tree PSS MB after the load"),
    Row("loaded_executor_uss_mb", "one executor USS MB after it"),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """What this project wants of one of its figures: at most, or at least, `limit`."""

    measure: str  # a contestant's name or a measurement of ours alone
    figure: str
    label: str
    limit: float
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


GOALS = (
    Goal(OURS, "latency_p50_ms", "no-op p50 ms", 2.0),
    Goal(OURS, "throughput_per_s", "no-ops /s at 64", 2000.0, at_least=True),
    Goal(OURS, "idle_tree_pss_mb", "idle tree PSS MB", 150.0),
    Goal(OURS, "idle_executor_uss_mb", "idle executor USS MB", 5.0),
    Goal("replace", "short_replaced_p50_ms", "executor replaced p50 ms", 30.0),
    Goal("cli", "api_start_ms", "healthy after 'sky api start' ms", 1000.0),
    Goal("cli", "help_over_bare_ms", "sky --help over bare python ms", 150.0),
    Goal("cli", "status_over_bare_ms", "sky api status over bare python ms", 300.0),
    Goal("followers", "sse_lag_p99_ms", "200 followers, p99 lag ms", 200.0),
    Goal("followers", "sse_health_p99_ms", "200 followers, health p99 ms", 100.0),
    Goal("followers", "idle_followers_cores", "200 idle followers, cores", 0.05),
    Goal("listing", "slowest_p50_ms", "slowest list call p50 ms", 100.0),
    Goal("listing", "largest_bytes", "largest list answer bytes", 1_000_000.0),
)


def text_of(report: Mapping[str, Any]) -> str:
    """The whole report as text."""
    parts = [_machine_lines(report["machine"])]
    contestants = report["contestants"]
    if contestants:
        parts += [_comparison(contestants), _durability_lines(contestants)]
    if report["alone"]:
        parts.append(_alone_lines(report["alone"]))
    parts.append(_goal_lines(report))
    if report["failures"]:
        parts.append("FAILED\n" + "\n".join(f"  {failure}" for failure in report["failures"]))
    return "\n\n".join(part for part in parts if part)


def median_of(report: Mapping[str, Any], measure: str, figure: str) -> float | None:
    """One figure's median over the rounds, None when it was not measured."""
    section = report["contestants"].get(measure) or report["alone"].get(measure)
    found = section["figures"].get(figure) if section else None
    return None if found is None else float(found["median"])


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _machine_lines(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['cpus']} CPUs ({machine['cpu_model']}), {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, SQLite {machine['sqlite']}\n{versions}\n"
        f"{machine['directory_filesystem']}: one durable SQLite commit takes {machine['commit_full_p50_ms']:.3f} ms; "
        f"a million turns of a loop {machine['loop_ms']:.0f} ms; load average before {machine['load_average']:.1f}"
    )


def _comparison(contestants: Mapping[str, Any]) -> str:
    rows = [["", *contestants]]
    for row in ROWS:
        cells = [_cell(section["figures"].get(row.figure), row.digits) for section in contestants.values()]
        if any(cells):
            rows.append([row.label, *cells])
    busy = [_cell(section["figures"].get("busy_cores"), 1) for section in contestants.values()]
    return grid([*rows, ["cores of the machine busy (all)", *busy]])


def _cell(figure: Mapping[str, Any] | None, digits: int) -> str:
    return "" if figure is None else f"{figure['median']:,.{digits}f}"


def _durability_lines(contestants: Mapping[str, Any]) -> str:
    return "Durability\n" + "\n".join(f"  {name}: {section['durability']}" for name, section in contestants.items())


def _alone_lines(alone: Mapping[str, Any]) -> str:
    rows = [
        [f"{measure} {figure}", f"{value['median']:,.2f}"]
        for measure, section in alone.items()
        for figure, value in section["figures"].items()
    ]
    return "This project alone\n" + grid(rows)


def _goal_lines(report: Mapping[str, Any]) -> str:
    rows = []
    for goal in GOALS:
        value = median_of(report, goal.measure, goal.figure)
        if value is not None:
            sign = ">=" if goal.at_least else "<="
            rows.append([goal.label, f"{value:,.2f}", f"{sign} {goal.limit:,.2f}", _word(goal.is_met(value))])
    rows += _against_peers(report, "latency_p50_ms", "no-op p50, the best peer", lambda ours, best: ours < best, min)
    rows += _against_peers(report, "throughput_per_s", "no-ops /s, the best peer", lambda ours, best: ours > best, max)
    return "Goals\n" + grid(rows) if rows else ""


def _against_peers(
    report: Mapping[str, Any],
    figure: str,
    label: str,
    better: Callable[[float, float], bool],
    best_of: Callable[[list[float]], float],
) -> list[list[str]]:
    ours = median_of(report, OURS, figure)
    others = [median_of(report, name, figure) for name in report["contestants"] if name != OURS]
    peers = [value for value in others if value is not None]
    if ours is None or not peers:
        return []
    best = best_of(peers)
    return [[label, f"{ours:,.2f}", f"{best:,.2f}", _word(better(ours, best))]]


def _word(met: bool) -> str:
    return "met" if met else "MISSED"
