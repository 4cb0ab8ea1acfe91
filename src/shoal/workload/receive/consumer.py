"""A consumer, with a fixed assignment or in a group: reads raw batches, records every delivery.

Rules:
- Every record that arrives is one row, repeated ones too, in the order of arrival. Records of
  other runs are counted; markers go to a table of their own.
- A lane is called drained only when its marker is here and everything that came before the
  marker is sealed: a consumer that dies takes no receipt with it that others relied on.
- Where it stands at the end is recorded after all receipts are.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from shoal.client.client import Client
from shoal.client.cluster.replica_choice import ReadPlaces
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.workload.control import Arrival, Control
from shoal.workload.envelope import Kind
from shoal.workload.receive.fetcher import Fetcher
from shoal.workload.receive.live import LiveCheck
from shoal.workload.receive.members import GroupReader, Owner, Partitions
from shoal.workload.receive.polls import Polls
from shoal.workload.receive.reading import Delivered, FoundBatch, LogReader
from shoal.workload.record.chores import Chore
from shoal.workload.record.recorder import Recorder
from shoal.workload.record.rows import Names
from shoal.workload.specs import ConsumerSpec, JsonSpec

_REPORT_INTERVAL_S = 0.5
_ASSIGNMENTS_PER_EPOCH = 1000
# Small answers are taken apart together: for each by itself it would cost a multiple. Not too
# many, though, because meanwhile nobody looks at the clock for the next answer.
_TAKE_APART_BYTES = 1024 * 1024
_TAKE_APART_S = 0.05

Longs = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class ConsumerSummary(JsonSpec):
    """What a consumer did."""

    run: Annotated[str, "run"]  # as it was told, or found out
    consumer: Annotated[str, "consumer"]
    group: Annotated[str, "group"]
    partitions: Annotated[int, "partitions"]  # that it reads at the moment
    rebalances: Annotated[int, "rebalances"]  # that gave it partitions, or took some away
    received: Annotated[int, "received"]
    unreadable: Annotated[int, "unreadable"]
    markers: Annotated[int, "markers"]
    foreign: Annotated[int, "foreign"]
    # First impressions; see `live`.
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
    """Read until told to stop. The client must be configured with `spec.client_properties()`."""
    return await _Consumer(spec, client, recorder, control).run()


class _Consumer:
    def __init__(
        self, spec: ConsumerSpec, client: Client, recorder: Recorder, control: Control
    ) -> None:
        self._spec = spec
        self._recorder = recorder
        self._control = control
        self._names = spec.recorded_names()
        fixed = () if spec.in_group else spec.partitions
        positions = {start.log: start.offset for start in fixed}
        self._logs = LogReader(spec.run, spec.topics, positions, isolation=spec.fetching.isolation)
        # Counts how often the position of each log was set. After a restart it begins
        # above everything that this process can reach.
        self._assignments = dict.fromkeys(positions, recorder.epoch * _ASSIGNMENTS_PER_EPOCH)
        self._rebalances = 0
        self._member: GroupReader | None = None
        if spec.in_group:
            owner = Owner(self._receive, self._given, self._given_up, self._seal)
            self._member = GroupReader(spec, client, self._logs, owner)
        self._polls = Polls()
        self._fetcher = Fetcher(
            client,
            self._logs,
            spec.fetching,
            channel=f"consumer {spec.group} {spec.consumer}",
            receive=self._receive,
            moved=self._moved,
            places=ReadPlaces(broker_id=spec.broker_id, rack=spec.fetching.rack),
            polls=self._polls,
        )
        self.live = LiveCheck(from_start=spec.from_start)
        self._sealing = Chore()
        self._arrived: set[Arrival] = set()
        self._told: set[Arrival] = set()
        self._counts = np.zeros(len(Kind), np.int64)
        self._found: list[FoundBatch] = []
        self._received_us: list[int] = []
        self._found_bytes = 0
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self) -> ConsumerSummary:
        for tp in self._logs.positions:
            self._assign(tp)
        await self._recorder.seal()
        reader = self._member or self._fetcher
        reading = run_awaited("reading", reader.run())
        try:
            await self._until_stopped(reading)
            await _ended(reading)
            # Not cancelled: rows that are on their way to the disk must get there.
            await self._sealing.finish()
            return await self._end()
        finally:
            await _ended(reading)
            await self._sealing.cancel()
            self._take_apart()

    async def _until_stopped(self, reading: "asyncio.Task[None]") -> None:
        stop = run_awaited("wait for the stop", self._control.wait_stop())
        try:
            while not self._control.stopping():
                # A consumer without partitions has read everything, and waits for its end.
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
        """Note what arrived and when; taken apart a little later, together with others."""
        self._found += found
        self._received_us += [received_us] * len(found)
        self._found_bytes += sum(item.batch.size for item in found)
        if self._found_bytes >= _TAKE_APART_BYTES:
            self._take_apart_and_seal()
        elif self._alarm is None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(_TAKE_APART_S, self._take_apart_and_seal)

    def _take_apart(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._found:
            return
        received_us = np.array(self._received_us, np.int64)
        delivered = self._logs.decode(self._found)
        self._found, self._received_us, self._found_bytes = [], [], 0
        self._record(delivered, received_us[delivered.batch])

    def _take_apart_and_seal(self) -> None:
        self._take_apart()
        self._seal_if_due()

    def _record(self, delivered: Delivered, received_us: Longs) -> None:
        kinds = delivered.messages.kind
        counts = np.bincount(kinds, minlength=len(Kind))
        self._counts += counts
        ours = counts[Kind.MESSAGE] + counts[Kind.UNREADABLE]
        if ours == len(delivered):
            self._record_receipts(delivered, received_us)
        elif ours:
            chosen = (kinds == Kind.MESSAGE) | (kinds == Kind.UNREADABLE)
            self._record_receipts(delivered.only(chosen), received_us[chosen])
        if counts[Kind.MARKER]:
            chosen = kinds == Kind.MARKER
            self._record_markers(delivered.only(chosen), received_us[chosen])

    def _columns(self, delivered: Delivered) -> dict[str, Any]:
        """The columns that receipts and markers have in common."""
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

    def _topic_names(self, delivered: Delivered) -> Names:
        """What the message says; for one that says nothing, the log that it was in."""
        topic, names = delivered.messages.topic, self._logs.messages.topics
        if topic.all():
            return Names(topic, names)
        logs = [self._names[tp.topic] for tp in self._logs.logs]
        return Names(np.where(topic, topic, delivered.log + len(names)), [*names, *logs])

    def _record_receipts(self, delivered: Delivered, received_us: Longs) -> None:
        # Only the logs that it has at the moment can have brought anything.
        numbers = [self._assignments.get(tp, 0) for tp in self._logs.logs]
        assignments = np.array(numbers, np.int32)
        self._look_at(delivered, received_us)
        self._recorder.append(
            "receipts",
            **self._columns(delivered),
            assignment=assignments[delivered.log],
            sequence=delivered.messages.sequence,
            timestamp_us=delivered.timestamp_us,
            received_us=received_us,
            intact=delivered.messages.intact,
        )

    def _look_at(self, delivered: Delivered, received_us: Longs) -> None:
        messages = delivered.messages
        readable = messages.sequence >= 0
        self.live.saw(
            messages.producer[readable],
            messages.topic[readable],
            messages.lane[readable],
            messages.sequence[readable],
        )
        sent_us = np.where(messages.sent_us < 0, delivered.timestamp_us, messages.sent_us)
        known = sent_us >= 0
        self.live.latency.add((received_us - sent_us)[known])

    def _record_markers(self, delivered: Delivered, received_us: Longs) -> None:
        messages = delivered.messages
        sent_us = np.where(messages.sent_us < 0, delivered.timestamp_us, messages.sent_us)
        columns = self._columns(delivered)
        self._recorder.append("markers", **columns, sent_us=sent_us, received_us=received_us)
        names = self._logs.messages
        columns_read = (messages.producer, messages.topic, messages.lane, messages.sequence)
        rows = zip(*columns_read, messages.intact, strict=True)
        for producer, topic, lane, count, is_intact in rows:
            if is_intact:
                self.live.marker(producer, topic, lane, count)
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
        has_news = bool(self._arrived - self._told)
        if (self._recorder.seal_is_due() or has_news) and not self._sealing.is_running:
            self._sealing.start(self._seal())

    async def _seal(self) -> None:
        self._take_apart()
        self._record_polls()
        news = sorted(self._arrived - self._told)
        positions = {} if self._member is None else self._member.positions
        await self._recorder.seal()
        if self._member is not None:
            self._member.sealed(positions)
        if news:
            await self._control.drained(news)
            self._told |= set(news)

    def _moved(self, tp: TopicPartition) -> None:
        self._take_apart()  # under the number of the assignment that it came by
        self._assignments[tp] += 1
        self._assign(tp)

    def _given(self, tp: TopicPartition, number: int, is_beginning: bool) -> None:
        """The group gave it a partition, or its position there was set anew."""
        self._take_apart()
        self._rebalances += tp not in self._assignments
        if not is_beginning:
            self.live.begin_anew()
        self._assignments[tp] = number
        self._assign(tp)

    def _given_up(self, partitions: Partitions) -> None:
        self._take_apart()
        self._rebalances += 1
        self.live.begin_anew()
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
        return {"role": "consumer", **self._summary().to_json()}

    def _summary(self) -> ConsumerSummary:
        counts = self._counts.tolist()
        latency, impression = self.live.latency, self.live.impression()
        return ConsumerSummary(
            run=self._logs.messages.run,
            consumer=self._spec.consumer,
            group=self._spec.group,
            partitions=len(self._assignments),
            rebalances=self._rebalances,
            received=counts[Kind.MESSAGE],
            unreadable=counts[Kind.UNREADABLE],
            markers=counts[Kind.MARKER],
            foreign=counts[Kind.FOREIGN],
            open_gaps=impression.open_gaps,
            duplicates=impression.duplicates,
            late=impression.late,
            missing_tails=impression.missing_tails,
            latency_p50_us=latency.percentile_us(50),
            latency_p99_us=latency.percentile_us(99),
            latency_max_us=latency.max_us,
        )

    async def _end(self) -> ConsumerSummary:
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
        await self._recorder.foreign(self._spec.cluster, int(self._counts[Kind.FOREIGN]))
        await self._recorder.seal()
        self._control.progress(self._report())
        return self._summary()


async def _ended(reading: "asyncio.Task[None]") -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
