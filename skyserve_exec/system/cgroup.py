"""What this process may really use: CPUs, memory, processes (affinity, cgroup v1 and v2, /proc).

cgroup v2: cpu.max, memory.max, pids.max of the own group and every one above it; v1: cpu.cfs_quota_us and
cpu.cfs_period_us, memory.limit_in_bytes, pids.max in the mounts of /proc/self/mountinfo (cgroups(7)).

Room: serve, at start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60  # v1 writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """CPUs as a fraction, memory in bytes, and how many processes may be made (None: no limit)."""

    cpus: float
    memory: int
    processes: int | None


def read_limits(proc: Path = Path("/proc"), affinity: int | None = None, total_memory: int | None = None) -> Limits:
    """The smallest of what the machine has and what the groups of this process allow."""
    cpus = float(affinity or _affinity())
    memory = total_memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    processes: int | None = None
    for folder in _group_folders(proc):
        quota = _cpu_quota(folder)
        if quota:
            cpus = min(cpus, quota)
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(folder / name)
            if limit and limit < UNLIMITED:
                memory = min(memory, limit)
        limit = _number(folder / "pids.max")
        if limit:
            processes = limit if processes is None else min(processes, limit)
    return Limits(cpus, memory, processes)


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _group_folders(proc: Path) -> Iterator[Path]:
    """The folder of every group this process is in, and of all groups above."""
    try:
        groups = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (proc / "self/mountinfo").read_text().splitlines()]
    except OSError:
        return
    for _hierarchy, controllers, path in groups:
        for mount in mounts:
            if _fits(mount, controllers):
                yield from _upwards(Path(mount[4]), mount[3], path)


def _fits(mount: list[str], controllers: str) -> bool:
    kind = mount[mount.index("-") + 1] if "-" in mount else ""
    if not controllers:
        return kind == "cgroup2"
    options = mount[-1].split(",")
    return kind == "cgroup" and any(name in options for name in controllers.split(","))


def _upwards(mount_point: Path, root: str, path: str) -> Iterator[Path]:
    # Inside a container the mount's root may be the group itself: the path is then relative to it.
    relative = path[len(root) :] if root != "/" and path.startswith(root) else path
    folder = mount_point / relative.strip("/")
    while folder != mount_point and mount_point in folder.parents:
        yield folder
        folder = folder.parent
    yield mount_point


def _cpu_quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        return quota_us / period_us if quota_us and period_us and quota_us > 0 else None
    return None if quota == "max" else int(quota) / int(period)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
