"""An asyncio client of any Kafka-protocol cluster; start with `Client`.

From the bottom up: `transport/` (sockets, authentication, versions, connections), `cluster/`
(metadata, coordinators, choice of the broker, retries), then `produce/`, `consume/` and `groups/`,
each with raw calls below and sessions, producers and consumers above. Modules whose docstring says
`Pure` get responses and times as arguments and do no I/O.
"""

from shoal.client.client import Client
from shoal.client.config import ClientConfig
from shoal.client.consume.consumer import Consumer, RawConsumer
from shoal.client.groups.group_consumer import GroupConsumer
from shoal.client.groups.group_offsets import GroupMember, OffsetCommit
from shoal.client.produce.producer import Producer, RawProducer
from shoal.client.produce.sessions import IdempotentSession
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST, MAX_TIMESTAMP, ListedOffset, ProduceResult

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Client",
    "ClientConfig",
    "Consumer",
    "GroupConsumer",
    "GroupMember",
    "IdempotentSession",
    "ListedOffset",
    "OffsetCommit",
    "ProduceResult",
    "Producer",
    "RawConsumer",
    "RawProducer",
    "TransactionalSession",
]
