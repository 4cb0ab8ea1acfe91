"""The durable decision of an atomic write, and how a later start completes it.

The topic `__shoal_write_NAME` on the cluster that is written has at most one record that counts:
the decision to commit, with every transaction of the write. It is compacted, with one partition.

    begin     fence older drivers of this name; complete an old decision; abort what nobody decided
    tasks     write, each in a transaction of its own, which stays open
    commit    write the decision; commit each transaction; delete the decision
    abort     abort each transaction, unless the decision is in the log: then it is completed

Rules:
- The decision is written in a transaction of the driver (`shoal-write/NAME`), whose epoch `begin`
  takes. So a driver that a later start has replaced can decide nothing, and `begin` knows the fate
  of a decision that was on its way: the coordinator ends its transaction first.
- Before the decision is in the log nothing is visible, and `begin` makes sure that nothing will be.
  After it everything will be: commits are repeated until each transaction has answered.
- Transactional ids have the id of the write and of the task attempt, so that attempts of one task
  never fence each other; what they leave open is found by its prefix and aborted.
- Brokers abort a transaction that is open for longer than `transaction.timeout.ms`. If that happens
  between the decision and a start that completes it, rows are lost: the start that finds it commits
  what is left, deletes the decision and fails with an error that says so.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.consumer import RawConsumer, records_of
from shoal.client.errors import KafkaError
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.produce.transactions import TransactionalSession, end_transaction
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import ConfigError, SystemFailure
from shoal.model.serialised import check_version, from_plain, to_plain
from shoal.model.topics import TopicPartition
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, encode_batch

VERSION: Final = 1
TOPIC_PREFIX: Final = "__shoal_write_"
ID_PREFIX: Final = "shoal-write/"
_KEY: Final = b"decision"
# How many transactions are ended at once.
_PARALLEL: Final = 32
_READ_TIMEOUT_S: Final = 60.0
_POLL_MS: Final = 50
_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that a task left open."""

    transactional_id: Annotated[str, "transactional_id"]
    producer_id: Annotated[int, "producer_id"]
    producer_epoch: Annotated[int, "producer_epoch"]

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """All transactions of one write: each must be committed."""

    write_id: Annotated[str, "write_id"]
    transactions: Annotated[tuple[OpenTransaction, ...], "transactions"]


def id_prefix(name: str, write_id: str = "") -> str:
    """Return how the transactional ids of all writes of this name begin, or of one of them."""
    return f"{ID_PREFIX}{name}/{write_id}/" if write_id else f"{ID_PREFIX}{name}/"


