"""The active controller: requests and time in; records and answers out. Pure.

Rules of this file:
- One controller is active at a time. It is created from the state of the whole log when its
  node becomes the leader of the metadata quorum, and discarded when the node no longer leads.
- The records of one call are one entry of the log: written as a whole or not at all. They apply
  at once, so the next call sees them. What a call returns or raises is sent only when all records
  so far are committed, so that no answer is based on records that may be lost; if they are lost,
  the answer is NOT_CONTROLLER.
- Call `tick` at `next_deadline_ms`.
- Sessions and reported log ends are not part of the state: a new controller starts with new
  sessions, and brokers report again.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import (
    BrokerRecord,
    ClusterRecord,
    ConfigRecord,
    PartitionRecord,
    Record,
)
from shoal.lite.metadata.data.state import CLUSTER, CLUSTER_WIDE, ClusterState
from shoal.lite.metadata.rules import brokers, commands, in_sync, leaders, partitions, reassignment
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.recoveries import Recoveries
from shoal.lite.metadata.rules.sessions import Sessions

A = TypeVar("A")

_MAX_EXITED_UNREGISTERED = 100


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of a controller; the same for all controllers of a cluster."""

    # A broker without a heartbeat for this long is fenced.
    session_timeout_ms: int = 9_000
    # How long after an in-sync set grows leaderships are balanced: more may follow. None: never.
    balance_delay_ms: int | None = 1_000
    # How long an unclean election waits for replicas that may have more records.
    recovery_timeout_ms: int = 2_000
    # Properties of the brokers; the `CLUSTER_WIDE` ones among them are kept in the metadata.
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[A]):
    """The result of a call: one entry for the log, and the answer to send once it is committed."""

    records: tuple[Record, ...]
    answer: A


