"""All replicas of this broker, kept in line with the metadata.

Rules of this file:
- The metadata decides: partitions are opened, configured and removed because of a metadata record,
  at start and later, never because of a client's request.
- A partition that cannot be opened, or fails later, is offline, with a reason; the others are
  served. It is reported to the controller, so that another replica is elected.
- A folder that belongs to no replica of this broker remains from a crash during a deletion; it is
  removed at start.
- Work on many partitions is done in slices, so that heartbeats and other partitions are not
  delayed. A replica whose assignment ended is released at once: it is neither read nor written.
  Then open replicas get their new leaders, then new replicas are opened, first those that this
  broker leads, because followers already fetch from them. Until a new replica is open, clients get
  the same error as from a leader that does not know its election yet. A thread opens many
  replicas, and a thread deletes folders.
- High watermarks are checkpointed regularly: a replica that starts as the last one then serves
  what was committed. A checkpoint that is too low is always safe.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import Layers, TopicConfig, resolve_topic_config
from shoal.lite.base.dial import NodeAddress
from shoal.lite.base.scheduler import EventLoopScheduler
from shoal.lite.base.sliced_work import MIN_AT_ONCE, SlicedWork
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.partitions.cleaner import LogCleaner
from shoal.lite.partitions.housekeeping import Housekeeper
from shoal.lite.partitions.log_opening import LogOpener, OpenJob, topic_id_in
from shoal.lite.partitions.partition import Partition
from shoal.lite.partitions.replica_fetcher import ReplicaFetcher
from shoal.lite.partitions.reports import ControllerReports
from shoal.lite.partitions.sessions.fetch_session import FetcherIdentity
from shoal.lite.replication.messages import ReplicationSettings
from shoal.lite.storage.cleaning.folder_removal import FolderRemover, is_marked_for_deletion
from shoal.lite.storage.offline import FILE_ERRORS, LogOffline
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.high_watermarks import HighWatermarks
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.log_end_file import LogEndFile
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
# While many replicas are opened, those that are open start to fetch at this interval. Each time,
# the fetcher of each leader goes through all its partitions.
_UPDATE_INTERVAL_S = 0.5
# How long a leader that closed its connection is suspected to have died. The controller notices
# a death within milliseconds.
_SUSPICION_S = 0.2
# A new leader may learn of its election later than its followers do, and writes wait for them.
_FETCH_BACKOFF_MS = 20
# How long proposals of leaders wait for others while the controller works on earlier ones.
_GATHER_S = 0.02
# The background tasks that send reports to the controller.
_REPORT_NAMES: dict[type[Any], str] = {
    requests.AlterPartitions: "in-sync set proposal",
    requests.ReportFailures: "report of a failed log",
    requests.ReportLogEnds: "report of a log end",
}
_logger = logging.getLogger(__name__)

Submit = Callable[[requests.ControllerRequest[Any]], Awaitable[Any]]


class Replicas:
    """All replicas of one broker. The `PartitionHost` of its partitions."""

    def __init__(self, broker_id: int, folder: Path, submit: Submit) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.live_epochs: dict[int, int] = {}
        self.scheduler = EventLoopScheduler()
        self.partitions: dict[TopicPartition, Partition] = {}
        # Why replicas that could not be opened are offline.
        self.offline: dict[TopicPartition, str] = {}
        self._folder = folder
        self._submit = submit
        self._is_open = False
        self._ended = LastShutdown.CLEANLY
        self._high_watermarks = HighWatermarks(folder)
        # The latest metadata.
        self._state = ClusterState()
        self._layers = Layers(dynamic={}, dynamic_default={}, static={})
        # Replicas by topic id, including offline ones.
        self._by_topic: dict[UUID, set[TopicPartition]] = {}
        # Topic settings that were looked up since the last change of the metadata.
        self._rules: dict[str, TopicConfig] = {}
        self._reconciling: SlicedWork[TopicPartition] = SlicedWork(
            "following the metadata", self._reconcile, on_drained=self._on_partitions_updated
        )
        self._opener = LogOpener(
            self._begin_opening, self._finish_opening, self._on_partitions_updated
        )
        self._updated_s = 0.0
        self._remover = FolderRemover(folder)
        # Called when replicas were opened after the metadata was applied.
        self.on_opened: Callable[[], None] = lambda: None
        self._end_marks: LogEndFile
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests that the controller has not answered yet.
        self._proposals_sent = 0
        self._reports = ControllerReports(self, self._send_report, self._gather_proposals)
        self.propose = self._reports.propose
        self._lost: list[Partition] = []
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._by_leader: dict[int, list[Partition]] = {}
        # Leaders with new followers, or with followers in a new leader epoch.
        self._leaders_to_refetch: set[int] = set()
        self._checkpoint_timer: RepeatingCall | None = None
        # Leaders that just closed their connection: most likely their process has ended.
        self.suspects: set[int] = set()
        self._metadata_applied: asyncio.Event = asyncio.Event()
        self._housekeeper = Housekeeper(self.partitions, self.on_log_failed)
        self._cleaner = LogCleaner(self.partitions, self.on_log_failed)

    # Applying the metadata

    def open(self, state: ClusterState, layers: Layers, ended: LastShutdown) -> None:
        """Apply the first metadata; `ended` is how the previous process ended."""
        self._remove_strays(state)
        self._ended = ended
        self._end_marks = LogEndFile(self._folder, is_trusted=ended is not LastShutdown.UNKNOWN)
        if ended is LastShutdown.UNKNOWN:
            # A power failure may have undone a truncation, so a log may have an old tail again. A
            # checkpointed high watermark may then cover wrong records; the leader sends a new one.
            self._high_watermarks.forget_all()
        self.apply_metadata(state, layers, state.partitions())
        self._end_marks.keep(
            {record.key for record in state.partitions() if self.broker_id in record.replicas}
        )
        self._lost = [p for key, p in self.partitions.items() if self._has_lost(key, p)]
        for partition in self._lost:
            # Later writes to the log and the checkpoint hide the loss, so mark it now.
            partition.log.truncation_marker.set()
        # Logs that are created from now on need no recovery.
        self._ended = LastShutdown.CLEANLY
        self._is_open = True
        self._checkpoint_timer = call_every(
            "high watermark checkpoint", lambda: _CHECKPOINT_S, self._write_marks_soon
        )
        self._housekeeper.start()

    def _has_lost(self, key: TopicPartition, partition: Partition) -> bool:
        """Return whether a log lost records since the previous process ended."""
        log = partition.log
        return log.truncation_marker.is_set or log.end_offset < self._high_watermarks.of(key)

    def loss_report(self) -> requests.ReportLosses | None:
        """Return the report of lost records; it must be sent before this broker is unfenced.

        The controller then prefers replicas that have more records.
        """
        if not self._lost:
            return None
        keys = [partition.record.key for partition in self._lost]
        return requests.ReportLosses(self.broker_id, self.broker_epoch, keys)

    def mark_losses_reported(self) -> None:
        """Clear the marks of lost records, so that the next process does not report them again."""
        # High watermarks from before the loss would report it again.
        self._write_marks()
        for partition in self._lost:
            partition.log.truncation_marker.clear()
        self._lost.clear()

    def apply_metadata(
        self, state: ClusterState, layers: Layers, changed: Iterable[PartitionRecord]
    ) -> None:
        """Apply the metadata of these partitions; of many, some are applied later."""
        self._state, self._layers = state, layers
        self._rules.clear()
        self.live_epochs.clear()
        self.live_epochs.update(state.live_epochs())
        self._release_deleted_topics()
        opened: list[TopicPartition] = []
        led: list[TopicPartition] = []
        closed: list[TopicPartition] = []
        for record in changed:
            key = TopicPartition(state.topic_names[record.topic_id], record.partition)
            if self.broker_id not in record.replicas:
                self._release_replica(key, record.topic_id)
            elif key in self.partitions:
                opened.append(key)
            elif record.leader == self.broker_id:
                led.append(key)
            else:
                closed.append(key)
        keys = [*opened, *led, *closed]
        # At start no client is served yet, and the next steps rely on all replicas.
        if len(keys) <= MIN_AT_ONCE or not self._is_open:
            self._reconciling.add(keys, least=len(keys))
        else:
            self._opener.add([*led, *closed])
            self._reconciling.add(opened)
        self._housekeeper.configure(layers.integer("log.retention.check.interval.ms"))
        self._cleaner.configure(
            layers.integer("log.cleaner.backoff.ms"), is_enabled=layers.flag("log.cleaner.enable")
        )
        self._finish_update()

    def _finish_update(self) -> None:
        """Update the fetchers, and wake the tasks that wait for applied metadata."""
        self._update_fetchers(self._state, self._layers)
        self._metadata_applied.set()
        self._metadata_applied.clear()

    def _on_partitions_updated(self) -> None:
        """Finish the update of partitions that were updated after the metadata was applied."""
        now_s = asyncio.get_running_loop().time()
        is_done = self._reconciling.is_idle and self._opener.is_idle
        if is_done or now_s >= self._updated_s + _UPDATE_INTERVAL_S:
            self._updated_s = now_s
            self._finish_update()
            self.on_opened()

    def _reconcile(self, key: TopicPartition) -> None:
        """Bring a partition in line with the current metadata."""
        if self._opener.is_underway(key):
            # Retry once that log is opened or no longer needed.
            self._opener.add([key])
            return
        if (record := self._find_wanted(key)) is not None:
            self._try_to_apply(key, record)

    def _find_wanted(self, key: TopicPartition) -> PartitionRecord | None:
        """Return the metadata of a replica; None if it is not assigned to this broker."""
        topic = self._state.topics.get(key.topic)
        record = None if topic is None else topic.partitions.get(key.partition)
        return record if record is not None and self.broker_id in record.replicas else None

    def _begin_opening(self, key: TopicPartition) -> OpenJob | None:
        """Return the job that opens a log; None if there is nothing to open."""
        record = self._find_wanted(key)
        if record is None:
            return None
        if key in self.partitions or key in self.offline:
            self._try_to_apply(key, record)
            return None
        return self._new_open_job(key, record)

    def _new_open_job(self, key: TopicPartition, record: PartitionRecord) -> OpenJob:
        folder = self._folder / str(key)
        # Nothing of a deleted topic with the same name may remain.
        self._remover.free_name(folder.name)
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

    def _rules_of(self, topic: str) -> TopicConfig:
        rules = self._rules.get(topic)
        if rules is None:
            rules = resolve_topic_config(self._layers, self._state.topic_configs(topic))
            self._rules[topic] = rules
        return rules

    def _finish_opening(self, job: OpenJob) -> None:
        """Use a log that the thread has opened, if the replica is still assigned."""
        key, topic_id = job.key, job.record.topic_id
        if key not in self._by_topic.get(topic_id, ()):
            # Released meanwhile; a topic with the same name may be created next.
            if job.log is not None:
                job.log.abandon()
                self._end_marks.drop(job.record.key)
                self._remover.add(str(key), topic_id)
            return
        record = self._state.partition(*job.record.key)
        self._try_to_apply(key, record, job)

    def _try_to_apply(
        self, key: TopicPartition, record: PartitionRecord, job: OpenJob | None = None
    ) -> None:
        """Apply the metadata of a partition; a failure affects only that partition."""
        try:
            self._apply_partition(key, record, job)
        except Exception as error:  # noqa: BLE001 - the other partitions must be served
            record_failure("following the metadata of a partition", error, f"{key} is offline")
            if (partition := self.partitions.get(key)) is not None:
                partition.log.go_offline("used", error)
            else:
                self.offline[key] = f"{key} is offline: {error!r}"
                self._reports.report_failure(record.key)

    def _apply_partition(
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
            log = self._open_log(key, record, job)
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
            self._reports.report_log_end(partition)

    def _open_log(
        self, key: TopicPartition, record: PartitionRecord, job: OpenJob | None
    ) -> PartitionLog | None:
        """Return the log that the thread has opened, or open it now; None if it is offline."""
        if job is None:
            self._by_topic.setdefault(record.topic_id, set()).add(key)
            if key in self.offline:
                return None
            job = self._new_open_job(key, record)
            job.run()
        error = job.error
        if error is not None and not isinstance(error, (*FILE_ERRORS, ValueError)):
            raise error
        if error is not None:
            self.offline[key] = f"{key} is offline: {error}"
            unexpected = None if isinstance(error, FILE_ERRORS) else error
            _logger.error("cannot open the log of %s: %s", key, error, exc_info=unexpected)
            self._reports.report_failure(record.key)
        return job.log

    def _release_deleted_topics(self) -> None:
        """Release the replicas of deleted topics, even if a new topic has the same name."""
        for topic_id in self._by_topic.keys() - self._state.topic_names.keys():
            for key in list(self._by_topic[topic_id]):
                self._release_replica(key, topic_id)

    def _release_replica(self, key: TopicPartition, topic_id: UUID) -> None:
        """Stop reading and writing a replica; its folder is deleted later."""
        keys = self._by_topic.get(topic_id, set())
        if key not in keys:
            return
        keys.discard(key)
        if not keys:
            del self._by_topic[topic_id]
        self._high_watermarks.forget(key)
        # The folder of a replica that could not be opened is deleted when the name is used again.
        self.offline.pop(key, None)
        partition = self.partitions.pop(key, None)
        if partition is None:
            return
        partition.stop_serving()
        partition.log.abandon()
        self._end_marks.drop(partition.record.key)
        self._remover.add(str(key), topic_id)

    def _remove_strays(self, state: ClusterState) -> None:
        for folder in self._folder.iterdir():
            if folder.is_dir() and self._is_stray(state, folder):
                _logger.info(
                    "removing the folder %s: it belongs to no replica of this broker", folder.name
                )
                shutil.rmtree(folder)

    def _is_stray(self, state: ClusterState, folder: Path) -> bool:
        """Whether the folder is of a topic, but of no replica that this broker should have."""
        if is_marked_for_deletion(folder):
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

    def on_became_follower(self, partition: Partition) -> None:
        self._leaders_to_refetch.add(partition.record.leader)

    def on_log_failed(self, partition: Partition) -> None:
        if not partition.is_removed:
            self._reports.report_failure(partition.record.key)

    def _gather_proposals(self, send: Callable[[], None]) -> None:
        """Send proposals at once while the controller is idle, and many at once while it works."""
        wait_s = _GATHER_S if self._proposals_sent else 0.0
        asyncio.get_running_loop().call_later(wait_s, send)

    def _send_report(
        self, request: requests.ControllerRequest[Any], on_reply: Callable[[Reply], object]
    ) -> None:
        async def send() -> None:
            try:
                reply = Reply(await self._submit(request), None, 0)
            except ApiError as error:
                reply = Reply(None, error, 0)
            finally:
                self._proposals_sent -= is_proposal
            on_reply(reply)

        is_proposal = isinstance(request, requests.AlterPartitions)
        self._proposals_sent += is_proposal

        def on_failure(error: Exception) -> None:
            refused = ApiError(Code.UNKNOWN_SERVER_ERROR, f"internal error: {error!r}")
            on_reply(Reply(None, refused, 0))

        self._spawn(_REPORT_NAMES[type(request)], send(), on_failure)

    def _spawn(self, name: str, work: Any, on_failure: OnFailure) -> None:
        task = run_once(name, work, on_failure=on_failure)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Fetchers

    def _update_fetchers(self, state: ClusterState, layers: Layers) -> None:
        if not self._leaders_to_refetch and self._is_open:
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
        own = FetcherIdentity(self.broker_id, self.broker_epoch, wait_ms)
        for leader_id in by_leader:
            if leader_id in self._fetchers:
                if leader_id in self._leaders_to_refetch:
                    self._fetchers[leader_id].wake()
            elif (broker := state.brokers.get(leader_id)) is not None:
                leader = NodeAddress(leader_id, broker.host, broker.port)
                self._fetchers[leader_id] = ReplicaFetcher(
                    leader, own, self._followers_of, self._suspect
                )
        self._leaders_to_refetch.clear()

    def _followers_of(self, leader_id: int) -> list[Partition]:
        return self._by_leader.get(leader_id, [])

    def _suspect(self, leader_id: int) -> None:
        self.suspects.add(leader_id)
        loop = asyncio.get_running_loop()
        loop.call_later(_SUSPICION_S, self.suspects.discard, leader_id)

    async def wait_for_metadata(self) -> None:
        """Wait until metadata is applied, but no longer than a suspicion lasts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SUSPICION_S):
                await self._metadata_applied.wait()

    # High watermarks

    def _write_marks(self) -> None:
        self._high_watermarks.write(self._marks())

    def _write_marks_soon(self) -> None:
        self._high_watermarks.write_soon(self._marks())

    def _marks(self) -> dict[TopicPartition, int]:
        return {key: partition.high_watermark for key, partition in self.partitions.items()}

    # Closing

    async def close(self) -> bool:
        """Flush and close all logs; return whether all were closed cleanly."""
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
            # Remove it before closing it: clients are still served while the others are closed.
            partition = self.partitions.pop(next(iter(self.partitions)))
            partition.stop_serving()
            try:
                partition.log.flush()
                partition.log.close()
            except (LogOffline, *FILE_ERRORS) as error:
                is_clean = False
                _logger.warning("cannot close the log of %r cleanly: %s", partition, error)
            await asyncio.sleep(0)
        try:
            self._end_marks.close()
        except OSError as error:
            is_clean = False
            _logger.warning("cannot write the log end marks to the disk: %s", error)
        return is_clean

    def offline_reasons(self) -> dict[str, str]:
        """Return the offline replicas of this broker, with their reasons."""
        reasons = {str(key): reason for key, reason in self.offline.items()}
        for key, partition in self.partitions.items():
            if (reason := partition.log.offline_reason) is not None:
                reasons[str(key)] = reason
        return reasons

    def partition(self, key: TopicPartition) -> Partition:
        """Return the replica; `ApiError` if this broker has none, or if it is offline."""
        partition = self.partitions.get(key)
        if partition is None:
            if key in self.offline:
                raise LogOffline(self.offline[key])
            message = "This server does not host this topic-partition."
            raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
        return partition
