"""A consumer, with a fixed assignment or in a group: reads batches and records every delivery.

Rules:
- Every record that arrives is one row, in the order of arrival, including repeated ones. Records
  of other runs are counted; markers go to a table of their own.
- A lane is reported as drained only when its marker has arrived and everything before the marker
  is sealed. So a consumer that dies loses no receipt that others rely on.
- Its final positions are recorded after all receipts.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from shoal.client.client import Client
from shoal.client.cluster.replica_choice import ReplicaSelector
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.telemetry.definitions import LATENCY_BOUNDS_US
from shoal.workload.control import Arrival, Control
from shoal.workload.envelope import MessageKind
from shoal.workload.receive.fetcher import Fetcher
from shoal.workload.receive.live import LiveCheck
from shoal.workload.receive.members import GroupReader, Partitions, ReaderCallbacks
from shoal.workload.receive.polls import PollRecorder
from shoal.workload.receive.reading import DeliveredRecords, FoundBatch, LogReader
from shoal.workload.record.background_task import BackgroundTask
from shoal.workload.record.recorder import Recorder
from shoal.workload.record.rows import Names
from shoal.workload.specs import ConsumerSpec, JsonSpec

_REPORT_INTERVAL_S = 0.5
_ASSIGNMENTS_PER_EPOCH = 1000
# Small responses are decoded together, which is several times cheaper than one by one. Not too many
# at once, because decoding delays the time stamp of the next response.
_DECODE_AFTER_BYTES = 1024 * 1024
_DECODE_AFTER_S = 0.05

Longs = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class ConsumerSummary(JsonSpec):
    """What a consumer did."""

    run: Annotated[str, "run"]  # as in the spec, or that of the first message
    consumer: Annotated[str, "consumer"]
    group: Annotated[str, "group"]
    partitions: Annotated[int, "partitions"]  # that it reads now
    rebalances: Annotated[int, "rebalances"]  # that assigned or revoked partitions
    received: Annotated[int, "received"]
    unreadable: Annotated[int, "unreadable"]
    markers: Annotated[int, "markers"]
    foreign: Annotated[int, "foreign"]
    # Estimates of the live check; see `live`.
    open_gaps: Annotated[int, "open_gaps"]
    duplicates: Annotated[int, "duplicates"]
    late: Annotated[int, "late"]
    missing_tails: Annotated[int, "missing_tails"]
    latency_p50_us: Annotated[int, "latency_p50_us"]
    latency_p99_us: Annotated[int, "latency_p99_us"]
    latency_max_us: Annotated[int, "latency_max_us"]


async def consume(
    spec: ConsumerSpec, client: Client, recorder: Recorder, control: Control
) -> ConsumerSummary:
    """Read until the control stops it. The client must have `spec.client_properties()`."""
    return await _Consumer(spec, client, recorder, control).run()


class _Consumer:
    def __init__(
        self, spec: ConsumerSpec, client: Client, recorder: Recorder, control: Control
    ) -> None:
        self._spec = spec
        self._recorder = recorder
        self._control = control
        self._names = spec.producer_topic_names()
        fixed = () if spec.in_group else spec.partitions
        positions = {start.log: start.offset for start in fixed}
        self._logs = LogReader(spec.run, spec.topics, positions, isolation=spec.fetching.isolation)
        # The number of each log's assignment; it grows when the position is reset. After a restart
        # it starts above all numbers of the earlier process.
        self._assignments = dict.fromkeys(positions, recorder.epoch * _ASSIGNMENTS_PER_EPOCH)
        self._rebalances = 0
        self._member: GroupReader | None = None
        if spec.in_group:
            callbacks = ReaderCallbacks(
                self._receive, self._on_assigned, self._on_released, self._seal
            )
            self._member = GroupReader(spec, client, self._logs, callbacks)
        self._polls = PollRecorder()
        self._fetcher = Fetcher(
            client,
            self._logs,
            spec.fetching,
            channel=f"consumer {spec.group} {spec.consumer}",
            receive=self._receive,
            on_reset=self._on_position_reset,
            places=ReplicaSelector(broker_id=spec.broker_id, rack=spec.fetching.rack),
            polls=self._polls,
        )
        self.live = LiveCheck(from_start=spec.from_start)
        # By bucket of latency: topic, producer, lane, sequence, latency and time of one message.
        self._examples: dict[int, list[Any]] = {}
        self._sealing = BackgroundTask()
        self._arrived: set[Arrival] = set()
        self._reported: set[Arrival] = set()
        self._counts = np.zeros(len(MessageKind), np.int64)
        self._found: list[FoundBatch] = []
        self._received_us: list[int] = []
        self._found_bytes = 0
        self._decode_timer: asyncio.TimerHandle | None = None

    async def run(self) -> ConsumerSummary:
        for tp in self._logs.positions:
            self._assign(tp)
        await self._recorder.seal()
        reader = self._member or self._fetcher
        reading = run_awaited("reading", reader.run())
        try:
            await self._until_stopped(reading)
            await _cancel(reading)
            # Not cancelled, because rows that are being sealed must reach the disk.
            await self._sealing.finish()
            return await self._finish()
        finally:
            await _cancel(reading)
            await self._sealing.cancel()
            self._decode_pending()

    async def _until_stopped(self, reading: "asyncio.Task[None]") -> None:
        stop = run_awaited("wait for the stop", self._control.wait_stop())
        try:
            while not self._control.is_stopping():
                # A consumer without partitions has nothing to read, and waits for the stop.
                await asyncio.wait(
                    (stop,) if reading.done() else (reading, stop),
                    timeout=_REPORT_INTERVAL_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if reading.done():
                    reading.result()
                self._control.progress(self._report())
                self._seal_if_due()
        finally:
            stop.cancel()

    def _receive(self, found: list[FoundBatch], received_us: int) -> None:
        """Keep the batches and their time of arrival; they are decoded a little later, together."""
        self._found += found
        self._received_us += [received_us] * len(found)
        self._found_bytes += sum(item.batch.size for item in found)
        if self._found_bytes >= _DECODE_AFTER_BYTES:
            self._decode_and_seal()
        elif self._decode_timer is None:
            loop = asyncio.get_running_loop()
            self._decode_timer = loop.call_later(_DECODE_AFTER_S, self._decode_and_seal)

    def _decode_pending(self) -> None:
        if self._decode_timer is not None:
            self._decode_timer.cancel()
            self._decode_timer = None
        if not self._found:
            return
        received_us = np.array(self._received_us, np.int64)
        delivered = self._logs.decode(self._found)
        self._found, self._received_us, self._found_bytes = [], [], 0
        self._record(delivered, received_us[delivered.batch])

    def _decode_and_seal(self) -> None:
        self._decode_pending()
        self._seal_if_due()

    def _record(self, delivered: DeliveredRecords, received_us: Longs) -> None:
        kinds = delivered.messages.kind
        counts = np.bincount(kinds, minlength=len(MessageKind))
        self._counts += counts
        ours = counts[MessageKind.MESSAGE] + counts[MessageKind.UNREADABLE]
        if ours == len(delivered):
            self._record_receipts(delivered, received_us)
        elif ours:
            chosen = (kinds == MessageKind.MESSAGE) | (kinds == MessageKind.UNREADABLE)
            self._record_receipts(delivered.only(chosen), received_us[chosen])
        if counts[MessageKind.MARKER]:
            chosen = kinds == MessageKind.MARKER
            self._record_markers(delivered.only(chosen), received_us[chosen])

    def _common_columns(self, delivered: DeliveredRecords) -> dict[str, Any]:
        """The columns that receipts and markers share."""
        messages, names = delivered.messages, self._logs.messages
        return {
            "group": self._spec.group,
            "consumer": self._spec.consumer,
            "topic": self._topic_names(delivered),
            "partition": np.array([tp.partition for tp in self._logs.logs])[delivered.log],
            "offset": delivered.offset,
            "producer": Names(messages.producer, names.producers),
            "incarnation": np.array(names.incarnations, np.int64)[messages.producer],
            "lane": messages.lane,
        }

    def _topic_names(self, delivered: DeliveredRecords) -> Names:
        """The topic in the message; for an unreadable one, the topic of its log."""
        topic, names = delivered.messages.topic, self._logs.messages.topics
        if topic.all():
            return Names(topic, names)
        logs = [self._names[tp.topic] for tp in self._logs.logs]
        return Names(np.where(topic, topic, delivered.log + len(names)), [*names, *logs])

    def _record_receipts(self, delivered: DeliveredRecords, received_us: Longs) -> None:
        # Only records of logs that are assigned now can arrive.
        numbers = [self._assignments.get(tp, 0) for tp in self._logs.logs]
        assignments = np.array(numbers, np.int32)
        self._update_live_check(delivered, received_us)
        self._recorder.append(
            "receipts",
            **self._common_columns(delivered),
            assignment=assignments[delivered.log],
            sequence=delivered.messages.sequence,
            timestamp_us=delivered.timestamp_us,
            received_us=received_us,
            intact=delivered.messages.intact,
        )

    def _update_live_check(self, delivered: DeliveredRecords, received_us: Longs) -> None:
        messages = delivered.messages
        readable = messages.sequence >= 0
        self.live.add_messages(
            messages.producer[readable],
            messages.topic[readable],
            messages.lane[readable],
            messages.sequence[readable],
        )
        sent_us = np.where(messages.sent_us < 0, delivered.timestamp_us, messages.sent_us)
        known = sent_us >= 0
        latencies_us = received_us - sent_us
        self.live.latency.add(latencies_us[known])
        if (known & readable).any():
            self._keep_example(delivered, np.where(known & readable, latencies_us, -1), received_us)

    def _keep_example(
        self, delivered: DeliveredRecords, latencies_us: Longs, received_us: Longs
    ) -> None:
        """Keep the name of the slowest message, for the bucket of its latency."""
        place = int(latencies_us.argmax())
        messages, names = delivered.messages, self._logs.messages
        latency_us = int(latencies_us[place])
        self._examples[bisect_left(LATENCY_BOUNDS_US, latency_us)] = [
            names.topics[messages.topic[place]],
            names.producers[messages.producer[place]],
            int(messages.lane[place]),
            int(messages.sequence[place]),
            latency_us,
            int(received_us[place]),
        ]

    def _record_markers(self, delivered: DeliveredRecords, received_us: Longs) -> None:
        messages = delivered.messages
        sent_us = np.where(messages.sent_us < 0, delivered.timestamp_us, messages.sent_us)
        columns = self._common_columns(delivered)
        self._recorder.append("markers", **columns, sent_us=sent_us, received_us=received_us)
        names = self._logs.messages
        columns_read = (messages.producer, messages.topic, messages.lane, messages.sequence)
        rows = zip(*columns_read, messages.intact, strict=True)
        for producer, topic, lane, count, is_intact in rows:
            if is_intact:
                self.live.add_marker(producer, topic, lane, count)
                who = (names.producers[producer], names.incarnations[producer])
                where = (names.topics[topic], int(lane))
                self._arrived.add(Arrival(*who, *where, self._spec.group))

    def _record_polls(self) -> None:
        polls = self._polls.take()
        if not polls:
            return
        logs, offsets, polled_us, known_us, counts = zip(*polls, strict=True)
        names = {name: place for place, name in enumerate(self._names)}
        self._recorder.append(
            "polls",
            group=self._spec.group,
            consumer=self._spec.consumer,
            topic=Names(
                np.array([names[tp.topic] for tp in logs], np.int32), list(self._names.values())
            ),
            partition=np.array([tp.partition for tp in logs], np.int32),
            offset=np.array(offsets, np.int64),
            polled_us=np.array(polled_us, np.int64),
            known_us=np.array(known_us, np.int64),
            count=np.array(counts, np.int64),
        )

    def _seal_if_due(self) -> None:
        self._sealing.check()
        has_arrivals = bool(self._arrived - self._reported)
        if (self._recorder.is_seal_due() or has_arrivals) and not self._sealing.is_running:
            self._sealing.start(self._seal())

    async def _seal(self) -> None:
        self._decode_pending()
        self._record_polls()
        arrived = sorted(self._arrived - self._reported)
        positions = {} if self._member is None else self._member.positions
        await self._recorder.seal()
        if self._member is not None:
            self._member.mark_sealed(positions)
        if arrived:
            await self._control.commit_drained(arrived)
            self._reported |= set(arrived)

    def _on_position_reset(self, tp: TopicPartition) -> None:
        self._decode_pending()  # so that its rows get the number of the old assignment
        self._assignments[tp] += 1
        self._assign(tp)

    def _on_assigned(self, tp: TopicPartition, number: int, is_beginning: bool) -> None:
        """The group assigned a partition, or reset the position in it."""
        self._decode_pending()
        self._rebalances += tp not in self._assignments
        if not is_beginning:
            self.live.reset_streams()
        self._assignments[tp] = number
        self._assign(tp)

    def _on_released(self, partitions: Partitions) -> None:
        self._decode_pending()
        self._rebalances += 1
        self.live.reset_streams()
        for tp in partitions:
            self._assignments.pop(tp, None)

    def _assign(self, tp: TopicPartition) -> None:
        self._recorder.append(
            "assignments",
            group=self._spec.group,
            consumer=self._spec.consumer,
            assignment=self._assignments[tp],
            topic=self._names[tp.topic],
            partition=tp.partition,
            offset=self._logs.positions[tp],
            assigned_us=time.time_ns() // 1000,
        )

    def _report(self) -> Mapping[str, Any]:
        latency = self.live.latency
        return {
            "role": "consumer",
            **self._summary().to_json(),
            "end_to_end_latency": [*latency.counts_below(LATENCY_BOUNDS_US), latency.total_us],
            "end_to_end_examples": [[bucket, *each] for bucket, each in self._examples.items()],
        }

    def _summary(self) -> ConsumerSummary:
        counts = self._counts.tolist()
        latency, live = self.live.latency, self.live.counts()
        return ConsumerSummary(
            run=self._logs.messages.run,
            consumer=self._spec.consumer,
            group=self._spec.group,
            partitions=len(self._assignments),
            rebalances=self._rebalances,
            received=counts[MessageKind.MESSAGE],
            unreadable=counts[MessageKind.UNREADABLE],
            markers=counts[MessageKind.MARKER],
            foreign=counts[MessageKind.FOREIGN],
            open_gaps=live.open_gaps,
            duplicates=live.duplicates,
            late=live.late,
            missing_tails=live.missing_tails,
            latency_p50_us=latency.percentile_us(50),
            latency_p99_us=latency.percentile_us(99),
            latency_max_us=latency.max_us,
        )

    async def _finish(self) -> ConsumerSummary:
        await self._seal()
        positions = self._logs.positions if self._member is None else self._member.positions
        for tp, position in positions.items():
            self._recorder.append(
                "positions",
                reader=self._spec.group,
                topic=self._names[tp.topic],
                partition=tp.partition,
                offset=position,
            )
        await self._recorder.record_foreign(
            self._spec.cluster, int(self._counts[MessageKind.FOREIGN])
        )
        await self._recorder.seal()
        self._control.progress(self._report())
        return self._summary()


async def _cancel(reading: "asyncio.Task[None]") -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
