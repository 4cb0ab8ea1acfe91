"""A scan: reads logs completely, and records every message of the run in them.

Rules:
- A scan covers [start, end) of each log: from the requested offset, or the log's first offset if
  that is higher, to the log's end when the scan started. Only a message inside that range can be
  judged as absent.
- The row with the range is written after everything in it is read and sealed.
- A log may be read in parts, each a range of offsets, by different processes; each batch belongs
  to the part in which it begins. A scan has no time limit, but fails when nothing arrives for long.
- The topic id is recorded too: a topic that was created again is another log.
- Ranges of offsets that hold control records or aborted data are recorded too: no message is there.
- If batches are compared, their headers are recorded too, with a checksum of the rest.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from shoal.client.client import Client
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import UnreachableError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.wire.batch import LOG_APPEND_TIME
from shoal.wire.records.crc import crc32c
from shoal.workload.envelope import MessageKind
from shoal.workload.receive.compacted import find_compacted_topics
from shoal.workload.receive.fetcher import Fetcher
from shoal.workload.receive.reading import DeliveredRecords, Flags, FoundBatch, LogReader, Longs
from shoal.workload.record.recorder import Recorder
from shoal.workload.record.rows import Names
from shoal.workload.specs import JsonSpec, ScanSpec

_WATCH_INTERVAL_S = 0.02
_REPORT_INTERVAL_S = 0.5
_MOST_SHOWN = 10


@dataclass(frozen=True)
class ScanSummary(JsonSpec):
    """What a scan found."""

    cluster: Annotated[str, "cluster"]
    logs: Annotated[int, "logs"]
    messages: Annotated[int, "messages"]
    unreadable: Annotated[int, "unreadable"]
    markers: Annotated[int, "markers"]
    foreign: Annotated[int, "foreign"]


class LogBounds(NamedTuple):
    """What a scan of one log covers, and what is known about the log."""

    start: int
    end: int
    topic_id: str
    compacted: bool


class LogPart(NamedTuple):
    """A range of offsets of a log that ends at `log_end`."""

    start: int
    end: int
    log_end: int


Bounds = Mapping[TopicPartition, LogBounds]
# How many offsets are read, and of how many.
Report = Callable[[int, int], None]


async def scan(
    spec: ScanSpec, client: Client, recorder: Recorder, report: Report | None = None
) -> ScanSummary:
    """Read all logs to their ends; `UnreachableError` if nothing arrives for `timeout_s`."""
    bounds = await find_bounds(spec, client)
    parts = {tp: LogPart(found.start, found.end, found.end) for tp, found in bounds.items()}
    summary, starts = await read_parts(spec, client, recorder, parts, report=report)
    await record_scan(spec, recorder, bounds, starts=starts, foreign=summary.foreign)
    return summary


async def find_bounds(spec: ScanSpec, client: Client) -> Bounds:
    """Ask for the ranges to read, up to the current ends of the logs."""
    requested = {start.log: start.offset for start in spec.partitions}
    topics = (await client.metadata({tp.topic for tp in requested}, refresh=True)).topics
    isolation = spec.fetching.isolation
    firsts = await client.list_offsets(dict.fromkeys(requested, EARLIEST), isolation=isolation)
    lasts = await client.list_offsets(dict.fromkeys(requested, LATEST), isolation=isolation)
    ends = {tp: listed.offset for tp, listed in lasts.items()}
    # A log that was truncated since the run started may end before `start`: an empty range.
    starts = {tp: min(max(o, firsts[tp].offset), ends[tp]) for tp, o in requested.items()}
    compacted = await find_compacted_topics(client, topics)
    return {
        tp: LogBounds(
            starts[tp], ends[tp], str(topics[tp.topic].topic_id or ""), tp.topic in compacted
        )
        for tp in requested
    }


async def read_parts(
    spec: ScanSpec,
    client: Client,
    recorder: Recorder,
    parts: Mapping[TopicPartition, LogPart],
    *,
    report: Report | None = None,
) -> tuple[ScanSummary, dict[TopicPartition, int]]:
    """Read and seal a part of each log; returns also where each part began after all."""
    scanner = _Scanner(spec, client, recorder, parts)
    await scanner.read(report or (lambda _done, _all: None))
    await recorder.seal()
    return scanner.summary(), scanner.starts


async def record_scan(
    spec: ScanSpec,
    recorder: Recorder,
    bounds: Bounds,
    *,
    starts: Mapping[TopicPartition, int],
    foreign: int,
) -> None:
    """Record the ranges that were read completely: those of the logs in `starts`."""
    for point in spec.partitions:
        if point.log not in starts:
            continue
        found = bounds[point.log]
        recorder.append(
            "scans",
            cluster=spec.cluster,
            topic=point.recorded_name,
            topic_id=found.topic_id,
            partition=point.partition,
            start=starts[point.log],
            end=found.end,
            compacted=found.compacted,
        )
    await recorder.record_foreign(spec.cluster, foreign)
    await recorder.seal()


class _Scanner:
    def __init__(
        self,
        spec: ScanSpec,
        client: Client,
        recorder: Recorder,
        parts: Mapping[TopicPartition, LogPart],
    ) -> None:
        starts = {tp: part.start for tp, part in parts.items()}
        self._spec = spec
        self._recorder = recorder
        self.starts = dict(starts)
        self._ends = {tp: part.end for tp, part in parts.items()}
        self._names = {start.log: start.recorded_name for start in spec.partitions}
        self._logs = LogReader(spec.run, spec.topics, starts, isolation=spec.fetching.isolation)
        self._logs.withheld = []
        self._partition_of_log = np.array([tp.partition for tp in self._logs.logs], np.int32)
        self._end_of_part = np.array([parts[tp].end for tp in self._logs.logs], np.int64)
        self._end_of_log = np.array([parts[tp].log_end for tp in self._logs.logs], np.int64)
        self._counts = np.zeros(len(MessageKind), np.int64)
        self._fetcher = Fetcher(
            client,
            self._logs,
            spec.fetching,
            channel=f"scan {spec.cluster}",
            receive=self._receive,
            on_reset=self._on_position_reset,
        )
        self._retire_finished()

    async def read(self, report: Report) -> None:
        reading = run_awaited("scan", self._fetcher.run())
        clock = asyncio.get_running_loop().time
        whole = sum(self._ends[tp] - start for tp, start in self.starts.items())
        left, moved_s, reported_s = -1, clock(), clock()
        try:
            while not reading.done():
                if clock() - reported_s >= _REPORT_INTERVAL_S:
                    reported_s = clock()
                    report(whole - self._count_left(), whole)
                if self._recorder.is_seal_due():
                    await self._recorder.seal()
                if self._count_left() != left:
                    left, moved_s = self._count_left(), clock()
                elif clock() - moved_s > self._spec.timeout_s:
                    raise self._stuck()
                await asyncio.wait([reading], timeout=_WATCH_INTERVAL_S)
            reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        self._record_withheld()

    def _stuck(self) -> UnreachableError:
        logs = [str(tp) for tp in self._list_unfinished()]
        shown = ", ".join(logs[:_MOST_SHOWN]) + (", …" if len(logs) > _MOST_SHOWN else "")
        return UnreachableError(
            f"cannot read {shown} to the end: nothing arrived for {self._spec.timeout_s:g} s"
        )

    def summary(self) -> ScanSummary:
        counts = self._counts.tolist()
        return ScanSummary(
            cluster=self._spec.cluster,
            logs=len(self._ends),
            messages=counts[MessageKind.MESSAGE],
            unreadable=counts[MessageKind.UNREADABLE],
            markers=counts[MessageKind.MARKER],
            foreign=counts[MessageKind.FOREIGN],
        )

    def _count_left(self) -> int:
        positions = self._logs.positions
        return sum(max(end - positions[tp], 0) for tp, end in self._ends.items())

    def _list_unfinished(self) -> list[TopicPartition]:
        return [tp for tp, end in self._ends.items() if self._logs.positions[tp] < end]

    def _retire_finished(self) -> None:
        for tp, end in self._ends.items():
            if self._logs.positions[tp] >= end:
                self._fetcher.retire(tp)

    def _on_position_reset(self, tp: TopicPartition) -> None:
        """Retention deleted records before the scan read them: its range starts after them."""
        self.starts[tp] = min(max(self.starts[tp], self._logs.positions[tp]), self._ends[tp])

    def _receive(self, found: list[FoundBatch], _received_us: int) -> None:
        delivered = self._logs.decode(found)
        inside = delivered.only(delivered.offset < self._end_of_part[delivered.log])
        kinds = inside.messages.kind
        self._counts += np.bincount(kinds, minlength=len(MessageKind))
        ours = inside.only((kinds == MessageKind.MESSAGE) | (kinds == MessageKind.UNREADABLE))
        if len(ours):
            self._record(ours)
        if self._spec.batches:
            self._record_batches(found, inside.only(kinds == MessageKind.MESSAGE))
        self._record_withheld()
        self._retire_finished()

    def _record_withheld(self) -> None:
        """Record ranges without messages; those of one log that touch and share a fate as one."""
        withheld, self._logs.withheld = self._logs.withheld or [], []
        rows: list[list[int]] = []
        for log, low, high, fate in sorted(withheld):
            if low >= self._end_of_part[log]:
                continue  # it belongs to another part, or was appended after the scan began
            if rows and rows[-1][0] == log and rows[-1][2] == low and rows[-1][3] == fate:
                rows[-1][2] = high
            else:
                rows.append([log, low, high, fate])
        if not rows:
            return
        logs, lows, highs, fates = np.array(rows, np.int64).T
        self._recorder.append(
            "control_ranges",
            cluster=self._spec.cluster,
            topic=Names(logs, [self._names[tp] for tp in self._logs.logs]),
            partition=self._partition_of_log[logs],
            low=lows,
            high=np.minimum(highs, self._end_of_part[logs]),
            fate=fates.astype(np.int8),
        )

    def _record(self, found: DeliveredRecords) -> None:
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

    def _record_batches(self, found: list[FoundBatch], messages: DeliveredRecords) -> None:
        """Record the headers of all batches inside the log's range with a message of the run."""
        numbers, first = np.unique(messages.batch, return_index=True)
        whole = [
            item.first_offset <= item.batch.base_offset
            and item.batch.next_offset <= self._end_of_log[item.log]
            for item in found
        ]
        kept = np.array(whole, np.bool_)[numbers]
        if not kept.any():
            return
        leaders, names = messages.only(_row_mask(len(messages), first[kept])), self._logs.messages
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


def _row_mask(count: int, rows: Longs) -> Flags:
    chosen = np.zeros(count, np.bool_)
    chosen[rows] = True
    return chosen
