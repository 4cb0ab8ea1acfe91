"""Registration, fencing, unfencing and removal of brokers.

Rules of this file:
- A broker is identified by its id, its process by its incarnation, a registration by its epoch.
  A request with another epoch than the current one is of a former process. This holds for a
  registration too, which names the one that it replaces.
- A folder names the processes that had it. A folder that does not name the registered process is
  an older copy that may lack records, and its broker is rejected.
- A fenced broker is not active: it leads nothing, and is in no in-sync set that has a leader.
- A broker that may have lost unflushed records is removed from all in-sync and eligible sets (the
  boot rule). These records precede its registration: if a crash leaves only the first part, the
  next registration is checked the same way.
"""

from collections.abc import Collection
from dataclasses import replace

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import NO_LEADER, BrokerRecord, BrokerRemovedRecord
from shoal.lite.metadata.data.requests import NO_EPOCH, RegisterBroker
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.partitions import in_replica_order, update_partition, without_replica


def require_registered(state: ClusterState, broker_id: int) -> BrokerRecord:
    broker = state.brokers.get(broker_id)
    if broker is None:
        message = f"broker {broker_id} is not registered"
        raise ApiError(Code.BROKER_ID_NOT_REGISTERED, message)
    return broker


def require_current_epoch(state: ClusterState, broker_id: int, broker_epoch: int) -> BrokerRecord:
    """The broker; `ApiError` unless `broker_epoch` is its current registration."""
    broker = require_registered(state, broker_id)
    if broker.epoch != broker_epoch:
        message = f"broker {broker_id} has epoch {broker.epoch}, not {broker_epoch}"
        raise ApiError(Code.STALE_BROKER_EPOCH, message)
    return broker


def check_registration_order(before: BrokerRecord | None, request: RegisterBroker) -> None:
    """Reject a process that is not the latest one of its broker."""
    epoch = NO_EPOCH if before is None else before.epoch
    if request.previous_epoch != epoch:
        message = f"broker {request.broker_id} has epoch {epoch}, not {request.previous_epoch}"
        raise ApiError(Code.STALE_BROKER_EPOCH, message)
    if before is None or before.directory_id != request.directory_id:
        return
    if before.incarnation not in request.earlier:
        message = (
            f"its folder is an older copy: process {before.incarnation}, the last one that was "
            "registered, has never used it"
        )
        raise ApiError(Code.INVALID_REGISTRATION, message)


def register(changes: Changes, request: RegisterBroker) -> BrokerRecord:
    """Register a new incarnation of a broker; it is fenced."""
    state = changes.state
    before = state.brokers.get(request.broker_id)
    if before is None or not _has_its_data(before, request):
        _drop_from_in_sync(changes, request.broker_id)
    changes.emit(
        BrokerRecord(
            broker_id=request.broker_id,
            incarnation=request.incarnation,
            host=request.host,
            port=request.port,
            epoch=state.applied_count,
            rack=request.rack,
            boot_id=request.boot_id,
            directory_id=request.directory_id,
            fenced=True,
        )
    )
    _update_partitions_of(changes, {request.broker_id})
    _forget_failures(changes, request.broker_id)
    return state.brokers[request.broker_id]


def _has_its_data(before: BrokerRecord, request: RegisterBroker) -> bool:
    """Whether the new process has everything that the registered one wrote."""
    is_same_folder = request.directory_id == before.directory_id
    is_same_boot = request.boot_id == before.boot_id
    ended_cleanly = request.clean_incarnation == before.incarnation
    return is_same_folder and (is_same_boot or ended_cleanly)


def _drop_from_in_sync(changes: Changes, broker_id: int) -> None:
    for partition in changes.partitions_of(broker_id):
        if broker_id in partition.in_sync or broker_id in partition.eligible:
            lost = in_replica_order({*partition.lost, broker_id}, partition.replicas)
            update_partition(changes, replace(without_replica(partition, broker_id), lost=lost))


def _forget_failures(changes: Changes, broker_id: int) -> None:
    for partition in changes.partitions_of(broker_id):
        if broker_id in partition.failed:
            failed = tuple(broker for broker in partition.failed if broker != broker_id)
            update_partition(changes, replace(partition, failed=failed))


def fence(changes: Changes, broker_ids: Collection[int]) -> None:
    """Fence brokers, all at once: replicas that only have each other in sync stay in sync."""
    fenced = [b for b in broker_ids if not changes.state.brokers[b].fenced]
    for broker_id in fenced:
        changes.emit(replace(changes.state.brokers[broker_id], fenced=True))
    _update_partitions_of(changes, fenced)


def unfence(changes: Changes, broker_id: int) -> None:
    """Unfence a broker; it may lead partitions that have no leader."""
    changes.emit(replace(changes.state.brokers[broker_id], fenced=False))
    for partition in changes.partitions_of(broker_id):
        if partition.leader == NO_LEADER:
            update_partition(changes, partition)


def shut_down(changes: Changes, broker_ids: Collection[int]) -> None:
    """Mark brokers that shut down or have ended. Final: these processes are never unfenced."""
    for broker_id in broker_ids:
        broker = changes.state.brokers[broker_id]
        if not broker.shutting_down:
            changes.emit(replace(broker, fenced=True, shutting_down=True))
    _update_partitions_of(changes, broker_ids)


def _update_partitions_of(changes: Changes, broker_ids: Collection[int]) -> None:
    for partition in changes.state.partitions():
        if not set(broker_ids).isdisjoint(partition.in_sync):
            update_partition(changes, partition)


def unregister(changes: Changes, broker_id: int) -> None:
    """Remove a broker that has ended and has no replicas."""
    broker = require_registered(changes.state, broker_id)
    if not broker.fenced:
        raise ApiError(Code.INVALID_REQUEST, f"broker {broker_id} is running; stop it first")
    if changes.state.replica_counts[broker_id]:
        message = f"broker {broker_id} has {changes.state.replica_counts[broker_id]} replica(s)"
        raise ApiError(Code.INVALID_REQUEST, f"{message}; reassign them first")
    changes.emit(BrokerRemovedRecord(broker_id))
