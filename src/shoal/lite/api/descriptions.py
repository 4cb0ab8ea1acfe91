"""Descriptions of topics and partitions that several APIs return."""

from typing import TYPE_CHECKING, Final

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import MetadataResponsePartition

# What every client may do without an authorizer: one bit per AclOperation of Apache Kafka.
TOPIC_OPERATIONS: Final = 0b1101_1111_1000
CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
# The value of both if the request did not ask for authorized operations.
NOT_ASKED: Final = -(1 << 31)


def describe_partition(state: ClusterState, record: PartitionRecord) -> "MetadataResponsePartition":
    """The leader, replicas and in-sync replicas of a partition, as in a Metadata response."""
    has_leader = record.leader != NO_LEADER
    return {
        "error_code": Code.NONE if has_leader else Code.LEADER_NOT_AVAILABLE,
        "partition_index": record.partition,
        "leader_id": record.leader,
        "leader_epoch": record.leader_epoch,
        "replica_nodes": record.replicas,
        "isr_nodes": record.in_sync,
        "offline_replicas": [
            broker_id for broker_id in record.replicas if not state.can_serve(record, broker_id)
        ],
    }