class AtomicWrite:
    """The driver's side of the atomic writes of one name."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._driver_id = ID_PREFIX + name
        self._log = TopicPartition(TOPIC_PREFIX + name, 0)

    async def begin(self) -> ProducerIdentity:
        """Complete or abort what earlier drivers left, and return the identity of this one."""
        await self._create_topic()
        async with TransactionalSession(self._client, self._driver_id) as session:
            decision = await self._read_decision()
            lost = [] if decision is None else await self._commit_all(decision)
            await self._abort_open(id_prefix(self._name))
            if decision is not None:
                await self._store(session, None)
                self._raise_if_lost(decision, lost)
            return session.identity

    async def commit(self, driver: ProducerIdentity, decision: CommitDecision) -> None:
        """Decide that all transactions are committed, and commit them."""
        async with TransactionalSession(self._client, self._driver_id, identity=driver) as session:
            await self._store(session, decision)
            lost = await self._commit_all(decision)
            # Attempts that Spark did not use would keep readers waiting until they time out.
            await self._abort_open(id_prefix(self._name, decision.write_id))
            await self._store(session, None)
            self._raise_if_lost(decision, lost)

    async def abort(self, driver: ProducerIdentity, write_id: str) -> None:
        """Abort the transactions of this write, unless it is decided: then complete it."""
        # A decision that is on its way is refused from now on. An error means that it has arrived,
        # or that a later driver takes care of everything.
        with contextlib.suppress(KafkaError):
            await end_transaction(self._client, self._driver_id, driver, is_commit=False)
        decision = await self._read_decision()
        if decision is not None and decision.write_id == write_id:
            self._raise_if_lost(decision, await self._commit_all(decision))
        else:
            await self._abort_open(id_prefix(self._name, write_id))

    async def _create_topic(self) -> None:
        topic = self._log.topic
        known = (await self._client.metadata([topic], refresh=True)).topics.get(topic)
        if known is not None and known.partitions:
            return
        try:
            await self._client.admin.create_topics([NewTopic(topic, 1, configs=_CONFIGS)])
        except KafkaError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise

    async def _store(self, session: TransactionalSession, decision: CommitDecision | None) -> None:
        """Write the decision, or delete it."""
        value = None
        if decision is not None:
            body = {"version": VERSION, **to_plain(decision)}
            value = json.dumps(body, separators=(",", ":")).encode()
        codec = Codec.NONE if value is None else Codec.GZIP
        async with session.transaction():
            now_ms = time.time_ns() // 1_000_000
            batch = encode_batch([Record(0, now_ms, _KEY, value)], codec=codec)
            result = (await session.produce({self._log: batch}))[self._log]
            if not result.is_ok:
                raise result.error(self._log)

    async def _read_decision(self) -> CommitDecision | None:
        """Return the last decision; waits until no transaction of a driver is open."""
        log = self._log
        ends = await self._client.list_offsets({log: LATEST}, isolation="read_uncommitted")
        found: bytes | None = None
        try:
            async with (
                asyncio.timeout(_READ_TIMEOUT_S),
                RawConsumer(self._client, {log: EARLIEST}, isolation="read_committed") as consumer,
            ):
                while consumer.positions[log] < ends[log].offset:
                    for each in records_of(await consumer.poll(_POLL_MS)):
                        found = each.record.value
        except TimeoutError as error:
            raise SystemFailure(
                f"the topic {log.topic} could not be read to its end in {_READ_TIMEOUT_S:g} s",
                remedy="check whether another job writes under this name, and the state of its"
                " partition",
            ) from error
        return None if found is None else self._parse(found)

    def _parse(self, value: bytes) -> CommitDecision:
        try:
            body = json.loads(value)
            version = check_version(body.pop("version", None), (VERSION,))
            return from_plain(CommitDecision, body, version=version)
        except (ValueError, AttributeError) as error:
            raise ConfigError(
                f"the topic {self._log.topic} contains no valid decision: {error}",
                remedy="choose another name, or find out what else writes to the topic",
            ) from error

    async def _commit_all(self, decision: CommitDecision) -> list[str]:
        """Commit each transaction; returns the ids of those that brokers had aborted."""
        lost: list[str] = []

        async def commit(one: OpenTransaction) -> None:
            try:
                await end_transaction(
                    self._client, one.transactional_id, one.identity, is_commit=True
                )
            except KafkaError as error:
                if error.retriable:
                    raise
                lost.append(one.transactional_id)

        await _for_each(commit, decision.transactions)
        return sorted(lost)

    async def _abort_open(self, prefix: str) -> None:
        async def abort(transactional_id: str) -> None:
            # A new epoch aborts the transaction and fences a task that may still be running.
            async with TransactionalSession(self._client, transactional_id):
                pass

        await _for_each(abort, await self._client.admin.list_open_transactions(prefix))

    def _raise_if_lost(self, decision: CommitDecision, lost: Sequence[str]) -> None:
        if lost:
            raise SystemFailure(
                f"the atomic write {decision.write_id} of {self._name} is incomplete: brokers had"
                f" aborted {len(lost)} of {len(decision.transactions)} transactions before they"
                f" were committed, first {lost[0]}",
                remedy="write these rows again; raise kafka.transaction.timeout.ms (brokers limit"
                " it by transaction.max.timeout.ms), and start the job sooner after a failure",
            )


async def _for_each(work: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    """Call `work` for all items, some at once; the first error ends it."""
    limit = asyncio.Semaphore(_PARALLEL)

    async def run_limited(item: T) -> None:
        async with limit:
            await work(item)

    await asyncio.gather(*(run_limited(item) for item in items))
