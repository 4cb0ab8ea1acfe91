"""The replicas that this broker has, as the metadata says.

Rules of this file:
- The metadata decides: partitions are opened, configured and removed because a record says so,
  at start as well as later, never because a client asked.
- A partition that cannot be opened, or fails later, is offline, and says why; the others are
  served. It is reported to the controller, so that another replica leads.
- A folder that belongs to no replica of this broker is what a crash left of a deletion; it is
  removed at start.
- Work on many partitions is done in slices, so that heartbeats and other partitions have their
  turn. A replica that is not wanted any more is let go of at once: nothing of it is served, and
  nothing is written to it. Those that are open hear of new leaders next, then new ones are
  opened, those first that are led here: followers elsewhere ask for them. Until its turn a new one
  has no replica here, which clients take for a new leader's delay. Many are opened by a thread,
  and folders are deleted by one.
- High watermarks are written down now and then: a replica that starts, and is the last one,
  serves what was committed. One that is too low is always safe.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import Layers, TopicRules, topic_rules
from shoal.lite.base.dial import Peer
from shoal.lite.base.sliced_work import LEAST_AT_ONCE, SlicedWork
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.partitions.cleaner import Cleaner
from shoal.lite.partitions.housekeeping import Housekeeper
from shoal.lite.partitions.log_opening import LogOpener, OpenJob, topic_id_in
from shoal.lite.partitions.partition import Partition
from shoal.lite.partitions.replica_fetcher import Follower, ReplicaFetcher
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import AlterIsr, IsrAnswer, ReplicationSettings
from shoal.lite.storage.cleaning.folder_removal import FolderRemover, is_doomed
from shoal.lite.storage.offline import FILE_ERRORS, LogOffline
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.high_watermarks import HighWatermarks
from shoal.lite.storage.recovery.last_shutdown import Ended
from shoal.lite.storage.recovery.log_end_file import EndMarks
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import (
    OnFailure,
    RepeatingCall,
    call_every,
    log_only,
    record_failure,
    run_once,
)

_CHECKPOINT_S = 1.0
# While many replicas are opened: after so long those that are open begin to fetch. It costs each
# leader a look at all that follow it.
_STEER_S = 0.5
# How long a leader that hung up is suspected. The controller knows within milliseconds.
_SUSPICION_S = 0.2
# A new leader may hear of itself later than its followers do, and writes wait for them.
_FETCH_BACKOFF_MS = 20
_logger = logging.getLogger(__name__)

Submit = Callable[[requests.Request[Any]], Awaitable[Any]]


class Replicas:
    """Every replica of one broker. The `Host` of its partitions."""

    def __init__(self, broker_id: int, folder: Path, submit: Submit) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.live_epochs: dict[int, int] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        # Why those that could not be opened are offline.
        self.offline: dict[TopicPartition, str] = {}
        self._folder = folder
        self._submit = submit
        self._is_open = False
        self._ended = Ended.CLEANLY
        self._high_watermarks = HighWatermarks(folder)
        # What the metadata said last.
        self._state = ClusterState()
        self._layers = Layers(dynamic={}, dynamic_default={}, static={})
        # Replicas by the ids of their topics, also those that are offline.
        self._by_topic: dict[UUID, set[TopicPartition]] = {}
        # What applies to topics, as far as it was looked up since the metadata changed.
        self._rules: dict[str, TopicRules] = {}
        self._reconciling: SlicedWork[TopicPartition] = SlicedWork(
            "following the metadata", self._reconcile, on_drained=self._followed
        )
        self._opener = LogOpener(self._begin_opening, self._finish_opening, self._followed)
        self._steered_s = 0.0
        self._remover = FolderRemover(folder)
        # Called when replicas were opened later than the metadata came.
        self.on_opened: Callable[[], None] = lambda: None
        self._end_marks: EndMarks
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: set[tuple[UUID, int]] = set()
        self._lost: list[Partition] = []
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._by_leader: dict[int, list[Partition]] = {}
        # Leaders to whom followers have come, or follow in another epoch.
        self._followed_anew: set[int] = set()
        self._checkpoint_timer: RepeatingCall | None = None
        # Leaders that hung up a moment ago: most likely their process has ended.
        self.suspects: set[int] = set()
        self._on_followed: asyncio.Event = asyncio.Event()
        self._housekeeper = Housekeeper(self.partitions, self.on_failed)
        self._cleaner = Cleaner(self.partitions, self.on_failed)

    # Following the metadata

    def open(self, state: ClusterState, layers: Layers, ended: Ended) -> None:
        """Do what the metadata says for the first time; `ended` is how the last process did."""
        self._remove_strays(state)
        self._ended = ended
        self._end_marks = EndMarks(self._folder, is_believed=ended is not Ended.UNKNOWN)
        if ended is Ended.UNKNOWN:
            # The power may have taken the cut of a log and left its old tail. What was committed
            # below a mark is then not what is there; a leader tells anew how far it goes.
            self._high_watermarks.forget_all()
        self.follow(state, layers, state.partitions())
        self._end_marks.keep(
            {record.key for record in state.partitions() if self.broker_id in record.replicas}
        )
        self._lost = [p for key, p in self.partitions.items() if self._has_lost(key, p)]
        for partition in self._lost:
            # What is written from now on, to logs and marks, hides that something is missing.
            partition.log.cut_mark.set()
        # What is made from now on is new: there is nothing to recover.
        self._ended = Ended.CLEANLY
        self._is_open = True
        self._checkpoint_timer = call_every(
            "high watermark checkpoint", lambda: _CHECKPOINT_S, self._write_marks_soon
        )
        self._housekeeper.start()

    def _has_lost(self, key: TopicPartition, partition: Partition) -> bool:
        """Whether there is less in a log than there was when the last process ended."""
        log = partition.log
        return log.cut_mark.is_set or log.end_offset < self._high_watermarks.of(key)

    def losses(self) -> requests.ReportLosses | None:
        """To be told before this broker is counted on: whoever has more should lead."""
        if not self._lost:
            return None
        keys = [partition.record.key for partition in self._lost]
        return requests.ReportLosses(self.broker_id, self.broker_epoch, keys)

    def losses_told(self) -> None:
        """The controller knows of all losses: the next process must not tell it again."""
        # What was written down before a loss would tell of it once more.
        self._write_marks()
        for partition in self._lost:
            partition.log.cut_mark.clear()
        self._lost.clear()

    def follow(
        self, state: ClusterState, layers: Layers, changed: Iterable[PartitionRecord]
    ) -> None:
        """Do what the metadata says about these partitions: of many, the rest soon."""
        self._state, self._layers = state, layers
        self._rules.clear()
        self.live_epochs.clear()
        self.live_epochs.update(state.live_epochs())
        self._let_go_of_deleted()
        opened: list[TopicPartition] = []
        led: list[TopicPartition] = []
        closed: list[TopicPartition] = []
        for record in changed:
            key = TopicPartition(state.topic_names[record.topic_id], record.partition)
            if self.broker_id not in record.replicas:
                self._let_go(key, record.topic_id)
            elif key in self.partitions:
                opened.append(key)
            elif record.leader == self.broker_id:
                led.append(key)
            else:
                closed.append(key)
        keys = [*opened, *led, *closed]
        # At a start nobody is served yet, and what comes next counts on all replicas.
        if len(keys) <= LEAST_AT_ONCE or not self._is_open:
            self._reconciling.add(keys, least=len(keys))
        else:
            self._opener.add([*led, *closed])
            self._reconciling.add(opened)
        self._housekeeper.configure(layers.integer("log.retention.check.interval.ms"))
        self._cleaner.configure(
            layers.integer("log.cleaner.backoff.ms"), is_enabled=layers.flag("log.cleaner.enable")
        )
        self._steer()

    def _steer(self) -> None:
        """What was said of partitions counts from now on."""
        self._steer_fetchers(self._state, self._layers)
        self._on_followed.set()
        self._on_followed.clear()

    def _followed(self) -> None:
        """Partitions had their turn later than the metadata came."""
        now_s = asyncio.get_running_loop().time()
        is_done = self._reconciling.is_idle and self._opener.is_idle
        if is_done or now_s >= self._steered_s + _STEER_S:
            self._steered_s = now_s
            self._steer()
            self.on_opened()

    def _reconcile(self, key: TopicPartition) -> None:
        """Make what is here of a partition what the metadata says now."""
        if self._opener.is_underway(key):
            # Once that log is taken, or not wanted any more.
            self._opener.add([key])
            return
        if (record := self._find_wanted(key)) is not None:
            self._try_to_follow(key, record)

    def _find_wanted(self, key: TopicPartition) -> PartitionRecord | None:
        """What the metadata says of a replica; None if this broker should have none."""
        topic = self._state.topics.get(key.topic)
        record = None if topic is None else topic.partitions.get(key.partition)
        return record if record is not None and self.broker_id in record.replicas else None

    def _begin_opening(self, key: TopicPartition) -> OpenJob | None:
        """The job of a log whose turn it is; None if there is nothing to open."""
        record = self._find_wanted(key)
        if record is None:
            return None
        if key in self.partitions or key in self.offline:
            self._try_to_follow(key, record)
            return None
        return self._opening(key, record)

    def _opening(self, key: TopicPartition, record: PartitionRecord) -> OpenJob:
        folder = self._folder / str(key)
        # A topic of the same name that was deleted must leave no trace.
        self._remover.clear_way(folder.name)
        self._by_topic.setdefault(record.topic_id, set()).add(key)
        return OpenJob(
            key,
            record,
            folder,
            self._rules_of(key.topic).log,
            self._ended,
            self._end_marks.of(record.key),
            leads=record.leader == self.broker_id,
            can_refetch=bool({*record.in_sync, *record.eligible} - {self.broker_id}),
        )

    def _rules_of(self, topic: str) -> TopicRules:
        rules = self._rules.get(topic)
        if rules is None:
            rules = topic_rules(self._layers, self._state.topic_configs(topic))
            self._rules[topic] = rules
        return rules

    def _finish_opening(self, job: OpenJob) -> None:
        """Take a log that a thread has opened, if it is still wanted."""
        key, topic_id = job.key, job.record.topic_id
        if key not in self._by_topic.get(topic_id, ()):
            # Let go of meanwhile; a topic of the same name may come next.
            if job.log is not None:
                job.log.abandon()
                self._end_marks.drop(job.record.key)
                self._remover.add(str(key), topic_id)
            return
        record = self._state.partition(*job.record.key)
        self._try_to_follow(key, record, job)

    def _try_to_follow(
        self, key: TopicPartition, record: PartitionRecord, job: OpenJob | None = None
    ) -> None:
        """Do what the metadata says about a partition; one that fails costs no other."""
        try:
            self._follow_partition(key, record, job)
        except Exception as error:  # noqa: BLE001 - the other partitions must be served
            record_failure("following the metadata of a partition", error, f"{key} is offline")
            if (partition := self.partitions.get(key)) is not None:
                partition.log.go_offline("used", error)
            else:
                self.offline[key] = f"{key} is offline: {error!r}"
                self._report_failure(record.key)

    def _follow_partition(
        self, key: TopicPartition, record: PartitionRecord, job: OpenJob | None
    ) -> None:
        rules = self._rules_of(key.topic)
        settings = ReplicationSettings(
            min_insync_replicas=self._state.min_insync(record),
            replica_lag_time_max_ms=self._layers.integer("replica.lag.time.max.ms"),
            replica_fetch_backoff_ms=_FETCH_BACKOFF_MS,
        )
        partition = self.partitions.get(key)
        if partition is None:
            log = self._opened_log(key, record, job)
            if log is None:
                return
            partition = self.partitions[key] = Partition(
                self,
                key.topic,
                log,
                record=record,
                rules=rules,
                settings=settings,
                high_watermark=self._high_watermarks.of(key),
            )
        partition.configure(rules)
        partition.assign(record, settings)
        if record.recovering and record.leader == NO_LEADER:
            self._report_log_end(partition)

    def _opened_log(
        self, key: TopicPartition, record: PartitionRecord, job: OpenJob | None
    ) -> PartitionLog | None:
        """The log that a thread has opened, or that is opened now; None if it is offline."""
        if job is None:
            self._by_topic.setdefault(record.topic_id, set()).add(key)
            if key in self.offline:
                return None
            job = self._opening(key, record)
            job.run()
        error = job.error
        if error is not None and not isinstance(error, (*FILE_ERRORS, ValueError)):
            raise error
        if error is not None:
            self.offline[key] = f"{key} is offline: {error}"
            _logger.error("%s cannot be opened", key, exc_info=error)
            self._report_failure(record.key)
        return job.log

    def _let_go_of_deleted(self) -> None:
        """Let go of the replicas of topics that are gone, also if one has the name again."""
        for topic_id in self._by_topic.keys() - self._state.topic_names.keys():
            for key in list(self._by_topic[topic_id]):
                self._let_go(key, topic_id)

    def _let_go(self, key: TopicPartition, topic_id: UUID) -> None:
        """Neither serve a replica nor write to it from now on; its folder goes soon."""
        keys = self._by_topic.get(topic_id, set())
        if key not in keys:
            return
        keys.discard(key)
        if not keys:
            del self._by_topic[topic_id]
        self._high_watermarks.forget(key)
        # One that could not be opened: its folder goes when the name is used again.
        self.offline.pop(key, None)
        partition = self.partitions.pop(key, None)
        if partition is None:
            return
        partition.leave()
        partition.log.abandon()
        self._end_marks.drop(partition.record.key)
        self._remover.add(str(key), topic_id)

    def _remove_strays(self, state: ClusterState) -> None:
        for folder in self._folder.iterdir():
            if folder.is_dir() and self._is_stray(state, folder):
                _logger.info("removing %s, which belongs to no replica of this broker", folder.name)
                shutil.rmtree(folder)

    def _is_stray(self, state: ClusterState, folder: Path) -> bool:
        if is_doomed(folder):
            return True
        if (topic_id := topic_id_in(folder)) is None:
            return False
        with suppress(ValueError):
            name, _, index = folder.name.rpartition("-")
            if state.topic_names.get(topic_id) != name:
                return True
            record = state.topics[name].partitions.get(int(index))
            return record is None or self.broker_id not in record.replicas
        return False

    # For partitions

    def propose(self, partition: Partition, leader: LeaderPartition, wish: AlterIsr) -> None:
        """Pass a leader's proposal on to the controller."""

        def on_failure(_: Exception) -> None:
            # The leader waits for an answer before it proposes again.
            failed = IsrAnswer(Code.UNKNOWN_SERVER_ERROR)
            partition.on_in_sync_answer(leader, wish, failed)

        work = self._propose(partition, leader, wish)
        self._spawn("in-sync set proposal", work, on_failure)

    async def _propose(self, partition: Partition, leader: LeaderPartition, wish: AlterIsr) -> None:
        change = requests.InSyncChange(
            *partition.record.key, wish.leader_epoch, wish.partition_epoch, wish.isr
        )
        request = requests.AlterPartitions(self.broker_id, self.broker_epoch, [change])
        try:
            [answer] = await self._submit(request)
            code, record = answer.code, answer.partition
        except Refused as refused:
            code, record = refused.code, None
        granted = IsrAnswer(code)
        if record is not None:
            granted = IsrAnswer(code, record.leader_epoch, record.partition_epoch, record.in_sync)
        partition.on_in_sync_answer(leader, wish, granted)

    def on_follower(self, partition: Partition) -> None:
        self._followed_anew.add(partition.record.leader)

    def on_failed(self, partition: Partition) -> None:
        if not partition.is_gone:
            self._report_failure(partition.record.key)

    def _report_failure(self, key: tuple[UUID, int]) -> None:
        if key not in self._failed:
            self._failed.add(key)

            def on_failure(_: Exception) -> None:
                self._failed.discard(key)

            self._spawn("report of a failed log", self._tell_failure(key), on_failure)

    async def _tell_failure(self, key: tuple[UUID, int]) -> None:
        request = requests.ReportFailures(self.broker_id, self.broker_epoch, [key])
        if not await self._tell(request):
            # Whoever sees the failure next, tells it again.
            self._failed.discard(key)

    def _report_log_end(self, partition: Partition) -> None:
        record, log = partition.record, partition.log
        end = requests.LogEnd(*record.key, record.leader_epoch, log.epochs.latest, log.end_offset)
        report = requests.ReportLogEnds(self.broker_id, self.broker_epoch, [end])
        # Without it the election waits for its time-out.
        self._spawn("report of a log end", self._tell(report), log_only)

    async def _tell(self, request: requests.Request[None]) -> bool:
        try:
            await self._submit(request)
        except Refused as refused:
            _logger.warning("the controller was not told: %s", refused)
            return False
        return True

    def _spawn(self, name: str, work: Any, on_failure: OnFailure) -> None:
        task = run_once(name, work, on_failure=on_failure)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Fetching from leaders

    def _steer_fetchers(self, state: ClusterState, layers: Layers) -> None:
        if not self._followed_anew and self._is_open:
            return
        by_leader: dict[int, list[Partition]] = {}
        for partition in self.partitions.values():
            follower = partition.replica.follower
            if follower is not None and follower.leader != NO_LEADER:
                by_leader.setdefault(follower.leader, []).append(partition)
        self._by_leader = by_leader
        for leader_id in list(self._fetchers):
            broker = state.brokers.get(leader_id)
            leader = self._fetchers[leader_id].leader
            is_there = broker is not None and (broker.host, broker.port) == leader[1:]
            if leader_id not in by_leader or not is_there:
                closing = self._fetchers.pop(leader_id).close()
                self._spawn("end of a replica fetcher", closing, log_only)
        wait_ms = layers.integer("replica.fetch.wait.max.ms")
        own = Follower(self.broker_id, self.broker_epoch, wait_ms)
        for leader_id in by_leader:
            if leader_id in self._fetchers:
                if leader_id in self._followed_anew:
                    self._fetchers[leader_id].wake()
            elif (broker := state.brokers.get(leader_id)) is not None:
                leader = Peer(leader_id, broker.host, broker.port)
                self._fetchers[leader_id] = ReplicaFetcher(
                    leader, own, self._followers_of, self._suspect
                )
        self._followed_anew.clear()

    def _followers_of(self, leader_id: int) -> list[Partition]:
        return self._by_leader.get(leader_id, [])

    def _suspect(self, leader_id: int) -> None:
        self.suspects.add(leader_id)
        loop = asyncio.get_running_loop()
        loop.call_later(_SUSPICION_S, self.suspects.discard, leader_id)

    async def next_follow(self) -> None:
        """Until the metadata changes, but no longer than suspicions last."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SUSPICION_S):
                await self._on_followed.wait()

    # High watermarks

    def _write_marks(self) -> None:
        self._high_watermarks.write(self._marks())

    def _write_marks_soon(self) -> None:
        self._high_watermarks.write_soon(self._marks())

    def _marks(self) -> dict[TopicPartition, int]:
        return {key: partition.high_watermark for key, partition in self.partitions.items()}

    # The end

    async def close(self) -> bool:
        """Bring everything to the disk and let go of it; says whether that worked."""
        self._reconciling.stop()
        await self._opener.stop()
        await self._housekeeper.stop()
        await self._cleaner.stop()
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        for fetcher in self._fetchers.values():
            await fetcher.close()
        for task in list(self._tasks):
            task.cancel()
        await self._remover.stop()
        self._write_marks()
        is_clean = not self.offline
        while self.partitions:
            # Out of reach before it is closed: clients are served while the others are.
            partition = self.partitions.pop(next(iter(self.partitions)))
            partition.leave()
            try:
                partition.log.flush()
                partition.log.close()
            except (LogOffline, *FILE_ERRORS):
                is_clean = False
                _logger.exception("%r was not closed cleanly", partition)
            await asyncio.sleep(0)
        try:
            self._end_marks.close()
        except OSError:
            is_clean = False
            _logger.exception("how far the logs were written is not on the disk")
        return is_clean

    def offline_reasons(self) -> dict[str, str]:
        """Replicas of this broker that are offline, with the reason."""
        reasons = {str(key): reason for key, reason in self.offline.items()}
        for key, partition in self.partitions.items():
            if (reason := partition.log.offline_reason) is not None:
                reasons[str(key)] = reason
        return reasons

    def partition(self, key: TopicPartition) -> Partition:
        """The replica; `Refused` if there is none here, or if it is offline."""
        partition = self.partitions.get(key)
        if partition is None:
            if key in self.offline:
                raise LogOffline(self.offline[key])
            message = "This server does not host this topic-partition."
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
        return partition
