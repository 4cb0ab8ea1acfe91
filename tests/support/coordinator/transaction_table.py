"""The transaction table: with which code a broker answers each request in each state.

`play_table` brings a transactional id of its own into a state for every cell, sends one request
and notes the error code, and, if the answer names a producer, how far that is from the
coordinator's. `scripts/record_transaction_table.py` writes what Apache Kafka answers to
`tests/interop/transaction_table.tsv`; the interop test compares any engine with that file.

Rules of this file:
- Three brokers. Clients talk to the first one, which leads everything but the topic `held` and
  coordinates everything. The third leads `held` and is paused: a transaction with a partition of
  `held` stays in its prepare state, because its marker is not written.
- Of the two partitions of `__transaction_state` the second has a replica on the third broker, so
  a change of a transactional id there stays pending. Such ids are made before the pause.
- Every request of a cell is sent once: the code is that of the first answer.
- Relations count from the producer id and epoch that the coordinator has in that state; where a
  change is pending, from those before the change.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from typing import Any, Final, NamedTuple

from shoal.lite.coordinator.topics import partition_of
from shoal.systems.clusters import Cluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code
from support.client.transaction_client import NEVER_MS, Producer, TransactionClient
from support.lite.client import TIMEOUT_MS
from support.lite.clusters import eventually

PROPERTIES: Final = {
    # The paused broker keeps its partitions and its place among the in-sync replicas.
    "broker.session.timeout.ms": str(NEVER_MS),
    "replica.lag.time.max.ms": str(NEVER_MS),
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
BROKERS: Final = 3
_CLIENT_BROKER, _OTHER_BROKER, _PAUSED_BROKER = 1, 2, 3
_WRITTEN, _FRESH, _HELD = "written", "fresh", "held"
_ASSIGNMENTS: Final = {
    "__transaction_state": [[_CLIENT_BROKER, _OTHER_BROKER], [_CLIENT_BROKER, _PAUSED_BROKER]],
    "__consumer_offsets": [[_CLIENT_BROKER]],
    _WRITTEN: [[_CLIENT_BROKER]],
    _FRESH: [[_CLIENT_BROKER]],
    _HELD: [[_PAUSED_BROKER]],
    # Each broker leads equally many, so that no leadership moves.
    "filler": [[_OTHER_BROKER]] * 5 + [[_PAUSED_BROKER]] * 4,
}
_STEADY, _PENDING = 0, 1  # the partitions of `__transaction_state`
_SHORT_MS = 200
# Transactions that time out together, so that the time is spent once.
_TIMED_OUT_AT_ONCE = 80
_OTHER_ID_DISTANCE = 1_000_000
NOT_PLAYED: Final = "-"
_SAME = "equal"
RELATIONS: Final = (_SAME, "one less", "one more", "other id")
Codes = dict[str, str]
Table = dict[tuple[str, str], Codes]


class Prepared(NamedTuple):
    """A transactional id in its state: what the coordinator has, and what was written."""

    producer: Producer
    # The epoch under which the topic `written` was written to.
    written_epoch: int | None = None

    def related(self, relation: str) -> Producer:
        known = self.producer
        epochs = {"one less": -1, "one more": 1}
        producer_id = known.producer_id + (_OTHER_ID_DISTANCE if relation == "other id" else 0)
        return Producer(known.name, producer_id, known.epoch + epochs.get(relation, 0))


# Requests


class Sent(NamedTuple):
    """What a cell's request needs."""

    client: TransactionClient
    producer: Producer
    prepared: Prepared

    def sequence_at_written(self) -> int:
        return 1 if self.producer.epoch == self.prepared.written_epoch else 0

    def distance(self, answer: tuple[Code, Producer]) -> str:
        """A code, and where a producer was given: how it differs from the coordinator's."""
        code, found = answer
        if found.producer_id < 0:
            return code.name
        known = self.prepared.producer
        if found.producer_id != known.producer_id:
            return f"{code.name} new id, epoch {found.epoch}"
        return f"{code.name} epoch {found.epoch - known.epoch:+d}"


Request = Callable[[Sent], str]


def _describe(sent: Sent) -> str:
    """The epoch as it is: every transactional id begins its transaction with epoch 1."""
    found = sent.client.describe(sent.producer.name)
    return f"{Code(found.error_code).name} {found.transaction_state} {found.producer_epoch}"


def _init(sent: Sent) -> str:
    return sent.distance(sent.client.init(sent.producer))


def _init_without_id(sent: Sent) -> str:
    return sent.distance(sent.client.init(Producer(sent.producer.name)))


