"""Groups and transactions whose coordinators are killed, again and again, and what is judged.

Everything that works here is librdkafka: a producer that feeds a topic; a group of three members
that read it and commit; and a copier, which copies it to another topic in transactions that
commit the copier's offsets too, every fifth of which it aborts.

What must be so:
- An offset whose commit was acknowledged is never followed by a lower one.
- The copy has exactly what lies below the copier's committed offsets, in order, and nothing else;
  of each transaction all or nothing, and of those that were aborted nothing.
- A transaction that was acknowledged to the copier is committed.
"""

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from support.lite.client import PlainClient
from support.lite.clusters import admin_of, create_topic, eventually

PARTITIONS = 6
READERS = 3
RATE_PER_S = 200
SOURCE, COPY = "source", "copy"
READING_GROUP, COPYING_GROUP, COPIER_ID = "readers", "copiers", "copier"
INTERNAL = ("__consumer_offsets", "__transaction_state")
ABORT_EVERY = 5
PATIENCE_S = 90.0
_BATCH = 100
_CALL_S = 10.0
Places = dict[int, int]


class Worker:
    """A thread that works until it is stopped, and keeps its failure."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            frame = sys._current_frames()[self._thread.ident or 0]
            where = "".join(traceback.format_stack(frame))
            raise AssertionError(f"{type(self).__name__} does not end:\n{where}")

    def _run_guarded(self) -> None:
        try:
            self.run()
        except BaseException as failure:  # noqa: BLE001 - reported by the judge
            self.failures.append(failure)

    def run(self) -> None:
        raise NotImplementedError


class Feeder(Worker):
    """Sends running numbers to each partition of the source."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap

    def run(self) -> None:
        settings = _settings(self._bootstrap) | {"enable.idempotence": True, "linger.ms": 5}
        with Producer(settings) as producer:
            number = 0
            while not self._end.wait(PARTITIONS / RATE_PER_S):
                for index in range(PARTITIONS):
                    producer.produce(SOURCE, b"%d" % number, partition=index)
                producer.poll(0)
                number += 1
            assert producer.flush(PATIENCE_S) == 0


