"""A producer of columns: an open loop that sends whole batches and records every attempt.

Rules:
- A new ledger gets a number of its own, the producer's incarnation, which every message, row
  and reservation carries; a producer that is restarted is given the one that it had.
- Sequences are reserved durably before they are sent; so whatever happens to this process,
  no message is unexplained.
- Everything that is due leaves at once: one batch for each partition, made by compiled
  loops. There is no Python for each message.
- What became of a message is what the driver says of it, counting all tries; in a transaction
  it is the transaction's fate, see `transactions`.
- On a compacted topic each lane has many keys, and which message has which is in the ledger
  before it is sent; elsewhere a lane has one.
- After the last answer come markers, to every lane each second, until all lanes are drained
  or the time for it is over; then the manifest. Neither is a message.
- When told to stop: nothing more is sent, answers are awaited for a while, what has none
  is unknown, the manifest says what was attempted.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from shoal.client.client import Client
from shoal.model.errors import UsageError
from shoal.model.findings import Outcome
from shoal.model.ledger import ABORTED, COMMITTED, OPEN
from shoal.model.topics import TopicPartition
from shoal.wire.records.columns import encode_columns
from shoal.workload.control import Control, StreamLane, sleep_unless_stopped
from shoal.workload.envelope import MOST_MESSAGES, Envelope, Kind
from shoal.workload.envelope_columns import MessageWriter, WrittenMessages
from shoal.workload.receive.compacted import compacted_topics
from shoal.workload.record.chores import Chore
from shoal.workload.record.ledger import draw_incarnation
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.drivers import Answer, Driver, make_driver, parts_of
from shoal.workload.send.outbox import Share, TopicOutbox
from shoal.workload.send.outcomes import Answered, OutcomeRows
from shoal.workload.send.payload import parse_payload
from shoal.workload.send.schedule import Schedule, SteadySchedule, burst_schedule, ramp_schedule
from shoal.workload.send.transactions import Transactions
from shoal.workload.specs import JsonSpec, ProducedTopic, ProducerSpec

_log = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 0.5
_WARNING_INTERVAL_S = 5.0
_BEHIND_US = 1_000_000  # so far behind the schedule is worth a warning
_LONGEST_NAP_S = 0.1
_MARKER_INTERVAL_S = 1.0
_DRAIN_LOOK_S = 0.02
_LAST_ANSWERS_S = 10.0  # for answers still owed when told to stop


@dataclass(frozen=True)
class ProducerSummary(JsonSpec):
    """What a producer did, in messages."""

    producer: Annotated[str, "producer"]
    incarnation: Annotated[int, "incarnation"]
    attempts: Annotated[int, "attempts"]
    ok: Annotated[int, "ok"]
    failed: Annotated[int, "failed"]
    unknown: Annotated[int, "unknown"]
    unanswered: Annotated[int, "unanswered"]
    behind: Annotated[int, "behind"]  # due by now and not sent
    undrained_lanes: Annotated[int, "undrained_lanes"]
    state: Annotated[str, "state"]
    transactions_committed: Annotated[int, "transactions_committed"] = 0
    transactions_aborted: Annotated[int, "transactions_aborted"] = 0
    transactions_open: Annotated[int, "transactions_open"] = 0  # nobody knows how they ended


async def produce(
    spec: ProducerSpec, client: Client, recorder: Recorder, control: Control
) -> ProducerSummary:
    """Send all messages of the spec, drain, and record what became of each.

    The client must be configured with `spec.client_properties()`.
    """
    if client.config.acks != spec.acks:
        raise UsageError(f"the client has acks={client.config.acks}, the producer {spec.acks}")
    # Never 0: that stands for messages of the time before there were incarnations.
    spec = replace(spec, incarnation=spec.incarnation or draw_incarnation())
    compacted = await compacted_topics(client, [topic.name for topic in spec.topics])
    driver = make_driver(spec, client)
    try:
        await driver.start()
        return await _Producer(_with_keys(spec, compacted), driver, recorder, control).run()
    finally:
        await driver.close()


def _with_keys(spec: ProducerSpec, compacted: set[str]) -> ProducerSpec:
    topics = (replace(t, compacted=t.compacted or t.name in compacted) for t in spec.topics)
    return replace(spec, topics=tuple(topics))


def schedule_of(spec: ProducerSpec, start_us: int) -> Schedule:
    """When the messages to each topic are due."""
    if spec.shape == "burst":
        return burst_schedule(start_us, spec.rate_per_s, burst_s=spec.burst_s, pause_s=spec.pause_s)
    if spec.shape == "ramp":
        low = spec.rate_per_s * spec.ramp_from
        return ramp_schedule(start_us, spec.rate_per_s, from_per_s=low, ramp_s=spec.ramp_s)
    return SteadySchedule.at_rate(start_us, spec.rate_per_s)


def writer_of(spec: ProducerSpec, topic: ProducedTopic) -> MessageWriter:
    """Writes the messages to that topic; refuses sizes, names and payloads that cannot be."""
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


def _load_kernels(spec: ProducerSpec) -> None:
    """Make a batch for nobody: loading what is compiled must not make the first one late."""
    one = np.zeros(1, np.int64)
    written = MessageWriter(_envelope(spec, ""), 1).write(one, one, one, sent_ns=0)
    encode_columns(values=written.values, keys=written.keys, timestamps=one)


class _Topic:
    """One topic on its way: plan, writer, names."""

    def __init__(self, spec: ProducerSpec, topic: ProducedTopic, start_us: int) -> None:
        self.name = topic.name
        self._incarnation = spec.incarnation
        self.writer = writer_of(spec, topic)
        schedule = schedule_of(spec, start_us)
        messages = spec.messages_to(topic)
        end = messages if messages is not None else MOST_MESSAGES
        if spec.duration_s is not None:
            end = min(end, schedule.due(start_us + int(spec.duration_s * 1e6) - 1))
        self.outbox = TopicOutbox(
            lanes=topic.lanes,
            partitions=topic.partitions,
            schedule=schedule,
            end_number=end,
            first_number=spec.first_numbers.get(topic.name, 0),
        )

    def undrained(self, drained: frozenset[StreamLane]) -> list[int]:
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
        _load_kernels(spec)
        start_us = spec.start_us or time.time_ns() // 1000
        self._topics = [_Topic(spec, topic, start_us) for topic in spec.topics]
        self._most = max(spec.max_batch_bytes // spec.size_bytes, 1)
        # Where messages come more seldom than the linger lasts, waiting gains nothing.
        self._linger_us = spec.linger_us if spec.rate_per_s * spec.linger_us >= 2e6 else 0
        schedules = {topic.name: topic.outbox.schedule for topic in self._topics}
        self._outcomes = OutcomeRows(spec.producer, spec.incarnation, schedules)
        outboxes = {topic.name: topic.outbox for topic in self._topics}
        self._transactions = (
            Transactions(spec, driver, recorder, outboxes) if spec.is_transactional else None
        )
        self._unanswered: dict[Answer, tuple[_Topic, Share, int]] = {}
        self._counts = dict.fromkeys(Outcome, 0)
        self._attempts = 0
        self._state = "sending"
        self._sent_all_us: int | None = None  # from then on nothing falls behind
        self._reserving = Chore()
        self._sealing = Chore()
        self._wake = asyncio.Event()
        self._is_held_up = False  # messages are due, but every partition waits for answers
        self._reported_s = self._warned_s = 0.0

    async def run(self) -> ProducerSummary:
        try:
            if self._transactions is not None:
                self._transactions.begin_next()
            await self._send_all()
            self._sent_all_us = time.time_ns() // 1000
            await self._await_answers()
            await self._drain()
            await self._end()
        finally:
            await self._reserving.cancel()
            await self._sealing.cancel()
            self._outcomes.move_to(self._recorder)
        return self._summary()

    # ------------------------------------------------------------ messages

    async def _send_all(self) -> None:
        """Send until everything is sent, or until there is to be nothing new."""
        while not self._control.finishing():
            self._keep_house()
            now_us = time.time_ns() // 1000
            for topic in self._topics:
                shares = topic.outbox.take(
                    now_us, most=self._most, most_unanswered=self._driver.most_unanswered
                )
                if shares:
                    await self._send(topic, shares)
            if all(topic.outbox.is_done for topic in self._topics):
                return
            if self._transactions is not None and self._transactions.is_full:
                await self._next_transaction(self._transactions)
                continue
            await self._nap()

    async def _next_transaction(self, transactions: Transactions) -> None:
        if self._unanswered:
            await asyncio.wait(list(self._unanswered), timeout=_LONGEST_NAP_S)
            return
        await self._end_transaction()
        transactions.begin_next()

    async def _end_transaction(self, *, may_commit: bool = True) -> None:
        """What its messages have come to is known now."""
        if self._transactions is not None:
            for answered in await self._transactions.end(may_commit=may_commit):
                self._note(answered)

    async def _send(self, topic: _Topic, shares: list[Share]) -> None:
        sent_ns = time.time_ns()
        written = topic.writer.write(
            np.concatenate([share.numbers for share in shares]),
            np.concatenate([share.lanes for share in shares]),
            np.concatenate([share.sequences for share in shares]),
            sent_ns=sent_ns,
        )
        first = 0
        for share in shares:
            rows = written.rows(first, first + len(share))
            first += len(share)
            answer = await self._hand_over(topic, share.partition, rows, sent_ns)
            self._unanswered[answer] = (topic, share, sent_ns // 1000)
            self._attempts += len(share)
            answer.add_done_callback(self._answered)

    async def _hand_over(
        self, topic: _Topic, partition: int, messages: WrittenMessages, sent_ns: int
    ) -> Answer:
        """Messages of one partition to the driver."""
        box = topic.outbox.partitions[partition]
        box.unanswered += 1
        answer = await self._driver.send(TopicPartition(topic.name, partition), messages, sent_ns)

        def count(_answer: Answer) -> None:
            box.unanswered -= 1
            if self._is_held_up:
                self._wake.set()

        answer.add_done_callback(count)
        return answer

    def _answered(self, answer: Answer) -> None:
        topic, share, sent_us = self._unanswered.pop(answer)
        if answer.cancelled():
            return
        parts = parts_of(answer.result(), len(share))
        answered = Answered(topic.name, share, sent_us, parts)
        if self._transactions is not None:
            self._transactions.hold(answered)
        else:
            self._note(answered)

    def _note(self, answered: Answered) -> None:
        self._outcomes.add(answered)
        for part in answered.parts:
            self._counts[part.result.outcome] += part.messages

    # ------------------------------------------------------------ time

    async def _nap(self) -> None:
        """Sleep until there is something to send, or an answer that makes room for it."""
        self._wake.clear()
        now_us = time.time_ns() // 1000
        due_us = min(
            topic.outbox.next_due_us() for topic in self._topics if not topic.outbox.is_done
        )
        nap_s = min(max(due_us + self._linger_us - now_us, 0) / 1e6, _LONGEST_NAP_S)
        self._is_held_up = nap_s == 0 and not any(
            topic.outbox.can_take(now_us, most_unanswered=self._driver.most_unanswered)
            for topic in self._topics
        )
        if nap_s == 0 and not self._is_held_up:
            await asyncio.sleep(0)
            return
        alarm = asyncio.get_running_loop().call_later(nap_s or _LONGEST_NAP_S, self._wake.set)
        await self._wake.wait()
        alarm.cancel()

    def _keep_house(self) -> None:
        """Reserve, seal, report and warn, as far as it is time; never waits."""
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
        """Which keys the messages of the rows up to there will have."""
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
                    "producer %s cannot keep up: %d messages to %s are late, the first by %.1f s",
                    self._spec.producer,
                    topic.outbox.behind(now_us),
                    topic.name,
                    (now_us - topic.outbox.next_due_us()) / 1e6,
                )

    # ------------------------------------------------------------ the end

    async def _await_answers(self) -> None:
        """Wait for all outcomes; when told to stop, only a while: the rest is unknown."""
        self._enter("awaiting answers")
        patience_s = _LAST_ANSWERS_S
        while self._unanswered and patience_s > 0:
            self._seal_and_report()
            await asyncio.wait(list(self._unanswered), timeout=_LONGEST_NAP_S)
            if self._control.stopping():
                patience_s -= _LONGEST_NAP_S
        if self._unanswered:
            # Decides: what never left has failed, the rest is unknown.
            await self._driver.close()
            await asyncio.wait(list(self._unanswered), timeout=_LONGEST_NAP_S)
        await self._end_transaction(may_commit=not self._control.stopping())
        self._outcomes.move_to(self._recorder)
        await self._sealing.finish()
        await self._recorder.seal()

    def _seal_and_report(self) -> None:
        self._sealing.check()
        if self._recorder.seal_is_due() and not self._sealing.is_running:
            self._outcomes.move_to(self._recorder)
            self._sealing.start(self._recorder.seal())
        elif self._outcomes.are_many:
            self._outcomes.move_to(self._recorder)
        if time.monotonic() - self._reported_s >= _REPORT_INTERVAL_S:
            self._report()

    async def _drain(self) -> None:
        """Send markers until they have arrived everywhere."""
        self._enter("draining")
        deadline_s = time.monotonic() + self._spec.drain_timeout_s
        next_marker_s = 0.0
        while time.monotonic() < deadline_s and self._undrained_lanes():
            if time.monotonic() >= next_marker_s:
                next_marker_s = time.monotonic() + _MARKER_INTERVAL_S
                await self._send_markers()
            self._seal_and_report()
            if await sleep_unless_stopped(self._control, _DRAIN_LOOK_S):
                return

    async def _send_markers(self) -> None:
        if self._transactions is None:
            await self._hand_over_markers()
            return
        self._driver.begin()
        answers = await self._hand_over_markers()
        if answers:
            await asyncio.wait(answers)
        await self._driver.end(is_commit=True)

    async def _hand_over_markers(self) -> list[Answer]:
        drained = self._control.lanes_drained(self._spec.producer)
        sent_ns = time.time_ns()
        answers: list[Answer] = []
        for topic in self._topics:
            counts = topic.outbox.lane_counts()
            open_lanes = np.array(topic.undrained(drained), np.int64)
            for box in topic.outbox.partitions:
                lanes = np.intersect1d(open_lanes, box.lanes)
                if not len(lanes) or box.unanswered >= self._driver.most_unanswered:
                    continue
                numbers = np.full(len(lanes), counts.sum(), np.int64)
                markers = topic.writer.write(
                    numbers, lanes, counts[lanes], sent_ns=sent_ns, kind=Kind.MARKER
                )
                answers.append(await self._hand_over(topic, box.partition, markers, sent_ns))
        return answers

    def _undrained_lanes(self) -> int:
        drained = self._control.lanes_drained(self._spec.producer)
        return sum(len(topic.undrained(drained)) for topic in self._topics)

    async def _end(self) -> None:
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
        self._enter("ended")

    def _enter(self, state: str) -> None:
        self._state = state
        self._report()

    def _report(self) -> None:
        self._reported_s = time.monotonic()
        self._control.progress({"role": "producer", **self._summary().to_json()})

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
            unanswered=sum(len(share) for _, share, _ in self._unanswered.values()),
            behind=sum(topic.outbox.behind(now_us) for topic in self._topics),
            undrained_lanes=self._undrained_lanes(),
            state=self._state,
            transactions_committed=fates.get(COMMITTED, 0),
            transactions_aborted=fates.get(ABORTED, 0),
            transactions_open=fates.get(OPEN, 0),
        )