def _add(sent: Sent, *, version: int, verifies: bool = False) -> str:
    return sent.client.add(sent.producer, _FRESH, version=version, verifies=verifies).name


def _verify_written(sent: Sent) -> str:
    return sent.client.add(sent.producer, _WRITTEN, version=5, verifies=True).name


def _add_offsets(sent: Sent, *, version: int) -> str:
    return sent.client.add_offsets(sent.producer, version=version).name


def _commit_offsets(sent: Sent, *, version: int) -> str:
    return sent.client.commit_offsets(sent.producer, _WRITTEN, version=version).name


def _write_fresh(sent: Sent, *, version: int) -> str:
    return sent.client.write(sent.producer, _FRESH, version=version, sequence=0).name


def _write_written(sent: Sent, *, version: int) -> str:
    sequence = sent.sequence_at_written()
    return sent.client.write(sent.producer, _WRITTEN, version=version, sequence=sequence).name


def _end(sent: Sent, *, version: int, commits: bool) -> str:
    return sent.distance(sent.client.end(sent.producer, commits=commits, version=version))


_DESCRIBE, _WITHOUT_ID = "DescribeTransactions 0", "InitProducerId 5 without id"
REQUESTS: Final[dict[str, Request]] = {
    _DESCRIBE: _describe,
    _WITHOUT_ID: _init_without_id,
    "InitProducerId 5": _init,
    "AddPartitionsToTxn 3": partial(_add, version=3),
    "AddPartitionsToTxn 4": partial(_add, version=4),
    "AddPartitionsToTxn 5": partial(_add, version=5),
    "AddPartitionsToTxn 5 verify, new partition": partial(_add, version=5, verifies=True),
    "AddPartitionsToTxn 5 verify, written partition": _verify_written,
    "AddOffsetsToTxn 4": partial(_add_offsets, version=4),
    "TxnOffsetCommit 3": partial(_commit_offsets, version=3),
    "TxnOffsetCommit 4": partial(_commit_offsets, version=4),
    "TxnOffsetCommit 5": partial(_commit_offsets, version=5),
    "Produce 10, new partition": partial(_write_fresh, version=10),
    "Produce 11, new partition": partial(_write_fresh, version=11),
    "Produce 12, new partition": partial(_write_fresh, version=12),
    "Produce 11, written partition": partial(_write_written, version=11),
    "Produce 12, written partition": partial(_write_written, version=12),
    "EndTxn 4 commit": partial(_end, version=4, commits=True),
    "EndTxn 4 abort": partial(_end, version=4, commits=False),
    "EndTxn 5 commit": partial(_end, version=5, commits=True),
    "EndTxn 5 abort": partial(_end, version=5, commits=False),
}


# States


@dataclass(slots=True)
class Stage:
    """The cluster of the table, and the ids that were made for it."""

    client: TransactionClient
    connect: Callable[[], TransactionClient]
    numbers: Iterator[int] = field(default_factory=partial(count, 1))
    timing_out: dict[tuple[int, str], list[Producer]] = field(default_factory=dict)

    def new_id(self, partition: int = _STEADY) -> str:
        """A transactional id that nobody has, in a partition of `__transaction_state`."""
        names = (f"id-{number}" for number in self.numbers)
        return next(name for name in names if partition_of(name, 2) == partition)

    def empty(self, partition: int = _STEADY, timeout_ms: int = NEVER_MS) -> Producer:
        """After two InitProducerIds, so that an epoch one less was in use."""
        name = self.new_id(partition)
        first = self._init(Producer(name), timeout_ms)
        return self._init(Producer(first.name), timeout_ms)

    def renewed(self) -> Producer:
        return self._init(self._init(Producer(self.new_id())))

    def _init(self, producer: Producer, timeout_ms: int = NEVER_MS) -> Producer:
        found: list[tuple[Code, Producer]] = []

        def is_done() -> bool:
            found.append(self.client.init(producer, timeout_ms))
            return found[-1][0] == Code.NONE

        eventually(is_done)
        return found[-1][1]

    def ongoing(self, producer: Producer, version: int, *, is_held: bool = False) -> Prepared:
        """With the second protocol (version 5 of the requests) or the first (version 4)."""
        adds = 3 if version < 5 else 5
        for topic in (_WRITTEN, _HELD) if is_held else (_WRITTEN,):
            _expect(self.client.add(producer, topic, version=adds))
        writes = 11 if version < 5 else 12
        _expect(self.client.write(producer, _WRITTEN, version=writes, sequence=0))
        return self.known(producer.name, "Ongoing", producer.epoch)

    def ended(self, version: int, *, commits: bool, is_held: bool) -> Prepared:
        prepared = self.ongoing(self.empty(), version, is_held=is_held)
        _expect(self.client.end(prepared.producer, commits=commits, version=version)[0])
        state = ("Prepare" if is_held else "Complete") + ("Commit" if commits else "Abort")
        return self.known(prepared.producer.name, state, prepared.written_epoch)

    def timed_out(self, version: int, *, is_held: bool) -> Prepared:
        """Nothing is written: on a busy machine the time could be over before."""
        topic = _HELD if is_held else _WRITTEN
        waiting = self.timing_out.setdefault((version, topic), [])
        if not waiting:
            waiting += [self.empty(timeout_ms=_SHORT_MS) for _ in range(_TIMED_OUT_AT_ONCE)]
            for producer in waiting:
                _expect(self.client.add(producer, topic, version=version))
        name = waiting.pop().name
        return self.known(name, "PrepareAbort" if is_held else "CompleteAbort", None)

    def taken_over(self, state: str) -> Prepared:
        prepared = self.ongoing(self.empty(), 5, is_held=state == "PrepareAbort")
        name = prepared.producer.name
        code, _ = self.client.init(Producer(name))
        assert code == Code.CONCURRENT_TRANSACTIONS, code
        if state == "Empty":
            self._init(Producer(name))
        return self.known(name, state, prepared.written_epoch)

    def known(self, name: str, state: str, written_epoch: int | None) -> Prepared:
        """What the coordinator has, once it is in this state.

        In prepare states the one marker that can be written is.
        """
        eventually(lambda: bool(self.client.describe(name).transaction_state == state))
        found = self.client.describe(name)
        if state.startswith("Prepare"):
            producer_id = found.producer_id
            eventually(lambda: not self.client.has_open_transaction(producer_id, _WRITTEN))
        return Prepared(Producer(name, found.producer_id, found.producer_epoch), written_epoch)


