"""A producer: an open loop that sends whole batches and records every attempt.

Rules:
- A new ledger gets a random number, the producer's incarnation, which is in every message, row and
  reservation. A restarted producer keeps it.
- Sequences are reserved durably before they are sent, so that every message can be explained even
  if this process dies.
- Everything that is due is sent at once: one batch for each partition, encoded by compiled loops.
  No Python code runs for each message.
- The outcome of a message is the one that the driver reports, over all retries; in a transaction
  it follows from the transaction's fate, see `transactions`.
- On a compacted topic each lane has many keys, and the key of each message is in the ledger before
  it is sent; on other topics a lane has one key.
- After the last answer, markers are sent to every lane each second, until all lanes are drained or
  the drain timeout is over; then the manifest is written. Neither is a message.
- On a stop, nothing more is sent. Answers are awaited for a while, messages without one are
  unknown, and the manifest has the attempts.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from shoal.client.client import Client
from shoal.model.errors import UsageError
from shoal.model.findings import Outcome
from shoal.model.ledger import ABORTED, COMMITTED, OPEN
from shoal.model.topics import TopicPartition
from shoal.telemetry.definitions import LATENCY_BOUNDS_US
from shoal.telemetry.samples import Histogram
from shoal.wire.records.columns import encode_columns
from shoal.workload.control import Control, StreamLane, sleep_unless_stopped
from shoal.workload.envelope import MAX_MESSAGES, Envelope, MessageKind
from shoal.workload.envelope_columns import EncodedMessages, MessageWriter
from shoal.workload.receive.compacted import find_compacted_topics
from shoal.workload.record.background_task import BackgroundTask
from shoal.workload.record.ledger import draw_incarnation
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.drivers import Answer, Driver, make_driver, name_error, to_parts
from shoal.workload.send.outbox import PlannedBatch, TopicOutbox
from shoal.workload.send.outcomes import AnsweredBatch, OutcomeRows
from shoal.workload.send.payload import parse_payload
from shoal.workload.send.schedule import Schedule, SteadySchedule, burst_schedule, ramp_schedule
from shoal.workload.send.transactions import ProducerTransactions
from shoal.workload.specs import JsonSpec, ProducedTopic, ProducerSpec

_log = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 0.5
_WARNING_INTERVAL_S = 5.0
_BEHIND_US = 1_000_000  # warn if messages are this late
_MAX_SLEEP_S = 0.1
_MARKER_INTERVAL_S = 1.0
_DRAIN_LOOK_S = 0.02
_MAX_ERROR_NAMES = 20
_LAST_ANSWERS_S = 10.0  # for outstanding answers after a stop


@dataclass(frozen=True)
class ProducerSummary(JsonSpec):
    """What a producer did; the counts are messages."""

    producer: Annotated[str, "producer"]
    incarnation: Annotated[int, "incarnation"]
    attempts: Annotated[int, "attempts"]
    ok: Annotated[int, "ok"]
    failed: Annotated[int, "failed"]
    unknown: Annotated[int, "unknown"]
    unanswered: Annotated[int, "unanswered"]
    behind: Annotated[int, "behind"]  # due and not sent
    undrained_lanes: Annotated[int, "undrained_lanes"]
    state: Annotated[str, "state"]
    # Messages without an acknowledgement, by Kafka's name of the error or the client's reason.
    errors: Annotated[Mapping[str, int], "errors"] = field(default_factory=dict)
    transactions_committed: Annotated[int, "transactions_committed"] = 0
    transactions_aborted: Annotated[int, "transactions_aborted"] = 0
    transactions_open: Annotated[int, "transactions_open"] = 0  # it is unknown how they ended


async def produce(
    spec: ProducerSpec, client: Client, recorder: Recorder, control: Control
) -> ProducerSummary:
    """Send all messages of the spec, drain, and record the outcome of each.

    The client must have `spec.client_properties()`.
    """
    if client.config.acks != spec.acks:
        raise UsageError(
            f"the client has acks={client.config.acks}, but the producer needs acks={spec.acks}"
        )
    # Never 0: that is the incarnation of messages written before incarnations existed.
    spec = replace(spec, incarnation=spec.incarnation or draw_incarnation())
    compacted = await find_compacted_topics(client, [topic.name for topic in spec.topics])
    driver = make_driver(spec, client)
    try:
        await driver.start()
        return await _Producer(_mark_compacted(spec, compacted), driver, recorder, control).run()
    finally:
        await driver.close()


def _mark_compacted(spec: ProducerSpec, compacted: set[str]) -> ProducerSpec:
    topics = (replace(t, compacted=t.compacted or t.name in compacted) for t in spec.topics)
    return replace(spec, topics=tuple(topics))


def make_schedule(spec: ProducerSpec, start_us: int) -> Schedule:
    """The schedule of the messages to each topic."""
    if spec.shape == "burst":
        return burst_schedule(start_us, spec.rate_per_s, burst_s=spec.burst_s, pause_s=spec.pause_s)
    if spec.shape == "ramp":
        low = spec.rate_per_s * spec.ramp_from
        return ramp_schedule(start_us, spec.rate_per_s, from_per_s=low, ramp_s=spec.ramp_s)
    return SteadySchedule.at_rate(start_us, spec.rate_per_s)


def make_writer(spec: ProducerSpec, topic: ProducedTopic) -> MessageWriter:
    """The encoder of the messages to that topic; raises for invalid sizes, names and payloads."""
    return MessageWriter(
        _envelope(spec, topic.name),
        topic.lanes,
        parse_payload(spec.payload),
        many_keys=topic.compacted,
    )


def _envelope(spec: ProducerSpec, topic: str) -> Envelope:
    return Envelope(
        spec.run,
        spec.producer,
        topic,
        spec.size_bytes,
        in_headers=spec.use_headers,
        incarnation=spec.incarnation,
    )


def _warm_up_kernels(spec: ProducerSpec) -> None:
    """Encode an unused batch: loading the compiled code must not delay the first real one."""
    one = np.zeros(1, np.int64)
    written = MessageWriter(_envelope(spec, ""), 1).write(one, one, one, sent_ns=0)
    encode_columns(values=written.values, keys=written.keys, timestamps=one)


class _Topic:
    """One topic that is written to: its outbox and its encoder."""

    def __init__(self, spec: ProducerSpec, topic: ProducedTopic, start_us: int) -> None:
        self.name = topic.name
        self._incarnation = spec.incarnation
        self.writer = make_writer(spec, topic)
        schedule = make_schedule(spec, start_us)
        messages = spec.messages_to(topic)
        end = messages if messages is not None else MAX_MESSAGES
        if spec.duration_s is not None:
            end = min(end, schedule.due(start_us + int(spec.duration_s * 1e6) - 1))
        self.outbox = TopicOutbox(
            lanes=topic.lanes,
            partitions=topic.partitions,
            schedule=schedule,
            end_number=end,
            first_number=spec.first_numbers.get(topic.name, 0),
        )

    def list_undrained(self, drained: frozenset[StreamLane]) -> list[int]:
        own, lanes = self._incarnation, range(self.outbox.lanes)
        return [lane for lane in lanes if StreamLane(own, self.name, lane) not in drained]


class _Producer:
    def __init__(
        self, spec: ProducerSpec, driver: Driver, recorder: Recorder, control: Control
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._recorder = recorder
        self._control = control
        _warm_up_kernels(spec)
        start_us = spec.start_us or time.time_ns() // 1000
        self._topics = [_Topic(spec, topic, start_us) for topic in spec.topics]
        self._most = max(spec.max_batch_bytes // spec.size_bytes, 1)
        # If messages are rarer than the linger time, waiting gains nothing.
        self._linger_us = spec.linger_us if spec.rate_per_s * spec.linger_us >= 2e6 else 0
        schedules = {topic.name: topic.outbox.schedule for topic in self._topics}
        self._outcomes = OutcomeRows(spec.producer, spec.incarnation, schedules)
        outboxes = {topic.name: topic.outbox for topic in self._topics}
        self._transactions = (
            ProducerTransactions(spec, driver, recorder, outboxes)
            if spec.is_transactional
            else None
        )
        self._unanswered: dict[Answer, tuple[_Topic, PlannedBatch, int]] = {}
        self._counts = dict.fromkeys(Outcome, 0)
        self._errors: Counter[str] = Counter()
        # Microseconds until acknowledgements, for the metrics of a run.
        self._ack_latency = Histogram(LATENCY_BOUNDS_US)
        self._attempts = 0
        self._state = "sending"
        self._sent_all_us: int | None = None  # `behind` is counted up to then
        self._reserving = BackgroundTask()
        self._sealing = BackgroundTask()
        self._wake = asyncio.Event()
        self._is_blocked = False  # messages are due, but all their partitions wait for answers
        self._reported_s = self._warned_s = 0.0

    async def run(self) -> ProducerSummary:
        try:
            if self._transactions is not None:
                self._transactions.begin_next()
            await self._send_all()
            self._sent_all_us = time.time_ns() // 1000
            await self._await_answers()
            await self._drain()
            await self._finish()
        finally:
            await self._reserving.cancel()
            await self._sealing.cancel()
            self._outcomes.flush_to(self._recorder)
        return self._summary()

    # ------------------------------------------------------------ messages

    async def _send_all(self) -> None:
        """Send until everything is sent, or the producer is finishing."""
        while not self._control.is_finishing():
            self._run_periodic_work()
            now_us = time.time_ns() // 1000
            for topic in self._topics:
                planned_batches = topic.outbox.take(
                    now_us, most=self._most, max_unanswered=self._driver.max_unanswered
                )
                if planned_batches:
                    await self._send(topic, planned_batches)
            if all(topic.outbox.is_done for topic in self._topics):
                return
            if self._transactions is not None and self._transactions.is_full:
                await self._next_transaction(self._transactions)
                continue
            await self._sleep_until_due()

    async def _next_transaction(self, transactions: ProducerTransactions) -> None:
        if self._unanswered:
            await asyncio.wait(list(self._unanswered), timeout=_MAX_SLEEP_S)
            return
        await self._end_transaction()
        transactions.begin_next()

    async def _end_transaction(self, *, may_commit: bool = True) -> None:
        """End the transaction, and record the outcomes of its messages."""
        if self._transactions is not None:
            for answered in await self._transactions.end(may_commit=may_commit):
                self._record_outcome(answered)

    async def _send(self, topic: _Topic, planned_batches: list[PlannedBatch]) -> None:
        sent_ns = time.time_ns()
        written = topic.writer.write(
            np.concatenate([planned.numbers for planned in planned_batches]),
            np.concatenate([planned.lanes for planned in planned_batches]),
            np.concatenate([planned.sequences for planned in planned_batches]),
            sent_ns=sent_ns,
        )
        first = 0
        for planned in planned_batches:
            rows = written.rows(first, first + len(planned))
            first += len(planned)
            answer = await self._send_to_driver(topic, planned.partition, rows, sent_ns)
            self._unanswered[answer] = (topic, planned, sent_ns // 1000)
            self._attempts += len(planned)
            answer.add_done_callback(self._on_answer)

    async def _send_to_driver(
        self, topic: _Topic, partition: int, messages: EncodedMessages, sent_ns: int
    ) -> Answer:
        """Pass messages of one partition to the driver."""
        box = topic.outbox.partitions[partition]
        box.unanswered += 1
        answer = await self._driver.send(TopicPartition(topic.name, partition), messages, sent_ns)

        def count(_answer: Answer) -> None:
            box.unanswered -= 1
            if self._is_blocked:
                self._wake.set()

        answer.add_done_callback(count)
        return answer

    def _on_answer(self, answer: Answer) -> None:
        topic, planned, sent_us = self._unanswered.pop(answer)
        if answer.cancelled():
            return
        parts = to_parts(answer.result(), len(planned))
        acked = sum(part.messages for part in parts if part.result.outcome is Outcome.OK)
        if acked:
            self._ack_latency.observe(time.time_ns() // 1000 - sent_us, count=acked)
        for part in parts:
            if (reason := name_error(part.result)) is not None:
                if reason not in self._errors and len(self._errors) == _MAX_ERROR_NAMES:
                    reason = "other errors"
                self._errors[reason] += part.messages
        answered = AnsweredBatch(topic.name, planned, sent_us, parts)
        if self._transactions is not None:
            self._transactions.hold(answered)
        else:
            self._record_outcome(answered)

    def _record_outcome(self, answered: AnsweredBatch) -> None:
        self._outcomes.add(answered)
        for part in answered.parts:
            self._counts[part.result.outcome] += part.messages

    # ------------------------------------------------------------ time

    async def _sleep_until_due(self) -> None:
        """Sleep until a message is due, or an answer unblocks a partition."""
        self._wake.clear()
        now_us = time.time_ns() // 1000
        due_us = min(
            topic.outbox.next_due_us() for topic in self._topics if not topic.outbox.is_done
        )
        sleep_s = min(max(due_us + self._linger_us - now_us, 0) / 1e6, _MAX_SLEEP_S)
        self._is_blocked = sleep_s == 0 and not any(
            topic.outbox.can_take(now_us, max_unanswered=self._driver.max_unanswered)
            for topic in self._topics
        )
        if sleep_s == 0 and not self._is_blocked:
            await asyncio.sleep(0)
            return
        timer = asyncio.get_running_loop().call_later(sleep_s or _MAX_SLEEP_S, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    def _run_periodic_work(self) -> None:
        """Reserve, seal, report and warn if it is time to; never waits."""
        self._reserving.check()
        now_us = time.time_ns() // 1000
        if not self._reserving.is_running:
            wanted = [(topic, topic.outbox.rows_to_reserve(now_us)) for topic in self._topics]
            due = [(topic, rows) for topic, rows in wanted if rows is not None]
            if due:
                self._reserving.start(self._reserve(due))
        self._warn_if_behind(now_us)
        self._seal_and_report()

    async def _reserve(self, wanted: list[tuple[_Topic, int]]) -> None:
        for topic, rows in wanted:
            if self._transactions is not None:
                self._transactions.plan(topic.name, topic.outbox.reserved_rows, rows)
            if topic.writer.many_keys:
                self._record_keys(topic, rows)
            if self._transactions is not None or topic.writer.many_keys:
                await self._recorder.seal()
            await self._recorder.reserve(
                self._spec.producer,
                topic.name,
                lanes=range(topic.outbox.lanes),
                until=rows,
                incarnation=self._spec.incarnation,
            )
            topic.outbox.reserved_rows = rows
        self._wake.set()

    def _record_keys(self, topic: _Topic, until: int) -> None:
        """Record the keys of the messages in the rows below `until`."""
        lanes, first = topic.outbox.lanes, topic.outbox.reserved_rows
        sequences, lane = np.divmod(np.arange(first * lanes, until * lanes, dtype=np.int64), lanes)
        self._recorder.append(
            "keys",
            producer=self._spec.producer,
            incarnation=self._spec.incarnation,
            topic=topic.name,
            lane=lane,
            sequence=sequences,
            key=topic.writer.key_numbers(lane, sequences),
        )

    def _warn_if_behind(self, now_us: int) -> None:
        now_s = time.monotonic()
        late = [
            topic
            for topic in self._topics
            if not topic.outbox.is_done and topic.outbox.next_due_us() + _BEHIND_US < now_us
        ]
        if late and now_s - self._warned_s >= _WARNING_INTERVAL_S:
            self._warned_s = now_s
            for topic in late:
                _log.warning(
                    "producer %s is late: %d messages to %s are overdue, the first by %.1f s",
                    self._spec.producer,
                    topic.outbox.behind(now_us),
                    topic.name,
                    (now_us - topic.outbox.next_due_us()) / 1e6,
                )

    # ------------------------------------------------------------ the end

    async def _await_answers(self) -> None:
        """Wait for all outcomes; after a stop only for a while, and the rest is unknown."""
        self._set_state("awaiting answers")
        patience_s = _LAST_ANSWERS_S
        while self._unanswered and patience_s > 0:
            self._seal_and_report()
            await asyncio.wait(list(self._unanswered), timeout=_MAX_SLEEP_S)
            if self._control.is_stopping():
                patience_s -= _MAX_SLEEP_S
        if self._unanswered:
            # Gives all an outcome: what was never sent has failed, the rest is unknown.
            await self._driver.close()
            await asyncio.wait(list(self._unanswered), timeout=_MAX_SLEEP_S)
        await self._end_transaction(may_commit=not self._control.is_stopping())
        self._outcomes.flush_to(self._recorder)
        await self._sealing.finish()
        await self._recorder.seal()

    def _seal_and_report(self) -> None:
        self._sealing.check()
        if self._recorder.is_seal_due() and not self._sealing.is_running:
            self._outcomes.flush_to(self._recorder)
            self._sealing.start(self._recorder.seal())
        elif self._outcomes.should_flush:
            self._outcomes.flush_to(self._recorder)
        if time.monotonic() - self._reported_s >= _REPORT_INTERVAL_S:
            self._report()

    async def _drain(self) -> None:
        """Send markers until all lanes are drained."""
        self._set_state("draining")
        deadline_s = time.monotonic() + self._spec.drain_timeout_s
        next_marker_s = 0.0
        while time.monotonic() < deadline_s and self._count_undrained_lanes():
            if time.monotonic() >= next_marker_s:
                next_marker_s = time.monotonic() + _MARKER_INTERVAL_S
                await self._send_markers()
            self._seal_and_report()
            if await sleep_unless_stopped(self._control, _DRAIN_LOOK_S):
                return

    async def _send_markers(self) -> None:
        if self._transactions is None:
            await self._send_markers_to_driver()
            return
        self._driver.begin()
        answers = await self._send_markers_to_driver()
        if answers:
            await asyncio.wait(answers)
        await self._driver.end(is_commit=True)

    async def _send_markers_to_driver(self) -> list[Answer]:
        drained = self._control.lanes_drained(self._spec.producer)
        sent_ns = time.time_ns()
        answers: list[Answer] = []
        for topic in self._topics:
            counts = topic.outbox.lane_counts()
            open_lanes = np.array(topic.list_undrained(drained), np.int64)
            for box in topic.outbox.partitions:
                lanes = np.intersect1d(open_lanes, box.lanes)
                if not len(lanes) or box.unanswered >= self._driver.max_unanswered:
                    continue
                numbers = np.full(len(lanes), counts.sum(), np.int64)
                markers = topic.writer.write(
                    numbers, lanes, counts[lanes], sent_ns=sent_ns, kind=MessageKind.MARKER
                )
                answers.append(await self._send_to_driver(topic, box.partition, markers, sent_ns))
        return answers

    def _count_undrained_lanes(self) -> int:
        drained = self._control.lanes_drained(self._spec.producer)
        return sum(len(topic.list_undrained(drained)) for topic in self._topics)

    async def _finish(self) -> None:
        for topic in self._topics:
            self._recorder.append(
                "manifests",
                producer=self._spec.producer,
                incarnation=self._spec.incarnation,
                topic=topic.name,
                lane=np.arange(topic.outbox.lanes, dtype=np.int32),
                count=topic.outbox.lane_counts(),
            )
        await self._sealing.finish()
        await self._recorder.seal()
        self._set_state("ended")

    def _set_state(self, state: str) -> None:
        self._state = state
        self._report()

    def _report(self) -> None:
        self._reported_s = time.monotonic()
        latency = self._ack_latency
        self._control.progress(
            {
                "role": "producer",
                **self._summary().to_json(),
                "produce_latency": [*latency.counts, round(latency.total)],
            }
        )

    def _summary(self) -> ProducerSummary:
        now_us = self._sent_all_us or time.time_ns() // 1000
        fates = self._transactions.counts if self._transactions is not None else {}
        return ProducerSummary(
            producer=self._spec.producer,
            incarnation=self._spec.incarnation,
            attempts=self._attempts,
            ok=self._counts[Outcome.OK],
            failed=self._counts[Outcome.FAILED],
            unknown=self._counts[Outcome.UNKNOWN],
            unanswered=sum(len(planned) for _, planned, _ in self._unanswered.values()),
            behind=sum(topic.outbox.behind(now_us) for topic in self._topics),
            undrained_lanes=self._count_undrained_lanes(),
            state=self._state,
            errors=dict(self._errors),
            transactions_committed=fates.get(COMMITTED, 0),
            transactions_aborted=fates.get(ABORTED, 0),
            transactions_open=fates.get(OPEN, 0),
        )
