"""An asyncio client of any Kafka-protocol cluster; `Client` is where to begin.

From the wire up: `transport/` (sockets, log-in, versions, connections), `cluster/` (metadata,
coordinators, which broker to ask and when to try again), then `produce/`, `consume/` and `groups/`,
each with raw calls below and sessions, producers and consumers above. Modules whose docstring says
`Pure` take answers and times, and do no I/O.
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
