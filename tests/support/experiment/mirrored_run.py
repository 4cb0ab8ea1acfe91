"""A whole run over two clusters for tests: workload, a mirror of the test's own, scans, verdict."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.model.result import Result
from shoal.workload.control import LocalControl
from shoal.workload.receive.consumer import consume
from shoal.workload.receive.scan import scan
from shoal.workload.record.ledger import CommitLog, create_run
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.producer import produce
from shoal.workload.specs import (
    ConsumerSpec,
    FetchSettings,
    ProducedTopic,
    ProducerSpec,
    ScanSpec,
    StartingPoint,
)

_FETCHING = FetchSettings(max_wait_ms=50)


@dataclass(frozen=True)
class MirroredTopic:
    """A topic of the source, and where a mirror puts it; a lane for each target partition."""

    name: str
    target: str
    partitions: int = 2
    lanes: int = 2


class MirroredRun:
    """One producer, one consumer, and a mirror of any kind between them."""

    def __init__(
        self,
        folder: Path,
        clusters: Mapping[str, str],
        topics: tuple[MirroredTopic, ...],
        *,
        promises: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self._clusters, self._topics = folder, clusters, topics
        self._run = folder.name
        create_run(
            folder,
            {
                "run": self._run,
                "promises": promises or {"delivery": "exactly_once", "order": True},
                "acks": -1,
                "topics": {t.name: {"lanes": t.lanes, "partitions": t.partitions} for t in topics},
                "clusters": {"source": {}, "target": {}},
                "groups": ["g"],
                "one_clock": True,
            },
        )
        self._bytes = "bytes" in (promises or {}).get("fidelity", ())

    async def create_topics(self, **configs: str) -> None:
        sizes = {"source": {t.name: t.partitions for t in self._topics}}
        sizes["target"] = {t.target: t.lanes for t in self._topics}
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        for cluster, topics in sizes.items():
            async with Client({"bootstrap.servers": self._clusters[cluster]}) as client:
                wanted = [NewTopic(name, size, 1, settings) for name, size in topics.items()]
                await client.admin.create_topics(wanted)

    async def run(self, mirror: AbstractContextManager[object], **changes: Any) -> Result:
        """Send, copy, receive, scan and judge; `changes` are of the producer's spec."""
        with CommitLog(self.folder) as log:
            control = LocalControl(groups=["g"], commit=log.append, on_progress=lambda _: None)
            self._log, self._control = log, control
            with mirror:
                consuming = asyncio.create_task(self._consume())
                try:
                    await self._produce(**changes)
                finally:
                    control.stop()
                    await consuming
            for cluster in ("source", "target"):
                await self._scan(cluster)
        return self.judge()

    def judge(self, **options: Any) -> Result:
        return audit(open_ledger([self.folder], **options))

    def _recorder(self, worker: str) -> Recorder:
        return Recorder(self.folder, worker=worker, epoch=1, commit=self._log.append)

    async def _produce(self, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "run": self._run,
            "producer": "p0",
            "topics": tuple(ProducedTopic(t.name, t.partitions, t.lanes) for t in self._topics),
            "rate_per_s": 4000.0,
            "messages": 1000,
            "size_bytes": 200,
            "drain_timeout_s": 60.0,
        }
        spec = ProducerSpec(**(settings | changes))
        properties = {"bootstrap.servers": self._clusters["source"], **spec.client_properties()}
        async with Client(properties) as client:
            await produce(spec, client, self._recorder("p"), self._control)

    def _names(self) -> tuple[str, ...]:
        return tuple(topic.name for topic in self._topics)

    async def _consume(self) -> None:
        starts = {p.log: p for p in reversed(self._starts("target"))}  # a log is read once
        points = tuple(starts.values())
        spec = ConsumerSpec(self._run, "g", "c0", self._names(), points, fetching=_FETCHING)
        async with Client({"bootstrap.servers": self._clusters["target"]}) as client:
            await consume(spec, client, self._recorder("c"), self._control)

    def _starts(self, cluster: str) -> tuple[StartingPoint, ...]:
        if cluster == "source":
            sizes = [(t.name, t.partitions, t.name) for t in self._topics]
        else:
            sizes = [(t.target, t.lanes, t.name) for t in self._topics]
        return tuple(
            StartingPoint(topic, partition, 0, recorded_as)
            for topic, size, recorded_as in sizes
            for partition in range(size)
        )

    async def _scan(self, cluster: str) -> None:
        starts = self._starts(cluster)
        spec = ScanSpec(self._run, cluster, self._names(), starts, _FETCHING, batches=self._bytes)
        async with Client({"bootstrap.servers": self._clusters[cluster]}) as client:
            await scan(spec, client, self._recorder(f"scan-{cluster}"))
