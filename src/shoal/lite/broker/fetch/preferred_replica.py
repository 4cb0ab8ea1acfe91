"""From which replica a consumer should read (KIP-392).

With `replica.selector.class` set to Apache Kafka's RackAwareReplicaSelector, the leader sends a
consumer that told its rack to a replica there: one that is in sync and has what is asked for. Of
several it is the one that has most, and was caught up last.
"""

from shoal.lite.broker.core import BrokerCore
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.peers import Peer

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def preferred_replica(
    core: BrokerCore, leader: LeaderPartition, offset: int, rack_id: str
) -> int | None:
    """The broker to read from; None if that is the leader itself."""
    if not rack_id or core.layers.broker_value("replica.selector.class")[0] != RACK_AWARE:
        return None
    brokers = core.state.brokers

    def is_near(broker_id: int) -> bool:
        return broker_id in brokers and brokers[broker_id].rack == rack_id

    if is_near(leader.broker_id):
        return None
    near = [peer for peer in leader.readable_from(offset) if is_near(peer.broker_id)]
    return max(near, key=_order).broker_id if near else None


def _order(peer: Peer) -> tuple[int, int, int]:
    return peer.end_offset, peer.caught_up_ms, -peer.broker_id
