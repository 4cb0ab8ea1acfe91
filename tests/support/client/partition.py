"""A simulated partition for an idempotent producer: sequence checks, lost responses, late copies.

Pure and seeded. `World` delivers requests to the broker in order, loses connections, and may
deliver the requests of a lost connection later. The broker accepts any first sequence of an unknown
producer, remembers the last five batches of each producer, and refuses gaps, as Kafka does.

`World.untruths` compares the reported outcomes with the log. To show that it detects errors, tests
pass queues that break one rule of `shoal.client.produce.sequencing` each (`World(queue_type=...)`).
"""

import random
from collections import deque
from dataclasses import dataclass, field

from shoal.client.codes import Code, outcome_of
from shoal.client.produce.sequencing import Mode, PartitionQueue, PendingBatch, ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, encode_batch

TP = TopicPartition("t", 0)
REMEMBERED = 5
# A run with 40 batches takes about 300 steps; a queue that is stuck never ends.
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Copy:
    """What one attempt puts on the wire: the header at that time, and the name of the batch."""

    name: int
    producer_id: int
    sequence: int
    count: int


@dataclass
class ProducerState:
    """The state of a producer on the broker."""

    expected: int
    recent: deque[Copy] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class Broker:
    """One partition's leader."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.producers: dict[int, ProducerState] = {}

    def append(self, copy: Copy) -> int:
        """Returns an error code."""
        if copy.name < 0:
            return Code.MESSAGE_TOO_LARGE
        state = self.producers.get(copy.producer_id)
        if state is None:
            state = self.producers[copy.producer_id] = ProducerState(copy.sequence)
        if any((c.sequence, c.count) == (copy.sequence, copy.count) for c in state.recent):
            return Code.NONE
        if copy.sequence != state.expected:
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        state.expected = copy.sequence + copy.count
        state.recent.append(copy)
        self.log.append(copy.name)
        return Code.NONE

    def restart(self) -> None:
        """After a restart only the last batch of each producer is remembered."""
        for state in self.producers.values():
            while len(state.recent) > 1:
                state.recent.popleft()


class World:
    """A line of batches, a broker, and a network that misbehaves by a seed."""

    def __init__(
        self,
        seed: int,
        *,
        batches: int,
        fault_rate: float,
        queue_type: type[PartitionQueue] = PartitionQueue,
    ) -> None:
        self.random = random.Random(seed)
        self.fault_rate = fault_rate
        self.now = 0.0
        self.broker = Broker()
        self.queue = queue_type(
            TP, Mode.IDEMPOTENT, max_in_flight=5, backoff=Backoff(1, 8, chance=self.random.random)
        )
        self.parcels: list[PendingBatch] = []
        self.to_add = batches
        self.names: dict[int, int] = {}
        self.in_flight: deque[tuple[PendingBatch, Copy]] = deque()
        self.late: list[Copy] = []
        self.identities = 0
        self.decided = 0

    def run(self) -> None:
        """Until every batch has an outcome and every late copy has arrived."""
        for _ in range(MOST_STEPS):
            if self.decided == len(self.parcels) and not self.to_add:
                break
            self.step()
        self.late += [copy for _, copy in self.in_flight]
        for copy in self.late:
            self.broker.append(copy)

    def step(self) -> None:
        self.now += self.random.random() * 0.01
        if self.to_add and self.random.random() < 0.5:
            self._add()
        if self.queue.needs_broker_state:
            self.identities += 1
            self.queue.set_identity(ProducerIdentity(self.identities, 0))
        self._send()
        if self.late and self.random.random() < 0.2:
            self.broker.append(self.late.pop(0))
        if self.random.random() < self.fault_rate:
            self.broker.restart()
        if self.in_flight:
            self._arrive()
        self._count(self.queue.expire(self.now))

    def untruths(self) -> list[str]:
        """The reported outcomes that are wrong, after a run."""
        log, reported = self.broker.log, {outcome: self.outcomes(outcome) for outcome in Outcome}
        acknowledged = reported[Outcome.OK]
        in_log = [name for name in dict.fromkeys(log) if name in set(acknowledged)]
        found = []
        if self.decided != len(self.parcels) or self.to_add:
            found.append("batches that never get an outcome")
        if len(in_log) < len(acknowledged):
            found.append("acknowledged, but not written")
        if in_log != sorted(in_log):
            found.append("written out of order")
        if set(reported[Outcome.FAILED]) & set(log):
            found.append("failed, but written")
        if len(log) != len(set(log)):
            found.append("written twice")
        if not self.fault_rate and reported[Outcome.UNKNOWN]:
            found.append("unknown without any fault")
        if not self.fault_rate and self.identities > 1:
            found.append("a new identity without any fault")
        return found

    def outcomes(self, outcome: Outcome) -> list[int]:
        """Names of the batches that ended so, in order of submission."""
        return [
            name
            for name, pending in enumerate(self.parcels)
            if pending.result is not None and pending.result.outcome is outcome
        ]

    def _add(self) -> None:
        self.to_add -= 1
        count = self.random.randint(1, 3)
        records = [Record(i, 0, None, b"x") for i in range(count)]
        batch = Batch(memoryview(encode_batch(records)))
        patience = self.random.choice([0.02, 0.2, 5.0])
        pending = PendingBatch(TP, batch, deadline=self.now + patience)
        self.names[id(pending)] = len(self.parcels)
        self.parcels.append(pending)
        self.queue.add(pending)

    def _send(self) -> None:
        while (pending := self.queue.next_to_send(self.now)) is not None:
            self.queue.mark_sent(pending)
            header = pending.batch
            name = self.names[id(pending)]
            is_refused = name % 7 == 3
            copy = Copy(
                -1 - name if is_refused else name,
                header.producer_id,
                header.base_sequence,
                header.record_count,
            )
            self.in_flight.append((pending, copy))

    def _arrive(self) -> None:
        luck = self.random.random()
        if luck < self.fault_rate:
            self._lose_connection()
            return
        if luck < 2 * self.fault_rate:
            appended = self.random.randint(1, len(self.in_flight))
            for _, copy in list(self.in_flight)[:appended]:
                self.broker.append(copy)
            self._lose_connection()  # and their answers with it
            return
        pending, copy = self.in_flight.popleft()
        is_short = luck < 3 * self.fault_rate
        code = Code.NOT_ENOUGH_REPLICAS if is_short else self.broker.append(copy)
        self._answer(pending, ProduceResult(outcome_of(code, acks=-1), code))

    def _lose_connection(self) -> None:
        lost = list(self.in_flight)
        self.in_flight.clear()
        arriving = self.random.randint(0, len(lost))
        self.late += [copy for _, copy in lost[:arriving]]
        for pending, _ in lost:
            self._answer(pending, ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION))

    def _answer(self, pending: PendingBatch, result: ProduceResult) -> None:
        self._count(self.queue.on_result(pending, result, self.now))

    def _count(self, decided: list[PendingBatch]) -> None:
        self.decided += len(decided)
