"""Kafka Lite as a cluster under test."""

from shoal.lite.cluster import LiteCluster
from shoal.model.nodes import Node


class LiteSystem(LiteCluster):
    """A Kafka Lite cluster with the interface of every engine: `nodes` includes dead ones."""

    engine = "lite"

    def nodes(self) -> list[Node]:
        """Every node; the pid of a node that is down is 0."""
        return [Node(node.id, node.host, node.port, node.pid) for node in self.status()]
