"""Brokers come, are fenced, are trusted again, and go.

Rules of this file:
- A broker is known by its id, a process of it by its incarnation, a registration by its epoch.
  What comes with another epoch than the present one is of a process that is gone: also a
  registration, which names the one that it replaces.
- A folder names the processes that had it. One that does not name the process that is registered
  is an older copy, in which something may be missing, and whoever has it is not let in.
- A fenced broker is not active: it leads nothing, and is in no in-sync set that has a leader.
- A broker that may have lost what it had not flushed is dropped wherever it was in sync or
  eligible (the boot rule). That is written before its registration: if a crash leaves only
  the first part, the next registration is judged like this one.
"""

from collections.abc import Collection
from dataclasses import replace

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data.records import NO_LEADER, BrokerRecord, BrokerRemovedRecord
from shoal.lite.metadata.data.requests import NO_EPOCH, RegisterBroker
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.partitions import ordered, settle, without


def registered(state: ClusterState, broker_id: int) -> BrokerRecord:
    broker = state.brokers.get(broker_id)
    if broker is None:
        message = f"broker {broker_id} is not registered"
        raise Refused(Code.BROKER_ID_NOT_REGISTERED, message)
    return broker


def present(state: ClusterState, broker_id: int, broker_epoch: int) -> BrokerRecord:
    """The broker, if the one who asks is its present registration."""
    broker = registered(state, broker_id)
    if broker.epoch != broker_epoch:
        message = f"broker {broker_id} has epoch {broker.epoch}, not {broker_epoch}"
        raise Refused(Code.STALE_BROKER_EPOCH, message)
    return broker


def check_order(before: BrokerRecord | None, request: RegisterBroker) -> None:
    """Refuse who is not the latest process of its broker."""
    epoch = NO_EPOCH if before is None else before.epoch
    if request.previous_epoch != epoch:
        message = f"broker {request.broker_id} has epoch {epoch}, not {request.previous_epoch}"
        raise Refused(Code.STALE_BROKER_EPOCH, message)
    if before is None or before.directory_id != request.directory_id:
        return
    if before.incarnation not in request.earlier:
        message = (
            f"its folder is an older copy: process {before.incarnation}, the last one that the "
            "cluster knows, has never had it"
        )
        raise Refused(Code.INVALID_REGISTRATION, message)


def register(changes: Changes, request: RegisterBroker) -> BrokerRecord:
    """Take in a new incarnation."""
    state = changes.state
    before = state.brokers.get(request.broker_id)
    if before is None or not _has_its_data(before, request):
        _drop(changes, request.broker_id)
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
    _settle_without(changes, {request.broker_id})
    _forget_failures(changes, request.broker_id)
    return state.brokers[request.broker_id]


def _has_its_data(before: BrokerRecord, request: RegisterBroker) -> bool:
    """Whether everything that the registered process wrote is where the new one finds it."""
    is_same_folder = request.directory_id == before.directory_id
    is_same_boot = request.boot_id == before.boot_id
    ended_cleanly = request.clean_incarnation == before.incarnation
    return is_same_folder and (is_same_boot or ended_cleanly)


def _drop(changes: Changes, broker_id: int) -> None:
    for partition in changes.partitions_of(broker_id):
        if broker_id in partition.in_sync or broker_id in partition.eligible:
            lost = ordered({*partition.lost, broker_id}, partition.replicas)
            settle(changes, replace(without(partition, broker_id), lost=lost))


def _forget_failures(changes: Changes, broker_id: int) -> None:
    for partition in changes.partitions_of(broker_id):
        if broker_id in partition.failed:
            failed = tuple(broker for broker in partition.failed if broker != broker_id)
            settle(changes, replace(partition, failed=failed))


def fence(changes: Changes, broker_ids: Collection[int]) -> None:
    """Count on these no longer. All at once: who is in sync with whom among them stays so."""
    fenced = [b for b in broker_ids if not changes.state.brokers[b].fenced]
    for broker_id in fenced:
        changes.emit(replace(changes.state.brokers[broker_id], fenced=True))
    _settle_without(changes, fenced)


def unfence(changes: Changes, broker_id: int) -> None:
    """Count on a broker again: it may lead what nobody leads."""
    changes.emit(replace(changes.state.brokers[broker_id], fenced=False))
    for partition in changes.partitions_of(broker_id):
        if partition.leader == NO_LEADER:
            settle(changes, partition)


def shut_down(changes: Changes, broker_ids: Collection[int]) -> None:
    """Let brokers go that want to end, or have ended: these processes are not counted on again."""
    for broker_id in broker_ids:
        broker = changes.state.brokers[broker_id]
        if not broker.shutting_down:
            changes.emit(replace(broker, fenced=True, shutting_down=True))
    _settle_without(changes, broker_ids)


def _settle_without(changes: Changes, broker_ids: Collection[int]) -> None:
    for partition in changes.state.partitions():
        if not set(broker_ids).isdisjoint(partition.in_sync):
            settle(changes, partition)


def unregister(changes: Changes, broker_id: int) -> None:
    """Forget a broker that has ended and has no replicas."""
    broker = registered(changes.state, broker_id)
    if not broker.fenced:
        raise Refused(Code.INVALID_REQUEST, f"broker {broker_id} is running: stop it first")
    if changes.state.hosted[broker_id]:
        message = f"broker {broker_id} has {changes.state.hosted[broker_id]} replica(s)"
        raise Refused(Code.INVALID_REQUEST, f"{message}: reassign them first")
    changes.emit(BrokerRemovedRecord(broker_id))
