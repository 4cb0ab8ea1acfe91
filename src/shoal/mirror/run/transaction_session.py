"""Transactional delivery on a real target: one transactional.id for the partitions of a process.

    InitProducerId ──► read positions ──► claim ──► ( batches + positions ──► commit ) …

Rules:
- InitProducerId comes first: it fences an older process and ends its open transaction. Only then
  are the committed positions read, to the end. A partition that another transactional.id wrote last
  is taken from that id in the same way. Open transactions of those ids are aborted before that,
  because they block reading to the end.
- Positions are checkpoints, written in the transaction of the batches that they cover, so that
  either both count or neither.
- One transaction at a time. A partition takes part in the next one only when its last stable offset
  has passed what was committed: where a marker is missing, a later abort would hide it
  (KAFKA-20734).
- A partition that is not available is left out before a transaction begins, and so is one whose
  committed records are not visible yet. An id whose transaction cannot end is stuck, and hands its
  available partitions over (`shoal.mirror.run.transaction_ids`).
- Old records are copied in large transactions, and their partitions handed over to idempotent
  delivery (`_finish_backfill`): when all that was committed is visible and no transaction is open
  in the partition, a checkpoint with a new producer id and the target's end is written in a
  transaction of its own. That fails if another process has fenced this one; a process that comes
  later finds one checkpoint or the other. Then the partition starts again, as after a restart.
- After any failure the transaction is given up, a new producer epoch is requested, and every
  partition returns to its committed position.
- Each start claims its partitions with a higher mirror epoch. A writer that is fenced looks for a
  higher epoch than its own, or for another id: those partitions have been taken over.
- A fenced process may restart and continue before it can see the claim. So it is fenced again while
  the claim is in an open transaction: from then on, a process that restarts waits for the end of
  that transaction and sees the claim. If the partition has moved by then, the claim is given up.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from shoal.client.client import Client
from shoal.client.codes import Code, facts_of
from shoal.client.errors import ClientError, KafkaError, ProducerFenced
from shoal.client.produce.sender import Result
from shoal.client.produce.sessions import new_identity
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST, ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorLimits
from shoal.mirror.copy.delivery.names import IDEMPOTENT, TRANSACTIONAL
from shoal.mirror.copy.delivery.transactional import (
    BACKFILL_BYTES,
    BACKFILL_S,
    TRANSACTION_ERRORS,
    TransactionalMirror,
)
from shoal.mirror.copy.partition import TOO_LARGE, Outgoing, PartitionMirror
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.offsets.checkpoints import (
    Checkpoint,
    Checkpoints,
    CheckpointTopic,
    NewBlocks,
    encode_checkpoints,
)
from shoal.mirror.offsets.offset_map import MapWriter
from shoal.mirror.pump.queue_room import transactions_share
from shoal.mirror.routes import Route
from shoal.mirror.run.checkpointer import epochs_below
from shoal.mirror.run.fencing import await_decided, try_fence
from shoal.mirror.run.remedies import remedy_for
from shoal.mirror.run.resume import StartFinder
from shoal.mirror.watch.target_log import (
    await_visible,
    data_from,
    find_hidden,
    find_mismatch,
    find_settled_ends,
)
from shoal.model.errors import ConfigError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition

PREFIX: Final = "shoal-mirror-"
# How long to wait for more batches before a transaction begins: each one costs a marker.
GATHER_S: Final = 0.05
# How long a response, or the marker of a commit, may take before a partition is left out.
STALL_S: Final = 6.0
LAST_WRITE_S: Final = 2.0
# How long an earlier transaction may take to complete before its id counts as stuck.
FENCE_S: Final = 3.0
DECIDE_S: Final = 10.0
# How long partitions may take to answer before they count as not available.
ANSWER_S: Final = 2.0
MOVE_S: Final = 30.0
# How often in a row a starting writer may be fenced; two mirrors with the same name would fence
# each other forever.
MOST_FENCINGS: Final = 20
# A gap is usually one marker, which a small fetch shows.
_GAP_BYTES: Final = 4096
_LOOK_AGAIN_EVERY_S: Final = 0.5

_log = logging.getLogger(__name__)

OnStuck = Callable[["TransactionWriter", list[TransactionalMirror]], Awaitable[None]]
Sent = list[tuple[TransactionalMirror, Outgoing, Result]]


class TransactionStuck(ClientError):
    """A transaction of this id is decided, and a marker cannot be written."""

    retriable = True


class _OwnerMoved(Exception):
    """The previous owner wrote to a partition after its state was read."""


class TransactionWriter:
    """Writes the batches of its partitions in transactions of one transactional.id."""

    def __init__(
        self,
        target: Client,
        topic: CheckpointTopic,
        resume: StartFinder,
        *,
        limits: MirrorLimits,
        throttle: Throttle,
        number: int = 0,
        spare: int = 0,
        old_before_ms: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """`number` distinguishes the processes of a mirror, `spare` the ids of a process.

        `old_before_ms` says which records are too old for idempotent delivery. Partitions are
        handed over to it; without it they stay.
        """
        self._target = target
        self._topic = topic
        self._resume = resume
        self._limits = limits
        self._throttle = throttle
        self._id = _make_transactional_id(topic.name, number) + (f".{spare}" if spare else "")
        # Held while the session is used.
        self._session_lock = asyncio.Lock()
        self._session: TransactionalSession | None = None
        self._checkpoints: Checkpoints = {}
        self._maps: dict[TopicPartition, MapWriter] = {}
        self._mirrors: list[TransactionalMirror] = []
        self._backoff = Backoff(100, 2000)
        self._awake = asyncio.Event()
        self._stopping = False
        self._old_before_ms = old_before_ms
        self._interrupts = 0  # tasks that wait for the session
        # Partitions left out of transactions: not compared with the checkpoint since the session
        # began (`_unchecked`), or committed up to an offset that is not visible yet (`_hidden`).
        self._unchecked: set[TopicPartition] = set()
        self._hidden: dict[TopicPartition, int] = {}
        self.is_stuck = False
        # Called when the id is stuck, with the partitions that can continue with another id.
        self.on_stuck: OnStuck = _keep_id
        # Called when batches were committed or partitions were rewound.
        self.on_progress: Callable[[], None] = lambda: None

    # Adding and releasing partitions.

    async def abort_open(self, routes: Iterable[Route], workers: Iterable[int]) -> None:
        """Abort open transactions of earlier writers, if there are any.

        Those are the last writers of `routes` and the processes with the numbers `workers`, except
        this one while it has a session. Otherwise checkpoints could not be read to the end: the
        transaction of a dead process stays open until its timeout.
        """
        async with self._interrupt():
            if await self._topic.read_decided():
                return
            transactional_ids = self._other_ids([route.target for route in routes])
            transactional_ids |= {
                _make_transactional_id(self._topic.name, number) for number in workers
            }
            if self._session is not None:
                transactional_ids.discard(self._id)
            await self._fence(transactional_ids, [self._topic.partition])

    @contextlib.asynccontextmanager
    async def _interrupt(self) -> AsyncIterator[None]:
        """Use the session as soon as the open transaction ends, which no longer grows."""
        self._interrupts += 1
        self._awake.set()
        try:
            async with self._session_lock:
                yield
        finally:
            self._interrupts -= 1

    async def begin(self, routes: Iterable[Route]) -> dict[Route, Checkpoint]:
        """Take partitions over; returns where each starts or resumes.

        Workers that take over each other's partitions fence each other. Every time some claims are
        final, so this ends.
        """
        wanted = list(routes)
        while True:
            try:
                async with self._interrupt():
                    return await self._take_over(wanted)
            except KafkaError as error:
                # If fencing aborted the transaction, the first error may be INVALID_TXN_STATE.
                is_fenced = (
                    isinstance(error, ProducerFenced) or error.code == Code.INVALID_TXN_STATE
                )
                if not is_fenced or self._backoff.failures >= MOST_FENCINGS:
                    raise
                _log.info("%s was fenced while it started, retrying: %s", self._id, error)
            except _OwnerMoved as moved:
                # If the records are not from this mirror, the next attempt refuses the partition.
                _log.info("%s starts again: %s", self._id, moved)
            await asyncio.sleep(self._backoff.next_wait_s())

    async def _take_over(self, wanted: list[Route]) -> dict[Route, Checkpoint]:
        try:
            await self._topic.create_if_missing()
            if self._session is None:
                await self._start_session()
            self._resume.update(await self._read_positions([route.target for route in wanted]))
            known = await self._resume.resolve_checkpoints(wanted)
            self._refuse_handed_over(wanted)
            await self._check({route.target: one for route, one in known.items()})
            others = self._other_ids([route.target for route in wanted])
            claimed = {
                route: replace(
                    one,
                    delivery=TRANSACTIONAL,
                    transactional_id=self._id,
                    mirror_epoch=one.mirror_epoch + 1,
                )
                for route, one in known.items()
            }
            claims = {route.target: one for route, one in claimed.items()}
            maps = {
                route.target: self._topic.resume_map(
                    route.target, one, is_new=self._resume.needs_new_map(route)
                )
                for route, one in claimed.items()
            }
            await self._claim(claims, {tp: blocks for tp, (_, blocks) in maps.items()}, others)
        except BaseException:
            await self._close()
            raise
        self._backoff.reset()
        self._checkpoints.update(claims)
        self._topic.remember(claims, {tp: blocks for tp, (_, blocks) in maps.items()})
        self._maps.update((tp, writer) for tp, (writer, _) in maps.items())
        return claimed

    def _refuse_handed_over(self, routes: Iterable[Route]) -> None:
        """Raise if another process has handed a partition over since its delivery was chosen."""
        for route in routes:
            found = self._resume.checkpoint_of(route)
            if found is not None and found.delivery != TRANSACTIONAL:
                error = ClientError(f"{route.target} was handed over to {found.delivery} delivery")
                error.retriable = True
                raise error

    def follow(self, mirrors: Iterable[TransactionalMirror]) -> None:
        """Write the batches of these partitions, which `begin` took over."""
        for mirror in mirrors:
            mirror.offsets = self._maps.pop(mirror.target, None)
            self._mirrors = [each for each in self._mirrors if each.target != mirror.target]
            self._mirrors.append(mirror)
        self._awake.set()

    def release(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Stop writing these, which have nothing in flight: another process may resume them."""
        gone = {mirror.target for mirror in mirrors}
        self._unchecked -= gone
        self._hidden = {tp: end for tp, end in self._hidden.items() if tp not in gone}
        self._mirrors = [mirror for mirror in self._mirrors if mirror.target not in gone]

    @property
    def id(self) -> str:
        """The transactional.id of this writer."""
        return self._id

    async def drop(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Stop writing these: their target topic was recreated. Waits for an open transaction."""
        gone = list(mirrors)
        targets = {mirror.target for mirror in gone}
        if any(mirror.target in targets for mirror in self._mirrors):
            async with self._interrupt():
                self.release(gone)

    async def restore(self) -> set[TopicPartition]:
        """Write the positions of all partitions again, to a recreated checkpoint topic."""
        async with self._interrupt():
            own = {m.target: self._checkpoints[m.target] for m in self._mirrors if not m.parked}
            if not own:
                return set()
            if self.is_stuck:
                raise ClientError(
                    f"transactional.id {self._id} is stuck: its positions are written later"
                )
            try:
                if self._session is None:
                    await self._reopen()
                if self._session is None:
                    return set()  # all partitions are taken over by others
                blocks = {tp: dict(self._topic.blocks.get(tp, {})) for tp in own}
                async with self._session.transaction():
                    await self._write(self._session, own, blocks)
            except BaseException:
                await self._close()
                raise
            return set(own)

    async def _start_session(self) -> None:
        self.is_stuck = not await try_fence(self._target, self._id, timeout_s=FENCE_S)
        if self.is_stuck:
            raise TransactionStuck(
                f"the last transaction of transactional.id {self._id} cannot complete",
                remedy="restart the brokers that lead its partitions",
            )
        self._session = TransactionalSession(self._target, self._id)
        await self._session.start()

    async def _read_positions(self, partitions: Iterable[TopicPartition]) -> Checkpoints:
        """Read the committed checkpoints, after fencing other writers of these partitions."""
        found = await self._topic.read()
        wanted = list(partitions)
        others = self._other_ids(wanted)
        await self._fence(others, [self._topic.partition, *wanted])
        return await self._topic.read() if others else found

    def _other_ids(self, partitions: Iterable[TopicPartition]) -> set[str]:
        """The other transactional ids that wrote last to these partitions."""
        found = self._topic.found
        return {found[tp].transactional_id for tp in partitions if tp in found} - {self._id, ""}

    async def _fence(
        self, transactional_ids: Iterable[str], partitions: Iterable[TopicPartition]
    ) -> None:
        """Fence ids; if one is busy, wait until its last transaction is decided in `partitions`."""
        for transactional_id in sorted(transactional_ids):
            _log.info("fencing %s", transactional_id)
            if not await try_fence(self._target, transactional_id, timeout_s=FENCE_S):
                await await_decided(self._target, partitions, timeout_s=DECIDE_S)

    async def _claim(
        self, claims: Checkpoints, blocks: Mapping[TopicPartition, NewBlocks], others: set[str]
    ) -> None:
        """Write claims for partitions; raise if another writer has changed them in the meantime."""
        assert self._session is not None  # noqa: S101 - for the type checker
        async with self._session.transaction():
            await self._write(self._session, claims, blocks)
            if not others:
                return
            # Not in the checkpoint topic: our own transaction is open there.
            await self._fence(others, claims)
            for tp, claim in claims.items():
                if (mismatch := await self._find_mismatch(tp, claim)) is not None:
                    raise _OwnerMoved(f"{tp} was written in the meantime: {mismatch}")

    async def _check(self, known: Checkpoints) -> None:
        for tp, checkpoint in known.items():
            if (mismatch := await self._find_mismatch(tp, checkpoint)) is not None:
                raise ConfigError(
                    f"the target partition {tp} is not as this mirror left it: {mismatch}",
                    remedy="compare both topics with `shoal mirror verify`; mirror into a new "
                    "topic",
                )

    async def _find_mismatch(self, tp: TopicPartition, checkpoint: Checkpoint) -> str | None:
        return await find_mismatch(self._target, tp, checkpoint.target_offset)

    # Copying.

    def wake(self) -> None:
        """Check for batches to send."""
        self._awake.set()

    def stop(self) -> None:
        """Stop when the open transaction has ended."""
        self._stopping = True
        self._awake.set()

    async def run(self) -> None:
        """Write until `stop`."""
        try:
            while not self._stopping:
                if not any(m.delivery.has_more and self._is_available(m) for m in self._mirrors):
                    await self._await_more()
                    continue
                await self._throttle_open()
                await self._step()
        finally:
            await self._close()

    async def _throttle_open(self) -> None:
        """Wait until the send rate limit allows another request."""
        now = asyncio.get_running_loop().time()
        if not self._throttle.is_open(now):
            await asyncio.sleep(self._throttle.open_at_s - now)

    async def _await_more(self) -> None:
        """Wait for batches; check periodically what no batch announces: whether partitions are
        available again, and whether one can be handed over."""
        self._awake.clear()  # before the look: what comes during it must not be missed
        has_work = await self._has_work_without_batches()
        is_periodic = has_work or (
            self._old_before_ms and any(m.parked is None for m in self._mirrors)
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_EVERY_S if is_periodic else None):
                await self._awake.wait()
        await asyncio.sleep(GATHER_S)
        if has_work and not self._stopping:
            await self._step()

    async def _has_work_without_batches(self) -> bool:
        """Whether a step may get a partition further for which no batch can be sent."""
        if any(mirror.delivery.has_more for mirror in self._mirrors):
            return True
        if self._old_before_ms is None:
            return False
        left_out = {*self._unchecked, *self._hidden}
        is_left_out = any(m.target in left_out and m.parked is None for m in self._mirrors)
        return is_left_out or bool(await self._find_ready())

    async def _step(self) -> int:
        """Run one transaction, after reopening the session if needed; returns its bytes."""
        async with self._session_lock:
            try:
                if self._session is None:
                    await self._reopen()
                await self._readmit_available()
                size_bytes = await self._send_one_transaction()
                await self._finish_backfill()
            except (ClientError, TimeoutError) as error:
                _log.warning("a transaction of %s failed, retrying: %r", self._id, error)
                await self._close()
                for mirror in self._mirrors:
                    self._rewind(mirror)
                size_bytes = -1
                if isinstance(error, TransactionStuck):
                    await self._hand_over()
        self.on_progress()
        if size_bytes < 0:
            await self._pause()
        elif size_bytes:
            self._backoff.reset()
        return max(0, size_bytes)

    async def _send_one_transaction(self) -> int:
        session = self._session
        if session is None:
            return 0  # all partitions are taken over by others
        if not any(
            self._is_available(mirror) and mirror.delivery.has_more for mirror in self._mirrors
        ):
            return 0
        session.begin()
        began = asyncio.get_running_loop().time()
        sent = await self._send_all(session)
        while await self._may_grow(sent, began + BACKFILL_S):
            sent += await self._send_all(session)
        positions = {
            mirror.target: replace(
                self._checkpoints[mirror.target],
                source_offset=mirror.delivery.next_position,
                target_offset=mirror.target_offset,
                lost=mirror.counts.lost,
                **epochs_below(mirror, mirror.delivery.next_position),
            )
            for mirror, _, _ in sent
        }
        mirrors = {mirror.target: mirror for mirror, _, _ in sent}
        maps = {tp: mirror.delivery.extend_map() for tp, mirror in mirrors.items()}
        blocks = {tp: extended.blocks_to_save() for tp, extended in maps.items() if extended}
        limited = self._topic.limit_maps(blocks)
        async with asyncio.timeout(STALL_S):
            await self._write(session, positions, limited)
        async with asyncio.timeout(STALL_S):
            await session.commit()
        hidden = await self._await_visible(positions)
        self._hidden |= hidden
        self._checkpoints.update(positions)
        self._topic.remember(positions, limited)
        for tp, mirror in mirrors.items():
            if (extended := maps[tp]) is not None:
                extended.mark_saved(blocks[tp])
            mirror.delivery.on_committed(extended)
        for mirror in mirrors.values():
            if mirror.target not in hidden:
                await self._inspect_gaps(mirror)
        if hidden:
            # The id is probably stuck: reopening the session shows that sooner than a transaction.
            await self._close()
        # Rotate, so that no partition waits for the others.
        self._mirrors = [*self._mirrors[1:], *self._mirrors[:1]]
        return sum(outgoing.size for _, outgoing, _ in sent)

    async def _await_outcomes(self, sent: Sent) -> None:
        """Wait for the results of a transaction's batches; raises if one was not written.

        After a failure, batches that were written are processed too: their offsets show whether the
        target has lost records, which the aborted batches would hide.
        """
        failure: ClientError | TimeoutError | None = None
        for mirror, outgoing, result in sent:
            if failure is not None and not result.done():
                continue
            try:
                async with asyncio.timeout(STALL_S):
                    outcome = await result
                if not outcome.is_ok:
                    self._on_produce_error(mirror, outgoing, outcome)
                    raise outcome.error(mirror.target)
                mirror.delivery.on_written(outgoing, outcome)
            except (ClientError, TimeoutError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _may_grow(self, sent: Sent, until: float) -> bool:
        """In a transaction of old records: wait for more; False if it should be committed."""
        size, loop = sum(outgoing.size for _, outgoing, _ in sent), asyncio.get_running_loop()
        while self._old_before_ms and size < BACKFILL_BYTES:
            if self._stopping or self._interrupts:
                return False
            if any(self._is_available(m) and m.delivery.has_more for m in self._mirrors):
                await self._throttle_open()
                return loop.time() < until
            if not self._awaits_more() or loop.time() >= until:
                return False
            self._awake.clear()
            self.on_progress()  # what is taken made room for more
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._awake.wait()
        return False

    def _awaits_more(self) -> bool:
        """Whether a partition may get batches before the open transaction ends."""
        queued = sum(mirror.queued_bytes for mirror in self._mirrors)
        if queued >= transactions_share(self._limits):
            return False
        limit_bytes = self._limits.partition_bytes
        mirrors = [m for m in self._mirrors if m.can_send and m.waiting_bytes < limit_bytes]
        return any(self._is_available(m) and not m.delivery.is_at_end for m in mirrors)

    async def _send_all(self, session: TransactionalSession) -> Sent:
        """Send what may be sent now, and wait until the target has written it."""
        now = asyncio.get_running_loop().time()
        async with asyncio.timeout(STALL_S):
            sent = await self._send(session)
        self._throttle.spend(sum(outgoing.size for _, outgoing, _ in sent), now)
        await self._await_outcomes(sent)
        return sent

    async def _send(self, session: TransactionalSession) -> Sent:
        sent: Sent = []
        room_bytes = self._throttle.limit_request(self._limits.request_bytes)
        for mirror in self._mirrors:
            if room_bytes <= 0:
                break
            if not self._is_available(mirror):
                continue
            # Partitions that are left out are looked at again after half a second.
            share_bytes = mirror.throttle.limit_span(room_bytes, _LOOK_AGAIN_EVERY_S)
            for outgoing in mirror.delivery.take(share_bytes):
                room_bytes -= outgoing.size
                mirror.throttle.spend(outgoing.size, asyncio.get_running_loop().time())
                result = await session.send(mirror.target, outgoing.batch)
                sent.append((mirror, outgoing, result))
        return sent

    async def _write(
        self,
        session: TransactionalSession,
        positions: Checkpoints,
        blocks: Mapping[TopicPartition, NewBlocks],
    ) -> None:
        tp = self._topic.partition
        for batch in encode_checkpoints(positions, blocks):
            outcome = await (await session.send(tp, batch))
            if not outcome.is_ok:
                raise outcome.error(tp)

    def _on_produce_error(
        self, mirror: TransactionalMirror, outgoing: Outgoing, outcome: ProduceResult
    ) -> None:
        """Park a partition if its batch can never be written."""
        code = outcome.error_code
        if outcome.cause is not None or code in TRANSACTION_ERRORS:
            return
        if code in TOO_LARGE:
            if outgoing.record_count > 1:
                mirror.learn_limit(outgoing.batch)
            else:
                error, now = outcome.error(mirror.target), asyncio.get_running_loop().time()
                mirror.wait_for_limit(outgoing, error, now)
            return
        if outcome.outcome is Outcome.FAILED and not facts_of(code).retriable:
            error = outcome.error(mirror.target)
            message = (
                f"the target refuses the batch at source offset {outgoing.source_offset}: {error}"
            )
            mirror.park(message, remedy_for(outcome.error_code))

    async def _await_visible(self, positions: Checkpoints) -> dict[TopicPartition, int]:
        """Wait until committed records are visible; returns the partitions where they are not."""
        ends = {tp: checkpoint.target_offset for tp, checkpoint in positions.items()}
        return await await_visible(self._target, ends, patience_s=STALL_S, timeout_s=ANSWER_S)

    async def _inspect_gaps(self, mirror: TransactionalMirror) -> None:
        """Count data of another producer between the checkpoint and the first batch."""
        tp = mirror.target
        for gap in list(mirror.delivery.gaps):
            first = (await self._target.list_offsets({tp: EARLIEST}))[tp].offset
            position, found = max(first, gap[0]), None
            while found is None and position < gap[1]:
                found, position = await data_from(self._target, tp, position, _GAP_BYTES)
            mirror.delivery.close_gap(gap, has_data=found is not None and found < gap[1])

    # From old records to idempotent delivery.

    async def _find_ready(self) -> list[TransactionalMirror]:
        """Find partitions that can be handed over.

        The limit of a topic holds none back: no record is sent.
        """
        if self._old_before_ms is None or not self._mirrors:
            return []
        limit_ms = await self._old_before_ms()
        mirrors = [m for m in self._mirrors if m.parked is None and self._is_reachable(m)]
        return [mirror for mirror in mirrors if mirror.delivery.can_hand_over(limit_ms)]

    async def _finish_backfill(self) -> None:
        """Hand partitions over to idempotent delivery whose old records are copied."""
        ready, session = await self._find_ready(), self._session
        if not ready or session is None:
            return
        ends = await self._find_settled(ready)
        if not ends:
            return
        identity = await new_identity(self._target)
        claims = {
            tp: replace(
                self._checkpoints[tp],
                delivery=IDEMPOTENT,
                transactional_id="",
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                sequence=0,
                target_offset=end,
            )
            for tp, end in ends.items()
        }
        async with asyncio.timeout(STALL_S), session.transaction():
            await self._write(session, claims, {})
        self._topic.remember(claims)
        self._leave([mirror for mirror in ready if mirror.target in claims])

    async def _find_settled(
        self, ready: Iterable[TransactionalMirror]
    ) -> dict[TopicPartition, int]:
        """Find where partitions end in which no transaction is open, and all is as committed."""
        mirrors = {mirror.target: mirror for mirror in ready}
        ends = await find_settled_ends(self._target, mirrors, timeout_s=ANSWER_S)
        for tp in ends:
            await self._compare(mirrors[tp])
        return {tp: end for tp, end in ends.items() if mirrors[tp].suspicion is None}

    def _leave(self, mirrors: list[TransactionalMirror]) -> None:
        """Stop writing partitions that are handed over, and start them again."""
        self.release(mirrors)
        for mirror in mirrors:
            mirror.request_resume("its old records are copied, and idempotent delivery follows")

    # Partitions left out of transactions.

    def _is_available(self, mirror: TransactionalMirror) -> bool:
        """Whether batches of this partition may be sent, and their transaction is likely to end."""
        is_open = mirror.throttle.is_open(asyncio.get_running_loop().time())
        return is_open and self._is_reachable(mirror)

    def _is_reachable(self, mirror: TransactionalMirror) -> bool:
        """Whether a transaction with this partition is likely to complete."""
        tp = mirror.target
        is_left_out = tp in self._unchecked or tp in self._hidden
        return not is_left_out and self._target.cluster.leader(tp) is not None

    async def _readmit_available(self) -> None:
        """Readmit partitions that are available again."""
        if self._hidden:
            self._hidden = await find_hidden(self._target, self._hidden, timeout_s=ANSWER_S)
        unchecked = [mirror for mirror in self._mirrors if mirror.target in self._unchecked]
        if not unchecked:
            return
        available = await self._find_available(unchecked)
        for mirror in unchecked:
            if mirror.target in available and mirror.parked is None:
                await self._compare(mirror)
                self._unchecked.discard(mirror.target)

    async def _find_available(self, mirrors: Iterable[TransactionalMirror]) -> set[TopicPartition]:
        asked = {mirror.target: LATEST for mirror in mirrors}
        return set((await self._target.list_offsets_or_errors(asked, timeout_s=ANSWER_S)).offsets)

    async def _compare(self, mirror: TransactionalMirror) -> None:
        """Suspect the target if a partition does not match its checkpoint."""
        tp = mirror.target
        if (mismatch := await self._find_mismatch(tp, self._checkpoints[tp])) is not None:
            mirror.suspect_target(
                f"the target partition is not as this mirror left it: {mismatch}",
                "compare both topics with `shoal mirror verify`; mirror into a new topic",
            )

    async def _hand_over(self) -> None:
        """Let available partitions continue with another id."""
        running = [mirror for mirror in self._mirrors if mirror.parked is None]
        available = await self._find_available(running)
        healthy = [m for m in running if m.target in available and m.target not in self._hidden]
        if not healthy:
            return
        try:
            async with asyncio.timeout(MOVE_S):
                await self.on_stuck(self, healthy)
        except (ClientError, ConfigError, TimeoutError) as error:
            _log.warning(
                "partitions of %s cannot move to another transactional.id and wait: %r",
                self._id,
                error,
            )

    # After a failure.

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            # A stop request ends the wait.
            async with asyncio.timeout(self._backoff.next_wait_s()):
                while not self._stopping:
                    self._awake.clear()
                    await self._awake.wait()

    async def _reopen(self) -> None:
        """Get a new producer epoch, and read what was committed."""
        # First, so that a newer mirror that has taken over is noticed and not fenced. Only decided
        # records: our own open transaction ends with the fencing below.
        await self._topic.read_decided()
        self._park_taken_over(self._topic.found)
        if not any(mirror.parked is None for mirror in self._mirrors):
            return
        await self._start_session()
        found = await self._read_positions([m.target for m in self._mirrors if m.parked is None])
        self._park_taken_over(found)
        for mirror in self._mirrors:
            tp = mirror.target
            if tp not in found or mirror.parked is not None:
                continue
            self._checkpoints[tp] = found[tp]
            # The last commit may have succeeded although its response was lost.
            mirror.offsets, _ = self._topic.resume_map(tp, found[tp], is_new=False)
            self._unchecked.add(tp)
            self._rewind(mirror)

    def _park_taken_over(self, found: Checkpoints) -> None:
        """Park partitions that a newer mirror has taken over."""
        handed_over = []
        for mirror in self._mirrors:
            theirs, ours = found.get(mirror.target), self._checkpoints[mirror.target]
            if theirs is None:
                continue
            is_newer = theirs.mirror_epoch > ours.mirror_epoch
            if not is_newer and theirs.delivery != TRANSACTIONAL:
                handed_over.append(mirror)  # by this process, which did not see the response
            elif is_newer or theirs.transactional_id != self._id:
                mirror.park(
                    "a newer mirror with the same name has taken over",
                    "run only one mirror with this name",
                )
        self._leave(handed_over)

    def _rewind(self, mirror: TransactionalMirror) -> None:
        checkpoint = self._checkpoints[mirror.target]
        mirror.delivery.rewind(checkpoint.source_offset, checkpoint.target_offset)

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(TimeoutError, ClientError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await session.close()


async def _keep_id(_writer: TransactionWriter, _healthy: list[TransactionalMirror]) -> None:
    """Default of `on_stuck`: no other id exists."""


def _make_transactional_id(mirror: str, number: int) -> str:
    return f"{PREFIX}{mirror}-{number}"
