"""The broker as the fetch sessions of its followers see it."""

from typing import TYPE_CHECKING

from shoal.lite.partitions.partition import Partition
from shoal.wire.fetch import FetchPartition

if TYPE_CHECKING:
    from shoal.lite.broker.core import BrokerCore


class BrokerFetchHost:
    """The `ReplicaFetchHost` of a broker."""

    def __init__(self, core: "BrokerCore") -> None:
        self._core = core
        self.scheduler = core.replicas.scheduler

    def is_registered(self, broker_id: int) -> bool:
        return broker_id in self._core.state.brokers

    def find_partition(self, requested: FetchPartition, *, uses_ids: bool) -> Partition:
        name = self._core.topic_name(requested.topic_id) if uses_ids else requested.topic
        return self._core.partition(name, requested.partition)
