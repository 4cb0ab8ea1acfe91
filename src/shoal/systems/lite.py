"""Kafka Lite as a cluster under test."""

from shoal.lite.cluster import LiteCluster
from shoal.model.nodes import Node


class LiteSystem(LiteCluster):
    """A Kafka Lite cluster that, like every engine, lists its dead nodes too."""

    engine = "lite"

    def nodes(self) -> list[Node]:
        """Every node; the pid of one that is down is 0."""
        return [Node(node.id, node.host, node.port, node.pid) for node in self.status()]