class Controller:
    """Makes all decisions about a cluster, on the state that it is given."""

    def __init__(self, state: ClusterState, settings: ControllerSettings) -> None:
        """`state` belongs to the controller from now on. Call `activate` first."""
        self.state = state
        self._settings = settings
        self._sessions = Sessions(settings.session_timeout_ms)
        self._recoveries = Recoveries(settings.recovery_timeout_ms)
        # Processes that ended before they were registered: their request may still arrive.
        self._exited_unregistered: deque[str] = deque(maxlen=_MAX_EXITED_UNREGISTERED)
        self._balance_at_ms: int | None = None
        self._now_ms = 0
        self._handlers: dict[type, Callable[[Changes, Any], Any]] = {
            requests.RegisterBroker: self._register,
            requests.Heartbeat: self._heartbeat,
            requests.ReportBrokerExits: self._on_broker_exits,
            requests.UnregisterBroker: self._unregister,
            requests.AllocateProducerIds: self._allocate_producer_ids,
            requests.CreateTopic: self._create_topic,
            requests.DeleteTopic: self._delete_topic,
            requests.CreatePartitions: self._create_partitions,
            requests.AlterConfigs: self._alter_configs,
            requests.AlterPartitions: self._alter_partitions,
            requests.ReportFailures: self._report_failures,
            requests.ReportLosses: self._report_losses,
            requests.ReportLogEnds: self._report_log_ends,
            requests.ElectLeaders: leaders.elect_leaders,
            requests.MoveLeader: leaders.move_leader,
            requests.ShrinkInSync: in_sync.shrink_in_sync,
            requests.Reassign: self._reassign,
        }

    # Events

    def activate(self, now_ms: int, cluster_id: str) -> ControllerResult[None]:
        """Start: set the id of a new cluster, and bring all partitions in line with the rules."""
        self._begin(now_ms)
        changes = Changes(self.state)
        if not self.state.cluster_id:
            changes.emit(ClusterRecord(cluster_id))
        self._record_cluster_configs(changes)
        for partition in self.state.partitions():
            if partition.recovering:
                # The former controller had the log ends. Brokers report them again after a change.
                partitions.update_with_new_epoch(changes, partition)
            else:
                partitions.update_partition(changes, partition)
        self._recoveries.track(self.state.partitions(), now_ms)
        for broker in self.state.brokers.values():
            if not broker.fenced:
                self._sessions.renew(broker.broker_id, now_ms)
        self._schedule_balance()
        return self._outcome(changes, None)

    def handle(self, now_ms: int, request: requests.ControllerRequest[A]) -> ControllerResult[A]:
        """Apply a request; `ApiError` if it fails, and then nothing has changed."""
        self._begin(now_ms)
        changes = Changes(self.state)
        answer = self._handlers[type(request)](changes, request)
        # Here too, not only in `tick`: a broker that reported its log ends may just have been
        # unfenced, and a deadline that has passed by now is no longer one of `next_deadline_ms`.
        self._end_unclean_elections(changes)
        return self._outcome(changes, answer)

    def tick(self, now_ms: int) -> ControllerResult[None]:
        """Do what is due: fence silent brokers, end unclean elections, balance leaderships."""
        self._begin(now_ms)
        changes = Changes(self.state)
        brokers.fence(changes, self._sessions.take_expired(now_ms))
        self._end_unclean_elections(changes)
        if self._balance_at_ms is not None and now_ms >= self._balance_at_ms:
            self._balance_at_ms = None
            leaders.balance(changes)
        return self._outcome(changes, None)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        times = (
            self._sessions.next_deadline_ms,
            self._recoveries.next_deadline_ms(self._now_ms),
            self._balance_at_ms,
        )
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def _begin(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._sessions.note_time(now_ms)

    def _outcome(self, changes: Changes, answer: A) -> ControllerResult[A]:
        changed = [record for record in changes.records if isinstance(record, PartitionRecord)]
        self._recoveries.track(changed, self._now_ms)
        return ControllerResult(tuple(changes.records), answer)

    # Brokers

    def _register(
        self, changes: Changes, request: requests.RegisterBroker
    ) -> requests.RegistrationAnswer:
        broker = self.state.brokers.get(request.broker_id)
        if broker is None or broker.incarnation != request.incarnation:
            self._check_registration(request)
            broker = brokers.register(changes, request)
        # A process that registers again did not get the first answer.
        self._sessions.renew(request.broker_id, self._now_ms)
        return requests.RegistrationAnswer(broker.epoch)

    def _check_registration(self, request: requests.RegisterBroker) -> None:
        if request.incarnation in self._exited_unregistered:
            message = "this process was already reported as ended"
            raise ApiError(Code.DUPLICATE_BROKER_REGISTRATION, message)
        before = self.state.brokers.get(request.broker_id)
        brokers.check_registration_order(before, request)
        # A process that holds the lock of the folder proves that the one before it has ended.
        is_same_folder = before is not None and before.directory_id == request.directory_id
        if not is_same_folder and self._sessions.is_alive(request.broker_id, self._now_ms):
            message = f"another live process is registered as broker {request.broker_id}"
            raise ApiError(Code.DUPLICATE_BROKER_REGISTRATION, message)

    def _heartbeat(
        self, changes: Changes, heartbeat: requests.Heartbeat
    ) -> requests.HeartbeatAnswer:
        broker = brokers.require_current_epoch(
            self.state, heartbeat.broker_id, heartbeat.broker_epoch
        )
        # It has caught up when it has applied its own registration.
        is_caught_up = heartbeat.applied_count > broker.epoch
        if heartbeat.want_shutdown or broker.shutting_down:
            brokers.shut_down(changes, [heartbeat.broker_id])
            self._sessions.end([heartbeat.broker_id])
        else:
            self._sessions.renew(heartbeat.broker_id, self._now_ms)
            if heartbeat.want_fence:
                brokers.fence(changes, [heartbeat.broker_id])
            elif broker.fenced and is_caught_up:
                brokers.unfence(changes, heartbeat.broker_id)
        broker = self.state.brokers[heartbeat.broker_id]
        return requests.HeartbeatAnswer(is_caught_up, broker.fenced, broker.shutting_down)

    def _on_broker_exits(self, changes: Changes, deaths: requests.ReportBrokerExits) -> None:
        known = {broker.broker_id: broker.incarnation for broker in self.state.brokers.values()}
        dead = []
        for broker_id, incarnation in deaths.incarnations.items():
            if known.get(broker_id) == incarnation:
                dead.append(broker_id)
            else:
                self._exited_unregistered.append(incarnation)
        self._sessions.end(dead)
        brokers.shut_down(changes, dead)

    def _unregister(self, changes: Changes, request: requests.UnregisterBroker) -> None:
        if self._sessions.is_alive(request.broker_id, self._now_ms):
            message = f"broker {request.broker_id} is running; stop it first"
            raise ApiError(Code.INVALID_REQUEST, message)
        brokers.unregister(changes, request.broker_id)

    def _require_current_epoch(self, broker_id: int, broker_epoch: int) -> BrokerRecord:
        return brokers.require_current_epoch(self.state, broker_id, broker_epoch)

    def _allocate_producer_ids(
        self, changes: Changes, request: requests.AllocateProducerIds
    ) -> requests.ProducerIdBlock:
        self._require_current_epoch(request.broker_id, request.broker_epoch)
        first = self.state.next_producer_id
        _emit_all(changes, commands.allocate_producer_ids(self.state))
        return requests.ProducerIdBlock(first, commands.PRODUCER_ID_BLOCK)

    # Topics and settings

    def _create_topic(self, changes: Changes, request: requests.CreateTopic) -> None:
        if self.state.topic_names.get(request.topic_id) == request.topic.name:
            # A retry: the sender did not get the first answer.
            return
        _emit_all(changes, commands.create_topic(self.state, request.topic, request.topic_id))

    def _delete_topic(self, changes: Changes, request: requests.DeleteTopic) -> None:
        _emit_all(changes, commands.delete_topic(self.state, request.topic_id))

    def _create_partitions(self, changes: Changes, request: requests.CreatePartitions) -> None:
        records = commands.create_partitions(
            self.state, request.name, request.count, request.assignments
        )
        _emit_all(changes, records)

    def _alter_configs(self, changes: Changes, request: requests.AlterConfigs) -> None:
        records = commands.alter_configs(
            self.state, request.owner_kind, request.owner, request.changes
        )
        self._apply_configs(changes, records)

    def _record_cluster_configs(self, changes: Changes) -> None:
        """Record the cluster-wide settings in the metadata, where they differ from it."""
        known = self.state.cluster_configs()
        wanted = {name: self._settings.properties.get(name) for name in CLUSTER_WIDE}
        records: list[Record] = [
            ConfigRecord(CLUSTER, "", name, value)
            for name, value in wanted.items()
            if value != known.get(name)
        ]
        self._apply_configs(changes, records)

    def _apply_configs(self, changes: Changes, records: list[Record]) -> None:
        """Change settings, and update the partitions that they affect.

        A leader commits by the min.insync.replicas that it knows. When that setting changes, the
        partition epoch is bumped: so no in-sync set changes for a leader that has not seen the
        new value, and no replica becomes eligible by a value that its leader did not use.
        """
        state = self.state
        before = [
            (state.min_insync(p), state.allows_unclean_election(p)) for p in _all_partitions(state)
        ]
        _emit_all(changes, records)
        for partition, (min_insync, is_unclean) in zip(_all_partitions(state), before, strict=True):
            if state.min_insync(partition) != min_insync:
                partitions.update_with_new_epoch(changes, partition)
            elif state.allows_unclean_election(partition) != is_unclean:
                partitions.update_partition(changes, replace(partition, recovering=False))

    # Partitions

    def _alter_partitions(
        self, changes: Changes, request: requests.AlterPartitions
    ) -> list[requests.InSyncAnswer]:
        self._require_current_epoch(request.broker_id, request.broker_epoch)
        answers = in_sync.alter_partitions(changes, request)
        if changes.records:
            self._schedule_balance()
        return answers

    def _report_failures(self, changes: Changes, report: requests.ReportFailures) -> None:
        self._require_current_epoch(report.broker_id, report.broker_epoch)
        in_sync.mark_failed(changes, report)

    def _report_losses(self, changes: Changes, report: requests.ReportLosses) -> None:
        broker = self._require_current_epoch(report.broker_id, report.broker_epoch)
        if broker.fenced:
            in_sync.mark_lost(changes, report)
        # Otherwise it is a late duplicate: the broker was unfenced since, and has caught up.

    def _report_log_ends(self, changes: Changes, report: requests.ReportLogEnds) -> None:
        self._require_current_epoch(report.broker_id, report.broker_epoch)
        self._recoveries.add_log_ends(report.broker_id, report.broker_epoch, report.ends)

    def _reassign(
        self, changes: Changes, request: requests.Reassign
    ) -> list[requests.PartitionResult]:
        return reassignment.reassign(changes, request.targets)

    def _end_unclean_elections(self, changes: Changes) -> None:
        for partition, leader in self._recoveries.find_winners(self.state, self._now_ms):
            partitions.elect_uncleanly(changes, partition, leader)

    def _schedule_balance(self) -> None:
        delay_ms = self._settings.balance_delay_ms
        if delay_ms is not None and self._balance_at_ms is None:
            self._balance_at_ms = self._now_ms + delay_ms


def _all_partitions(state: ClusterState) -> list[PartitionRecord]:
    return list(state.partitions())


def _emit_all(changes: Changes, records: list[Record]) -> None:
    for record in records:
        changes.emit(record)
