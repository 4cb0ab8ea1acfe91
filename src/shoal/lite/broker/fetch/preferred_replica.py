"""Selects the replica that a consumer should read from (KIP-392).

With `replica.selector.class` set to Apache Kafka's RackAwareReplicaSelector, the leader directs a
consumer to a replica in the consumer's rack that is in sync and has the fetch offset. Of several,
it selects the one with the highest log end offset, then the one that caught up last.
"""

from shoal.lite.broker.core import BrokerCore
from shoal.lite.replication.follower_progress import FollowerProgress
from shoal.lite.replication.leader import LeaderPartition

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def select_preferred_replica(
    core: BrokerCore, leader: LeaderPartition, offset: int, rack_id: str
) -> int | None:
    """Return the broker to read from; None if that is the leader."""
    if not rack_id or core.layers.broker_value("replica.selector.class")[0] != RACK_AWARE:
        return None
    brokers = core.state.brokers

    def is_near(broker_id: int) -> bool:
        return broker_id in brokers and brokers[broker_id].rack == rack_id

    if is_near(leader.broker_id):
        return None
    near = [peer for peer in leader.followers_with_offset(offset) if is_near(peer.broker_id)]
    return max(near, key=_order).broker_id if near else None


def _order(peer: FollowerProgress) -> tuple[int, int, int]:
    return peer.end_offset, peer.caught_up_ms, -peer.broker_id
