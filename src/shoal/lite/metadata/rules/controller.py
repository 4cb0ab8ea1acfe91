"""The active controller: requests and time in; records and answers out. Pure.

Rules of this file:
- One controller is active at a time. It is made from the state of the whole log when its node
  becomes the leader of the metadata quorum, and thrown away when that leads no more.
- The records of one call belong together: they are one entry of the log, whole or not at all.
  They count for the next call at once. What a call returns or raises leaves only when all
  records so far are committed, so nobody hears of anything that may yet be lost; if they are
  lost, the answer is NOT_CONTROLLER.
- `tick` when `next_deadline_ms` says so.
- Sessions and reports of log ends are no part of the state: a new controller begins with new
  sessions, and is told again.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from shoal.lite.base.codes import Code, Refused
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

_STILLBORN_LIMIT = 100


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """How a controller behaves; the same for all controllers of a cluster."""

    # A broker that is not heard of for this long is fenced.
    session_timeout_ms: int = 9_000
    # How long after a replica came in sync leaderships are spread: more will come. None: never.
    balance_delay_ms: int | None = 1_000
    # How long an unclean election waits for replicas that may have more.
    recovery_patience_ms: int = 2_000
    # Properties of the brokers; of these the `CLUSTER_WIDE` ones are kept in the metadata.
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[A]):
    """What a call leads to: one entry for the log, and the answer for when it is committed."""

    records: tuple[Record, ...]
    answer: A


class Controller:
    """Decides everything about a cluster, on the one state that it is given."""

    def __init__(self, state: ClusterState, settings: ControllerSettings) -> None:
        """`state` belongs to the controller from now on. `activate` comes first."""
        self.state = state
        self._settings = settings
        self._sessions = Sessions(settings.session_timeout_ms)
        self._recoveries = Recoveries(settings.recovery_patience_ms)
        # Processes that ended before they were registered: a request may still be on its way.
        self._stillborn: deque[str] = deque(maxlen=_STILLBORN_LIMIT)
        self._balance_at_ms: int | None = None
        self._now_ms = 0
        self._handlers: dict[type, Callable[[Changes, Any], Any]] = {
            requests.RegisterBroker: self._register,
            requests.Heartbeat: self._heartbeat,
            requests.BrokersDied: self._brokers_died,
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
            requests.ShrinkInSync: in_sync.shrink,
            requests.Reassign: self._reassign,
        }

    # Events

    def activate(self, now_ms: int, cluster_id: str) -> Outcome[None]:
        """Begin: a new cluster gets its id, and what a former controller left is put right."""
        self._begin(now_ms)
        changes = Changes(self.state)
        if not self.state.cluster_id:
            changes.emit(ClusterRecord(cluster_id))
        self._follow_properties(changes)
        for partition in self.state.partitions():
            partitions.settle(changes, partition)
        self._recoveries.follow(self.state.partitions(), now_ms)
        for broker in self.state.brokers.values():
            if not broker.fenced:
                self._sessions.renew(broker.broker_id, now_ms)
        self._balance_soon()
        return self._outcome(changes, None)

    def handle(self, now_ms: int, request: requests.Request[A]) -> Outcome[A]:
        """Do what is asked for; `Refused` if it cannot be, and then nothing has changed."""
        self._begin(now_ms)
        changes = Changes(self.state)
        answer = self._handlers[type(request)](changes, request)
        return self._outcome(changes, answer)

    def tick(self, now_ms: int) -> Outcome[None]:
        """Time has passed: fence who is silent, end unclean elections, spread leaderships."""
        self._begin(now_ms)
        changes = Changes(self.state)
        brokers.fence(changes, self._sessions.take_expired(now_ms))
        self._end_recoveries(changes)
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
        self._sessions.wake(now_ms)

    def _outcome(self, changes: Changes, answer: A) -> Outcome[A]:
        changed = [record for record in changes.records if isinstance(record, PartitionRecord)]
        self._recoveries.follow(changed, self._now_ms)
        return Outcome(tuple(changes.records), answer)

    # Brokers

    def _register(self, changes: Changes, request: requests.RegisterBroker) -> requests.Registered:
        broker = self.state.brokers.get(request.broker_id)
        if broker is None or broker.incarnation != request.incarnation:
            self._check_registration(request)
            broker = brokers.register(changes, request)
        # The same process again has not heard the first answer.
        self._sessions.renew(request.broker_id, self._now_ms)
        return requests.Registered(broker.epoch)

    def _check_registration(self, request: requests.RegisterBroker) -> None:
        if request.incarnation in self._stillborn:
            message = "this process has ended already"
            raise Refused(Code.DUPLICATE_BROKER_REGISTRATION, message)
        before = self.state.brokers.get(request.broker_id)
        brokers.check_order(before, request)
        # Who has the lock of the folder proves that the process before it has ended.
        is_same_folder = before is not None and before.directory_id == request.directory_id
        if not is_same_folder and self._sessions.is_alive(request.broker_id, self._now_ms):
            message = f"another process is broker {request.broker_id}, and it lives"
            raise Refused(Code.DUPLICATE_BROKER_REGISTRATION, message)

    def _heartbeat(self, changes: Changes, beat: requests.Heartbeat) -> requests.HeartbeatAnswer:
        broker = brokers.present(self.state, beat.broker_id, beat.broker_epoch)
        # It is caught up when it has seen its own registration.
        is_caught_up = beat.applied_count > broker.epoch
        if beat.want_shutdown or broker.shutting_down:
            brokers.shut_down(changes, [beat.broker_id])
            self._sessions.end([beat.broker_id])
        else:
            self._sessions.renew(beat.broker_id, self._now_ms)
            if beat.want_fence:
                brokers.fence(changes, [beat.broker_id])
            elif broker.fenced and is_caught_up:
                brokers.unfence(changes, beat.broker_id)
        broker = self.state.brokers[beat.broker_id]
        return requests.HeartbeatAnswer(is_caught_up, broker.fenced, broker.shutting_down)

    def _brokers_died(self, changes: Changes, deaths: requests.BrokersDied) -> None:
        known = {broker.broker_id: broker.incarnation for broker in self.state.brokers.values()}
        dead = []
        for broker_id, incarnation in deaths.incarnations.items():
            if known.get(broker_id) == incarnation:
                dead.append(broker_id)
            else:
                self._stillborn.append(incarnation)
        self._sessions.end(dead)
        brokers.shut_down(changes, dead)

    def _unregister(self, changes: Changes, request: requests.UnregisterBroker) -> None:
        if self._sessions.is_alive(request.broker_id, self._now_ms):
            message = f"broker {request.broker_id} is running: stop it first"
            raise Refused(Code.INVALID_REQUEST, message)
        brokers.unregister(changes, request.broker_id)

    def _present(self, broker_id: int, broker_epoch: int) -> BrokerRecord:
        return brokers.present(self.state, broker_id, broker_epoch)

    def _allocate_producer_ids(
        self, changes: Changes, request: requests.AllocateProducerIds
    ) -> requests.ProducerIdBlock:
        self._present(request.broker_id, request.broker_epoch)
        first = self.state.next_producer_id
        _emit_all(changes, commands.allocate_producer_ids(self.state))
        return requests.ProducerIdBlock(first, commands.PRODUCER_ID_BLOCK)

    # Topics and settings

    def _create_topic(self, changes: Changes, request: requests.CreateTopic) -> None:
        if self.state.topic_names.get(request.topic_id) == request.topic.name:
            # Whoever asks again has not heard the first answer.
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
        self._configure(changes, records)

    def _follow_properties(self, changes: Changes) -> None:
        """Write down the settings that all nodes must see alike, where they are other ones."""
        known = self.state.cluster_configs()
        wanted = {name: self._settings.properties.get(name) for name in CLUSTER_WIDE}
        records: list[Record] = [
            ConfigRecord(CLUSTER, "", name, value)
            for name, value in wanted.items()
            if value != known.get(name)
        ]
        self._configure(changes, records)

    def _configure(self, changes: Changes, records: list[Record]) -> None:
        """Change settings, and what follows from them for partitions.

        A leader commits by the min.insync.replicas that it knows of. When that changes, so
        does the partition epoch: no in-sync set is changed for a leader that has not heard of
        it, and nobody counts as eligible because of a number that did not apply.
        """
        state = self.state
        before = [(state.min_insync(p), state.allows_unclean_election(p)) for p in _all(state)]
        _emit_all(changes, records)
        for partition, (min_insync, is_unclean) in zip(_all(state), before, strict=True):
            if state.min_insync(partition) != min_insync:
                partitions.renew(changes, partition)
            elif state.allows_unclean_election(partition) != is_unclean:
                partitions.settle(changes, replace(partition, recovering=False))

    # Partitions

    def _alter_partitions(
        self, changes: Changes, request: requests.AlterPartitions
    ) -> list[requests.InSyncAnswer]:
        self._present(request.broker_id, request.broker_epoch)
        answers = in_sync.alter_partitions(changes, request)
        if changes.records:
            self._balance_soon()
        return answers

    def _report_failures(self, changes: Changes, report: requests.ReportFailures) -> None:
        self._present(report.broker_id, report.broker_epoch)
        in_sync.fail(changes, report)

    def _report_losses(self, changes: Changes, report: requests.ReportLosses) -> None:
        broker = self._present(report.broker_id, report.broker_epoch)
        if broker.fenced:
            in_sync.lose(changes, report)
        # Else it is a late copy: the broker is counted on since, and has got what it lacked.

    def _report_log_ends(self, changes: Changes, report: requests.ReportLogEnds) -> None:
        self._present(report.broker_id, report.broker_epoch)
        self._recoveries.report(report.broker_id, report.broker_epoch, report.ends)
        self._end_recoveries(changes)

    def _reassign(
        self, changes: Changes, request: requests.Reassign
    ) -> list[requests.PartitionAnswer]:
        return reassignment.reassign(changes, request.targets)

    def _end_recoveries(self, changes: Changes) -> None:
        for partition, leader in self._recoveries.due(self.state, self._now_ms):
            partitions.lead_uncleanly(changes, partition, leader)

    def _balance_soon(self) -> None:
        delay_ms = self._settings.balance_delay_ms
        if delay_ms is not None and self._balance_at_ms is None:
            self._balance_at_ms = self._now_ms + delay_ms


def _all(state: ClusterState) -> list[PartitionRecord]:
    return list(state.partitions())


def _emit_all(changes: Changes, records: list[Record]) -> None:
    for record in records:
        changes.emit(record)