class GroupReader(Worker):
    """A member of the reading group, which commits what it has read."""

    def __init__(self, bootstrap: str, acked: Places) -> None:
        """`acked` is shared by all members: the highest offset that is surely committed."""
        super().__init__()
        self._bootstrap = bootstrap
        self._acked = acked
        # Behind what was read, where it is not known to be committed.
        self._ends: Places = {}
        self.commits = 0

    def run(self) -> None:
        with Consumer(_group_settings(self._bootstrap, READING_GROUP)) as consumer:
            consumer.subscribe([SOURCE], on_assign=self._on_assign)
            while not self._end.is_set():
                for message in consumer.consume(_BATCH, 0.1):
                    if message.error() is None:
                        self._ends[_partition(message)] = _offset(message) + 1
                if self._ends:
                    self._commit(consumer)

    def _on_assign(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        # It begins where the group is: what was read before is another's to commit.
        self._ends.clear()

    def _commit(self, consumer: Consumer) -> None:
        wanted = [TopicPartition(SOURCE, index, offset) for index, offset in self._ends.items()]
        try:
            told = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            # Failed or unknown: it is retried with the next records.
            return
        for place in told or []:
            if place.error is None:
                self.commits += 1
                self._ends.pop(place.partition, None)
                self._acked[place.partition] = max(
                    place.offset, self._acked.get(place.partition, 0)
                )


class Copier(Worker):
    """Copies in transactions."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._number = 0
        self.committed: dict[int, int] = {}
        self.aborted: set[int] = set()
        self.restarts = 0
        # Its current step and its last error; reported if it hangs.
        self.doing = "begins"
        self.heard = ""

    def run(self) -> None:
        settings = _group_settings(self._bootstrap, COPYING_GROUP)
        with Consumer(settings | {"isolation.level": "read_committed"}) as consumer:
            consumer.subscribe([SOURCE])
            while not self._end.is_set():
                self._copy_with_one_producer(consumer)

    def _copy_with_one_producer(self, consumer: Consumer) -> None:
        settings = _settings(self._bootstrap) | {
            "transactional.id": COPIER_ID,
            "transaction.timeout.ms": 30_000,
        }
        with Producer(settings) as producer:
            self._init(producer)
            self._rewind(consumer)
            while not self._end.is_set():
                self.doing = "reads"
                messages = [one for one in consumer.consume(_BATCH, 0.1) if one.error() is None]
                if messages and not self._copy(consumer, producer, messages):
                    self.restarts += 1
                    break
            # Otherwise closing would wait for records that can no longer be delivered.
            self.doing = "ends its producer"
            producer.purge()

    def _init(self, producer: Producer) -> None:
        while True:
            self.doing = "gets an epoch"
            try:
                producer.init_transactions(_CALL_S)
            except KafkaException as error:
                self.heard = str(error)
                if self._end.is_set() or not _error(error).retriable():
                    raise
            else:
                return

    def _copy(self, consumer: Consumer, producer: Producer, messages: list[Message]) -> bool:
        """Copy in one transaction; False if the producer is of no use any more."""
        self._number += 1
        number = self._number
        ends = {_partition(message): _offset(message) + 1 for message in messages}
        try:
            producer.begin_transaction()
            for message in messages:
                key = b"%d of %d" % (number, len(messages))
                producer.produce(COPY, message.value(), key=key, partition=_partition(message))
            places = [TopicPartition(SOURCE, index, offset) for index, offset in ends.items()]
            self._persist(
                "commits offsets",
                lambda: producer.send_offsets_to_transaction(
                    places, consumer.consumer_group_metadata(), _CALL_S
                ),
            )
            if number % ABORT_EVERY == 0:
                return self._abort(consumer, producer, number)
            self._persist("commits", lambda: producer.commit_transaction(_CALL_S))
        except KafkaException as error:
            if _error(error).fatal():
                return False
            return self._abort(consumer, producer, number)
        self.committed[number] = len(messages)
        return True

    def _abort(self, consumer: Consumer, producer: Producer, number: int) -> bool:
        # librdkafka gives the sequence numbers of records that it drops here to later ones. If one
        # was written and its acknowledgement lost, the broker takes the later one for a repetition:
        # with such records under way only a new producer, with a new epoch, is safe.
        is_safe = producer.flush(_CALL_S) == 0
        try:
            if not is_safe:
                return False
            self._persist("aborts", lambda: producer.abort_transaction(_CALL_S))
        except KafkaException:
            return False
        self.aborted.add(number)
        self._rewind(consumer)
        return True

    def _persist(self, doing: str, call: Callable[[], None]) -> None:
        """Retry until it succeeds or cannot succeed."""
        while True:
            self.doing = doing
            try:
                call()
            except KafkaException as error:
                self.heard = str(error)
                if (
                    self._end.is_set()
                    or not _error(error).retriable()
                    or _error(error).txn_requires_abort()
                ):
                    raise
            else:
                return

    def _rewind(self, consumer: Consumer) -> None:
        """Continue at the group's committed offsets."""
        while not self._end.is_set():
            self.doing = "rewinds"
            try:
                places = consumer.committed(consumer.assignment(), _CALL_S)
                for place in places:
                    offset = max(0, place.offset)
                    consumer.seek(TopicPartition(SOURCE, place.partition, offset))
            except KafkaException as error:
                # The coordinator has gone, or an assignment; a poll makes it come back.
                self.heard = str(error)
                consumer.poll(0.1)
            else:
                return


@dataclass(slots=True)
class Outcome:
    """What was done, what it cost, and what was wrong."""

    group_kills: int = 0
    transaction_kills: int = 0
    commits: int = 0
    transactions: int = 0
    aborts: int = 0
    restarts: int = 0
    records: int = 0
    copied: int = 0
    seconds: float = 0.0
    # How long it took from the kill until all partitions had new commits.
    group_pauses_s: list[float] = field(default_factory=list)
    transaction_pauses_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class CoordinatorKills:
    """The cluster and all its clients."""

    def __init__(self, folder: Path) -> None:
        self._cluster = LiteCluster(3, folder)
        self._acked: Places = {}
        self.outcome = Outcome()

    def run(self, kills: int, say: Callable[[str], None] = lambda _: None) -> Outcome:
        """Kill so many coordinators of groups, and as many of transactions."""
        began = time.monotonic()
        with self._cluster as cluster:
            for topic in (SOURCE, COPY):
                create_topic(cluster, topic, PARTITIONS, 3)
            bootstrap = cluster.bootstrap
            feeder, copier = Feeder(bootstrap), Copier(bootstrap)
            readers = [GroupReader(bootstrap, self._acked) for _ in range(READERS)]
            workers: list[Worker] = [feeder, copier, *readers]
            try:
                for worker in workers:
                    worker.__enter__()
                self._await_progress(copier, {}, 0)
                for round_number in range(kills):
                    self._kill_group_coordinator(copier, round_number, say)
                    self._kill_transaction_coordinator(copier, round_number, say)
                feeder.stop()
                self._await_end()
            except AssertionError as error:
                doing = f"the copier {copier.doing}, and last heard: {copier.heard}"
                self.outcome.problems.append(f"{error}; {doing}; {self._acked}")
            finally:
                for worker in workers:
                    worker.stop()
                    self.outcome.problems += map(repr, worker.failures)
            if not self.outcome.problems:
                self._judge(copier)
        outcome = self.outcome
        outcome.commits = sum(reader.commits for reader in readers)
        outcome.transactions, outcome.aborts = len(copier.committed), len(copier.aborted)
        outcome.restarts = copier.restarts
        outcome.seconds = time.monotonic() - began
        return outcome

    # Killing

    def _kill_group_coordinator(
        self, copier: Copier, number: int, say: Callable[[str], None]
    ) -> None:
        node = self._coordinator(0, READING_GROUP)
        pause_s = self._kill(node, lambda before: self._await_progress(copier, before, 0))
        self.outcome.group_kills += 1
        self.outcome.group_pauses_s.append(pause_s)
        say(f"{number + 1}: broker {node}, coordinator of the group, {pause_s:.2f} s")

    def _kill_transaction_coordinator(
        self, copier: Copier, number: int, say: Callable[[str], None]
    ) -> None:
        node = self._coordinator(1, COPIER_ID)
        known = len(copier.committed)
        pause_s = self._kill(node, lambda _: self._await_progress(copier, {}, known + 1))
        self.outcome.transaction_kills += 1
        self.outcome.transaction_pauses_s.append(pause_s)
        say(f"{number + 1}: broker {node}, coordinator of the transactions, {pause_s:.2f} s")

    def _kill(self, node: int, goes_on: Callable[[Places], None]) -> float:
        before = dict(self._acked)
        began = time.monotonic()
        self._cluster.kill(node)
        self._check_offsets()
        goes_on(before)
        pause_s = time.monotonic() - began
        self._cluster.restart(node)
        self._check_offsets()
        eventually(self._is_whole, PATIENCE_S)
        return pause_s

    def _coordinator(self, kind: int, key: str) -> int:
        found = 0

        def is_found() -> bool:
            nonlocal found
            with PlainClient(self._cluster.bootstrap.split(",")[0]) as client:
                answer = client.request(ApiKey.FIND_COORDINATOR, 3, key=key, key_type=kind)
            found = answer.node_id
            return bool(answer.error_code == 0)

        eventually(is_found, PATIENCE_S)
        return found

    def _is_whole(self) -> bool:
        """Whether all replicas are in sync again."""
        with admin_of(self._cluster) as admin:
            topics = admin.list_topics(timeout=PATIENCE_S).topics
        wanted = {SOURCE, COPY, *INTERNAL}
        in_sync = [
            len(partition.isrs)
            for topic in wanted & topics.keys()
            for partition in topics[topic].partitions.values()
        ]
        # A broker that has just returned may not know all topics yet.
        return wanted <= topics.keys() and set(in_sync) == {3}

    # Judging

    def _await_progress(self, copier: Copier, before: Places, transactions: int) -> None:
        eventually(
            lambda: (
                len(copier.committed) >= transactions
                and all(
                    self._acked.get(index, 0) > before.get(index, 0) for index in range(PARTITIONS)
                )
            ),
            PATIENCE_S,
        )

    def _check_offsets(self) -> None:
        """What was acknowledged before we ask must be there when we are answered."""
        acked = dict(self._acked)
        found = self._read_committed(READING_GROUP)
        self.outcome.problems += [
            f"partition {index}: {offset} was acknowledged, {found[index]} is committed"
            for index, offset in acked.items()
            if found[index] < offset
        ]

    def _read_committed(self, group: str) -> Places:
        settings = _settings(self._cluster.bootstrap) | {"group.id": group}
        places = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        found: list[TopicPartition] = []

        def is_answered() -> bool:
            try:
                found[:] = consumer.committed(places, 10)
            except KafkaException:
                return False
            return True

        with Consumer(settings) as consumer:
            eventually(is_answered, PATIENCE_S)
        return {place.partition: max(0, place.offset) for place in found}

    def _ends(self) -> Places:
        settings = _settings(self._cluster.bootstrap) | {"group.id": "nobody"}
        with Consumer(settings) as consumer:
            return {
                index: consumer.get_watermark_offsets(TopicPartition(SOURCE, index), 10)[1]
                for index in range(PARTITIONS)
            }

    def _await_end(self) -> None:
        """Until the readers have read everything. The copier may be far behind, which is its own
        affair: it is judged by how far it says it has come."""
        ends = self._ends()
        self.outcome.records = sum(ends.values())
        deadline = time.monotonic() + PATIENCE_S
        while (found := self._read_committed(READING_GROUP)) != ends:
            if time.monotonic() > deadline:
                self.outcome.problems.append(f"the readers stop at {found}, not at {ends}")
                break
            time.sleep(0.2)

    def _judge(self, copier: Copier) -> None:
        copied = self._read_copy()
        offsets = self._read_committed(COPYING_GROUP)
        problems = self.outcome.problems
        sizes: dict[int, int] = {}
        seen: Counter[int] = Counter()
        for index, items in copied.items():
            values = [value for _, value in items]
            if values != [b"%d" % number for number in range(offsets[index])]:
                problems.append(f"partition {index} of the copy is not what was committed")
            for key, _ in items:
                number, _, size = key.partition(b" of ")
                seen[int(number)] += 1
                sizes[int(number)] = int(size)
        self.outcome.copied = sum(map(len, copied.values()))
        problems += [f"half of transaction {n}" for n, size in sizes.items() if seen[n] != size]
        problems += [f"transaction {n} was aborted" for n in copier.aborted if n in seen]
        problems += [f"transaction {n} is gone" for n in copier.committed if n not in seen]

    def _read_copy(self) -> dict[int, list[tuple[bytes, bytes]]]:
        settings = _settings(self._cluster.bootstrap) | {
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        items: dict[int, list[tuple[bytes, bytes]]] = {index: [] for index in range(PARTITIONS)}
        unread = set(items)
        deadline = time.monotonic() + PATIENCE_S
        with Consumer(settings) as consumer:
            consumer.assign([TopicPartition(COPY, index, 0) for index in items])
            while unread and time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.5):
                    error = message.error()
                    if error is None:
                        items[_partition(message)].append(
                            (_bytes(message.key()), _bytes(message.value()))
                        )
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(_partition(message))
        assert not unread
        return items


def _settings(bootstrap: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
    }


def _group_settings(bootstrap: str, group: str) -> dict[str, str | int | bool]:
    return _settings(bootstrap) | {
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 500,
    }


def _error(error: KafkaException) -> KafkaError:
    found = error.args[0]
    assert isinstance(found, KafkaError)
    return found


def _partition(message: Message) -> int:
    index = message.partition()
    assert index is not None
    return index


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _bytes(value: str | bytes | None) -> bytes:
    assert isinstance(value, bytes)
    return value