def _expect(code: Code) -> None:
    assert code == Code.NONE, code


def _none(stage: Stage) -> Prepared:
    return Prepared(Producer(stage.new_id(), 1_000, 1))


def _empty(stage: Stage) -> Prepared:
    return Prepared(stage.empty())


def _prepare_renewed(stage: Stage) -> Prepared:
    return Prepared(stage.renewed())


def _ongoing(stage: Stage, *, version: int) -> Prepared:
    return stage.ongoing(stage.empty(), version)


def _prepare_ended(stage: Stage, *, version: int, commits: bool, is_held: bool) -> Prepared:
    return stage.ended(version, commits=commits, is_held=is_held)


State = Callable[[Stage], Prepared]


def _states_by_version() -> Iterator[tuple[str, State]]:
    """What a producer of either protocol reaches: version 4 of the requests, or 5."""
    for version in (4, 5):
        yield f"Ongoing by version {version}", partial(_ongoing, version=version)
        for is_held, commits in product((True, False), (True, False)):
            title = ("Prepare" if is_held else "Complete") + ("Commit" if commits else "Abort")
            ended = partial(_prepare_ended, version=version, commits=commits, is_held=is_held)
            yield f"{title} by version {version}", ended


STATES: Final[dict[str, State]] = {
    "no transactional id": _none,
    "Empty": _empty,
    "Empty, InitProducerId with id": _prepare_renewed,
    **dict(_states_by_version()),
    "PrepareAbort, timed out": lambda stage: stage.timed_out(5, is_held=True),
    "CompleteAbort, timed out": lambda stage: stage.timed_out(5, is_held=False),
    "CompleteAbort by version 3, timed out": lambda stage: stage.timed_out(3, is_held=False),
    "PrepareAbort, taken over": lambda stage: stage.taken_over("PrepareAbort"),
    "CompleteAbort, taken over": lambda stage: stage.taken_over("CompleteAbort"),
    "Empty, taken over": lambda stage: stage.taken_over("Empty"),
}


# Pending changes


def _begin_init(client: TransactionClient, prepared: Prepared) -> None:
    values = Producer(prepared.producer.name).values
    client.send_only(ApiKey.INIT_PRODUCER_ID, 5, **values, transaction_timeout=NEVER_MS)


def _begin_add(client: TransactionClient, prepared: Prepared) -> None:
    topics = [{"name": _WRITTEN, "partitions": [0]}]
    values = {**prepared.producer.values, "verify_only": False, "topics": topics}
    client.send_only(ApiKey.ADD_PARTITIONS_TO_TXN, 5, transactions=[values])


def _begin_end(
    client: TransactionClient, prepared: Prepared, *, version: int, commits: bool
) -> None:
    client.send_only(ApiKey.END_TXN, version, **prepared.producer.values, committed=commits)


