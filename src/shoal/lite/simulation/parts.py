"""What a world is made of. A sabotage swaps one of the parts; everything else stays as it is."""

from typing import TYPE_CHECKING

from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.controller import Controller
from shoal.lite.partitions.sessions.fetch_session import ReplicaFetchSession
from shoal.lite.partitions.sessions.replica_session import ReplicaSession
from shoal.lite.raft.node import RaftNode
from shoal.lite.replication.replica import PartitionReplica
from shoal.lite.simulation.disk import QuorumDisk
from shoal.lite.simulation.setup import CONTROLLER

if TYPE_CHECKING:
    from shoal.lite.simulation.world import BrokerNode, World


class Parts:
    """The state machines of production, and honest nodes."""

    raft_node: type[RaftNode] = RaftNode
    replica: type[PartitionReplica] = PartitionReplica
    fetch_session: type[ReplicaFetchSession] = ReplicaFetchSession
    replica_session: type[ReplicaSession] = ReplicaSession
    quorum_disk: type[QuorumDisk] = QuorumDisk

    def controller(self, world: "World", state: ClusterState) -> Controller:
        """A controller that is about to be active."""
        return Controller(state, CONTROLLER)

    def boot_id(self, node: "BrokerNode") -> str:
        """What a broker says about when its machine was started: another one after each loss."""
        return f"boot-{node.boots}"

    def knows_itself(self, incarnation: str, known: str | None) -> bool:
        """Whether the metadata, which knows a broker by some process, is about this process."""
        return incarnation == known
