"""The workload's own producer and consumer as loads: with reservations, ledgers and checks.

Each run has a folder of ledgers of its own, which is deleted afterwards. The producer has no pace
(everything is due at once) and no drain; the consumer reads until it has everything.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import Work
from shoal.client.client import Client
from shoal.workload.control import LocalControl
from shoal.workload.receive.consumer import consume
from shoal.workload.record.ledger import CommitLog, create_run, open_run
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.producer import produce
from shoal.workload.send.schedule import HIGHEST_RATE_PER_S
from shoal.workload.specs import ConsumerSpec, ProducedTopic, ProducerSpec, StartingPoint

RUN = "benchmark"
KIB = 1024


@contextmanager
def ledgers() -> Iterator[tuple[Path, CommitLog]]:
    # A producer without a pace is always late: hide the warning.
    logging.getLogger("shoal").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        create_run(Path(folder), {"run": RUN})
        with CommitLog(Path(folder)) as log:
            yield Path(folder), log


def producer_spec(topic: str, partitions: int, messages: int, **changes: Any) -> ProducerSpec:
    settings: dict[str, Any] = {
        "rate_per_s": float(HIGHEST_RATE_PER_S),
        "size_bytes": KIB,
        "drain_timeout_s": 0.0,
    }
    topics = (ProducedTopic(topic, partitions, partitions),)
    return ProducerSpec(RUN, "p", topics, messages=messages, **(settings | changes))


def write(bootstrap: str, spec: ProducerSpec) -> Work:
    """All messages of the spec, acknowledged and recorded."""
    with ledgers() as (folder, log):
        return asyncio.run(_write(bootstrap, spec, folder, log))


def attempts_of(bootstrap: str, spec: ProducerSpec) -> pa.Table:
    """Like `write`, but returns the attempts in the ledger."""
    with ledgers() as (folder, log):
        asyncio.run(_write(bootstrap, spec, folder, log))
        return open_run(folder).read("attempts")


async def _write(bootstrap: str, spec: ProducerSpec, folder: Path, log: CommitLog) -> Work:
    started = time.perf_counter()
    recorder = Recorder(folder, worker="p", epoch=1, commit=log.append_in_thread)
    properties = {"bootstrap.servers": bootstrap} | spec.client_properties()
    async with Client(properties) as client:
        summary = await produce(spec, client, recorder, LocalControl(groups=["nobody"]))
    assert summary.ok == spec.messages, summary
    return Work(summary.ok * spec.size_bytes, time.perf_counter() - started)


def read(bootstrap: str, topic: str, partitions: int, messages: int) -> Work:
    """All messages of a topic, checked and recorded."""
    with ledgers() as (folder, log):
        return asyncio.run(_read(bootstrap, (topic, partitions), messages, (folder, log)))


async def _read(
    bootstrap: str, where: tuple[str, int], messages: int, kept: tuple[Path, CommitLog]
) -> Work:
    topic, partitions = where
    folder, log = kept
    spec = ConsumerSpec(
        RUN, "g", "c", (topic,), tuple(StartingPoint(topic, p, 0) for p in range(partitions))
    )
    recorder = Recorder(folder, worker="c", epoch=1, commit=log.append_in_thread)

    def seen(report: Mapping[str, Any]) -> None:
        if report["received"] >= messages:
            control.stop()

    control = LocalControl(groups=["g"], commit=log.append_in_thread, on_progress=seen)
    started = time.perf_counter()
    async with Client({"bootstrap.servers": bootstrap} | spec.client_properties()) as client:
        summary = await consume(spec, client, recorder, control)
    assert (summary.received, summary.unreadable) == (messages, 0), summary
    return Work(messages * KIB, time.perf_counter() - started)
