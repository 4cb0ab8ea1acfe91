"""The mirror on real clusters: an asyncio shell around `shoal.mirror.copy.partition`.

Rules:
- Every event (a response, a timer, a stop request) touches the partitions that it concerns and ends
  in `_pump`. That looks at the touched partitions only (`shoal.mirror.pump`): its cost depends on
  what moves, not on how many partitions there are.
- Requests to the target and their answers are in `shoal.mirror.run.writes`.
- One fetch at a time from each source leader (or nearer replica, see
  `shoal.client.cluster.replica_choice`), for all its partitions that have room; up to five
  requests to each target leader, each with the next batch of every partition that can send one.
- Fetching and producing overlap. What is fetched and unacknowledged is bounded, with a share for
  each broker of the target (`shoal.mirror.pump.queue_room`); a partition that the target does not
  take at the moment is not fetched.
- Record sets are views into the fetched frame, edited there and sent from there.
- A parked partition stays parked; the mirror ends on its own only when all are parked.
- Partitions can be added (`add`) and removed (`release`) while it runs. A partition that is
  released is no longer fetched, and is removed once all its requests are answered.
- Topic ids are compared whenever the metadata of a topic changes. Nothing is read from a source
  topic, and nothing is sent to a target topic, whose id differs from the one with which a partition
  was started; `on_topic_changed` is called, and other partitions continue.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from shoal.client.client import Client
from shoal.client.codes import INVALIDATES_METADATA, Code, facts_of
from shoal.client.consume.fetch_session import Fetched
from shoal.client.consume.raw_fetch import partition_at
from shoal.client.errors import ClientError, error_for
from shoal.client.results import LATEST
from shoal.mirror.config import MirrorLimits
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.partition import IN_FLIGHT_LIMIT, PartitionMirror
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.pump.agenda import Agenda
from shoal.mirror.pump.cluster_side import ClusterSide
from shoal.mirror.pump.outbox import Outbox
from shoal.mirror.pump.queue_room import QueueRoom
from shoal.mirror.pump.reader import UNTIL_ROOM, SourceReader
from shoal.mirror.pump.statuses import Statuses
from shoal.mirror.pump.work import PartitionWork
from shoal.mirror.run.clients import end_fetch_sessions
from shoal.mirror.run.latencies import MirrorLatencies
from shoal.mirror.run.producers import last_sequence_of
from shoal.mirror.run.remedies import remedy_for_reading
from shoal.mirror.run.transaction_ids import TransactionWriters
from shoal.mirror.run.writes import TargetWrites
from shoal.mirror.status import MirrorStatus
from shoal.mirror.watch.generations import has_other_id
from shoal.mirror.watch.source import SourceWatch
from shoal.model.errors import WireError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.wire.fetch import FetchedPartition

# A status must be quick, even if a partition has no leader.
_ENDS_S: Final = 2.0
# When a stuck partition that has dropped its batches is fetched again.
_PROBE_AFTER_S: Final = 5.0

_log = logging.getLogger(__name__)


class MirrorRunner:
    """Copies partitions until it is stopped. Create and run it in one event loop."""

    def __init__(
        self,
        source: Client,
        target: Client,
        writers: TransactionWriters,
        *,
        limits: MirrorLimits,
        throttle: Throttle,
        topic_throttles: Mapping[str, Throttle],
        fails_on_loss: bool = False,
        ends_when_parked: bool = True,
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_waiting` says whether there are partitions that wait to start."""
        self._writers = writers
        self._watch = SourceWatch(source, fails_on_loss=fails_on_loss)
        self._ends_when_parked = ends_when_parked
        self._is_waiting = is_waiting
        self._works: dict[TopicPartition, PartitionWork] = {}  # by partition of the source
        self._agenda = Agenda()
        self._source = ClusterSide(source)
        self._target = ClusterSide(target)
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._statuses = Statuses()
        self.latencies = MirrorLatencies()
        # Called when a topic of either side is missing or was recreated.
        self.on_topic_changed: Callable[[], None] = lambda: None
        self._readers: dict[int, SourceReader] = {}  # by source broker
        self._outbox = Outbox()
        self._transactional: set[TopicPartition] = set()
        self._unchecked: dict[TopicPartition, PartitionMirror] = {}  # leaders to be checked
        self._loaded: set[TopicPartition] = set()  # those with queued batches
        self._parked: set[TopicPartition] = set()
        self._others: set[TopicPartition] = set()  # whose topics are missing or were recreated
        self._room = QueueRoom(limits, topic_throttles)
        self._throttle = throttle
        self._topic_throttles = topic_throttles
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._stopping = self._paused = False
        self._failure: BaseException | None = None
        self._writes = TargetWrites(
            side=self._target,
            works=self._works,
            agenda=self._agenda,
            outbox=self._outbox,
            room=self._room,
            statuses=self._statuses,
            ended=self._ended,
            spawn=self._spawn,
            pump_soon=self._pump_soon,
            fail=self.fail,
            refresh=partial(self._refresh, self._target),
        )

    def set_on_moved(self, on_moved: Callable[[PartitionMirror], None]) -> None:
        """Call this with partitions whose resume point may have changed."""
        self._writes.on_moved = on_moved

    @property
    def watch(self) -> SourceWatch:
        return self._watch

    def add(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Copy these too. Both clients must have metadata of their topics."""
        for mirror in mirrors:
            tp = mirror.partition
            work = self._works[tp] = PartitionWork(mirror)
            mirror.on_copied = self.latencies.on_copied
            mirror.on_lost = self._watch.report_lost
            mirror.throttle = self._topic_throttles.get(tp.topic, mirror.throttle)
            self._source.add(tp, tp.topic)
            self._target.add(tp, mirror.target.topic)
            if work.is_transactional:
                self._transactional.add(tp)
            self._statuses.add(mirror)
            self._agenda.touch(tp)
            self._compare_topic_id(work)
        self._report_other_topics()
        self._pump()

    async def release(
        self,
        partitions: Iterable[TopicPartition],
        *,
        sends_rest: bool = False,
        patience_s: float | None = None,
    ) -> list[PartitionMirror]:
        """Stop copying these; returns them when none of their batches is in flight.

        With `sends_rest` fetched batches are delivered first. `patience_s` limits the time to wait
        for a target that does not answer.
        """
        going = [self._works[tp] for tp in partitions if tp in self._works]
        for work in going:
            # Another task may wait for its release: the event must be one.
            is_first = work.released is None
            work.released = work.released or asyncio.Event()
            work.sends_rest = sends_rest and (is_first or work.sends_rest)
            if work.sends_rest:
                work.mirror.flush()
            else:
                work.mirror.forget_unsent()
            self._agenda.touch(work.mirror.partition)
        self._writers.wake()
        self._pump()
        gone = [work.released.wait() for work in going if work.released is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await asyncio.gather(*gone)
        for work in going:
            self._remove(work)
        return [work.mirror for work in going]

    def _remove(self, work: PartitionWork) -> None:
        mirror, tp = work.mirror, work.mirror.partition
        if self._works.get(tp) is not work:
            return
        del self._works[tp]
        self._agenda.forget(tp)
        if work.reader is not None:
            self._readers[work.reader].drop(tp)
        self._outbox.put(work, None)
        self._room.remove(tp)
        for known in (self._loaded, self._parked, self._others, self._transactional):
            known.discard(tp)
        self._unchecked.pop(tp, None)
        self._source.remove(tp, tp.topic)
        self._target.remove(tp, mirror.target.topic)
        self.latencies.forget(tp)
        self._statuses.remove(tp)

    def _remove_if_drained(self, work: PartitionWork) -> bool:
        """Remove a partition that is being released, if it has nothing in flight."""
        mirror = work.mirror
        if mirror.parked is None and not work.sends_rest:
            mirror.forget_unsent()  # includes batches that the target has refused since
        # Do not wait for batches that must not be sent, but for responses to those in flight.
        is_blocked = not mirror.can_send and not mirror.queue.in_flight
        if work.released is None or not (mirror.parked or is_blocked or not mirror.queued_bytes):
            return False
        self._remove(work)
        work.released.set()
        return True

    async def run(self) -> None:
        """Copy until `stop`, or until every partition is parked."""
        try:
            self._writers.on_progress = self._on_transaction
            self._spawn(self._writers.run())
            self._pump()
            await self._ended.wait()
        finally:
            for timer in (self._wake, self._deadline):
                if timer is not None:
                    timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            sessions = {node_id: reader.session for node_id, reader in self._readers.items()}
            await end_fetch_sessions(self._source.client, sessions)
            for work in self._works.values():
                if work.released is not None:
                    work.released.set()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Fetch nothing new, wait for the batches in flight, and end."""
        if self._stopping:
            return
        self._stopping = True
        for work in self._works.values():
            work.mirror.forget_unsent()
        self._agenda.touch_all(self._works)
        self._writers.stop()
        self._deadline = self._loop.call_later(self._limits.stop_s, self._ended.set)
        self._pump()

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self._failure = self._failure or error
        self._ended.set()

    def status(self) -> MirrorStatus:
        now_ms = time.time_ns() // 1_000_000
        return self._statuses.make(now_ms, self._wait_reason, is_paused=self._paused)

    def _wait_reason(self, tp: TopicPartition) -> str:
        """Why a partition makes no progress at the moment; empty if no reason is known."""
        work = self._works[tp]
        mirror = work.mirror
        if mirror.waiting is not None:
            return str(mirror.waiting)
        for side, name, each in (
            (self._source, "source", tp),
            (self._target, "target", mirror.target),
        ):
            if side.client.cluster.leader(each) is None:
                return f"the {name} partition {each} has no leader"
        if work.fetch_error:
            return f"cannot fetch from the source: {work.fetch_error}"
        error = work.produce_error
        return f"cannot produce to the target: {error}" if error else ""

    async def refresh_log_ends(self) -> None:
        """Read the log ends of the source, which paused and parked partitions do not fetch.

        A partition that does not answer keeps its last known log end.
        """
        wanted = dict.fromkeys(self._works, LATEST)
        if not wanted:
            return
        ask = partial(self._source.client.list_offsets_or_errors, wanted, timeout_s=_ENDS_S)
        ends, marks = await asyncio.gather(
            ask(isolation="read_committed"), ask(isolation="read_uncommitted")
        )
        for tp in wanted:
            work, end = self._works.get(tp), ends.offsets.get(tp)
            if work is None:
                continue
            self._statuses.mark(tp)
            if end is None:
                work.fetch_error = str(ends.errors[tp])
                continue
            work.mirror.last_stable_offset = end.offset
            mark = marks.offsets.get(tp, end)
            work.mirror.high_watermark = max(mark.offset, end.offset)

    def pause(self) -> None:
        """Fetch nothing until `resume`; fetched batches are still delivered."""
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._agenda.touch_all(self._works)
            self._pump()

    # Starting work.

    def _pump(self) -> None:
        if self._ended.is_set():
            return
        now = self._loop.time()
        self._compare_metadata()
        self._update_touched(now)
        # Partitions of shares that were filled, or have room again.
        self._room.compare_shares(now)
        self._agenda.touch_all(self._room.take_changed())
        self._update_touched(now)
        if self._is_over():
            self._ended.set()
            return
        if not self._stopping:
            self._start_epoch_checks()
        if not (self._stopping or self._paused):
            self._start_fetches(now)
        self._start_produces(now)
        for side in (self._source, self._target):
            if side.leaderless:
                self._refresh(side)
        self._schedule_pump(now)

    def _pump_soon(self) -> None:
        """Pump once for all responses that have arrived."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._soon = None
        try:
            self._pump()
        except Exception as error:  # noqa: BLE001 - it ends the run, as that of a task does
            self.fail(error)

    def _update_touched(self, now: float) -> None:
        for tp in self._agenda.take(now):
            work = self._works.get(tp)
            if work is not None:
                self._update(work, now)

    def _update(self, work: PartitionWork, now: float) -> None:
        """Find out what a partition that was touched needs."""
        mirror, tp = work.mirror, work.mirror.partition
        if mirror.try_again(now):
            self._writers.wake()
        if work.released is not None and self._remove_if_drained(work):
            return
        if not (self._stopping or self._paused):
            self._flush(mirror, now)
        self._plan_send(work)
        self._count_queued(work, now)
        self._plan_fetch(work, now)
        self._start_queries(work)
        self._agenda.set_time(tp, work.next_time(now))
        self._statuses.mark(tp)
        self._writes.on_moved(mirror)

    def _flush(self, mirror: PartitionMirror, now: float) -> None:
        """In deep mode: queue records that have waited for linger.ms."""
        rebatcher = mirror.intake.rebatcher
        if rebatcher is not None and mirror.parked is None and rebatcher.is_due(now):
            mirror.flush()
            self._writers.wake()

    def _is_over(self) -> bool:
        if self._stopping:
            return not any(self._works[tp].is_unfinished for tp in self._loaded)
        are_parked = bool(self._works) and len(self._parked) == len(self._works)
        return self._ends_when_parked and are_parked and not self._is_waiting()

    def _count_queued(self, work: PartitionWork, now: float) -> None:
        """Count what is queued: at most a limit is fetched."""
        mirror, tp = work.mirror, work.mirror.partition
        self._room.count(work)
        if self._room.must_drop(work):
            mirror.forget_unsent()
            # Later, so that many such partitions do not fetch the same records all the time.
            work.is_probe, work.fetch_after = True, now + _PROBE_AFTER_S
            self._room.count(work)
        if mirror.queued_bytes or mirror.queue.in_flight:
            self._loaded.add(tp)
        else:
            self._loaded.discard(tp)
        if mirror.parked is not None:
            self._parked.add(tp)

    def _start_epoch_checks(self) -> None:
        """Check leaders with a new epoch, even if nothing is fetched: queued data may be void."""
        if self._unchecked:
            unchecked = list(self._unchecked.values())
            self._unchecked.clear()
            self._spawn(self._check_leader_epochs(unchecked))

    def _plan_fetch(self, work: PartitionWork, now: float) -> None:
        """Decide from which broker, and from where on, the next fetch reads a partition."""
        mirror, tp = work.mirror, work.mirror.partition
        node_id = self._find_reader(work, now)
        is_due = node_id is not None and self._watch.is_due(mirror)
        part, until = None, None
        if node_id is not None and not (is_due or work.is_checked):
            until = self._find_pause(work, now)
            if until is None:
                cluster, size = self._source.client.cluster, self._limits.partition_bytes
                part = partition_at(cluster, tp, mirror.position, size)
        work.awaits_room = until == UNTIL_ROOM
        former = None if work.reader is None else self._readers[work.reader]
        if former is not None and former.is_in_flight(tp):
            if node_id != work.reader or former.session.get_wanted(tp) != part:
                former.defer(tp)
            return
        if former is not None and node_id != work.reader:
            former.drop(tp)
        work.reader = node_id
        if node_id is not None:
            self._readers.setdefault(node_id, SourceReader()).plan(tp, part, until)
        is_free = not work.is_checked and work.fetch_after <= now
        if is_due and is_free and not self._stopping:
            work.is_checked = True
            self._unchecked[tp] = mirror

    def _find_pause(self, work: PartitionWork, now: float) -> float | None:
        """Until when a partition is left out of fetches; None if it is fetched."""
        if work.fetch_after > now:
            return work.fetch_after
        return None if self._room.has_room(work) and not work.is_stuck else UNTIL_ROOM

    def _find_reader(self, work: PartitionWork, now: float) -> int | None:
        """The broker to fetch a partition from; None if it must not be fetched."""
        source, tp = self._source, work.mirror.partition
        source.leaderless.discard(tp)
        if work.mirror.parked is not None:
            return None
        cluster = source.client.cluster
        leader = cluster.leader(tp)
        if leader is None:
            source.leaderless.add(tp)
        if leader is None or work.has_other_source or work.released is not None:
            return None
        node_id = source.client.replica_selector.node(cluster, tp, now)
        return leader if node_id is None else node_id

    def _start_fetches(self, now: float) -> None:
        if self._room.is_full:
            return
        for node_id, reader in self._readers.items():
            is_free = not reader.is_busy and self._source.not_before.get(node_id, 0.0) <= now
            if is_free and len(reader.session):
                wait_ms = reader.begin(now, self._limits.fetch_wait_ms)
                self._spawn(self._fetch(node_id, reader, wait_ms))

    def _plan_send(self, work: PartitionWork) -> None:
        """Decide whether a partition may have something to send, and to which broker."""
        mirror, target = work.mirror, self._target
        target.leaderless.discard(mirror.partition)
        leader = target.client.cluster.leader(mirror.target)
        work.target_node = leader
        if mirror.parked is not None:
            leader = None
        elif mirror.is_held or leader is None:
            leader = None
            target.leaderless.add(mirror.partition)  # a held topic may be created again
        can_send = bool(mirror.queue.batches) and mirror.can_send
        self._outbox.put(work, leader if can_send else None)

    def _start_produces(self, now: float) -> None:
        for node_id in self._outbox.nodes():
            while self._throttle.is_open(now) and self._target.free(
                node_id, limit=IN_FLIGHT_LIMIT, now=now
            ):
                if not self._start_produce(node_id, now):
                    break
                self._target.busy[node_id] = self._target.busy.get(node_id, 0) + 1

    def _start_produce(self, node_id: int, now: float) -> bool:
        """Send one request to a target broker, if there is something to send."""
        room_bytes = self._throttle.limit_request(self._limits.request_bytes)
        singles, units = self._outbox.take(node_id, now, room_bytes)
        sent = [out for _, out in singles] + [out for _, unit in units for out in unit]
        self._throttle.spend(sum(out.size for out in sent), now)
        if singles:
            self._writes.send(node_id, singles)
        elif units:
            self._spawn(self._writes.append(node_id, units))
        return bool(sent)

    def _start_queries(self, work: PartitionWork) -> None:
        mirror, delivery = work.mirror, work.mirror.delivery
        if (
            isinstance(delivery, IdempotentDelivery)
            and delivery.needs_last_sequence
            and not work.is_queried
        ):
            work.is_queried = True
            self._spawn(self._query_last_sequence(work, delivery))
        is_open = mirror.suspicion is not None and not mirror.is_held
        if is_open and mirror.parked is None and not work.is_confirmed:
            work.is_confirmed = True
            self._spawn(self._confirm_target(work))

    def _schedule_pump(self, now: float) -> None:
        """Schedule `_pump` for the end of the next backoff."""
        times = [self._throttle.open_at_s, self._agenda.next_at or 0.0, self._room.compare_at]
        times += [throttle.open_at_s for throttle in self._topic_throttles.values()]
        times += self._source.not_before.values()
        times += self._target.not_before.values()
        next_at = min((at for at in times if now < at < math.inf), default=None)
        if self._wake is not None and self._wake.when() == next_at:
            return
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if next_at is not None:
            self._wake = self._loop.call_at(next_at, self._on_time)

    def _on_time(self) -> None:
        self._wake = None
        self._pump()

    def _on_transaction(self) -> None:
        """Batches were committed, or partitions were rewound."""
        self._agenda.touch_all(self._transactional)
        self._pump()

    # Running work.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # An error ends the run: see `_on_task_done`.
        task = run_awaited("mirror work", work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if error := task.exception():
            self._failure = self._failure or error
            self._ended.set()
        else:
            self._pump()

    async def _fetch(self, node_id: int, reader: SourceReader, wait_ms: int) -> None:
        side, session = self._source, reader.session
        places, rack = side.client.replica_selector, side.client.config.client_rack
        try:
            fetched = await side.client.fetch_in_session(
                node_id,
                session,
                max_wait_ms=wait_ms,
                min_bytes=self._limits.fetch_min_bytes,
                max_bytes=self._limits.fetch_bytes,
                isolation="read_committed",
                rack_id=places.rack_for(session.partitions, rack, self._loop.time())
                if rack
                else "",
            )
        except (ClientError, WireError) as error:
            if isinstance(error, ClientError) and not error.retriable:
                raise
            _log.warning("cannot fetch from source broker %d: %s", node_id, error)
            self._on_fetch_failed(node_id, list(session.partitions), str(error))
            return
        finally:
            self._agenda.touch_all(reader.end())
        side.backoff.reset()
        moved = places.apply_response(side.client.cluster, node_id, fetched, self._loop.time())
        self._agenda.touch_all(fetched)
        if fetched and not self._stopping:
            self._on_fetched({tp: part for tp, part in fetched.items() if tp not in moved}, reader)
            self._writers.wake()

    def _on_fetch_failed(self, node_id: int, asked: list[TopicPartition], error: str) -> None:
        side, now = self._source, self._loop.time()
        side.not_before[node_id] = now + side.backoff.next_wait_s()
        for tp in asked:
            if tp in self._works:
                self._works[tp].fetch_error = error
            if side.client.cluster.leader(tp) != node_id:
                side.client.replica_selector.avoid(tp, now)
        self._agenda.touch_all(asked)
        self._refresh(side)

    def _on_fetched(self, fetched: Fetched, reader: SourceReader) -> None:
        for tp, part in fetched.items():
            work = self._works.get(tp)
            if work is None or work.mirror.parked is not None or work.released is not None:
                continue
            mirror = work.mirror
            if mirror.position != reader.session.get_asked_offset(tp):
                continue  # it was rewound while the fetch was in flight
            if not self._is_same_topic(work):
                continue
            if self._watch.is_due(mirror):
                continue  # a new leader must be checked first: it may have other records
            if part.error_code != Code.NONE:
                self._on_fetch_error(work, part)
                continue
            work.fetch_error = ""
            is_good = mirror.on_fetched(
                part.records,
                aborted=part.aborted,
                last_stable_offset=part.last_stable_offset,
                now_ms=time.time_ns() // 1_000_000,
            )
            if mirror.queue.batches:
                newest = mirror.queue.batches[-1].batch
                self.latencies.on_fetched(tp, newest.max_timestamp)
            if not is_good:
                self._fetch_later(work)

    def _fetch_later(self, work: PartitionWork) -> None:
        work.fetch_after = self._loop.time() + work.mirror.backoff.next_wait_s()
        self._agenda.touch(work.mirror.partition)

    # Topic ids.

    def has_other_source(self, mirror: PartitionMirror) -> bool:
        """Whether the source topic was recreated since a partition was started."""
        known = self._source.client.cluster.topics.get(mirror.partition.topic)
        topic_id = None if known is None else known.topic_id
        return has_other_id(mirror.lineage.source_topic_id, topic_id)

    def has_other_target(self, mirror: PartitionMirror) -> bool:
        known = self._target.client.cluster.topics.get(mirror.target.topic)
        topic_id = None if known is None else known.topic_id
        return has_other_id(mirror.lineage.target_topic_id, topic_id)

    def _compare_metadata(self) -> None:
        """Touch partitions whose metadata has changed; hold them if their topics are others."""
        for side in (self._source, self._target):
            changed = side.take_changes()
            if changed is None:
                continue
            for tp in changed:
                self._compare_topic_id(self._works[tp])
            self._agenda.touch_all(changed)
            self._report_other_topics()

    def _compare_topic_id(self, work: PartitionWork) -> None:
        """Hold a partition whose topic is missing or was recreated."""
        mirror, tp = work.mirror, work.mirror.partition
        mirror.is_held = self._is_missing(mirror) or self.has_other_target(mirror)
        work.has_other_source = self.has_other_source(mirror)
        if mirror.is_held or work.has_other_source:
            self._others.add(tp)
        else:
            self._others.discard(tp)

    def _report_other_topics(self) -> None:
        if self._others:
            self.on_topic_changed()

    def _is_missing(self, mirror: PartitionMirror) -> bool:
        """Whether the target reports that the topic does not exist."""
        known = self._target.client.cluster.topics.get(mirror.target.topic)
        return known is not None and known.error == Code.UNKNOWN_TOPIC_OR_PARTITION

    def _is_same_topic(self, work: PartitionWork) -> bool:
        if not self.has_other_source(work.mirror):
            return True
        work.has_other_source = True
        self._others.add(work.mirror.partition)
        self.on_topic_changed()
        return False

    async def _confirm_target(self, work: PartitionWork) -> None:
        """Find out whether a topic that seems to have lost records was recreated."""
        mirror = work.mirror
        try:
            await self._target.client.metadata([mirror.target.topic], refresh=True)
            self._compare_metadata()
            if not mirror.is_held:
                mirror.on_target_unchanged()
        except ClientError as error:
            _log.warning("%s: cannot read the topic id at the target: %s", mirror.target, error)
            await asyncio.sleep(mirror.backoff.next_wait_s())
        finally:
            work.is_confirmed = False
            self._agenda.touch(mirror.partition)

    def _on_fetch_error(self, work: PartitionWork, part: FetchedPartition) -> None:
        mirror, code, tp = work.mirror, part.error_code, work.mirror.partition
        error = error_for(code, topic=tp.topic, partition=tp.partition, offset=mirror.position)
        if code == Code.OFFSET_OUT_OF_RANGE:
            work.is_checked = True
            self._spawn(self._diagnose_position(work))
        elif facts_of(code).retriable or code == Code.UNKNOWN_SERVER_ERROR:
            work.fetch_error = str(error)
            self._fetch_later(work)
            if code in INVALIDATES_METADATA:
                self._refresh(self._source)
        else:
            mirror.park(f"cannot read from the source: {error}", remedy_for_reading(code))

    async def _diagnose_position(self, work: PartitionWork) -> None:
        """Find out why the source does not have a position."""
        tp = work.mirror.partition
        try:
            await self._source.client.metadata([tp.topic], refresh=True)
            if self._is_same_topic(work):
                await self._watch.diagnose_position(work.mirror)
        except ClientError as error:
            _log.warning("%s: cannot read the log start and end of the source: %s", tp, error)
        finally:
            work.is_checked = False
        self._fetch_later(work)

    async def _check_leader_epochs(self, mirrors: list[PartitionMirror]) -> None:
        """Check whether source leaders still have the records that were read."""
        asked = {mirror.partition for mirror in mirrors}
        again = set(asked)
        try:
            again = await self._watch.check_leader_epochs(mirrors)
        except (ClientError, WireError) as error:
            _log.warning("cannot read leader epochs of the source: %s", error)
        finally:
            self._agenda.touch_all(asked)
            for work in (self._works.get(tp) for tp in asked):
                if work is not None:
                    work.is_checked = False
        for work in (self._works.get(tp) for tp in again):
            if work is not None:
                self._fetch_later(work)
        if again:
            self._refresh(self._source)

    async def _query_last_sequence(self, work: PartitionWork, delivery: IdempotentDelivery) -> None:
        mirror = delivery.mirror
        try:
            last_sequence = await last_sequence_of(
                self._target.client, mirror.target, delivery.identity
            )
            delivery.on_last_sequence(last_sequence, now=self._loop.time())
        except ClientError as error:
            if not error.retriable:
                message = (
                    f"cannot read the producer state of this mirror at the target: {error.message}"
                )
                mirror.park(
                    message, error.remedy or "allow the mirror's principal to describe the topic"
                )
            else:
                _log.warning(
                    "%s: cannot read the producer state at the target, retrying: %s",
                    mirror.partition,
                    error,
                )
                await asyncio.sleep(mirror.backoff.next_wait_s())
        finally:
            work.is_queried = False
            self._agenda.touch(mirror.partition)

    def _refresh(self, side: ClusterSide) -> None:
        if not side.is_refreshing:
            side.is_refreshing = True
            self._spawn(self._refresh_metadata(side))

    async def _refresh_metadata(self, side: ClusterSide) -> None:
        try:
            await side.client.metadata(side.topics, refresh=True)
        except ClientError as error:
            if not error.retriable:
                raise
            _log.warning("cannot refresh metadata, retrying: %s", error)
        self._pump()
        if not side.leaderless:
            side.refresh_backoff.reset()
        # Limits the rate of refreshes, even if metadata stays incomplete.
        await asyncio.sleep(side.refresh_backoff.next_wait_s())
        side.is_refreshing = False
