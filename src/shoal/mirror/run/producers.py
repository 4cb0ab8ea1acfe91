"""What the target has of the mirror's producer."""

from shoal.client.client import Client
from shoal.client.errors import error_for
from shoal.client.produce.sequencing import Identity
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey


async def last_sequence_of(
    client: Client, partition: TopicPartition, identity: Identity
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
