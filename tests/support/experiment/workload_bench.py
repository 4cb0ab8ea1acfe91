"""One run for tests: a folder, its commit log, a control, and the three roles to start."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.client.client import Client
from shoal.model.result import Result
from shoal.workload.control import LocalControl
from shoal.workload.receive.consumer import ConsumerSummary, consume
from shoal.workload.receive.scan import ScanSummary, scan
from shoal.workload.record.ledger import CommitLog, LedgerFolder, create_run, open_run
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.producer import ProducerSummary, produce
from shoal.workload.specs import (
    ConsumerSpec,
    FetchSettings,
    ProducedTopic,
    ProducerSpec,
    ScanSpec,
    StartingPoint,
)

PARTITIONS = 4
TOPIC = "orders"
LANES = 8
PLAN: dict[str, Any] = {
    "run": "r1",
    "promises": {"delivery": "exactly_once", "order": True},
    "acks": -1,
    "topics": {TOPIC: {"lanes": LANES, "partitions": PARTITIONS}},
    "clusters": {"source": {}},
    "groups": ["g"],
    "warm_up_us": 0,
}
STARTS = tuple(StartingPoint(TOPIC, partition, 0) for partition in range(PARTITIONS))


class Bench:
    """One run: a folder, its commit log, a control, and the three roles to start."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        create_run(folder, PLAN)
        self.folder = folder
        self.group_id = f"g-{folder.parent.name}"
        self.bootstrap = bootstrap
        self.log = CommitLog(folder)
        self.reports: list[Mapping[str, Any]] = []
        self.control = LocalControl(
            groups=["g"], commit=self.log.append, on_progress=self.reports.append
        )

    def spec(self, **changes: Any) -> ProducerSpec:
        settings: dict[str, Any] = {
            "run": "r1",
            "producer": "p0",
            "topics": (ProducedTopic(TOPIC, PARTITIONS, LANES),),
            "rate_per_s": 4000.0,
            "messages": 1000,
            "size_bytes": 200,
            "drain_timeout_s": 60.0,
        }
        return ProducerSpec(**(settings | changes))

    def recorder(self, worker: str, epoch: int = 1) -> Recorder:
        return Recorder(
            self.folder, worker=worker, epoch=epoch, commit=self.log.append, seal_interval_s=0.2
        )

    async def produce(self, spec: ProducerSpec, *, epoch: int = 1) -> ProducerSummary:
        servers = {"bootstrap.servers": self.bootstrap}
        async with Client(servers | spec.client_properties()) as client:
            return await produce(spec, client, self.recorder("p", epoch), self.control)

    async def consume(
        self, *, control: LocalControl | None = None, **changes: Any
    ) -> ConsumerSummary:
        settings: dict[str, Any] = {
            "run": "r1",
            "group": "g",
            "consumer": "c0",
            "topics": (TOPIC,),
            "partitions": STARTS,
            "fetching": FetchSettings(max_wait_ms=50),
        }
        spec = ConsumerSpec(**(settings | changes))
        servers = {"bootstrap.servers": self.bootstrap}
        async with Client(servers | spec.client_properties()) as client:
            recorder = self.recorder(spec.consumer.replace("c0", "c"))
            return await consume(spec, client, recorder, control or self.control)

    def join(
        self,
        consumer: str,
        *,
        control: LocalControl | None = None,
        session_timeout_ms: int = 30_000,
        **changes: Any,
    ) -> "asyncio.Task[ConsumerSummary]":
        """A member of the group."""
        settings: dict[str, Any] = {
            "consumer": consumer,
            "in_group": True,
            "group_id": self.group_id,
            "session_timeout_ms": session_timeout_ms,
        }
        return asyncio.create_task(self.consume(control=control, **(settings | changes)))

    async def scan(self, starts: tuple[StartingPoint, ...] = STARTS) -> ScanSummary:
        async with Client({"bootstrap.servers": self.bootstrap}) as client:
            spec = ScanSpec("r1", "source", (TOPIC,), starts, FetchSettings(max_wait_ms=50))
            return await scan(spec, client, self.recorder("s"))

    async def produce_and_consume(
        self, spec: ProducerSpec, **changes: Any
    ) -> tuple[ProducerSummary, ConsumerSummary]:
        consuming = asyncio.create_task(self.consume(**changes))
        try:
            produced = await self.produce(spec)
        finally:
            self.control.stop()
            consumed = await consuming
        return produced, consumed

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(3000):
            if condition():
                return
            await asyncio.sleep(0.02)
        pytest.fail("it did not happen in 60 s")

    async def until_sent(self, count: int) -> None:
        await self.until(lambda: any(r.get("attempts", 0) >= count for r in self.reports))

    def run(self) -> LedgerFolder:
        return open_run(self.folder)

    def judge(self) -> Result:
        return audit(open_ledger([self.folder]))


def identities(run: LedgerFolder, table: str) -> list[tuple[str, str, int, int]]:
    rows = run.read(table)
    columns = [rows[name].to_pylist() for name in ("producer", "topic", "lane", "sequence")]
    return list(zip(*columns, strict=True))
