"""What several APIs tell of topics and partitions."""

from typing import Any, Final

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState

# What anyone may do without an authorizer, a bit for each of Apache Kafka's operations.
TOPIC_OPERATIONS: Final = 0b1101_1111_1000
CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
# The value of both where the client did not ask.
NOT_ASKED: Final = -(1 << 31)


def described_partition(state: ClusterState, record: PartitionRecord) -> dict[str, Any]:
    """Who leads a partition, and who else has it."""
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
