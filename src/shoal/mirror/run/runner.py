"""The mirror on real clusters: an asyncio shell around `shoal.mirror.copy.partition`.

Rules:
- Everything that happens (an answer, a timer, an order to stop) ends in `_pump`, which begins
  whatever may begin: one fetch at a time from each source leader (or nearer replica, see
  `shoal.client.cluster.replica_choice`), for all of its partitions that have room; up to five
  requests to each
  target leader, each with the next batch of every partition that may send one.
- Fetching and producing overlap; memory is bounded by what is fetched and unacknowledged.
- Record sets are views into the fetched frame, edited there and sent from there.
- A parked partition stays parked; the mirror ends by itself only when all are.
- Partitions may come (`add`) and go (`release`) while it runs. One that goes is no longer
  fetched, and is out once what was sent of it has been answered.
- Topic ids are compared whenever metadata is new. Nothing is read from a source topic, and
  nothing sent to a target topic, that is not the one with which a partition was begun;
  `on_topic_changed` is called, and others go on.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from shoal.client.client import Client
from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.codes import INVALIDATES_METADATA, Code, facts_of
from shoal.client.consume.raw_fetch import Fetched
from shoal.client.errors import ClientError, error_for
from shoal.client.produce.compare_and_append import AppendResult
from shoal.client.results import LATEST, ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorLimits
from shoal.mirror.copy.delivery.compare_and_append import AppendingMirror
from shoal.mirror.copy.intake import Counts
from shoal.mirror.copy.partition import IN_FLIGHT_LIMIT, Outgoing, PartitionMirror
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.run.producers import last_sequence_of
from shoal.mirror.run.remedies import remedy_for_reading
from shoal.mirror.run.transaction_ids import TransactionLanes
from shoal.mirror.status import MirrorStatus, partition_status, total
from shoal.mirror.watch.generations import has_other_id
from shoal.mirror.watch.source import SourceWatch
from shoal.model.errors import WireError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.wire.fetch import FetchedPartition

# With partitions left out for want of room, a fetch must not keep them waiting for the others.
_SHORT_WAIT_MS: Final = 10
# A status must be quick, also where a partition has no leader.
_ENDS_S: Final = 2.0

_log = logging.getLogger(__name__)


Units = list[tuple[AppendingMirror, list[Outgoing]]]
Singles = list[tuple[PartitionMirror, Outgoing]]


@dataclass(slots=True)
class _Side:
    """What the runner keeps about one of the two clusters."""

    client: Client
    topics: set[str]
    backoff: Backoff
    busy: dict[int, int] = field(default_factory=dict)  # requests under way, by node
    not_before: dict[int, float] = field(default_factory=dict)  # by node
    refreshing: bool = False
    compared: ClusterMetadata | None = None  # whose topic ids were compared last

    def free(self, node_id: int, *, limit: int, now: float) -> bool:
        return self.busy.get(node_id, 0) < limit and self.not_before.get(node_id, 0.0) <= now


class MirrorRunner:
    """Copies partitions until it is stopped. Make it and run it in one event loop."""

    def __init__(
        self,
        source: Client,
        target: Client,
        lane: TransactionLanes,
        *,
        limits: MirrorLimits,
        throttle: Throttle,
        fails_on_loss: bool = False,
        ends_when_parked: bool = True,
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_waiting` tells whether partitions are still to come that cannot start yet."""
        self._lane = lane
        self._watch = SourceWatch(source, fails_on_loss=fails_on_loss)
        self._ends_when_parked = ends_when_parked
        self._is_waiting = is_waiting
        self._partitions: dict[TopicPartition, PartitionMirror] = {}
        self._source = _Side(source, set(), Backoff(100, 2000))
        self._target = _Side(target, set(), Backoff(100, 2000))
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._past = Counts()  # of partitions that have gone
        # Called when a topic of either side is missing or another one.
        self.on_topic_changed: Callable[[], None] = lambda: None
        self._in_turn: deque[PartitionMirror] = deque()
        self._leaving: dict[TopicPartition, asyncio.Event] = {}
        self._fetching: set[TopicPartition] = set()
        self._fetch_after: dict[TopicPartition, float] = {}
        self._inquiring: set[TopicPartition] = set()
        self._confirming: set[TopicPartition] = set()
        self._sending_rest: set[TopicPartition] = set()  # of those that leave
        self._other_sources: set[TopicPartition] = set()  # not fetched: another topic's records
        self._throttle = throttle
        # Why a partition is not fetched, or not written, until it is again.
        self._fetch_errors: dict[TopicPartition, str] = {}
        self._produce_errors: dict[TopicPartition, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._stopping = self._paused = False
        self._failure: BaseException | None = None

    @property
    def watch(self) -> SourceWatch:
        return self._watch

    def add(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Copy these too. Their topics are known to both clients."""
        for mirror in mirrors:
            self._partitions[mirror.partition] = mirror
            self._in_turn.append(mirror)
            self._source.topics.add(mirror.partition.topic)
            self._target.topics.add(mirror.target.topic)
        self._source.compared = self._target.compared = None
        self._pump()

    async def release(
        self,
        partitions: Iterable[TopicPartition],
        *,
        sends_rest: bool = False,
        patience_s: float | None = None,
    ) -> list[PartitionMirror]:
        """Copy these no longer; returns them when nothing of them is in flight.

        With `sends_rest` what was fetched of them is delivered first. With `patience_s` a target
        that does not answer is not waited for longer.
        """
        going = [self._partitions[tp] for tp in partitions if tp in self._partitions]
        for mirror in going:
            self._leaving[mirror.partition] = asyncio.Event()
            if sends_rest:
                mirror.flush()
                self._sending_rest.add(mirror.partition)
            else:
                mirror.forget_unsent()
        self._lane.wake()
        self._pump()
        gone = [self._leaving[mirror.partition].wait() for mirror in going]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await asyncio.gather(*gone)
        for mirror in going:
            self._remove(mirror)
            self._leaving.pop(mirror.partition, None)
            self._sending_rest.discard(mirror.partition)
        return going

    def _remove(self, mirror: PartitionMirror) -> None:
        tp = mirror.partition
        if self._partitions.get(tp) is mirror:
            del self._partitions[tp]
            self._in_turn = deque(each for each in self._in_turn if each is not mirror)
            self._fetch_after.pop(tp, None)
            self._fetch_errors.pop(tp, None)
            self._produce_errors.pop(tp, None)
            if mirror.parked is None:
                # What is at the target and not at the source, its checkpoint tells.
                self._past += replace(mirror.counts, truncated=0)

    def _see_off(self) -> None:
        """Let those go of which nothing is in flight any more."""
        for tp, gone in self._leaving.items():
            mirror = self._partitions.get(tp)
            if mirror is None:
                continue
            if mirror.parked is None and tp not in self._sending_rest:
                mirror.forget_unsent()  # also what the target has refused since
            # What must not be sent is not waited for, but the answers to what was sent still count.
            is_blocked = not mirror.may_send and not mirror.in_flight
            if mirror.parked or is_blocked or not mirror.queued_bytes:
                self._remove(mirror)
                gone.set()

    async def run(self) -> None:
        """Copy until `stop`, or until every partition is parked."""
        try:
            self._lane.on_progress = self._pump
            self._begin(self._lane.run())
            self._pump()
            await self._ended.wait()
        finally:
            for timer in (self._wake, self._deadline):
                if timer is not None:
                    timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for gone in self._leaving.values():
                gone.set()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Fetch no more, wait for what is in flight, and end."""
        if self._stopping:
            return
        self._stopping = True
        for mirror in self._partitions.values():
            mirror.forget_unsent()
        self._lane.stop()
        self._deadline = self._loop.call_later(self._limits.stop_s, self._ended.set)
        self._pump()

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self._failure = self._failure or error
        self._ended.set()

    def status(self) -> MirrorStatus:
        counts = replace(self._past)
        for mirror in self._partitions.values():
            counts += mirror.counts
        return MirrorStatus(
            counts=counts,
            positions={tp: mirror.done for tp, mirror in self._partitions.items()},
            lag=total(mirror.lag for mirror in self._partitions.values()),
            parked=tuple(m.parked for m in self._partitions.values() if m.parked is not None),
            partitions=tuple(
                partition_status(mirror, time.time_ns() // 1_000_000, self._waits_for(mirror))
                for mirror in self._partitions.values()
            ),
            paused=self._paused,
        )

    def _waits_for(self, mirror: PartitionMirror) -> str:
        """Why a partition makes no progress at the moment; empty if nothing is known."""
        if mirror.waiting is not None:
            return str(mirror.waiting)
        for side, name, tp in (
            (self._source, "source", mirror.partition),
            (self._target, "target", mirror.target),
        ):
            if side.client.cluster.leader(tp) is None:
                return f"the {name}'s partition {tp} has no leader"
        source_error = self._fetch_errors.get(mirror.partition)
        if source_error:
            return f"the source does not answer for it: {source_error}"
        target_error = self._produce_errors.get(mirror.partition)
        return f"the target does not take its batches: {target_error}" if target_error else ""

    async def look_at_ends(self) -> None:
        """Ask the source how far it goes: what is paused or parked does not hear of it.

        A partition that does not answer keeps what was known of it.
        """
        wanted = dict.fromkeys(self._partitions, LATEST)
        if not wanted:
            return
        ask = partial(self._source.client.list_offsets_each, wanted, timeout_s=_ENDS_S)
        ends, marks = await asyncio.gather(
            ask(isolation="read_committed"), ask(isolation="read_uncommitted")
        )
        for tp in wanted:
            mirror, end = self._partitions.get(tp), ends.offsets.get(tp)
            if mirror is None:
                continue
            if end is None:
                self._fetch_errors[tp] = str(ends.errors[tp])
                continue
            mirror.last_stable_offset = end.offset
            mark = marks.offsets.get(tp, end)
            mirror.high_watermark = max(mark.offset, end.offset)

    def pause(self) -> None:
        """Fetch no more; what was fetched is still delivered."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._pump()

    # What may begin.

    def _pump(self) -> None:
        if self._ended.is_set():
            return
        self._compare_topic_ids()
        self._see_off()
        if self._is_over():
            self._ended.set()
            return
        now = self._loop.time()
        for mirror in self._partitions.values():
            if mirror.try_again(now):
                self._lane.wake()
        if not self._stopping:
            self._start_looks(now)
        if not (self._stopping or self._paused):
            self._flush(now)
            self._start_fetches(now)
        self._start_produces(now)
        self._start_inquiries()
        self._start_confirmations()
        self._wake_later(now)

    def _is_over(self) -> bool:
        if self._stopping:
            return not any(
                mirror.parked is None
                and (mirror.in_flight or (mirror.queued_bytes and mirror.may_send))
                for mirror in self._partitions.values()
            )
        parked = [mirror.parked is not None for mirror in self._partitions.values()]
        is_end = self._ends_when_parked and bool(parked) and all(parked)
        return is_end and not self._is_waiting()

    def _flush(self, now: float) -> None:
        """In deep mode: let go what has been gathered for long enough."""
        for mirror in self._partitions.values():
            rebatcher = mirror.rebatcher
            if rebatcher is not None and mirror.parked is None and rebatcher.is_due(now):
                mirror.flush()
                self._lane.wake()

    def _start_looks(self, now: float) -> None:
        """Ask leaders with a new epoch, also while nothing is fetched: the queue may be void."""
        unsure = [
            mirror
            for mirrors in self._leaders(self._source, self._partitions.values()).values()
            for mirror in mirrors
            if self._may_ask(mirror, now) and self._watch.is_due(mirror)
            if mirror.partition not in self._other_sources
        ]
        if unsure:
            self._fetching.update(mirror.partition for mirror in unsure)
            self._begin(self._look(unsure))

    def _start_fetches(self, now: float) -> None:
        # What waits for a leader at the target must not keep others from being fetched.
        queued_bytes = sum(
            mirror.queued_bytes for mirror in self._partitions.values() if self._has_target(mirror)
        )
        if queued_bytes >= self._limits.queue_bytes:
            return
        # In turn: only the first partition of a fetch is sure to get a batch that is larger
        # than the limits.
        self._in_turn.rotate(-1)
        leaders = self._leaders(self._source, self._in_turn)
        for node_id, mirrors in self._readable(leaders, now).items():
            if not self._source.free(node_id, limit=1, now=now):
                continue
            wanted = {m.partition: m.position for m in mirrors if self._wants_data(m, now)}
            if not wanted:
                continue
            all_wanted = len(wanted) == len(mirrors)
            wait_ms = self._limits.fetch_wait_ms if all_wanted else _SHORT_WAIT_MS
            self._source.busy[node_id] = 1
            self._fetching.update(wanted)
            self._begin(self._fetch(node_id, wanted, wait_ms))

    def _readable(
        self, leaders: Mapping[int, list[PartitionMirror]], now: float
    ) -> dict[int, list[PartitionMirror]]:
        """Partitions by the broker to fetch from."""
        source = self._source
        readable: dict[int, list[PartitionMirror]] = {}
        for leader, mirrors in leaders.items():
            for mirror in mirrors:
                node_id = source.client.read_places.node(
                    source.client.cluster, mirror.partition, now
                )
                readable.setdefault(leader if node_id is None else node_id, []).append(mirror)
        return readable

    def _wants_data(self, mirror: PartitionMirror, now: float) -> bool:
        return (
            self._may_ask(mirror, now)
            and mirror.queued_bytes < self._limits.partition_bytes
            and self._has_target(mirror)
            and not self._watch.is_due(mirror)
        )

    def _has_target(self, mirror: PartitionMirror) -> bool:
        return self._target.client.cluster.leader(mirror.target) is not None

    def _may_ask(self, mirror: PartitionMirror, now: float) -> bool:
        return (
            mirror.partition not in self._fetching
            and mirror.partition not in self._other_sources
            and mirror.partition not in self._leaving
            and self._fetch_after.get(mirror.partition, 0.0) <= now
        )

    def _start_produces(self, now: float) -> None:
        leaders = self._leaders(self._target, self._partitions.values())
        for node_id, mirrors in leaders.items():
            while self._throttle.is_open(now) and self._target.free(
                node_id, limit=IN_FLIGHT_LIMIT, now=now
            ):
                if not (
                    self._start_produce(node_id, mirrors, now)
                    or self._start_append(node_id, mirrors, now)
                ):
                    break
                self._target.busy[node_id] = self._target.busy.get(node_id, 0) + 1

    def _start_produce(self, node_id: int, mirrors: list[PartitionMirror], now: float) -> bool:
        batches = self._next_batches(mirrors, now)
        if batches:
            self._throttle.spend(sum(out.batch.size for _, out in batches), now)
            self._begin(self._produce(node_id, batches))
        return bool(batches)

    def _start_append(self, node_id: int, mirrors: list[PartitionMirror], now: float) -> bool:
        units: Units = []
        limit_bytes = room_bytes = self._throttle.limit_request(self._limits.request_bytes)
        for mirror in mirrors:
            if isinstance(mirror, AppendingMirror) and room_bytes > 0:
                unit = mirror.next_unit(now, room_bytes)
                if unit:
                    units.append((mirror, unit))
                    room_bytes -= sum(out.batch.size for out in unit)
        if units:
            self._throttle.spend(limit_bytes - room_bytes, now)
            self._begin(self._append(node_id, units))
        return bool(units)

    def _next_batches(self, mirrors: Iterable[PartitionMirror], now: float) -> Singles:
        """One batch of each partition that has one to send, as far as a request has room."""
        batches: Singles = []
        size = 0
        for mirror in mirrors:
            outgoing = mirror.sendable(now)
            if outgoing is None:
                continue
            size += outgoing.batch.size
            if batches and size > self._limits.request_bytes:
                break
            mirror.sent(outgoing)
            batches.append((mirror, outgoing))
        return batches

    def _start_inquiries(self) -> None:
        for tp, mirror in self._partitions.items():
            if mirror.inquiring and tp not in self._inquiring:
                self._inquiring.add(tp)
                self._begin(self._inquire(mirror))

    def _leaders(
        self, side: _Side, mirrors: Iterable[PartitionMirror]
    ) -> dict[int, list[PartitionMirror]]:
        """Partitions by leader; asks anew if one has none."""
        cluster = side.client.cluster
        leaders: dict[int, list[PartitionMirror]] = {}
        for mirror in mirrors:
            if mirror.parked is not None:
                continue
            if side is self._target and mirror.is_held:
                self._refresh(side)  # its topic may come back
                continue
            leader = cluster.leader(mirror.partition if side is self._source else mirror.target)
            if leader is None:
                self._refresh(side)
            else:
                leaders.setdefault(leader, []).append(mirror)
        return leaders

    def _wake_later(self, now: float) -> None:
        """Pump again when the next back-off is over."""
        times = [m.not_before for m in self._partitions.values() if m.queued_bytes or m.is_waiting]
        times += [
            m.rebatcher.due_at
            for m in self._partitions.values()
            if m.rebatcher is not None and m.rebatcher.due_at is not None
        ]
        times += self._fetch_after.values()
        times.append(self._throttle.open_at_s)
        times += self._source.not_before.values()
        times += self._target.not_before.values()
        next_at = min((at for at in times if at > now), default=None)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if next_at is not None:
            self._wake = self._loop.call_at(next_at, self._pump)

    # What is under way.

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        # Fail-stop: `_done` ends the run with the error.
        task = run_awaited("mirror work", work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if error := task.exception():
            self._failure = self._failure or error
            self._ended.set()
        else:
            self._pump()

    async def _fetch(
        self, node_id: int, positions: dict[TopicPartition, int], wait_ms: int
    ) -> None:
        side = self._source
        places, rack = side.client.read_places, side.client.config.client_rack
        try:
            fetched = await side.client.fetch_from(
                node_id,
                positions,
                max_wait_ms=wait_ms,
                min_bytes=self._limits.fetch_min_bytes,
                max_bytes=self._limits.fetch_bytes,
                partition_max_bytes=self._limits.partition_bytes,
                isolation="read_committed",
                rack_id=places.rack_for(positions, rack, self._loop.time()),
            )
        except (ClientError, WireError) as error:
            if isinstance(error, ClientError) and not error.retriable:
                raise
            _log.warning("source broker %d does not answer: %s", node_id, error)
            self._fetch_errors.update(dict.fromkeys(positions, str(error)))
            side.not_before[node_id] = self._loop.time() + side.backoff.failed()
            for tp in positions:
                if side.client.cluster.leader(tp) != node_id:
                    places.avoid(tp, self._loop.time())
            self._refresh(side)
            return
        finally:
            side.busy[node_id] = 0
            self._fetching.difference_update(positions)
        side.backoff.succeeded()
        moved = places.follow(side.client.cluster, node_id, fetched, self._loop.time())
        if not self._stopping:
            self._take({tp: part for tp, part in fetched.items() if tp not in moved}, positions)
            self._lane.wake()

    def _take(self, fetched: Fetched, positions: Mapping[TopicPartition, int]) -> None:
        for tp, part in fetched.items():
            mirror = self._partitions.get(tp)
            if mirror is None or mirror.parked is not None or tp in self._leaving:
                continue
            if mirror.position != positions[tp]:
                continue  # it went back while this was on its way
            if not self._is_same_topic(mirror):
                continue
            if self._watch.is_due(mirror):
                continue  # another leader: it must be asked first, and may have other records
            if part.error_code != Code.NONE:
                self._fetch_failed(mirror, part)
            else:
                self._fetch_errors.pop(tp, None)
                is_good = mirror.fetched(
                    part.records,
                    aborted=part.aborted,
                    last_stable_offset=part.last_stable_offset,
                    now_ms=time.time_ns() // 1_000_000,
                )
                if not is_good:
                    self._fetch_after[tp] = self._loop.time() + mirror.backoff.failed()

    # Topic ids.

    def has_other_source(self, mirror: PartitionMirror) -> bool:
        """Whether the source's topic is not the one with which a partition was begun."""
        known = self._source.client.cluster.topics.get(mirror.partition.topic)
        topic_id = None if known is None else known.topic_id
        return has_other_id(mirror.lineage.source_topic_id, topic_id)

    def has_other_target(self, mirror: PartitionMirror) -> bool:
        known = self._target.client.cluster.topics.get(mirror.target.topic)
        topic_id = None if known is None else known.topic_id
        return has_other_id(mirror.lineage.target_topic_id, topic_id)

    def _compare_topic_ids(self) -> None:
        """Hold what must not be sent any more; look only where metadata is new."""
        if any(side.compared is not side.client.cluster for side in (self._source, self._target)):
            for mirror in self._partitions.values():
                mirror.is_held = self._is_missing(mirror) or self.has_other_target(mirror)
            self._other_sources = {
                tp for tp, mirror in self._partitions.items() if self.has_other_source(mirror)
            }
            is_held = any(mirror.is_held for mirror in self._partitions.values())
            for side in (self._source, self._target):
                side.compared = side.client.cluster
            if is_held or self._other_sources:
                self.on_topic_changed()

    def _is_missing(self, mirror: PartitionMirror) -> bool:
        """Whether the target says that it has no such topic."""
        known = self._target.client.cluster.topics.get(mirror.target.topic)
        return known is not None and known.error == Code.UNKNOWN_TOPIC_OR_PARTITION

    def _is_same_topic(self, mirror: PartitionMirror) -> bool:
        if not self.has_other_source(mirror):
            return True
        self._other_sources.add(mirror.partition)
        self.on_topic_changed()
        return False

    def _start_confirmations(self) -> None:
        for tp, mirror in self._partitions.items():
            is_open = mirror.suspicion is not None and not mirror.is_held
            if is_open and mirror.parked is None and tp not in self._confirming:
                self._confirming.add(tp)
                self._begin(self._confirm_target(mirror))

    async def _confirm_target(self, mirror: PartitionMirror) -> None:
        """Whether the topic is another one that seems to have lost records."""
        try:
            await self._target.client.metadata([mirror.target.topic], refresh=True)
            self._compare_topic_ids()
            if not mirror.is_held:
                mirror.clear_suspicion()
        except ClientError as error:
            _log.warning("%s: the target's topic id is not available: %s", mirror.target, error)
            await asyncio.sleep(mirror.backoff.failed())
        finally:
            self._confirming.discard(mirror.partition)

    def _fetch_failed(self, mirror: PartitionMirror, part: FetchedPartition) -> None:
        code, tp = part.error_code, mirror.partition
        error = error_for(code, topic=tp.topic, partition=tp.partition, offset=mirror.position)
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._fetching.add(tp)
            self._begin(self._find(mirror))
        elif facts_of(code).retriable or code == Code.UNKNOWN_SERVER_ERROR:
            self._fetch_errors[tp] = str(error)
            self._fetch_after[tp] = self._loop.time() + mirror.backoff.failed()
            if code in INVALIDATES_METADATA:
                self._refresh(self._source)
        else:
            mirror.park(f"the source cannot be read: {error}", remedy_for_reading(code))

    async def _find(self, mirror: PartitionMirror) -> None:
        """Why the source does not have a position."""
        topic = mirror.partition.topic
        try:
            await self._source.client.metadata([topic], refresh=True)
            if self._is_same_topic(mirror):
                await self._watch.find(mirror)
        except ClientError as error:
            _log.warning("%s: the source does not tell what it has: %s", mirror.partition, error)
        finally:
            self._fetching.discard(mirror.partition)
        self._fetch_after[mirror.partition] = self._loop.time() + mirror.backoff.failed()

    async def _look(self, mirrors: list[PartitionMirror]) -> None:
        """Whether leaders still have what was read."""
        asked = {mirror.partition for mirror in mirrors}
        again = set(asked)
        try:
            again = await self._watch.look(mirrors)
        except (ClientError, WireError) as error:
            _log.warning("the source does not tell its leader epochs: %s", error)
        finally:
            self._fetching.difference_update(asked)
        for mirror in mirrors:
            if mirror.partition in again:
                self._fetch_after[mirror.partition] = self._loop.time() + mirror.backoff.failed()
        if again:
            self._refresh(self._source)

    async def _produce(self, node_id: int, batches: Singles) -> None:
        side = self._target
        try:
            results = await side.client.produce_to(
                node_id, {mirror.target: out.batch.view for mirror, out in batches}, acks=-1
            )
        finally:
            side.busy[node_id] -= 1
        now = self._loop.time()
        for mirror, outgoing in batches:
            result = results[mirror.target]
            if result.is_ok:
                side.backoff.succeeded()
            elif result.error_code in INVALIDATES_METADATA:
                self._refresh(side)
            self._note_result(mirror, result)
            mirror.answered(outgoing, result, now=now)

    async def _append(self, node_id: int, units: Units) -> None:
        side = self._target
        wishes = {mirror.target: mirror.appendix(unit) for mirror, unit in units}
        try:
            results = await side.client.compare_and_append(wishes)
        finally:
            side.busy[node_id] -= 1
        now = self._loop.time()
        for mirror, unit in units:
            result = results[mirror.target]
            if result.is_ok:
                side.backoff.succeeded()
            elif result.error_code in INVALIDATES_METADATA:
                self._refresh(side)
            self._note_result(mirror, result)
            mirror.appended(unit, result, now=now)

    def _note_result(self, mirror: PartitionMirror, result: ProduceResult | AppendResult) -> None:
        if result.is_ok:
            self._produce_errors.pop(mirror.partition, None)
        else:
            cause = result.cause or error_for(result.error_code)
            self._produce_errors[mirror.partition] = str(cause)

    async def _inquire(self, mirror: PartitionMirror) -> None:
        try:
            last_sequence = await last_sequence_of(
                self._target.client, mirror.target, mirror.identity
            )
            mirror.told_last_sequence(last_sequence, now=self._loop.time())
        except ClientError as error:
            if not error.retriable:
                message = f"the target does not tell what it has of this mirror: {error}"
                mirror.park(
                    message, error.remedy or "allow the mirror's user to describe the topic"
                )
            else:
                _log.warning("%s: asking the target failed: %s", mirror.partition, error)
                await asyncio.sleep(mirror.backoff.failed())
        finally:
            self._inquiring.discard(mirror.partition)

    def _refresh(self, side: _Side) -> None:
        if not side.refreshing:
            side.refreshing = True
            self._begin(self._look_again(side))

    async def _look_again(self, side: _Side) -> None:
        try:
            await side.client.metadata(side.topics, refresh=True)
        except ClientError as error:
            if not error.retriable:
                raise
            _log.warning("metadata cannot be had: %s", error)
        self._loop.call_soon(self._pump)
        # Not again at once, whatever the answer says.
        await asyncio.sleep(side.backoff.failed())
        side.refreshing = False
