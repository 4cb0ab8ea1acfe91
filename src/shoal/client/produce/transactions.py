"""Transactional sessions: their batches become visible together, or not at all.

    async with TransactionalSession(client, "my-id") as session:
        async with session.transaction():
            await session.produce({tp: batch})
            await session.send_offsets({source_tp: 42}, group_id="group")

Rules of this file:
- `start` requests an epoch from the coordinator, which fences older producers with the same
  transactional.id and aborts their transactions; errors 14, 15, 16 and 51 are retried.
- There are two protocols. Version 1: partitions and groups are added at the coordinator before the
  first batch, and the epoch stays the same. Version 2 (KIP-890, `transaction.version` 2 of the
  cluster): batches add their partitions implicitly (Produce 12, TxnOffsetCommit 5), and each
  EndTxn returns a new epoch, under which sequences begin at 0.
- A batch that is not acknowledged breaks the transaction. Before an abort no request may be in
  flight: a late batch after the abort marker would open a new transaction.
- After a commit without a response the session is dead, because the outcome is unknown: a new
  session with the same id makes the coordinator complete the transaction either way.
- Another process may end a transaction: `leave_open` returns its identity for `end_transaction`,
  which fences nobody. The coordinator answers a repeated end as it answered the first.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.errors import ClientError, KafkaError, ProducerFenced
from shoal.client.groups.group_offsets import NO_MEMBER, GroupMember, OffsetCommit, topics_to_commit
from shoal.client.produce.raw_produce import Produced
from shoal.client.produce.sender import Result, Sender
from shoal.client.produce.sequencing import Mode, PendingBatch, ProducerIdentity
from shoal.client.produce.sessions import Session
from shoal.client.produce.transaction_state import Phase, TransactionState
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import Batch
from shoal.wire.framing import Part

_NO_IDENTITY: Final = ProducerIdentity(-1, -1)
# The last versions of the first protocol.
_LAST_END_TXN_1: Final = 4
_LAST_TXN_OFFSET_COMMIT_1: Final = 4
_LAST_ADD_PARTITIONS_OF_CLIENTS: Final = 3
_ENDED_AT_COORDINATOR: Final = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.INVALID_TXN_STATE})


class TransactionalSession(Session):
    """Batches in transactions, under a transactional.id that fences older producers."""

    _mode = Mode.TRANSACTIONAL

    def __init__(
        self,
        core: Core,
        transactional_id: str | None = None,
        *,
        identity: ProducerIdentity | None = None,
    ) -> None:
        """With an identity, continue as the producer that has it, and fence nobody."""
        self.transactional_id = transactional_id or core.config.transactional_id
        if not self.transactional_id:
            raise UsageError("a transactional session needs a transactional.id")
        super().__init__(core)
        self._coordinator = Coordinator(core, CoordinatorType.TRANSACTION, self.transactional_id)
        self._given_identity = identity
        self._identity = _NO_IDENTITY
        self._version = 0
        self._state = TransactionState()
        self._adding_partitions = asyncio.Lock()

    @property
    def identity(self) -> ProducerIdentity:
        """The current producer id and epoch."""
        return self._identity

    @property
    def transaction_version(self) -> int:
        """1 or 2, by the finalized feature of the cluster."""
        return self._version

    @property
    def phase(self) -> Phase:
        """The phase of the producer."""
        return self._state.phase

    async def start(self) -> None:
        """Get an epoch for the transactional id; this fences older producers."""
        if self._state.phase is not Phase.NEW:
            raise UsageError("the session is already started")
        if self._given_identity is None:
            await self._init_producer_id(_NO_IDENTITY)
        else:
            self._version = await _transaction_version(self._core, self._coordinator)
            self._set_identity(self._given_identity)
        self._state.mark_ready()

    async def leave_open(self) -> ProducerIdentity:
        """Wait for all batches and leave the transaction for another process to end.

        This session can no longer be used; closing it does not abort the transaction.
        """
        await self.flush()
        self._state.check_open()
        identity = self._identity
        self._state.mark_dead(ClientError("its transaction was left open for another process"))
        return identity

    async def close(self) -> None:
        """Stop; an open transaction is aborted if the coordinator is reachable."""
        try:
            if self._state.phase in {Phase.OPEN, Phase.BROKEN}:
                with contextlib.suppress(ClientError):
                    await self.abort()
        finally:
            await super().close()

    def begin(self) -> None:
        """Begin a transaction."""
        self._state.begin()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """One transaction: committed at the end, aborted if the body raises."""
        self.begin()
        try:
            yield
        except BaseException:
            if self._state.phase in {Phase.OPEN, Phase.BROKEN}:
                await self.abort()
            raise
        try:
            await self.commit()
        except ClientError:
            if self._state.phase is Phase.BROKEN:
                await self.abort()
            raise

    async def send(
        self,
        tp: TopicPartition,
        batch: Part | Batch,
        *,
        timeout_s: float | None = None,
        retries: bool = True,
    ) -> Result:
        """Wait for buffer space and queue a batch; the future gets its outcome in the partition.

        The end of the transaction decides whether it becomes visible.
        """
        await self._add_to_transaction([tp])
        return await super().send(tp, batch, timeout_s=timeout_s, retries=retries)

    async def produce(self, batches: Mapping[TopicPartition, Part | Batch]) -> Produced:
        """Send a batch to each of these partitions and wait for all outcomes."""
        await self._add_to_transaction(batches)
        return await super().produce(batches)

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetCommit | int],
        group_id: str,
        *,
        member: GroupMember = NO_MEMBER,
    ) -> None:
        """Commit offsets of a group as part of the transaction."""
        self._state.check_open()
        values = self._offset_values(offsets, group_id, member)
        group = Coordinator(self._core, CoordinatorType.GROUP, group_id)
        try:
            if self._version < 2 and group_id not in self._state.groups:
                self._state.may_be_known = True
                await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, {"group_id": group_id})
            self._state.may_be_known = True
            self._state.groups.add(group_id)
            await self._commit_offsets(group, values)
        except ClientError as error:
            self._fail(error)
            raise

    async def commit(self) -> None:
        """Wait for all batches and make the transaction visible."""
        await self.flush()
        self._state.end(is_commit=True)
        if not self._state.may_be_known:
            self._state.mark_ended()
            return
        try:
            self._set_identity(await self._end_txn(is_commit=True))
        except BaseException as error:
            self._on_end_failed(error)
            raise
        self._state.mark_ended()

    async def abort(self) -> None:
        """Abort the transaction: its batches never become visible."""
        is_broken = self._state.phase is Phase.BROKEN or self._sender.unfinished > 0
        self._state.end(is_commit=False)
        try:
            if is_broken:
                self._sender.abandon(ClientError("the transaction of the batch was aborted"))
            await self._sender.wait_for_requests()
            needs_new_epoch = is_broken
            if self._state.may_be_known:
                had_ended = await self._abort_at_coordinator()
                # EndTxn of the second protocol has returned a new epoch.
                needs_new_epoch = had_ended or (is_broken and self._version < 2)
            if needs_new_epoch:
                await self._init_producer_id(self._identity)
        except BaseException as error:
            self._state.mark_dead(_as_client_error(error))
            raise
        self._state.mark_ended()

    def _make_sender(self) -> Sender:
        sender = Sender(self._core, self._mode, transactional_id=self.transactional_id)
        sender.on_failure = self._on_batch_failed
        return sender

    def _on_batch_failed(self, pending: PendingBatch) -> None:
        if pending.result is None or self._state.phase is not Phase.OPEN:
            return
        self._state.fail(pending.result.error(pending.tp))
        self._sender.abandon(self._state.abortable_error())

    # The coordinator

    async def _init_producer_id(self, identity: ProducerIdentity) -> None:
        """Get an epoch above that of `identity`, or above all epochs for `_NO_IDENTITY`."""
        values = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": self._core.config.transaction_timeout_ms,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
        }
        response = await self._coordinator.call(ApiKey.INIT_PRODUCER_ID, values, at_most=5)
        self._version = await _transaction_version(self._core, self._coordinator)
        self._set_identity(
            ProducerIdentity(int(response.producer_id), int(response.producer_epoch))
        )

    def _set_identity(self, identity: ProducerIdentity) -> None:
        if identity not in {self._identity, _NO_IDENTITY}:
            self._identity = identity
            self._sender.set_identity(identity)

    async def _add_to_transaction(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction; the second protocol does that implicitly."""
        self._state.check_open()
        if self._version >= 2:
            self._state.may_be_known = True
            return
        async with self._adding_partitions:
            new = [tp for tp in partitions if tp not in self._state.partitions]
            if not new:
                return
            for tp in new:
                await self._core.leader(tp)  # raises early if the partition does not exist
            self._state.check_open()
            self._state.may_be_known = True
            try:
                await self._add_partitions(new)
            except ClientError as error:
                self._fail(error)
                raise
            self._state.partitions.update(new)

    async def _add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        values = {
            f"v3_and_below_{name}": value
            for name, value in {
                **self._identity_values(),
                "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
            }.items()
        }

        def check(response: Any) -> None:
            for topic in response.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    self._coordinator.check(
                        int(part.partition_error_code),
                        topic=topic.name,
                        partition=int(part.partition_index),
                    )

        await self._coordinator.call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            values,
            at_most=_LAST_ADD_PARTITIONS_OF_CLIENTS,
            check=check,
        )

    async def _commit_offsets(self, group: Coordinator, values: Mapping[str, Any]) -> None:
        at_least, at_most = (5, 5) if self._version >= 2 else (0, _LAST_TXN_OFFSET_COMMIT_1)

        def check(response: Any) -> None:
            for topic in response.topics:
                for part in topic.partitions:
                    group.check(
                        int(part.error_code),
                        topic=topic.name,
                        partition=int(part.partition_index),
                    )

        await group.call(
            ApiKey.TXN_OFFSET_COMMIT, values, at_least=at_least, at_most=at_most, check=check
        )

    async def _end_txn(self, *, is_commit: bool) -> ProducerIdentity:
        """End the transaction; returns the new identity, or `_NO_IDENTITY` if it stays."""
        values = {**self._identity_values(), "committed": is_commit}
        return await _end(self._coordinator, values, self._version)

    async def _abort_at_coordinator(self) -> bool:
        """Abort; returns whether the coordinator had already ended the transaction."""
        try:
            self._set_identity(await self._end_txn(is_commit=False))
        except KafkaError as error:
            # The coordinator aborted it after a timeout; InitProducerId shows if we are fenced.
            if error.code not in _ENDED_AT_COORDINATOR:
                raise
            return True
        return False

    async def _ask(
        self,
        api_key: int,
        values: Mapping[str, Any],
        *,
        at_least: int = 0,
        at_most: int | None = None,
    ) -> Any:
        return await self._coordinator.call(
            api_key, {**self._identity_values(), **values}, at_least=at_least, at_most=at_most
        )

    def _identity_values(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self._identity.producer_id,
            "producer_epoch": self._identity.epoch,
        }

    def _offset_values(
        self,
        offsets: Mapping[TopicPartition, OffsetCommit | int],
        group_id: str,
        member: GroupMember,
    ) -> dict[str, Any]:
        return {
            **self._identity_values(),
            "group_id": group_id,
            "generation_id": member.generation_id,
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "topics": topics_to_commit(offsets),
        }

    def _fail(self, error: ClientError) -> None:
        if isinstance(error, ProducerFenced) and error.code == Code.PRODUCER_FENCED:
            self._state.mark_dead(error)
        else:
            self._state.fail(error)

    def _on_end_failed(self, error: BaseException) -> None:
        """A refused commit can be aborted; without a response the outcome is unknown."""
        refused = isinstance(error, KafkaError) and not error.retriable
        if refused and not isinstance(error, ProducerFenced):
            self._state.phase = Phase.OPEN
            self._state.fail(_as_client_error(error))
        else:
            self._state.mark_dead(_as_client_error(error))