class Pending(NamedTuple):
    """A change that stays pending: the state before it, and the request that asks for it."""

    prepare: Callable[[Stage], Prepared]
    begin: Callable[[TransactionClient, Prepared], None]


def _pending_empty(stage: Stage) -> Prepared:
    return Prepared(stage.empty(_PENDING))


def _pending_ongoing(stage: Stage, *, version: int) -> Prepared:
    return stage.ongoing(stage.empty(_PENDING), version)


PENDING: Final[dict[str, Pending]] = {
    "Empty, InitProducerId pending": Pending(_pending_empty, _begin_init),
    "Empty, AddPartitionsToTxn pending": Pending(_pending_empty, _begin_add),
    "Ongoing, InitProducerId pending": Pending(partial(_pending_ongoing, version=5), _begin_init),
    **{
        f"Ongoing, EndTxn {version} {'commit' if commits else 'abort'} pending": Pending(
            partial(_pending_ongoing, version=version),
            partial(_begin_end, version=version, commits=commits),
        )
        for version in (4, 5)
        for commits in (True, False)
    },
}


# Playing


def play_table(cluster: Cluster) -> Table:
    """Every cell's outcome; leaves the third broker running."""
    node = next(node for node in cluster.nodes() if node.id == _CLIENT_BROKER)
    address = f"{node.host}:{node.port}"
    with ExitStack() as stack:

        def connect() -> TransactionClient:
            return stack.enter_context(TransactionClient(address))

        client = connect()
        _create_topics(client)
        stage = Stage(client, connect)
        waiting = {
            (state, request, relation): pending.prepare(stage)
            for state, pending in PENDING.items()
            for request, relation in _cells()
        }
        with _pause(cluster):
            table = {
                (state, request): {
                    relation: _outcome(stage, prepare(stage), request, relation)
                    for relation in _relations(request)
                }
                for state, prepare in STATES.items()
                for request in REQUESTS
            }
            for (state, request, relation), prepared in waiting.items():
                _begin_and_settle(stage, PENDING[state], prepared)
                outcome = _outcome(stage, prepared, request, relation)
                table.setdefault((state, request), {})[relation] = outcome
    return table


def _cells() -> Iterator[tuple[str, str]]:
    return ((request, relation) for request in REQUESTS for relation in _relations(request))


def _relations(request: str) -> tuple[str, ...]:
    return (_SAME,) if request in {_DESCRIBE, _WITHOUT_ID} else RELATIONS


def _outcome(stage: Stage, prepared: Prepared, request: str, relation: str) -> str:
    if "written" in request and prepared.written_epoch is None:
        return NOT_PLAYED
    sent = Sent(stage.client, prepared.related(relation), prepared)
    return REQUESTS[request](sent)


def _begin_and_settle(stage: Stage, pending: Pending, prepared: Prepared) -> None:
    """Begin a change that stays pending; returns when the coordinator has begun it."""
    pending.begin(stage.connect(), prepared)
    # A producer id that is not the right one: refused with another code while nothing is pending.
    eventually(lambda: _is_pending(stage, prepared))


def _is_pending(stage: Stage, prepared: Prepared) -> bool:
    return stage.client.init(prepared.related("other id"))[0] == Code.CONCURRENT_TRANSACTIONS


@contextmanager
def _pause(cluster: Cluster) -> Iterator[None]:
    cluster.pause(_PAUSED_BROKER)
    try:
        yield
    finally:
        cluster.resume(_PAUSED_BROKER)


def _create_topics(client: TransactionClient) -> None:
    topics = [
        {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                {"partition_index": index, "broker_ids": brokers}
                for index, brokers in enumerate(assignment)
            ],
            "configs": _configs(name),
        }
        for name, assignment in _ASSIGNMENTS.items()
    ]
    answer = client.request(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=TIMEOUT_MS)
    failed = [topic for topic in answer.topics if topic.error_code]
    assert not failed, failed


def _configs(name: str) -> list[dict[str, Any]]:
    if not name.startswith("__"):
        return []
    return [{"name": "cleanup.policy", "value": "compact"}]


# The file


def write_table(table: Table) -> str:
    """The table as text: a line for each state and request, a column for each relation."""
    lines = ["\t".join(("state", "request", *RELATIONS))]
    for (state, request), codes in table.items():
        columns = (codes.get(relation, NOT_PLAYED) for relation in RELATIONS)
        lines.append("\t".join((state, request, *columns)))
    return "\n".join(lines) + "\n"


def read_table(text: str) -> Table:
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return {
        (state, request): dict(zip(RELATIONS, columns, strict=True))
        for state, request, *columns in rows[1:]
    }
