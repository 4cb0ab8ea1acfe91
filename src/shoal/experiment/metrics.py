"""The Prometheus metrics of `shoal run`, served from a thread of its own.

Rules:
- Workers report their progress several times a second; a scrape shows the last reports. They are
  estimates until the run has ended.
- Missing records are acknowledged and not received yet. Lost records are those that the audit has
  proven to be lost: the counter appears with the first verdict and only increases.
- A series continues over the variants of a command: counters never decrease.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from shoal.experiment.run import LatencyExample, RunProgress
from shoal.model.result import Result
from shoal.net.loops import call_in
from shoal.runtime.tasks import log_only, start_thread
from shoal.telemetry.definitions import METRICS
from shoal.telemetry.endpoint import make_port
from shoal.telemetry.http_port import EndpointSpec
from shoal.telemetry.samples import Chunk, Exemplar, Families, HistogramValue, merge, one

START_TIMEOUT_S: Final = 30.0
_LATENCIES: Final = {
    "produce": "shoal_records_produce_latency_seconds",
    "end_to_end": "shoal_records_end_to_end_latency_seconds",
}
# The most that OpenMetrics allows in the labels of an exemplar.
MAX_EXEMPLAR_CHARS: Final = 128
_COUNTERS: Final = ("produced", "acked", "failed", "unknown", "consumed")


@dataclass(slots=True)
class RunMetrics:
    """What is known of the runs of a command. Written by one thread, read by another."""

    run: str = ""
    is_active: bool = False
    expected: int = 0
    missing: int = 0
    lost: int | None = None
    # Of runs that have ended, and of the current one.
    before: Counter[str] = field(default_factory=Counter)
    current: dict[str, int] = field(default_factory=dict)
    latencies_before: dict[str, HistogramValue] = field(default_factory=dict)
    latencies: dict[str, HistogramValue] = field(default_factory=dict)

    def begin(self, run: str) -> None:
        """A new run starts."""
        self.before.update(self.current)
        for kind, value in self.latencies.items():
            self.latencies_before[kind] = _add(self.latencies_before.get(kind), value)
        self.run, self.current, self.latencies = run, {}, {}
        self.is_active, self.missing = True, 0

    def on_progress(self, step: RunProgress) -> None:
        if not step.total:
            return  # before or after the part in which messages are sent
        self.expected = step.total
        self.missing = step.missing
        self.current = {
            "produced": step.sent,
            "acked": step.acked,
            "failed": step.failed,
            "unknown": step.unknown,
            "consumed": step.received,
        }
        self.latencies = {
            kind: HistogramValue(found[:-1], found[-1] / 1e6)
            for kind, found in step.latencies.items()
        }
        if (found := self.latencies.get("end_to_end")) is not None:
            marks = [
                self._exemplar(step.examples.get(bucket)) for bucket in range(len(found.counts))
            ]
            self.latencies["end_to_end"] = found._replace(exemplars=marks)

    def _exemplar(self, example: LatencyExample | None) -> Exemplar | None:
        """The name of a message, by which `shoal runs message` and the page show its life."""
        if example is None:
            return None
        labels = {
            "run": self.run,
            "topic": example.topic,
            "producer": example.producer,
            "lane": str(example.lane),
            "sequence": str(example.sequence),
        }
        if sum(len(name) + len(value) for name, value in labels.items()) > MAX_EXEMPLAR_CHARS:
            return None
        return Exemplar(labels, example.latency_us / 1e6, example.received_us / 1e6)

    def end(self, result: Result) -> None:
        """The audit has judged the run."""
        self.is_active = False
        self.missing = 0
        losses = [group.metrics.lost_ok for group in result.groups.values()]
        self.lost = (self.lost or 0) + max(losses, default=0)

    def collect(self) -> Iterator[Chunk]:
        yield one("shoal_run_active", int(self.is_active))
        if self.run:
            yield one("shoal_run_info", 1, self.run)
        yield one("shoal_records_expected", self.expected)
        for name in _COUNTERS:
            value = self.before[name] + self.current.get(name, 0)
            yield one(f"shoal_records_{name}_total", value)
        yield one("shoal_records_missing", self.missing)
        if self.lost is not None:
            yield one("shoal_records_lost_total", self.lost)
        for kind, metric in _LATENCIES.items():
            known = self.latencies.get(kind)
            empty = HistogramValue([0] * (len(METRICS[metric].buckets) + 1), 0.0)
            total = _add(self.latencies_before.get(kind), known or empty)
            yield metric, [((), total)]


def _add(one_value: HistogramValue | None, other: HistogramValue) -> HistogramValue:
    if one_value is None:
        return other
    counts = [a + b for a, b in zip(one_value.counts, other.counts, strict=True)]
    return HistogramValue(counts, one_value.total + other.total, other.exemplars)


@contextmanager
def serve_run_metrics(
    spec: EndpointSpec | None, metrics: RunMetrics, on_ready: Callable[[int], None]
) -> Iterator[None]:
    """Serve the metrics while the block runs; nothing without a spec."""
    if spec is None:
        yield
        return
    server = _Server(spec, metrics)
    on_ready(server.start())
    try:
        yield
    finally:
        server.stop()


class _Server:
    def __init__(self, spec: EndpointSpec, metrics: RunMetrics) -> None:
        self._spec = spec
        self._metrics = metrics
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._outcome: list[int | Exception] = []
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        self._thread = start_thread("metrics of a run", self._run, on_failure=log_only)
        self._ready.wait(START_TIMEOUT_S)
        found = self._outcome[0] if self._outcome else TimeoutError("no metrics port in time")
        if isinstance(found, Exception):
            raise found
        return found

    def stop(self) -> None:
        call_in(self._loop, self._ended.set, limit_s=START_TIMEOUT_S)
        if self._thread is not None:
            self._thread.join(START_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            self._outcome.append(error)
            if self._ready.is_set():
                raise
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        async def collect() -> Families:
            return merge({}, self._metrics.collect())

        async def why_not_ready() -> str | None:
            return None if self._metrics.is_active else "no run is in progress"

        port = make_port(self._spec, collect, why_not_ready, {})
        self._outcome.append(await port.start())
        self._ready.set()
        try:
            await self._ended.wait()
        finally:
            await port.close()
