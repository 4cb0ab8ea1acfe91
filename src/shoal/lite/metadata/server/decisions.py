"""Decisions of the active controller as trace events: brokers, leaders and in-sync sets."""

from collections.abc import Iterable

from shoal.lite.base.hooks.tracer import Tracer
from shoal.lite.metadata.data.records import (
    NO_LEADER,
    BrokerRecord,
    BrokerRemovedRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from shoal.lite.metadata.data.state import ClusterState


def trace_decisions(tracer: Tracer, state: ClusterState, records: Iterable[Record]) -> None:
    """Trace each record that changes the cluster; `state` is the state before them."""
    names = dict(state.topic_names)
    for record in records:
        match record:
            case TopicRecord():
                names[record.topic_id] = record.name
            case BrokerRecord():
                tracer.event(f"broker {record.broker_id} {_describe_broker(state, record)}")
            case BrokerRemovedRecord(broker_id):
                tracer.event(f"broker {broker_id} is removed")
            case PartitionRecord():
                name = f"{names[record.topic_id]}-{record.partition}"
                tracer.event(f"{name}: {_describe_change(state, record)}")


def _describe_broker(state: ClusterState, broker: BrokerRecord) -> str:
    if broker.shutting_down:
        return "ends or has ended"
    known = state.brokers.get(broker.broker_id)
    if known is None or known.incarnation != broker.incarnation:
        return "is registered, and fenced until it has caught up"
    return "is fenced" if broker.fenced else "is unfenced"


def _describe_change(state: ClusterState, record: PartitionRecord) -> str:
    in_sync = ", ".join(map(str, record.in_sync))
    known = None
    if record.topic_id in state.topic_names:
        topic = state.topics[state.topic_names[record.topic_id]]
        known = topic.partitions.get(record.partition)
    if known is not None and known.leader_epoch == record.leader_epoch:
        return f"in sync are {in_sync}"
    if record.leader == NO_LEADER:
        return f"no replica can lead, in epoch {record.leader_epoch}"
    verb = "is elected" if known is not None else "is the first to lead"
    return f"broker {record.leader} {verb}, in epoch {record.leader_epoch}; in sync are {in_sync}"