async def end_transaction(
    core: Core, transactional_id: str, identity: ProducerIdentity, *, is_commit: bool
) -> None:
    """End a transaction that another process left open; retried, also if an answer was lost."""
    coordinator = Coordinator(core, CoordinatorType.TRANSACTION, transactional_id)
    values = {
        "transactional_id": transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
        "committed": is_commit,
    }
    await _end(coordinator, values, await _transaction_version(core, coordinator))


async def _end(
    coordinator: Coordinator, values: Mapping[str, Any], version: int
) -> ProducerIdentity:
    """Call EndTxn; returns the new identity, or `_NO_IDENTITY` if it stays."""
    is_second = version >= 2
    response = await coordinator.call(
        ApiKey.END_TXN,
        values,
        at_least=_LAST_END_TXN_1 + 1 if is_second else 0,
        at_most=None if is_second else _LAST_END_TXN_1,
    )
    if not is_second:
        return _NO_IDENTITY
    return ProducerIdentity(int(response.producer_id), int(response.producer_epoch))


async def _transaction_version(core: Core, coordinator: Coordinator) -> int:
    """Return 1 or 2, by the finalized feature of the coordinator's cluster."""

    async def connect() -> int:
        node_id = await coordinator.node_id()
        await core.any_link(node_id)
        return node_id

    versions = core.pool.versions[await core.with_retries(connect)]
    return 2 if versions.transaction_version >= 2 else 1


def _as_client_error(error: BaseException) -> ClientError:
    return error if isinstance(error, ClientError) else ClientError(f"interrupted: {error!r}")
