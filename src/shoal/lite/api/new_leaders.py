"""Telling clients that asked the wrong broker whom to ask (KIP-951)."""

from collections.abc import Iterable

from shoal.lite.broker.core import BrokerCore
from shoal.wire.hot import CurrentLeader, NodeEndpoint


def current_leader(core: BrokerCore, topic: str, index: int) -> CurrentLeader | None:
    """Who leads a partition, as far as this broker knows."""
    known = core.state.topics.get(topic)
    record = None if known is None else known.partitions.get(index)
    return None if record is None else CurrentLeader(record.leader, record.leader_epoch)


def endpoints(core: BrokerCore, leaders: Iterable[CurrentLeader | None]) -> list[NodeEndpoint]:
    """Where the leaders that an answer names can be reached."""
    named = {leader.leader_id for leader in leaders if leader is not None}
    brokers = core.state.brokers
    return [
        NodeEndpoint(broker_id, brokers[broker_id].host, brokers[broker_id].port)
        for broker_id in sorted(named)
        if broker_id in brokers
    ]
