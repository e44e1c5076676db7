"""What the command line costs over a bare interpreter, and `sky api start` and `stop`.

Room: the process of this measurement. Every command runs with a private home and state directory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.processes import DidNotHappen, environment, fresh_place
from benchmarks.scale import START_SECONDS, Scale

SKY = str(Path(sys.executable).parent / "sky")
BARE = (sys.executable, "-c", "pass")
COMMANDS = {"help": (SKY, "--help"), "status": (SKY, "api", "status"), "info": (SKY, "api", "info")}


def measure(scale: Scale) -> dict[str, float]:
    """Medians in milliseconds; commands take turns with the bare interpreter."""
    starts = [_start_and_stop() for _ in range(max(2, scale.cli_runs // 3))]
    figures = {
        "api_start_ms": median(start for start, _stop in starts) * 1000,
        "api_start_longest_ms": max(start for start, _stop in starts) * 1000,
        "api_stop_ms": median(stop for _start, stop in starts) * 1000,
    }
    place = fresh_place()
    _run(place, (SKY, "api", "start", "--port", "0"))
    try:
        times = _times_of(place, {"bare": BARE} | COMMANDS, scale.cli_runs)
    finally:
        _run(place, (SKY, "api", "stop"))
    figures["bare_ms"] = times["bare"] * 1000
    for name in COMMANDS:
        figures[f"{name}_over_bare_ms"] = (times[name] - times["bare"]) * 1000
    return figures


def _start_and_stop() -> tuple[float, float]:
    place = fresh_place()
    start = _run(place, (SKY, "api", "start", "--port", "0"))
    stop = _run(place, (SKY, "api", "stop"))
    return start, stop


def _times_of(place: Path, commands: dict[str, tuple[str, ...]], runs: int) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(runs + 1):
        for name, argv in commands.items():
            took = _run(place, argv)
            if number > 0:  # the first round fills the page cache
                samples[name].append(took)
    return {name: median(values) for name, values in samples.items()}


def _run(place: Path, argv: Sequence[str]) -> float:
    """Seconds one command takes.

    Raises:
        DidNotHappen: it failed, or did not end in time.
    """
    output = place / "output"  # a file: a server left running must not hold a pipe open
    begin = time.perf_counter()
    with output.open("wb") as stream:
        try:
            done = subprocess.run(
                argv,
                cwd=place,
                env=environment(place, {"SKYSERVE_STATE_DIR": str(place / "state")}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DidNotHappen(f"{' '.join(argv)} took over {START_SECONDS:g} s") from None
    took = time.perf_counter() - begin
    if done.returncode != 0:
        raise DidNotHappen(f"{' '.join(argv)} ended with {done.returncode}: {output.read_text()[-1000:]}")
    return took
