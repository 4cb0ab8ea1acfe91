"""The current leader and its endpoint, for clients that asked the wrong broker (KIP-951)."""

from collections.abc import Iterable

from shoal.lite.broker.core import BrokerCore
from shoal.wire.record_messages import CurrentLeader, NodeEndpoint


def current_leader(core: BrokerCore, topic: str, index: int) -> CurrentLeader | None:
    """The leader of a partition in the metadata that this broker has applied."""
    known = core.state.topics.get(topic)
    record = None if known is None else known.partitions.get(index)
    return None if record is None else CurrentLeader(record.leader, record.leader_epoch)


def endpoints(core: BrokerCore, leaders: Iterable[CurrentLeader | None]) -> list[NodeEndpoint]:
    """The endpoints of the leaders that a response names."""
    named = {leader.leader_id for leader in leaders if leader is not None}
    brokers = core.state.brokers
    return [
        NodeEndpoint(broker_id, brokers[broker_id].host, brokers[broker_id].port)
        for broker_id in sorted(named)
        if broker_id in brokers
    ]
