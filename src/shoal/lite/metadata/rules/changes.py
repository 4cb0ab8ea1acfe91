"""Changes that belong together: made one after the other, written as one entry of the log.

A change applies at once, so the next one sees it. Code that makes several changes validates
everything first: a change cannot be undone.
"""

from shoal.lite.metadata.data.records import PartitionRecord, Record
from shoal.lite.metadata.data.state import ClusterState


class Changes:
    """The records that one request or one tick produces."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.records: list[Record] = []

    def emit(self, record: Record) -> None:
        self.state.apply(record)
        self.records.append(record)

    def partitions_of(self, broker_id: int) -> list[PartitionRecord]:
        """The partitions of which a broker has a replica."""
        return [
            partition for partition in self.state.partitions() if broker_id in partition.replicas
        ]
