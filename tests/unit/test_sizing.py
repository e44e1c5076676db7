"""Pool sizes from what a process may really use: QU07, SU01."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from skyserve_exec.pool.sizing import pool_sizes
from skyserve_exec.settings import load
from skyserve_exec.system.cgroup import Limits, read_limits

GIB = 1 << 30


def machine(root: Path, groups: str, mounts: Mapping[str, str], files: Mapping[str, str]) -> Limits:
    """Limits read from a made-up /proc and made-up cgroup folders on a machine of 176 CPUs and 512 GB."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(groups)
    lines = ["22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw"]
    lines += [f"30 22 0:26 {place} rw,nosuid shared:4 - {kind}" for place, kind in mounts.items()]
    (proc / "mountinfo").write_text("\n".join(lines).replace("ROOT", str(root)) + "\n")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return read_limits(root / "proc", affinity=176, total_memory=512 * GIB)


V2 = {"/ ROOT/cg": "cgroup2 cgroup2 rw"}
V1 = {
    "/ ROOT/cpu": "cgroup cgroup rw,cpu,cpuacct",
    "/ ROOT/memory": "cgroup cgroup rw,memory",
    "/ ROOT/pids": "cgroup cgroup rw,pids",
}
V1_GROUPS = "4:pids:/box\n3:memory:/box\n2:cpu,cpuacct:/box\n1:name=systemd:/box\n"
V1_FILES = {
    "cpu/box/cpu.cfs_quota_us": "75000",
    "cpu/box/cpu.cfs_period_us": "100000",
    "memory/box/memory.limit_in_bytes": str(GIB),
    "pids/box/pids.max": "500",
}


def test_without_limits_it_is_the_machine(tmp_path: Path) -> None:
    files = {"cg/box/cpu.max": "max 100000", "cg/box/memory.max": "max", "cg/box/pids.max": "max"}
    assert machine(tmp_path, "0::/box\n", V2, files) == Limits(176, 512 * GIB, None)


def test_cgroup_v2(tmp_path: Path) -> None:
    files = {"cg/box/cpu.max": "50000 100000", "cg/box/memory.max": str(2 * GIB), "cg/box/pids.max": "300"}
    assert machine(tmp_path, "0::/box\n", V2, files) == Limits(0.5, 2 * GIB, 300)


def test_a_group_above_may_be_tighter(tmp_path: Path) -> None:
    files = {"cg/pod/cpu.max": "200000 100000", "cg/pod/box/cpu.max": "400000 100000", "cg/pod/memory.max": str(GIB)}
    assert machine(tmp_path, "0::/pod/box\n", V2, files) == Limits(2, GIB, None)


def test_in_a_container_the_mount_is_the_group_itself(tmp_path: Path) -> None:
    files = {"cg/cpu.max": "100000 100000", "cg/memory.max": str(GIB)}
    mounts = {"/docker/abc ROOT/cg": "cgroup2 cgroup2 rw"}
    assert machine(tmp_path, "0::/docker/abc\n", mounts, files) == Limits(1, GIB, None)


def test_cgroup_v1(tmp_path: Path) -> None:
    assert machine(tmp_path, V1_GROUPS, V1, V1_FILES) == Limits(0.75, GIB, 500)


def test_cgroup_v1_without_limits(tmp_path: Path) -> None:
    files = {
        "cpu/box/cpu.cfs_quota_us": "-1",
        "cpu/box/cpu.cfs_period_us": "100000",
        "memory/box/memory.limit_in_bytes": "9223372036854771712",
        "pids/box/pids.max": "max",
    }
    assert machine(tmp_path, V1_GROUPS, V1, files) == Limits(176, 512 * GIB, None)


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert read_limits(tmp_path, affinity=3, total_memory=GIB) == Limits(3, GIB, None)


def test_this_machine_has_limits() -> None:
    limits = read_limits()
    assert limits.cpus > 0
    assert limits.memory > 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("limits", "long", "short"),
    [
        (Limits(2, 4 * GIB, None), 2, 4),
        (Limits(0.75, GIB, None), 1, 2),
        (Limits(0.1, GIB // 8, 10), 1, 2),
        (Limits(4, 16 * GIB, None), 4, 8),
        (Limits(176, 512 * GIB, None), 16, 32),
        (Limits(176, 2 * GIB, None), 1, 6),
        (Limits(176, 512 * GIB, 100), 1, 5),
    ],
    ids=lambda item: (
        f"{item.cpus:g} CPUs {item.memory / GIB:g} GB {item.processes}" if isinstance(item, Limits) else ""
    ),
)
def test_sizes_are_bounded_by_cpus_memory_and_processes_and_never_zero(limits: Limits, long: int, short: int) -> None:
    sizes = pool_sizes(load({}, {}), limits)
    fits = sizes.long * GIB // 2 + sizes.short * GIB // 4 <= limits.memory
    assert fits or (sizes.long, sizes.short) == (1, 2)
    assert 1 <= sizes.long <= 16
    assert 2 <= sizes.short <= 32
    if limits.cpus <= 4 or (limits.memory > 100 * GIB and limits.processes is None):
        assert (sizes.long, sizes.short) == (long, short)
    assert f"{limits.cpus:g} CPUs" in sizes.why


def test_a_given_size_wins_over_the_machine() -> None:
    sizes = pool_sizes(load({"long_executors": 7}, {"SKYSERVE_SHORT_EXECUTORS": "40"}), Limits(1, GIB, None))
    assert (sizes.long, sizes.short) == (7, 40)
