"""GET /metrics: the figures of serve's last report and of this process, in Prometheus' form.

Room: http process, event loop. Label values are pool and counter names: their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skyserve_exec.messages import Snapshot
from skyserve_exec.server.health import Health
from skyserve_exec.server.state import HttpState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
POOL_STATES = ("size", "busy", "idle", "starting", "lost", "replaced")


class MetricsPage(Collector):
    """Collects at the moment of the scrape; keeps nothing."""

    def __init__(self, http: HttpState, health: Health) -> None:
        self._http = http
        self._health = health
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield _gauge("skyserve_ready", "1 when new requests are welcome", float(self._health.is_ready))
        snapshot = self._http.link.snapshot
        if snapshot is not None:
            yield from _of_serve(snapshot)
        counts = self._http.counts
        yield _gauge("skyserve_http_streams", "Log streams open in this http process", counts.streams)
        yield _gauge("skyserve_http_logs_open", "Log files open in this http process", len(self._http.feeds))
        yield _gauge("skyserve_http_waiting", "Parties that wait for a request's end", len(self._http.waiting))
        yield _gauge(
            "skyserve_http_longest_stall_seconds", "Longest block of the event loop", self._http.stalls.longest
        )
        yield _counter("skyserve_http_stalls", "Blocks of the event loop", self._http.stalls.count)
        yield _counter("skyserve_http_posts", "POSTs answered by this http process", counts.posts)
        yield _counter("skyserve_http_errors", "Faults of this http process (status 500)", counts.errors)
        yield _counter("skyserve_http_streams_begun", "Log streams begun", counts.streams_begun)


def _of_serve(snapshot: Snapshot) -> Iterator[Metric]:
    executors = GaugeMetricFamily("skyserve_executors", "Executors by pool and state", labels=["pool", "state"])
    for pool, figures in snapshot.pools.items():
        for state in POOL_STATES:
            if isinstance(figures.get(state), int):
                executors.add_metric([pool, state], figures[state])
    yield executors
    pending = GaugeMetricFamily("skyserve_pending", "Requests that wait, by pool", labels=["pool"])
    for pool, count in snapshot.pending.items():
        pending.add_metric([pool], count)
    yield pending
    yield _gauge("skyserve_tails", "Followed remote logs", snapshot.tails)
    yield _gauge("skyserve_draining", "1 while the server stops", float(snapshot.draining))
    events = CounterMetricFamily("skyserve_events", "What has happened since this life's start", labels=["event"])
    for name, count in snapshot.counters.items():
        events.add_metric([name], count)
    yield events


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, value=value)
