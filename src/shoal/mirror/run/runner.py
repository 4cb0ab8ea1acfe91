"""The mirror on real clusters: an asyncio shell around `shoal.mirror.copy.partition`.

Rules:
- Every event (a response, a timer, a stop request) ends in `_pump`, which starts whatever can
  start: one fetch at a time from each source leader (or nearer replica, see
  `shoal.client.cluster.replica_choice`), for all its partitions that have room; up to five
  requests to each target leader, each with the next batch of every partition that can send one.
- Fetching and producing overlap; memory is bounded by the data that is fetched and unacknowledged.
- Record sets are views into the fetched frame, edited there and sent from there.
- A parked partition stays parked; the mirror ends on its own only when all are parked.
- Partitions can be added (`add`) and removed (`release`) while it runs. A partition that is
  released is no longer fetched, and is removed once all its requests are answered.
- Topic ids are compared whenever metadata changes. Nothing is read from a source topic, and nothing
  is sent to a target topic, whose id differs from the one with which a partition was started;
  `on_topic_changed` is called, and other partitions continue.
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
from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.intake import Counts
from shoal.mirror.copy.partition import IN_FLIGHT_LIMIT, Outgoing, PartitionMirror
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.run.producers import last_sequence_of
from shoal.mirror.run.remedies import remedy_for_reading
from shoal.mirror.run.transaction_ids import TransactionWriters
from shoal.mirror.status import MirrorStatus, partition_status, total
from shoal.mirror.watch.generations import has_other_id
from shoal.mirror.watch.source import SourceWatch
from shoal.model.errors import WireError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.wire.fetch import FetchedPartition

# Wait of a fetch that leaves out partitions without room: they must be fetched soon.
_SHORT_WAIT_MS: Final = 10
# A status must be quick, even if a partition has no leader.
_ENDS_S: Final = 2.0

_log = logging.getLogger(__name__)


Units = list[tuple[AppendDelivery, list[Outgoing]]]
Singles = list[tuple[PartitionMirror, Outgoing]]


@dataclass(slots=True)
class _ClusterSide:
    """The state of the runner for one of the two clusters."""

    client: Client
    topics: set[str]
    backoff: Backoff
    busy: dict[int, int] = field(default_factory=dict)  # requests in flight, by node
    not_before: dict[int, float] = field(default_factory=dict)  # by node
    is_refreshing: bool = False
    compared: ClusterMetadata | None = None  # the metadata whose topic ids were compared last

    def free(self, node_id: int, *, limit: int, now: float) -> bool:
        return self.busy.get(node_id, 0) < limit and self.not_before.get(node_id, 0.0) <= now


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
        fails_on_loss: bool = False,
        ends_when_parked: bool = True,
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_waiting` says whether there are partitions that wait to start."""
        self._writers = writers
        self._watch = SourceWatch(source, fails_on_loss=fails_on_loss)
        self._ends_when_parked = ends_when_parked
        self._is_waiting = is_waiting
        self._partitions: dict[TopicPartition, PartitionMirror] = {}
        self._source = _ClusterSide(source, set(), Backoff(100, 2000))
        self._target = _ClusterSide(target, set(), Backoff(100, 2000))
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._released_counts = Counts()  # of partitions that were released
        # Called when a topic of either side is missing or was recreated.
        self.on_topic_changed: Callable[[], None] = lambda: None
        self._fetch_order: deque[PartitionMirror] = deque()
        self._leaving: dict[TopicPartition, asyncio.Event] = {}
        self._fetching: set[TopicPartition] = set()
        self._fetch_after: dict[TopicPartition, float] = {}
        self._querying: set[TopicPartition] = set()
        self._confirming: set[TopicPartition] = set()
        self._sending_rest: set[TopicPartition] = set()  # of partitions that are being released
        self._other_sources: set[TopicPartition] = (
            set()
        )  # not fetched: the source topic was recreated
        self._throttle = throttle
        # The last error of fetching or producing, until it succeeds again.
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
        """Copy these too. Both clients must have metadata of their topics."""
        for mirror in mirrors:
            self._partitions[mirror.partition] = mirror
            self._fetch_order.append(mirror)
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
        """Stop copying these; returns them when none of their batches is in flight.

        With `sends_rest` fetched batches are delivered first. `patience_s` limits the time to wait
        for a target that does not answer.
        """
        going = [self._partitions[tp] for tp in partitions if tp in self._partitions]
        for mirror in going:
            self._leaving[mirror.partition] = asyncio.Event()
            if sends_rest:
                mirror.flush()
                self._sending_rest.add(mirror.partition)
            else:
                mirror.forget_unsent()
        self._writers.wake()
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
            self._fetch_order = deque(each for each in self._fetch_order if each is not mirror)
            self._fetch_after.pop(tp, None)
            self._fetch_errors.pop(tp, None)
            self._produce_errors.pop(tp, None)
            if mirror.parked is None:
                # `truncated` is in its checkpoint and would be counted twice.
                self._released_counts += replace(mirror.counts, truncated=0)

    def _remove_drained_partitions(self) -> None:
        """Remove partitions that are being released and have nothing in flight."""
        for tp, gone in self._leaving.items():
            mirror = self._partitions.get(tp)
            if mirror is None:
                continue
            if mirror.parked is None and tp not in self._sending_rest:
                mirror.forget_unsent()  # includes batches that the target has refused since
            # Do not wait for batches that must not be sent, but for responses to those in flight.
            is_blocked = not mirror.can_send and not mirror.queue.in_flight
            if mirror.parked or is_blocked or not mirror.queued_bytes:
                self._remove(mirror)
                gone.set()

    async def run(self) -> None:
        """Copy until `stop`, or until every partition is parked."""
        try:
            self._writers.on_progress = self._pump
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
            for gone in self._leaving.values():
                gone.set()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Fetch nothing new, wait for the batches in flight, and end."""
        if self._stopping:
            return
        self._stopping = True
        for mirror in self._partitions.values():
            mirror.forget_unsent()
        self._writers.stop()
        self._deadline = self._loop.call_later(self._limits.stop_s, self._ended.set)
        self._pump()

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self._failure = self._failure or error
        self._ended.set()

    def status(self) -> MirrorStatus:
        counts = replace(self._released_counts)
        for mirror in self._partitions.values():
            counts += mirror.counts
        return MirrorStatus(
            counts=counts,
            positions={tp: mirror.done for tp, mirror in self._partitions.items()},
            lag=total(mirror.lag for mirror in self._partitions.values()),
            parked=tuple(m.parked for m in self._partitions.values() if m.parked is not None),
            partitions=tuple(
                partition_status(mirror, time.time_ns() // 1_000_000, self._wait_reason(mirror))
                for mirror in self._partitions.values()
            ),
            paused=self._paused,
        )

    def _wait_reason(self, mirror: PartitionMirror) -> str:
        """Why a partition makes no progress at the moment; empty if no reason is known."""
        if mirror.waiting is not None:
            return str(mirror.waiting)
        for side, name, tp in (
            (self._source, "source", mirror.partition),
            (self._target, "target", mirror.target),
        ):
            if side.client.cluster.leader(tp) is None:
                return f"the {name} partition {tp} has no leader"
        source_error = self._fetch_errors.get(mirror.partition)
        if source_error:
            return f"cannot fetch from the source: {source_error}"
        target_error = self._produce_errors.get(mirror.partition)
        return f"cannot produce to the target: {target_error}" if target_error else ""

    async def refresh_log_ends(self) -> None:
        """Read the log ends of the source, which paused and parked partitions do not fetch.

        A partition that does not answer keeps its last known log end.
        """
        wanted = dict.fromkeys(self._partitions, LATEST)
        if not wanted:
            return
        ask = partial(self._source.client.list_offsets_or_errors, wanted, timeout_s=_ENDS_S)
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
        """Fetch nothing until `resume`; fetched batches are still delivered."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._pump()

    # Starting work.

    def _pump(self) -> None:
        if self._ended.is_set():
            return
        self._compare_topic_ids()
        self._remove_drained_partitions()
        if self._is_over():
            self._ended.set()
            return
        now = self._loop.time()
        for mirror in self._partitions.values():
            if mirror.try_again(now):
                self._writers.wake()
        if not self._stopping:
            self._start_epoch_checks(now)
        if not (self._stopping or self._paused):
            self._flush(now)
            self._start_fetches(now)
        self._start_produces(now)
        self._start_sequence_queries()
        self._start_confirmations()
        self._schedule_pump(now)

    def _is_over(self) -> bool:
        if self._stopping:
            return not any(
                mirror.parked is None
                and (mirror.queue.in_flight or (mirror.queued_bytes and mirror.can_send))
                for mirror in self._partitions.values()
            )
        parked = [mirror.parked is not None for mirror in self._partitions.values()]
        is_end = self._ends_when_parked and bool(parked) and all(parked)
        return is_end and not self._is_waiting()

    def _flush(self, now: float) -> None:
        """In deep mode: queue records that have waited for linger.ms."""
        for mirror in self._partitions.values():
            rebatcher = mirror.intake.rebatcher
            if rebatcher is not None and mirror.parked is None and rebatcher.is_due(now):
                mirror.flush()
                self._writers.wake()

    def _start_epoch_checks(self, now: float) -> None:
        """Check leaders with a new epoch, even if nothing is fetched: queued data may be void."""
        unsure = [
            mirror
            for mirrors in self._leaders(self._source, self._partitions.values()).values()
            for mirror in mirrors
            if self._can_fetch(mirror, now) and self._watch.is_due(mirror)
            if mirror.partition not in self._other_sources
        ]
        if unsure:
            self._fetching.update(mirror.partition for mirror in unsure)
            self._spawn(self._check_leader_epochs(unsure))

    def _start_fetches(self, now: float) -> None:
        # Batches that wait for a leader at the target must not block fetching for others.
        queued_bytes = sum(
            mirror.queued_bytes for mirror in self._partitions.values() if self._has_target(mirror)
        )
        if queued_bytes >= self._limits.queue_bytes:
            return
        # Rotate: only the first partition of a fetch is guaranteed a batch that is larger than
        # the limits.
        self._fetch_order.rotate(-1)
        leaders = self._leaders(self._source, self._fetch_order)
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
            self._spawn(self._fetch(node_id, wanted, wait_ms))

    def _readable(
        self, leaders: Mapping[int, list[PartitionMirror]], now: float
    ) -> dict[int, list[PartitionMirror]]:
        """Group partitions by the broker to fetch from."""
        source = self._source
        readable: dict[int, list[PartitionMirror]] = {}
        for leader, mirrors in leaders.items():
            for mirror in mirrors:
                node_id = source.client.replica_selector.node(
                    source.client.cluster, mirror.partition, now
                )
                readable.setdefault(leader if node_id is None else node_id, []).append(mirror)
        return readable

    def _wants_data(self, mirror: PartitionMirror, now: float) -> bool:
        return (
            self._can_fetch(mirror, now)
            and mirror.queued_bytes < self._limits.partition_bytes
            and self._has_target(mirror)
            and not self._watch.is_due(mirror)
        )

    def _has_target(self, mirror: PartitionMirror) -> bool:
        return self._target.client.cluster.leader(mirror.target) is not None

    def _can_fetch(self, mirror: PartitionMirror, now: float) -> bool:
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
            self._spawn(self._produce(node_id, batches))
        return bool(batches)

    def _start_append(self, node_id: int, mirrors: list[PartitionMirror], now: float) -> bool:
        units: Units = []
        limit_bytes = room_bytes = self._throttle.limit_request(self._limits.request_bytes)
        for mirror in mirrors:
            delivery = mirror.delivery
            if isinstance(delivery, AppendDelivery) and room_bytes > 0:
                unit = delivery.next_unit(now, room_bytes)
                if unit:
                    units.append((delivery, unit))
                    room_bytes -= sum(out.batch.size for out in unit)
        if units:
            self._throttle.spend(limit_bytes - room_bytes, now)
            self._spawn(self._append(node_id, units))
        return bool(units)

    def _next_batches(self, mirrors: Iterable[PartitionMirror], now: float) -> Singles:
        """Take one batch of each partition that can send one, as far as a request has room."""
        batches: Singles = []
        size = 0
        for mirror in mirrors:
            outgoing = mirror.next_batch(now)
            if outgoing is None:
                continue
            size += outgoing.batch.size
            if batches and size > self._limits.request_bytes:
                break
            mirror.mark_sent(outgoing)
            batches.append((mirror, outgoing))
        return batches

    def _start_sequence_queries(self) -> None:
        for tp, mirror in self._partitions.items():
            delivery = mirror.delivery
            if (
                isinstance(delivery, IdempotentDelivery)
                and delivery.needs_last_sequence
                and tp not in self._querying
            ):
                self._querying.add(tp)
                self._spawn(self._query_last_sequence(delivery))

    def _leaders(
        self, side: _ClusterSide, mirrors: Iterable[PartitionMirror]
    ) -> dict[int, list[PartitionMirror]]:
        """Group partitions by leader; refreshes metadata if one has no leader."""
        cluster = side.client.cluster
        leaders: dict[int, list[PartitionMirror]] = {}
        for mirror in mirrors:
            if mirror.parked is not None:
                continue
            if side is self._target and mirror.is_held:
                self._refresh(side)  # its topic may be created again
                continue
            leader = cluster.leader(mirror.partition if side is self._source else mirror.target)
            if leader is None:
                self._refresh(side)
            else:
                leaders.setdefault(leader, []).append(mirror)
        return leaders

    def _schedule_pump(self, now: float) -> None:
        """Schedule `_pump` for the end of the next backoff."""
        times = [
            m.queue.not_before for m in self._partitions.values() if m.queued_bytes or m.is_waiting
        ]
        times += [
            m.intake.rebatcher.due_at
            for m in self._partitions.values()
            if m.intake.rebatcher is not None and m.intake.rebatcher.due_at is not None
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

    async def _fetch(
        self, node_id: int, positions: dict[TopicPartition, int], wait_ms: int
    ) -> None:
        side = self._source
        places, rack = side.client.replica_selector, side.client.config.client_rack
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
            _log.warning("cannot fetch from source broker %d: %s", node_id, error)
            self._fetch_errors.update(dict.fromkeys(positions, str(error)))
            side.not_before[node_id] = self._loop.time() + side.backoff.next_wait_s()
            for tp in positions:
                if side.client.cluster.leader(tp) != node_id:
                    places.avoid(tp, self._loop.time())
            self._refresh(side)
            return
        finally:
            side.busy[node_id] = 0
            self._fetching.difference_update(positions)
        side.backoff.reset()
        moved = places.apply_response(side.client.cluster, node_id, fetched, self._loop.time())
        if not self._stopping:
            self._on_fetched(
                {tp: part for tp, part in fetched.items() if tp not in moved}, positions
            )
            self._writers.wake()

    def _on_fetched(self, fetched: Fetched, positions: Mapping[TopicPartition, int]) -> None:
        for tp, part in fetched.items():
            mirror = self._partitions.get(tp)
            if mirror is None or mirror.parked is not None or tp in self._leaving:
                continue
            if mirror.position != positions[tp]:
                continue  # it was rewound while the fetch was in flight
            if not self._is_same_topic(mirror):
                continue
            if self._watch.is_due(mirror):
                continue  # a new leader must be checked first: it may have other records
            if part.error_code != Code.NONE:
                self._on_fetch_error(mirror, part)
            else:
                self._fetch_errors.pop(tp, None)
                is_good = mirror.on_fetched(
                    part.records,
                    aborted=part.aborted,
                    last_stable_offset=part.last_stable_offset,
                    now_ms=time.time_ns() // 1_000_000,
                )
                if not is_good:
                    self._fetch_after[tp] = self._loop.time() + mirror.backoff.next_wait_s()

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

    def _compare_topic_ids(self) -> None:
        """Hold partitions whose topics are missing or recreated; only if metadata has changed."""
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
        """Whether the target reports that the topic does not exist."""
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
                self._spawn(self._confirm_target(mirror))

    async def _confirm_target(self, mirror: PartitionMirror) -> None:
        """Find out whether a topic that seems to have lost records was recreated."""
        try:
            await self._target.client.metadata([mirror.target.topic], refresh=True)
            self._compare_topic_ids()
            if not mirror.is_held:
                mirror.on_target_unchanged()
        except ClientError as error:
            _log.warning("%s: cannot read the topic id at the target: %s", mirror.target, error)
            await asyncio.sleep(mirror.backoff.next_wait_s())
        finally:
            self._confirming.discard(mirror.partition)

    def _on_fetch_error(self, mirror: PartitionMirror, part: FetchedPartition) -> None:
        code, tp = part.error_code, mirror.partition
        error = error_for(code, topic=tp.topic, partition=tp.partition, offset=mirror.position)
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._fetching.add(tp)
            self._spawn(self._diagnose_position(mirror))
        elif facts_of(code).retriable or code == Code.UNKNOWN_SERVER_ERROR:
            self._fetch_errors[tp] = str(error)
            self._fetch_after[tp] = self._loop.time() + mirror.backoff.next_wait_s()
            if code in INVALIDATES_METADATA:
                self._refresh(self._source)
        else:
            mirror.park(f"cannot read from the source: {error}", remedy_for_reading(code))

    async def _diagnose_position(self, mirror: PartitionMirror) -> None:
        """Find out why the source does not have a position."""
        topic = mirror.partition.topic
        try:
            await self._source.client.metadata([topic], refresh=True)
            if self._is_same_topic(mirror):
                await self._watch.diagnose_position(mirror)
        except ClientError as error:
            _log.warning(
                "%s: cannot read the log start and end of the source: %s", mirror.partition, error
            )
        finally:
            self._fetching.discard(mirror.partition)
        self._fetch_after[mirror.partition] = self._loop.time() + mirror.backoff.next_wait_s()

    async def _check_leader_epochs(self, mirrors: list[PartitionMirror]) -> None:
        """Check whether source leaders still have the records that were read."""
        asked = {mirror.partition for mirror in mirrors}
        again = set(asked)
        try:
            again = await self._watch.check_leader_epochs(mirrors)
        except (ClientError, WireError) as error:
            _log.warning("cannot read leader epochs of the source: %s", error)
        finally:
            self._fetching.difference_update(asked)
        for mirror in mirrors:
            if mirror.partition in again:
                self._fetch_after[mirror.partition] = (
                    self._loop.time() + mirror.backoff.next_wait_s()
                )
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
                side.backoff.reset()
            elif result.error_code in INVALIDATES_METADATA:
                self._refresh(side)
            self._record_result(mirror, result)
            mirror.on_produce_result(outgoing, result, now=now)

    async def _append(self, node_id: int, units: Units) -> None:
        side = self._target
        requests = {each.mirror.target: each.append_request(unit) for each, unit in units}
        try:
            results = await side.client.compare_and_append(requests)
        finally:
            side.busy[node_id] -= 1
        now = self._loop.time()
        for delivery, unit in units:
            mirror = delivery.mirror
            result = results[mirror.target]
            if result.is_ok:
                side.backoff.reset()
            elif result.error_code in INVALIDATES_METADATA:
                self._refresh(side)
            self._record_result(mirror, result)
            delivery.on_append_result(unit, result, now=now)

    def _record_result(self, mirror: PartitionMirror, result: ProduceResult | AppendResult) -> None:
        if result.is_ok:
            self._produce_errors.pop(mirror.partition, None)
        else:
            cause = result.cause or error_for(result.error_code)
            self._produce_errors[mirror.partition] = str(cause)

    async def _query_last_sequence(self, delivery: IdempotentDelivery) -> None:
        mirror = delivery.mirror
        try:
            last_sequence = await last_sequence_of(
                self._target.client, mirror.target, delivery.identity
            )
            delivery.on_last_sequence(last_sequence, now=self._loop.time())
        except ClientError as error:
            if not error.retriable:
                message = f"cannot read the producer state of this mirror at the target: {error}"
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
            self._querying.discard(mirror.partition)

    def _refresh(self, side: _ClusterSide) -> None:
        if not side.is_refreshing:
            side.is_refreshing = True
            self._spawn(self._refresh_metadata(side))

    async def _refresh_metadata(self, side: _ClusterSide) -> None:
        try:
            await side.client.metadata(side.topics, refresh=True)
        except ClientError as error:
            if not error.retriable:
                raise
            _log.warning("cannot refresh metadata, retrying: %s", error)
        self._loop.call_soon(self._pump)
        # Limits the rate of refreshes, even if metadata stays incomplete.
        await asyncio.sleep(side.backoff.next_wait_s())
        side.is_refreshing = False
