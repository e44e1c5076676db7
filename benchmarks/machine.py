"""What the figures depend on: the processors, the disk's commit time, versions, and how busy the machine was.

Room: the `python -m benchmarks` process.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.statistics_of_runs import percentile

PACKAGES = ("skyserve-exec", "huey", "celery", "redis", "fastapi", "uvicorn", "uvloop", "pydantic")
COMMITS = 400


def machine_facts(directory: Path) -> dict[str, Any]:
    """Facts beside which the figures hold; takes about a second."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_model": _first_value(Path("/proc/cpuinfo"), "model name"),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: _version(name) for name in PACKAGES},
        "directory_filesystem": _filesystem(directory),
        "commit_full_p50_ms": _commit_ms(directory),
        "loop_ms": _loop_ms(),
        "load_average": os.getloadavg()[0],
    }


def _first_value(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _filesystem(directory: Path) -> str:
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point, found = line.split()[1:3]
        if directory.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def _commit_ms(directory: Path) -> float:
    """The floor below every durable figure: one row in one SQLite transaction, WAL, synchronous=FULL."""
    path = directory / "commit.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=full")
    database.execute("create table row (number integer primary key, text text)")
    samples = []
    for number in range(COMMITS):
        begin = time.perf_counter()
        database.execute("insert into row values (?, ?)", (number, "x" * 200))
        samples.append(time.perf_counter() - begin)
    database.close()
    return percentile(samples, 50) * 1000


def _loop_ms() -> float:
    """A fixed piece of Python: tells a slow or busy machine from a fast one. The best of five."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        total = 0
        for number in range(1_000_000):
            total += number & 7
        best = min(best, time.perf_counter() - begin)
    return best * 1000
