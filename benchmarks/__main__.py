"""`python -m benchmarks`: runs every measurement in a process of its own, in turn, and reports.

Room: the parent of all measurements; gives each a private directory and a time limit, and ends what is left of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.contest import MEASURES
from benchmarks.machine import machine_facts
from benchmarks.one import ALONE, CONTESTANTS
from benchmarks.processes import ROOT, adopt_orphans, end_descendants
from benchmarks.report import text_of
from benchmarks.scale import FULL, QUICK, Scale
from benchmarks.statistics_of_runs import over_rounds


def main() -> int:
    """Exit code 0, 1 when a measurement failed."""
    options = _options()
    scale = QUICK if options.quick else FULL
    signal.signal(signal.SIGTERM, _leave)
    adopt_orphans()
    directory = Path(tempfile.mkdtemp(prefix="skyserve-benchmarks-", dir=options.dir))
    try:
        report = _measure_all(options, scale, directory)
    finally:
        end_descendants()
        shutil.rmtree(directory, ignore_errors=True)
    print(text_of(report))
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["failures"] else 0


def _options() -> argparse.Namespace:
    names = [*CONTESTANTS, *MEASURES, *ALONE]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=names, default=[], help=f"repeatable; of: {', '.join(names)}"
    )
    parser.add_argument("--quick", action="store_true", help="one round and smaller counts: a look, not a result")
    parser.add_argument("--rounds", type=int, choices=range(1, 11), metavar="1..10", help="rounds of the comparison")
    parser.add_argument("--dir", help="where the private directories go: choose a real disk, not a tmpfs")
    return parser.parse_args()


def _measure_all(options: argparse.Namespace, scale: Scale, directory: Path) -> dict[str, Any]:
    only = set(options.only)
    measures = [name for name in MEASURES if name in only] or list(MEASURES)
    contestants = [name for name in CONTESTANTS if name in only] or list(CONTESTANTS)
    if only and not only & {*CONTESTANTS, *MEASURES}:
        contestants = []
    alone = [name for name in ALONE if name in only or not only]
    report: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "scale": asdict(scale),
        "machine": machine_facts(directory),
        "contestants": {},
        "alone": {},
        "failures": [],
    }
    outcomes: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds or scale.rounds):
        for name in contestants:  # interleaved, so that a noisy minute does not hit one contestant alone
            outcome = _run_one(name, measures, scale, directory, report["failures"])
            outcomes.setdefault(name, []).extend(outcome)
            _note(f"round {number + 1}: {name}", outcome)
    report["contestants"] = {name: _merged(done) for name, done in outcomes.items() if done}
    for name in alone:
        outcome = _run_one(name, [], scale, directory, report["failures"])
        _note(name, outcome)
        if outcome:
            report["alone"][name] = _merged(outcome)
    return report


def _run_one(
    name: str, measures: Sequence[str], scale: Scale, directory: Path, failures: list[str]
) -> list[dict[str, Any]]:
    """What the measuring process printed; an empty list, and a line in `failures`, when it failed."""
    # Removed only at the very end: for minutes after many files were removed, ext4 takes long to make new ones nearby.
    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=directory))
    size = "quick" if scale is QUICK else "full"
    argv = [sys.executable, "-m", "benchmarks.one", name, size, str(place), *measures]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            output, errors = process.communicate(timeout=scale.limit_seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            end_descendants()
            output, errors = process.communicate()
            errors += f"\nstopped after {scale.limit_seconds:g} s"
        finally:
            end_descendants()
    if process.returncode != 0:
        failures.append(f"{name}: {errors.strip()[-1500:]}")
        return []
    body: dict[str, Any] = json.loads(output.splitlines()[-1])
    if body["stray_processes"]:
        failures.append(f"{name}: left running, and killed: {', '.join(body['stray_processes'])}")
    return [body]


def _merged(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    figures = [outcome["figures"] | {"busy_cores": outcome["busy_cores"]} for outcome in outcomes]
    merged: dict[str, Any] = {"figures": over_rounds(figures)}
    if "durability" in outcomes[0]:
        merged["durability"] = outcomes[0]["durability"]
    return merged


def _note(what: str, outcome: Sequence[dict[str, Any]]) -> None:
    took = f"{outcome[0]['seconds']:.0f} s" if outcome else "failed"
    print(f"{what}: {took}", file=sys.stderr, flush=True)


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    raise SystemExit(main())
