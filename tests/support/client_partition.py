"""A partition as an idempotent producer meets it: sequence checks, lost answers, late copies.

Pure and seeded. The world carries requests to the broker in order, loses connections, and may
deliver what was on a lost connection later. The broker accepts any first number of a producer
that it does not know, remembers the last five batches of each, and refuses gaps: as Kafka does.

`World.untruths` compares the outcomes that were told with the log. That it finds what is wrong
is shown by lines that break a rule of `shoal.client.produce.sequencing` each
(`World(line_type=...)`).
"""

import random
from collections import deque
from dataclasses import dataclass, field

from shoal.client.codes import Code, outcome_of
from shoal.client.produce.sequencing import Identity, Mode, Parcel, PartitionLine
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, encode_batch

TP = TopicPartition("t", 0)
REMEMBERED = 5
# A world of 40 batches is over after some 300 steps; a line that is stuck never is.
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Copy:
    """What one try puts on the wire: the header as it was then, and whose batch it is."""

    name: int
    producer_id: int
    sequence: int
    count: int


@dataclass
class ProducerState:
    """What a broker remembers of a producer."""

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
        trouble: float,
        line_type: type[PartitionLine] = PartitionLine,
    ) -> None:
        self.random = random.Random(seed)
        self.trouble = trouble
        self.now = 0.0
        self.broker = Broker()
        self.line = line_type(
            TP, Mode.IDEMPOTENT, max_in_flight=5, backoff=Backoff(1, 8, chance=self.random.random)
        )
        self.parcels: list[Parcel] = []
        self.to_add = batches
        self.names: dict[int, int] = {}
        self.in_flight: deque[tuple[Parcel, Copy]] = deque()
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
        if self.line.needs_identity and not self.line.in_flight:
            self.identities += 1
            self.line.identify(Identity(self.identities, 0))
        self._send()
        if self.late and self.random.random() < 0.2:
            self.broker.append(self.late.pop(0))
        if self.random.random() < self.trouble:
            self.broker.restart()
        if self.in_flight:
            self._arrive()
        self._count(self.line.expire(self.now))

    def untruths(self) -> list[str]:
        """What was told of the batches and is not so, after a run."""
        log, told = self.broker.log, {outcome: self.outcomes(outcome) for outcome in Outcome}
        acknowledged = told[Outcome.OK]
        in_log = [name for name in dict.fromkeys(log) if name in set(acknowledged)]
        found = []
        if self.decided != len(self.parcels) or self.to_add:
            found.append("batches that never get an outcome")
        if len(in_log) < len(acknowledged):
            found.append("acknowledged, but not written")
        if in_log != sorted(in_log):
            found.append("written out of order")
        if set(told[Outcome.FAILED]) & set(log):
            found.append("failed, but written")
        if len(log) != len(set(log)):
            found.append("written twice")
        if not self.trouble and told[Outcome.UNKNOWN]:
            found.append("unknown without any trouble")
        if not self.trouble and self.identities > 1:
            found.append("a new identity without any trouble")
        return found

    def outcomes(self, outcome: Outcome) -> list[int]:
        """Names of the batches that ended so, in order of hand-over."""
        return [
            name
            for name, parcel in enumerate(self.parcels)
            if parcel.result is not None and parcel.result.outcome is outcome
        ]

    def _add(self) -> None:
        self.to_add -= 1
        count = self.random.randint(1, 3)
        records = [Record(i, 0, None, b"x") for i in range(count)]
        batch = Batch(memoryview(encode_batch(records)))
        patience = self.random.choice([0.02, 0.2, 5.0])
        parcel = Parcel(TP, batch, deadline=self.now + patience)
        self.names[id(parcel)] = len(self.parcels)
        self.parcels.append(parcel)
        self.line.add(parcel)

    def _send(self) -> None:
        while (parcel := self.line.sendable(self.now)) is not None:
            self.line.sent(parcel)
            header = parcel.batch
            name = self.names[id(parcel)]
            is_refused = name % 7 == 3
            copy = Copy(
                -1 - name if is_refused else name,
                header.producer_id,
                header.base_sequence,
                header.record_count,
            )
            self.in_flight.append((parcel, copy))

    def _arrive(self) -> None:
        luck = self.random.random()
        if luck < self.trouble:
            self._lose_connection()
            return
        if luck < 2 * self.trouble:
            appended = self.random.randint(1, len(self.in_flight))
            for _, copy in list(self.in_flight)[:appended]:
                self.broker.append(copy)
            self._lose_connection()  # and their answers with it
            return
        parcel, copy = self.in_flight.popleft()
        is_short = luck < 3 * self.trouble
        code = Code.NOT_ENOUGH_REPLICAS if is_short else self.broker.append(copy)
        self._answer(parcel, ProduceResult(outcome_of(code, acks=-1), code))

    def _lose_connection(self) -> None:
        lost = list(self.in_flight)
        self.in_flight.clear()
        arriving = self.random.randint(0, len(lost))
        self.late += [copy for _, copy in lost[:arriving]]
        for parcel, _ in lost:
            self._answer(parcel, ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION))

    def _answer(self, parcel: Parcel, result: ProduceResult) -> None:
        self._count(self.line.answered(parcel, result, self.now))

    def _count(self, decided: list[Parcel]) -> None:
        self.decided += len(decided)
