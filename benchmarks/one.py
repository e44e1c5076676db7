"""One contestant's round, or one measurement of this project alone, in a process of its own: prints one line of JSON.

Room: started by `python -m benchmarks`, which limits its time. Ends with every process below it gone.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.contest import measure
from benchmarks.memory import busy_seconds
from benchmarks.processes import adopt_orphans, end_descendants
from benchmarks.scale import FULL, QUICK, Scale

CONTESTANTS = {
    "ours": "benchmarks.ours:Ours",
    "huey_sqlite": "benchmarks.huey_peer:HueySqlite",
    "huey_sqlite_tuned": "benchmarks.huey_peer:HueySqliteTuned",
    "celery_redis": "benchmarks.celery_peer:CeleryRedis",
    "celery_redis_fsync": "benchmarks.celery_peer:CeleryRedisFsync",
}
ALONE = {
    "replace": "benchmarks.replacing:measure",
    "cli": "benchmarks.cli_times:measure",
    "followers": "benchmarks.followers:measure",
    "listing": "benchmarks.listing:measure",
}


def main(arguments: list[str]) -> int:
    """`python -m benchmarks.one NAME full|quick DIRECTORY [MEASURE…]`."""
    name, size, directory, *measures = arguments
    tempfile.tempdir = directory
    adopt_orphans()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGALRM, _leave)
    scale = QUICK if size == "quick" else FULL
    signal.alarm(int(scale.limit_seconds) + 10)  # should the parent be gone by then
    begin, busy = time.monotonic(), busy_seconds()
    try:
        body = _run(name, scale, measures)
    finally:
        stray = end_descendants()
    seconds = time.monotonic() - begin
    body |= {"seconds": seconds, "stray_processes": stray, "busy_cores": (busy_seconds() - busy) / seconds}
    print(json.dumps(body))
    return 0


def _run(name: str, scale: Scale, measures: list[str]) -> dict[str, Any]:
    if name in CONTESTANTS:
        outcome = measure(_load(CONTESTANTS[name])(), measures, scale)
        return {"durability": outcome.durability, "figures": outcome.figures}
    return {"figures": _load(ALONE[name])(scale)}


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    raise SystemExit(main(sys.argv[1:]))
