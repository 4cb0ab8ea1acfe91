"""A scan: reads logs in full, and records every message of the run that stands in them.

Rules:
- A scan covers [start, end) of each log: from the offset asked for, or the log's first if
  that is later, to where the log ended when the scan began. Only inside it may anyone say
  that a message is absent.
- The row that says what was covered is written after everything in it was read and sealed.
- The id of a topic is recorded with it: a topic made again is another log.
- Where batches are to be compared their headers are recorded too, with a checksum of the rest.
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from shoal.client.client import Client
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import UnreachableError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.wire.batch import LOG_APPEND_TIME
from shoal.wire.records.crc import crc32c
from shoal.workload.envelope import Kind
from shoal.workload.receive.compacted import compacted_topics
from shoal.workload.receive.fetcher import Fetcher
from shoal.workload.receive.reading import Delivered, Flags, FoundBatch, LogReader, Longs
from shoal.workload.record.recorder import Recorder
from shoal.workload.record.rows import Names
from shoal.workload.specs import JsonSpec, ScanSpec

_WATCH_INTERVAL_S = 0.02


@dataclass(frozen=True)
class ScanSummary(JsonSpec):
    """What a scan found."""

    cluster: Annotated[str, "cluster"]
    logs: Annotated[int, "logs"]
    messages: Annotated[int, "messages"]
    unreadable: Annotated[int, "unreadable"]
    markers: Annotated[int, "markers"]
    foreign: Annotated[int, "foreign"]


async def scan(spec: ScanSpec, client: Client, recorder: Recorder) -> ScanSummary:
    """Read all logs to their end; `UnreachableError` if that takes longer than allowed."""
    asked = {start.log: start.offset for start in spec.partitions}
    topics = (await client.metadata({tp.topic for tp in asked}, refresh=True)).topics
    isolation = spec.fetching.isolation
    firsts = await client.list_offsets(dict.fromkeys(asked, EARLIEST), isolation=isolation)
    lasts = await client.list_offsets(dict.fromkeys(asked, LATEST), isolation=isolation)
    ends = {tp: listed.offset for tp, listed in lasts.items()}
    # A log that was cut short since the run began may end before the start: an empty range.
    starts = {tp: min(max(o, firsts[tp].offset), ends[tp]) for tp, o in asked.items()}
    compacted = await compacted_topics(client, topics)
    scanner = _Scanner(spec, client, recorder, starts=starts, ends=ends)
    await scanner.read()
    await recorder.seal()
    for start in spec.partitions:
        recorder.append(
            "scans",
            cluster=spec.cluster,
            topic=start.recorded_name,
            topic_id=str(topics[start.topic].topic_id or ""),
            partition=start.partition,
            start=starts[start.log],
            end=ends[start.log],
            compacted=start.topic in compacted,
        )
    summary = scanner.summary()
    await recorder.foreign(spec.cluster, summary.foreign)
    await recorder.seal()
    return summary


class _Scanner:
    def __init__(
        self,
        spec: ScanSpec,
        client: Client,
        recorder: Recorder,
        *,
        starts: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
    ) -> None:
        self._spec = spec
        self._recorder = recorder
        self._starts = starts
        self._ends = ends
        self._names = {start.log: start.recorded_name for start in spec.partitions}
        self._logs = LogReader(spec.run, spec.topics, starts, isolation=spec.fetching.isolation)
        self._partition_of_log = np.array([tp.partition for tp in self._logs.logs], np.int32)
        self._end_of_log = np.array([ends[tp] for tp in self._logs.logs], np.int64)
        self._counts = np.zeros(len(Kind), np.int64)
        self._fetcher = Fetcher(
            client,
            self._logs,
            spec.fetching,
            channel=f"scan {spec.cluster}",
            receive=self._receive,
            moved=self._moved,
        )
        self._retire_finished()

    async def read(self) -> None:
        reading = run_awaited("scan", self._fetcher.run())
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                while not reading.done():
                    if self._recorder.seal_is_due():
                        await self._recorder.seal()
                    await asyncio.wait([reading], timeout=_WATCH_INTERVAL_S)
                reading.result()
        except TimeoutError as error:
            left = ", ".join(str(tp) for tp in self._unfinished())
            raise UnreachableError(
                f"{left} could not be read to the end in {self._spec.timeout_s:g} s"
            ) from error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def summary(self) -> ScanSummary:
        counts = self._counts.tolist()
        return ScanSummary(
            cluster=self._spec.cluster,
            logs=len(self._ends),
            messages=counts[Kind.MESSAGE],
            unreadable=counts[Kind.UNREADABLE],
            markers=counts[Kind.MARKER],
            foreign=counts[Kind.FOREIGN],
        )

    def _unfinished(self) -> list[TopicPartition]:
        return [tp for tp, end in self._ends.items() if self._logs.positions[tp] < end]

    def _retire_finished(self) -> None:
        for tp, end in self._ends.items():
            if self._logs.positions[tp] >= end:
                self._fetcher.retire(tp)

    def _moved(self, tp: TopicPartition) -> None:
        """Retention passed the scan: what it did not see is not covered by it."""
        self._starts[tp] = min(max(self._starts[tp], self._logs.positions[tp]), self._ends[tp])

    def _receive(self, found: list[FoundBatch], _received_us: int) -> None:
        delivered = self._logs.decode(found)
        inside = delivered.only(delivered.offset < self._end_of_log[delivered.log])
        kinds = inside.messages.kind
        self._counts += np.bincount(kinds, minlength=len(Kind))
        ours = inside.only((kinds == Kind.MESSAGE) | (kinds == Kind.UNREADABLE))
        if len(ours):
            self._record(ours)
        if self._spec.batches:
            self._record_batches(found, inside.only(kinds == Kind.MESSAGE))
        self._retire_finished()

    def _record(self, found: Delivered) -> None:
        messages, names = found.messages, self._logs.messages
        logs = [self._names[tp] for tp in self._logs.logs]
        topics = np.where(messages.topic, messages.topic, found.log + len(names.topics))
        self._recorder.append(
            "log",
            cluster=self._spec.cluster,
            topic=Names(topics, [*names.topics, *logs]),
            partition=self._partition_of_log[found.log],
            offset=found.offset,
            producer=Names(messages.producer, names.producers),
            incarnation=np.array(names.incarnations, np.int64)[messages.producer],
            lane=messages.lane,
            sequence=messages.sequence,
            append_us=found.append_us,
            timestamp_us=found.timestamp_us,
            intact=messages.intact,
            key_check=messages.key_check,
            headers_check=messages.headers_check,
        )

    def _record_batches(self, found: list[FoundBatch], messages: Delivered) -> None:
        """The headers of all batches that lie wholly inside and hold a message of ours."""
        numbers, first = np.unique(messages.batch, return_index=True)
        whole = [
            item.first_offset <= item.batch.base_offset
            and item.batch.next_offset <= self._end_of_log[item.log]
            for item in found
        ]
        kept = np.array(whole, np.bool_)[numbers]
        if not kept.any():
            return
        leaders, names = messages.only(_chosen(len(messages), first[kept])), self._logs.messages
        batches = [found[number].batch for number in numbers[kept].tolist()]
        checks = np.array([crc32c(batch.records) for batch in batches], np.uint32)
        times = [(batch.base_timestamp, batch.max_timestamp) for batch in batches]
        base_ms, max_ms = np.array(times, np.int64).T
        self._recorder.append(
            "batches",
            cluster=self._spec.cluster,
            topic=Names(leaders.messages.topic, names.topics),
            partition=self._partition_of_log[leaders.log],
            offset=np.array([batch.base_offset for batch in batches], np.int64),
            producer=Names(leaders.messages.producer, names.producers),
            incarnation=np.array(names.incarnations, np.int64)[leaders.messages.producer],
            lane=leaders.messages.lane,
            sequence=leaders.messages.sequence,
            records=np.array([batch.record_count for batch in batches], np.int32),
            codec=np.array([batch.codec for batch in batches], np.int8),
            records_check=checks.view(np.int32),
            base_timestamp_us=np.where(base_ms < 0, -1, base_ms * 1000),
            max_timestamp_us=np.where(max_ms < 0, -1, max_ms * 1000),
            stamped=np.array([b.timestamp_type == LOG_APPEND_TIME for b in batches], np.bool_),
        )


def _chosen(count: int, rows: Longs) -> Flags:
    chosen = np.zeros(count, np.bool_)
    chosen[rows] = True
    return chosen
