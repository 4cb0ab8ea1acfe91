"""Fences transactional ids, and waits for the outcome of their transactions.

A decided transaction is complete when its marker is written to all its partitions. A partition
without a leader keeps the transactional.id busy (CONCURRENT_TRANSACTIONS) until the leader is back.
The other partitions get their markers immediately and can then be written with another id.

Rules:
- InitProducerId fences: it aborts the open transaction and raises the epoch. If it returns
  CONCURRENT_TRANSACTIONS, the outcome of the transaction is decided or about to be, and nothing can
  be added to it.
- The outcome in a partition is known when its leader reports no open transaction there.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from shoal.client.client import Client
from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.codes import Code
from shoal.client.errors import ClientError, KafkaError, UnsupportedByBroker, error_for
from shoal.client.results import LATEST
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

_ASK_AGAIN_S: Final = 0.1
_LAST_INIT_VERSION: Final = 5


async def try_fence(client: Client, transactional_id: str, *, timeout_s: float) -> bool:
    """Fence an id; False if an earlier transaction of it is decided and not complete."""
    coordinator = Coordinator(client, CoordinatorType.TRANSACTION, transactional_id)
    values: dict[str, Any] = {
        "transactional_id": transactional_id,
        "transaction_timeout": client.config.transaction_timeout_ms,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            await coordinator.ask(ApiKey.INIT_PRODUCER_ID, values, at_most=_LAST_INIT_VERSION)
        except ClientError as error:
            is_busy = isinstance(error, KafkaError) and error.code == Code.CONCURRENT_TRANSACTIONS
            if not error.retriable:
                raise
            if loop.time() > deadline:
                if is_busy:
                    return False
                raise
        else:
            return True
        await asyncio.sleep(_ASK_AGAIN_S)


async def await_decided(
    client: Client, partitions: Iterable[TopicPartition], *, timeout_s: float
) -> None:
    """Wait until no transaction is open in these partitions; raises on timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    for tp in partitions:
        while await _is_open(client, tp):
            if asyncio.get_running_loop().time() > deadline:
                error = ClientError(
                    f"the outcome of a transaction in {tp} is not known yet",
                    remedy="check that every partition of the target has a leader",
                )
                error.retriable = True
                raise error
            await asyncio.sleep(_ASK_AGAIN_S)


async def _is_open(client: Client, tp: TopicPartition) -> bool:
    """Whether the leader of a partition reports an open transaction."""
    leader = client.cluster.leader(tp)
    if leader is None:
        await client.metadata([tp.topic], refresh=True)
        return True
    values = {"topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}]}
    try:
        response = await client.call(ApiKey.DESCRIBE_PRODUCERS, values, node_id=leader)
    except UnsupportedByBroker:
        stable = await client.list_offsets({tp: LATEST}, isolation="read_committed")
        end = await client.list_offsets({tp: LATEST}, isolation="read_uncommitted")
        return stable[tp].offset < end[tp].offset
    (topic,) = response.topics
    (answer,) = topic.partitions
    if answer.error_code:
        error = error_for(int(answer.error_code), topic=tp.topic, partition=tp.partition)
        if not error.retriable:
            raise error
        await client.metadata([tp.topic], refresh=True)
        return True
    return any(int(each.current_txn_start_offset) >= 0 for each in answer.active_producers)
