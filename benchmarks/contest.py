"""What every contestant is measured by, in the same order and with the same counts.

Room: the process of one contestant's round. Never imports a contestant's library.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.memory import MB, cpu_seconds, memory_of, memory_of_all
from benchmarks.processes import Launched
from benchmarks.scale import START_SECONDS, WARM_UP_CALLS, Scale
from benchmarks.statistics_of_runs import summary_of

MEASURES = ("start", "memory", "latency", "throughput", "enqueue")
EXECUTOR = "executor"


class Contestant(ABC):
    """A queue with its fleet of single-task processes. Every start is made in a new private place."""

    def __init__(self) -> None:
        self.launched: list[Launched] = []

    @abstractmethod
    def durability(self) -> str:
        """What survives which failure, read from the running configuration."""

    @abstractmethod
    def start(self) -> None:
        """Launches everything and returns without waiting for it."""

    @abstractmethod
    def is_healthy(self) -> bool:
        """The contestant's own word that it takes work."""

    @abstractmethod
    def first_result(self, seconds: float) -> None:
        """Right after `start`: submits one no-op, as early as it can be, and reads its result."""

    @abstractmethod
    def call(self) -> None:
        """Submits one no-op and reads its result."""

    @abstractmethod
    def call_many(self, count: int) -> dict[str, float]:
        """Submits no-ops and reads all their results; returns figures of its own beside the rate."""

    @abstractmethod
    def start_without_consumers(self) -> None:
        """Launches what is needed to accept, with nothing that takes up what is accepted."""

    @abstractmethod
    def submit(self) -> None:
        """Submits one no-op and returns when it is accepted."""

    @abstractmethod
    def roles(self) -> dict[str, list[int]]:
        """Process ids by what they do; the role EXECUTOR runs the tasks."""

    def submit_many(self) -> dict[str, float]:
        """More enqueue figures, while nothing consumes."""
        return {}

    def stop(self) -> None:
        """Ends everything that was launched, the last first."""
        while self.launched:
            self.launched.pop().stop()

    def check_alive(self) -> None:
        for launched in self.launched:
            launched.check_alive()


@dataclass(frozen=True, slots=True)
class Round:
    """One contestant's figures of one round."""

    durability: str
    figures: dict[str, float]


def measure(contestant: Contestant, measures: Iterable[str], scale: Scale) -> Round:
    """Runs the chosen measures and stops the contestant."""
    wanted = set(measures)
    figures: dict[str, float] = {}
    try:
        if "start" in wanted:
            figures |= measure_healthy(contestant)
        figures |= measure_first_result(contestant, keep="start" in wanted)
        durability = contestant.durability()
        if "memory" in wanted:
            figures |= measure_memory(contestant, "idle", scale)
        if "latency" in wanted:
            figures |= measure_latency(contestant, scale)
        if "throughput" in wanted:
            figures |= measure_throughput(contestant, scale)
        if "memory" in wanted and "throughput" in wanted:
            figures |= measure_memory(contestant, "loaded", scale)
        contestant.stop()
        if "enqueue" in wanted:
            figures |= measure_enqueue(contestant, scale)
    finally:
        contestant.stop()
    return Round(durability, figures)


def measure_healthy(contestant: Contestant) -> dict[str, float]:
    """From the launch to the contestant's own word that it is healthy."""
    begin = time.perf_counter()
    contestant.start()
    wait_healthy(contestant)
    took = time.perf_counter() - begin
    contestant.stop()
    return {"start_to_healthy_ms": took * 1000}


def measure_first_result(contestant: Contestant, *, keep: bool) -> dict[str, float]:
    """From the launch to the first result; the fleet stays up for what follows."""
    begin = time.perf_counter()
    contestant.start()
    contestant.first_result(START_SECONDS)
    took = time.perf_counter() - begin
    wait_healthy(contestant)
    return {"start_to_first_result_ms": took * 1000} if keep else {}


def wait_healthy(contestant: Contestant) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not contestant.is_healthy():
        contestant.check_alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not healthy within {START_SECONDS:g} s")
        time.sleep(0.002)


def measure_memory(contestant: Contestant, name: str, scale: Scale) -> dict[str, float]:
    """Memory of the tree, and what one executor holds alone (the mean of them)."""
    time.sleep(scale.settle_seconds)  # not a wait for a condition: "idle" is what is measured
    roles = contestant.roles()
    tree = memory_of_all(pid for pids in roles.values() for pid in pids)
    executors = roles[EXECUTOR]
    own = memory_of_all(executors)
    figures = {
        f"{name}_tree_pss_mb": tree.pss / MB,
        f"{name}_tree_uss_mb": tree.uss / MB,
        f"{name}_tree_rss_mb": tree.rss / MB,
        f"{name}_executor_pss_mb": own.pss / MB / max(1, len(executors)),
        f"{name}_executor_uss_mb": own.uss / MB / max(1, len(executors)),
        f"{name}_processes": float(sum(map(len, roles.values()))),
    }
    for role, pids in roles.items():
        if role != EXECUTOR:
            figures[f"{name}_{role}_pss_mb"] = sum(memory_of(pid).pss for pid in pids) / MB
    return figures


def measure_latency(contestant: Contestant, scale: Scale) -> dict[str, float]:
    """One no-op at a time: submit, run, result in the submitter's hands."""
    for _ in range(WARM_UP_CALLS):
        contestant.call()
    before = cpu_by_role(contestant)
    samples = []
    for _ in range(scale.latency_calls):
        begin = time.perf_counter()
        contestant.call()
        samples.append(time.perf_counter() - begin)
    return summary_of("latency", samples) | cpu_since(contestant, before, "latency", scale.latency_calls)


def measure_throughput(contestant: Contestant, scale: Scale) -> dict[str, float]:
    """Many no-ops, each submitted by itself and each result read."""
    contestant.call_many(WARM_UP_CALLS)
    before = cpu_by_role(contestant)
    begin = time.perf_counter()
    figures = contestant.call_many(scale.throughput_calls)
    took = time.perf_counter() - begin
    rate = {"throughput_per_s": scale.throughput_calls / took}
    return rate | figures | cpu_since(contestant, before, "throughput", scale.throughput_calls)


def measure_enqueue(contestant: Contestant, scale: Scale) -> dict[str, float]:
    """Single submits, one after the other, while nothing consumes."""
    contestant.start_without_consumers()
    for _ in range(10):
        contestant.submit()
    samples = []
    for _ in range(scale.enqueue_calls):
        begin = time.perf_counter()
        contestant.submit()
        samples.append(time.perf_counter() - begin)
    rate = {"enqueue_per_s": len(samples) / sum(samples)}
    return rate | summary_of("enqueue", samples) | contestant.submit_many()


def cpu_by_role(contestant: Contestant) -> dict[str, float]:
    """CPU seconds so far of every role, and of this process as the client."""
    used = {role: sum(map(cpu_seconds, pids)) for role, pids in contestant.roles().items()}
    return used | {"client": time.process_time()}


def cpu_since(contestant: Contestant, before: dict[str, float], name: str, calls: int) -> dict[str, float]:
    """CPU milliseconds a call that each role took since `before`, and all together."""
    now = cpu_by_role(contestant)
    each = {role: max(0.0, now[role] - before.get(role, 0.0)) * 1000 / calls for role in now}
    figures = {f"{name}_cpu_{role}_ms": value for role, value in each.items()}
    return figures | {f"{name}_cpu_all_ms": sum(each.values())}
