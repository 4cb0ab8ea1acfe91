"""The transactional mode on a real target: one transactional.id for the partitions of a process.

    InitProducerId ──► read positions ──► claim ──► ( batches + positions ──► commit ) …

Rules:
- InitProducerId comes first: it fences an older process and ends what that left open. Only
  then the positions are read, committed and to the end. A partition that another
  transactional.id wrote last is taken from that one in the same way. What those left open is
  aborted even before: nothing can be read to the end behind it.
- Positions are checkpoints, written in the transaction of the batches that they tell of. So
  either both count or neither.
- One transaction at a time. The next has a partition only when its last stable offset has passed
  what was committed: where a marker is missing, a later abort would hide it (KAFKA-20734).
- A partition that is not available is left out before a transaction begins, and so is one whose
  committed records are not visible yet. An id whose transaction cannot end is stuck, and hands
  over the partitions that are available (`shoal.mirror.run.transaction_ids`).
- Whatever fails, the transaction is given up, a new epoch is asked for, and every partition
  goes back to its committed position.
- Each start claims its partitions under a higher number. A lane that is refused looks for a
  higher number than its own, or for another lane: then those partitions are another's now.
- One that was fenced may begin anew, and go on, before it can see the claim. So it is fenced
  again while the claim stands in an open transaction: from then on whoever begins anew waits for
  that one's end, and sees it. If the partition has moved by then, the claim is given up.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from shoal.client.client import Client
from shoal.client.codes import Code, facts_of
from shoal.client.consume.isolation import Sieve, Standing
from shoal.client.errors import ClientError, KafkaError, ProducerFenced, error_for
from shoal.client.produce.sender import Result
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST, ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorLimits
from shoal.mirror.copy.delivery.names import TRANSACTIONAL
from shoal.mirror.copy.delivery.transactional import TransactionalMirror
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
from shoal.mirror.routes import Route
from shoal.mirror.run.checkpointer import epochs_below
from shoal.mirror.run.fencing import await_decided, try_fence
from shoal.mirror.run.remedies import remedy_for
from shoal.mirror.run.resume import Resume
from shoal.model.errors import ConfigError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import iter_batches

PREFIX: Final = "shoal-mirror-"
# How long to wait for more before a transaction begins: each one costs a marker.
GATHER_S: Final = 0.05
# How long an answer, or a commit's marker, may take before the partition counts as not available.
STALL_S: Final = 6.0
LAST_WORD_S: Final = 2.0
# How long a former transaction may take to finish before its id counts as stuck.
FENCE_S: Final = 3.0
DECIDE_S: Final = 10.0
# How long partitions may take to say that they are available.
ANSWER_S: Final = 2.0
MOVE_S: Final = 30.0
# How often in a row a lane that begins may be fenced; two mirrors of one name would never stop.
MOST_FENCINGS: Final = 20
_LOOK_EVERY_S: Final = 0.02
# A gap is a marker as a rule, which one small fetch shows.
_GAP_BYTES: Final = 4096
_LEFT_OUT_EVERY_S: Final = 0.5

# What the transaction says, not the batch: a new epoch helps.
_OF_THE_TRANSACTION: Final = frozenset(
    {
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_PRODUCER_ID,
        Code.TRANSACTION_ABORTABLE,
    }
)

_log = logging.getLogger(__name__)

OnStuck = Callable[["TransactionLane", list[TransactionalMirror]], Awaitable[None]]
Sent = list[tuple[TransactionalMirror, Outgoing, Result]]


class LaneStuck(ClientError):
    """A transaction of this id is decided, and a partition of it cannot be told."""

    retriable = True


class _Moved(Exception):
    """A former owner went on with a partition after it was looked at."""


class TransactionLane:
    """Writes the batches of its mirrors in transactions."""

    def __init__(
        self,
        target: Client,
        topic: CheckpointTopic,
        resume: Resume,
        *,
        limits: MirrorLimits,
        throttle: Throttle,
        number: int = 0,
        spare: int = 0,
    ) -> None:
        """`number` tells apart the processes of one mirror, `spare` the lanes of a process."""
        self._target = target
        self._topic = topic
        self._resume = resume
        self._limits = limits
        self._throttle = throttle
        self._id = _lane_id(topic.name, number) + (f".{spare}" if spare else "")
        # Held by whoever uses the session.
        self._turn = asyncio.Lock()
        self._session: TransactionalSession | None = None
        self._checkpoints: Checkpoints = {}
        self._maps: dict[TopicPartition, MapWriter] = {}
        self._mirrors: list[TransactionalMirror] = []
        self._backoff = Backoff(100, 2000)
        self._awake = asyncio.Event()
        self._stopping = False
        # Left out of transactions: not compared with the checkpoint since the session began, and
        # committed up to an offset that is not visible yet.
        self._unchecked: set[TopicPartition] = set()
        self._hidden: dict[TopicPartition, int] = {}
        self.is_stuck = False
        # Called when the id is stuck, with the partitions that could continue under another.
        self.on_stuck: OnStuck = _stay
        # Told when batches were committed, or positions went back.
        self.on_progress: Callable[[], None] = lambda: None

    # Partitions come and go.

    async def end_open(self, routes: Iterable[Route], workers: Iterable[int]) -> None:
        """Abort what the former holders of these places left open, if anything is.

        They are those that wrote these routes last, and the processes of these numbers, but for
        this one while it has a session. Checkpoints cannot be read to the end before: a dead
        one's transaction stays open until its time is out.
        """
        async with self._turn:
            if await self._topic.read_decided():
                return
            lanes = self._others([route.target for route in routes])
            lanes |= {_lane_id(self._topic.name, number) for number in workers}
            if self._session is not None:
                lanes.discard(self._id)
            await self._fence(lanes, [self._topic.partition])

    async def begin(self, routes: Iterable[Route]) -> dict[Route, Checkpoint]:
        """Take these over as well; returns where each begins or goes on.

        Workers that take over each other's partitions fence each other on the way. Each fencing
        leaves claims that are not fenced again, so it ends.
        """
        wanted = list(routes)
        while True:
            try:
                async with self._turn:
                    return await self._take_over(wanted)
            except KafkaError as error:
                # Whose transaction was aborted by a fencing may hear of its state first.
                is_fenced = (
                    isinstance(error, ProducerFenced) or error.code == Code.INVALID_TXN_STATE
                )
                if not is_fenced or self._backoff.failures >= MOST_FENCINGS:
                    raise
                _log.info("%s was fenced while it began: %s", self._id, error)
            except _Moved as moved:
                # If it was none of ours, the next look refuses it.
                _log.info("%s begins anew: %s", self._id, moved)
            await asyncio.sleep(self._backoff.failed())

    async def _take_over(self, wanted: list[Route]) -> dict[Route, Checkpoint]:
        try:
            await self._topic.make()
            if self._session is None:
                await self._start_session()
            self._resume.update(await self._positions([route.target for route in wanted]))
            known = await self._resume.known(wanted)
            await self._check({route.target: one for route, one in known.items()})
            others = self._others([route.target for route in wanted])
            claimed = {
                route: replace(
                    one,
                    delivery=TRANSACTIONAL,
                    lane=self._id,
                    mirror_epoch=one.mirror_epoch + 1,
                )
                for route, one in known.items()
            }
            claims = {route.target: one for route, one in claimed.items()}
            maps = {
                route.target: self._topic.map_end(
                    route.target, one, is_new=self._resume.begins_map(route)
                )
                for route, one in claimed.items()
            }
            await self._claim(claims, {tp: blocks for tp, (_, blocks) in maps.items()}, others)
        except BaseException:
            await self._close()
            raise
        self._backoff.succeeded()
        self._checkpoints.update(claims)
        self._topic.remember(claims, {tp: blocks for tp, (_, blocks) in maps.items()})
        self._maps.update((tp, writer) for tp, (writer, _) in maps.items())
        return claimed

    def follow(self, mirrors: Iterable[TransactionalMirror]) -> None:
        """Write the batches of these, which were begun."""
        for mirror in mirrors:
            mirror.offsets = self._maps.pop(mirror.target, None)
            self._mirrors = [each for each in self._mirrors if each.target != mirror.target]
            self._mirrors.append(mirror)
        self._awake.set()

    def let_go(self, mirrors: Iterable[PartitionMirror]) -> None:
        """No longer of these, of which nothing is in flight: another may go on with them."""
        gone = {mirror.target for mirror in mirrors}
        self._unchecked -= gone
        self._hidden = {tp: end for tp, end in self._hidden.items() if tp not in gone}
        self._mirrors = [mirror for mirror in self._mirrors if mirror.target not in gone]

    @property
    def id(self) -> str:
        """Its transactional.id."""
        return self._id

    async def drop(self, mirrors: Iterable[PartitionMirror]) -> None:
        """No longer of these, whose target topic is another one; waits for an open transaction."""
        gone = list(mirrors)
        targets = {mirror.target for mirror in gone}
        if any(mirror.target in targets for mirror in self._mirrors):
            async with self._turn:
                self.let_go(gone)

    async def restore(self) -> set[TopicPartition]:
        """Write the positions of all partitions again, to a topic that was made again."""
        async with self._turn:
            own = {m.target: self._checkpoints[m.target] for m in self._mirrors if not m.parked}
            if not own:
                return set()
            if self.is_stuck:
                raise ClientError(f"{self._id} is stuck: its positions are written later")
            try:
                if self._session is None:
                    await self._reopen()
                if self._session is None:
                    return set()  # nothing is left that is ours
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
            raise LaneStuck(
                f"the last transaction of {self._id} cannot end",
                remedy="bring the leaders of all its partitions back",
            )
        self._session = TransactionalSession(self._target, self._id)
        await self._session.start()

    async def _positions(self, partitions: Iterable[TopicPartition]) -> Checkpoints:
        """All that is committed, once nobody else can add to that of these partitions."""
        found = await self._topic.read()
        wanted = list(partitions)
        others = self._others(wanted)
        await self._fence(others, [self._topic.partition, *wanted])
        return await self._topic.read() if others else found

    def _others(self, partitions: Iterable[TopicPartition]) -> set[str]:
        """Who else wrote to these last."""
        found = self._topic.found
        return {found[tp].lane for tp in partitions if tp in found} - {self._id, ""}

    async def _fence(self, lanes: Iterable[str], partitions: Iterable[TopicPartition]) -> None:
        """Take lanes over, or wait until the outcome of their last transactions is known here."""
        for lane in sorted(lanes):
            _log.info("fencing %s", lane)
            if not await try_fence(self._target, lane, timeout_s=FENCE_S):
                await await_decided(self._target, partitions, timeout_s=DECIDE_S)

    async def _claim(
        self, claims: Checkpoints, blocks: Mapping[TopicPartition, NewBlocks], others: set[str]
    ) -> None:
        """Make it known that these are ours, if nobody has gone on with them since the look."""
        assert self._session is not None  # noqa: S101 - for the type checker
        async with self._session.transaction():
            await self._write(self._session, claims, blocks)
            if not others:
                return
            # Not the checkpoint topic: there our own transaction is open.
            await self._fence(others, claims)
            for tp, claim in claims.items():
                if (strange := await self._strange(tp, claim)) is not None:
                    raise _Moved(f"{tp} has moved meanwhile: {strange}")

    async def _check(self, known: Checkpoints) -> None:
        for tp, checkpoint in known.items():
            if (strange := await self._strange(tp, checkpoint)) is not None:
                raise ConfigError(
                    f"the target's partition {tp} is not as this mirror left it: {strange}",
                    remedy="compare both with `shoal mirror verify`; mirror into a new topic",
                )

    async def _strange(self, tp: TopicPartition, checkpoint: Checkpoint) -> str | None:
        """What is wrong with a partition, if it has more or less than was committed."""
        client = self._target
        position = checkpoint.target_offset
        ends = await client.list_offsets({tp: LATEST}, isolation="read_committed")
        end = ends[tp].offset
        if end < position:
            return f"it had {position} offsets and ends at {end}: records are gone"
        first = (await client.list_offsets({tp: EARLIEST}))[tp].offset
        if first < position and await self._is_aborted(tp, position - 1):
            return f"offset {position - 1} is of an aborted transaction now: records are gone"
        position = max(first, position)
        while position < end:
            found, position = await self._data_from(tp, position)
            if found is not None:
                return f"somebody else has written to it, at offset {found}"
        return None

    async def _is_aborted(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an offset that was committed is part of an aborted batch.

        That is so where the log lost what it had there, and a later transaction failed.
        """

        async def attempt() -> bool:
            part = (await self._target.fetch({tp: offset}, isolation="read_committed"))[tp]
            if part.error_code == Code.OFFSET_OUT_OF_RANGE:
                return False  # deleted meanwhile
            if part.error_code != Code.NONE:
                raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            sieve = Sieve(part.aborted)
            standings = ((batch, sieve.judge(batch)) for batch in iter_batches(part.records))
            return any(
                standing is Standing.ABORTED and batch.base_offset <= offset <= batch.last_offset
                for batch, standing in standings
            )

        return await self._target.retrying(attempt)

    async def _data_from(
        self, tp: TopicPartition, position: int, most_bytes: int | None = None
    ) -> tuple[int | None, int]:
        """The first offset of committed data in a part of the log, and the end of that part."""

        async def attempt() -> tuple[int | None, int]:
            fetched = await self._target.fetch(
                {tp: position}, partition_max_bytes=most_bytes, isolation="read_committed"
            )
            part = fetched[tp]
            if part.error_code != Code.NONE:
                raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            sieve, next_offset = Sieve(part.aborted), position
            for batch in iter_batches(part.records):
                if sieve.judge(batch) is Standing.DATA and batch.base_offset >= position:
                    return batch.base_offset, batch.next_offset
                next_offset = batch.next_offset
            return None, next_offset

        return await self._target.retrying(attempt)

    # The copying.

    def wake(self) -> None:
        """There may be batches to send."""
        self._awake.set()

    def stop(self) -> None:
        """End when the open transaction has ended."""
        self._stopping = True
        self._awake.set()

    async def run(self) -> None:
        """Write until `stop`."""
        try:
            while not self._stopping:
                if not any(m.has_more and self._is_available(m) for m in self._mirrors):
                    await self._await_more()
                    continue
                began = asyncio.get_running_loop().time()
                if not self._throttle.is_open(began):
                    await asyncio.sleep(self._throttle.open_at_s - began)
                    continue
                self._throttle.spend(await self._step(), began)
        finally:
            await self._close()

    async def _await_more(self) -> None:
        """Wait for batches; where some are left out, look after those now and then."""
        are_left_out = any(mirror.has_more for mirror in self._mirrors)
        self._awake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEFT_OUT_EVERY_S if are_left_out else None):
                await self._awake.wait()
        await asyncio.sleep(GATHER_S)
        if are_left_out and not self._stopping:
            await self._step()

    async def _step(self) -> int:
        """One transaction, or what must come before it; returns its bytes."""
        async with self._turn:
            try:
                if self._session is None:
                    await self._reopen()
                await self._look_after_left_out()
                size_bytes = await self._one_transaction()
            except (ClientError, TimeoutError) as error:
                _log.warning("a transaction of %s failed: %r", self._id, error)
                await self._close()
                for mirror in self._mirrors:
                    self._go_back(mirror)
                size_bytes = -1
                if isinstance(error, LaneStuck):
                    await self._hand_over()
        self.on_progress()
        if size_bytes < 0:
            await self._pause()
        elif size_bytes:
            self._backoff.succeeded()
        return max(0, size_bytes)

    async def _one_transaction(self) -> int:
        session = self._session
        if session is None:
            return 0  # nothing is left that is ours
        if not any(self._is_available(mirror) and mirror.has_more for mirror in self._mirrors):
            return 0
        session.begin()
        async with asyncio.timeout(STALL_S):
            sent = await self._send(session)
        await self._take_outcomes(sent)
        positions = {
            mirror.target: replace(
                self._checkpoints[mirror.target],
                source_offset=mirror.next_position,
                target_offset=mirror.target_offset,
                **epochs_below(mirror, mirror.next_position),
            )
            for mirror, _, _ in sent
        }
        mirrors = {mirror.target: mirror for mirror, _, _ in sent}
        maps = {tp: mirror.map_with_open() for tp, mirror in mirrors.items()}
        blocks = {tp: extended.unsaved() for tp, extended in maps.items() if extended}
        async with asyncio.timeout(STALL_S):
            await self._write(session, positions, blocks)
        async with asyncio.timeout(STALL_S):
            await session.commit()
        hidden = await self._await_visible(positions)
        self._hidden |= hidden
        self._checkpoints.update(positions)
        self._topic.remember(positions, blocks)
        for tp, mirror in mirrors.items():
            if (extended := maps[tp]) is not None:
                extended.saved(blocks[tp])
            mirror.committed(extended)
        for mirror in mirrors.values():
            if mirror.target not in hidden:
                await self._inspect_gaps(mirror)
        if hidden:
            # The id is probably stuck: to open it again tells so sooner than a transaction.
            await self._close()
        # In turn, so that none waits for the others.
        self._mirrors = [*self._mirrors[1:], *self._mirrors[:1]]
        return sum(outgoing.batch.size for _, outgoing, _ in sent)

    async def _take_outcomes(self, sent: Sent) -> None:
        """What became of the batches of a transaction; raises if one was not written.

        Batches that are written all the same are looked at too: their offsets show whether the
        target has lost records, which those of an aborted transaction would hide.
        """
        failure: ClientError | TimeoutError | None = None
        for mirror, outgoing, result in sent:
            if failure is not None and not result.done():
                continue
            try:
                async with asyncio.timeout(STALL_S):
                    outcome = await result
                if not outcome.is_ok:
                    self._refused(mirror, outgoing, outcome)
                    raise outcome.error(mirror.target)
                mirror.written(outgoing, outcome)
            except (ClientError, TimeoutError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _send(self, session: TransactionalSession) -> Sent:
        sent: Sent = []
        room_bytes = self._throttle.limit_request(self._limits.request_bytes)
        for mirror in self._mirrors:
            if room_bytes <= 0:
                break
            if not self._is_available(mirror):
                continue
            for outgoing in mirror.take(room_bytes):
                room_bytes -= outgoing.batch.size
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

    def _refused(
        self, mirror: TransactionalMirror, outgoing: Outgoing, outcome: ProduceResult
    ) -> None:
        """Park a partition whose batch can never be written."""
        code = outcome.error_code
        if outcome.cause is not None or code in _OF_THE_TRANSACTION:
            return
        if code in TOO_LARGE:
            if outgoing.batch.record_count > 1:
                mirror.learn_limit(outgoing.batch)
            else:
                error, now = outcome.error(mirror.target), asyncio.get_running_loop().time()
                mirror.wait_for_limit(outgoing, error, now)
            return
        if outcome.outcome is Outcome.FAILED and not facts_of(code).retriable:
            error = outcome.error(mirror.target)
            message = f"the target refuses the batch of {outgoing.source_offset}: {error}"
            mirror.park(message, remedy_for(outcome.error_code))

    async def _await_visible(self, positions: Checkpoints) -> dict[TopicPartition, int]:
        """Wait until what was committed is visible; returns where it is not, in good time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STALL_S
        left = {tp: checkpoint.target_offset for tp, checkpoint in positions.items()}
        while True:
            left = await self._still_hidden(left)
            if not left or loop.time() > deadline:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        for tp in left:
            _log.error(
                "%s: a transaction was committed and is not visible: it waits until it is (see "
                "that it has a leader; a marker that is missing for good, KAFKA-20734, needs a "
                "new topic)",
                tp,
            )
        return left

    async def _still_hidden(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those of which not all below an offset can be read, or that do not answer."""
        listed = await self._target.list_offsets_each(
            dict.fromkeys(ends, LATEST), isolation="read_committed", timeout_s=ANSWER_S
        )
        return {
            tp: end
            for tp, end in ends.items()
            if tp in listed.errors or listed.offsets[tp].offset < end
        }

    async def _inspect_gaps(self, mirror: TransactionalMirror) -> None:
        """Count records of another producer between the checkpoint and what was written now."""
        tp = mirror.target
        for gap in list(mirror.gaps):
            first = (await self._target.list_offsets({tp: EARLIEST}))[tp].offset
            position, found = max(first, gap[0]), None
            while found is None and position < gap[1]:
                found, position = await self._data_from(tp, position, most_bytes=_GAP_BYTES)
            mirror.close_gap(gap, has_data=found is not None and found < gap[1])

    # Partitions that are left out.

    def _is_available(self, mirror: TransactionalMirror) -> bool:
        """Whether a transaction with this partition is likely to end."""
        tp = mirror.target
        is_left_out = tp in self._unchecked or tp in self._hidden
        return not is_left_out and self._target.cluster.leader(tp) is not None

    async def _look_after_left_out(self) -> None:
        """Let those take part again that have become available."""
        if self._hidden:
            self._hidden = await self._still_hidden(self._hidden)
        unchecked = [mirror for mirror in self._mirrors if mirror.target in self._unchecked]
        if not unchecked:
            return
        available = await self._answering(unchecked)
        for mirror in unchecked:
            if mirror.target in available and mirror.parked is None:
                await self._compare(mirror)
                self._unchecked.discard(mirror.target)

    async def _answering(self, mirrors: Iterable[TransactionalMirror]) -> set[TopicPartition]:
        asked = {mirror.target: LATEST for mirror in mirrors}
        return set((await self._target.list_offsets_each(asked, timeout_s=ANSWER_S)).offsets)

    async def _compare(self, mirror: TransactionalMirror) -> None:
        """Park a partition that is not as its checkpoint says."""
        tp = mirror.target
        if (strange := await self._strange(tp, self._checkpoints[tp])) is not None:
            mirror.suspect_target(
                f"the target is not as this mirror left it: {strange}",
                "compare both with `shoal mirror verify`; mirror into a new topic",
            )

    async def _hand_over(self) -> None:
        """Let partitions that are available continue under another id."""
        running = [mirror for mirror in self._mirrors if mirror.parked is None]
        available = await self._answering(running)
        healthy = [m for m in running if m.target in available and m.target not in self._hidden]
        if not healthy:
            return
        try:
            async with asyncio.timeout(MOVE_S):
                await self.on_stuck(self, healthy)
        except (ClientError, ConfigError, TimeoutError) as error:
            _log.warning("partitions of %s wait: %r", self._id, error)

    # After a failure.

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            # An order to stop ends the waiting.
            async with asyncio.timeout(self._backoff.failed()):
                while not self._stopping:
                    self._awake.clear()
                    await self._awake.wait()

    async def _reopen(self) -> None:
        """A new epoch, and the truth about what was committed."""
        # Before a later mirror of this place is fenced; what we left open ends with that.
        await self._topic.read_decided()
        self._park_lost(self._topic.found)
        if not any(mirror.parked is None for mirror in self._mirrors):
            return
        await self._start_session()
        found = await self._positions([m.target for m in self._mirrors if m.parked is None])
        self._park_lost(found)
        for mirror in self._mirrors:
            tp = mirror.target
            if tp not in found or mirror.parked is not None:
                continue
            self._checkpoints[tp] = found[tp]
            # The last commit may have counted although its answer was lost.
            mirror.offsets, _ = self._topic.map_end(tp, found[tp], is_new=False)
            self._unchecked.add(tp)
            self._go_back(mirror)

    def _park_lost(self, found: Checkpoints) -> None:
        """Park what a later mirror has taken over."""
        for mirror in self._mirrors:
            theirs, ours = found.get(mirror.target), self._checkpoints[mirror.target]
            if theirs is not None and (
                theirs.mirror_epoch > ours.mirror_epoch or theirs.lane != self._id
            ):
                mirror.park("a later mirror of this name has taken over", "let only one run")

    def _go_back(self, mirror: TransactionalMirror) -> None:
        checkpoint = self._checkpoints[mirror.target]
        mirror.go_back(checkpoint.source_offset, checkpoint.target_offset)

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(TimeoutError, ClientError):
                async with asyncio.timeout(LAST_WORD_S):
                    await session.close()


async def _stay(_lane: TransactionLane, _healthy: list[TransactionalMirror]) -> None:
    """There is no other id."""


def _lane_id(mirror: str, number: int) -> str:
    return f"{PREFIX}{mirror}-{number}"
