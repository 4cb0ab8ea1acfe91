"""Who the mirror is at the target: its producer id, and what the target has of it."""

from shoal.client.client import Client
from shoal.client.errors import error_for
from shoal.mirror.rewrite import ProducerIdentity
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey


async def new_identity(client: Client) -> ProducerIdentity:
    """A producer id that nobody has used; brokers of a new cluster may need a moment."""

    async def ask() -> ProducerIdentity:
        response = await client.call(
            ApiKey.INIT_PRODUCER_ID,
            {
                "transactional_id": None,
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
        )
        if response.error_code:
            raise error_for(int(response.error_code))
        return ProducerIdentity(int(response.producer_id), int(response.producer_epoch))

    return await client.retrying(ask)


async def last_sequence_of(
    client: Client, partition: TopicPartition, identity: ProducerIdentity
) -> int | None:
    """The last sequence that the partition's leader has of this producer; None if it has none."""
    response = await client.call(
        ApiKey.DESCRIBE_PRODUCERS,
        {
            "topics": [
                {"name": partition.topic, "partition_indexes": [partition.partition]},
            ]
        },
        node_id=await client.leader(partition),
    )
    (topic,) = response.topics
    (answer,) = topic.partitions
    if answer.error_code:
        raise error_for(
            int(answer.error_code), topic=partition.topic, partition=partition.partition
        )
    for producer in answer.active_producers:
        if (producer.producer_id, producer.producer_epoch) == identity:
            return int(producer.last_sequence)
    return None
