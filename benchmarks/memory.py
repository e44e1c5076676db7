"""Memory and CPU time of processes, as the kernel counts them.

Room: the benchmark's processes. Reads /proc only.

PSS divides a page by the processes that share it, so the PSS of a tree is what the tree really takes. USS is what would
be free if this one process ended: its private pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Sums over some processes, in bytes."""

    rss: int
    pss: int
    uss: int

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, self.pss + other.pss, self.uss + other.uss)


NOTHING = Memory(0, 0, 0)


def memory_of(pid: int) -> Memory:
    """Memory of one process; nothing when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return NOTHING
    sizes: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) * 1024
    if not sizes:
        return NOTHING
    return Memory(sizes["Rss"], sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])


def memory_of_all(pids: Iterable[int]) -> Memory:
    """Memory of several processes together."""
    return sum((memory_of(pid) for pid in pids), NOTHING)


def cpu_seconds(pid: int) -> float:
    """User and system time of one process without its children; 0 when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def busy_seconds() -> float:
    """CPU time that all processes of the machine took since boot, without idle and I/O wait."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / TICK
