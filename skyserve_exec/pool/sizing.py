"""How many executors a machine takes.

Room: serve, at start. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from skyserve_exec.settings import Settings
from skyserve_exec.states import ScheduleType
from skyserve_exec.system.cgroup import Limits

MOST_LONG, MOST_SHORT = 16, 32
LEAST_LONG, LEAST_SHORT = 1, 2
LONG_BYTES, SHORT_BYTES = 512 << 20, 256 << 20  # what a busy one may need; its imports are shared
PROCESSES_EACH = 16  # what a request may start


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """How many requests of each schedule type run at once, and where that comes from."""

    long: int
    short: int
    why: str

    def of(self, schedule_type: ScheduleType) -> int:
        return self.long if schedule_type is ScheduleType.LONG else self.short


def pool_sizes(settings: Settings, limits: Limits) -> PoolSizes:
    """One long and two short executors a CPU, less when memory or the process limit is small; never below 1 and 2."""
    cpus = max(1, round(limits.cpus))
    long, short = min(cpus, MOST_LONG), min(2 * cpus, MOST_SHORT)
    while _too_many(long, short, limits) and (long > LEAST_LONG or short > LEAST_SHORT):
        long, short = max(LEAST_LONG, long - 1), max(LEAST_SHORT, short - 1)
    long, short = max(long, LEAST_LONG), max(short, LEAST_SHORT)
    processes = "no limit" if limits.processes is None else str(limits.processes)
    why = f"{limits.cpus:g} CPUs, {limits.memory >> 20} MB memory, processes: {processes}"
    return PoolSizes(settings.long_executors or long, settings.short_executors or short, why)


def _too_many(long: int, short: int, limits: Limits) -> bool:
    memory = long * LONG_BYTES + short * SHORT_BYTES
    processes = (long + short) * PROCESSES_EACH
    return memory > limits.memory or (limits.processes is not None and processes > limits.processes)
