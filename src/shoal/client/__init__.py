"""An asyncio client of any Kafka-protocol cluster; `Client` is where to begin.

Modules, from the wire up: `connection` (a socket), `handshake` (versions, log-in), `pool`
(connections), `core` (metadata, retries), then one for each kind of call: `fetching`,
`producing`, `offsets`, `coordinators`, `group_offsets`, `admin`; above them `sessions` and
`transactions` (numbered batches), `producer`, `consumer`, `membership` and `group_consumer`.
Pure: `versions`, `metadata`, `delivery`, `transaction_state`, `isolation`, `assignors`,
`group_protocol`, `nearest`, `backoff`, `codes`.
"""

from shoal.client.client import Client
from shoal.client.config import ClientConfig
from shoal.client.consumer import Consumer, RawConsumer
from shoal.client.group_consumer import GroupConsumer
from shoal.client.group_offsets import GroupMember, OffsetCommit
from shoal.client.producer import Producer, RawProducer
from shoal.client.results import EARLIEST, LATEST, MAX_TIMESTAMP, ListedOffset, ProduceResult
from shoal.client.sessions import IdempotentSession
from shoal.client.transactions import TransactionalSession

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
