"""Queries the target for the state of the mirror's producer."""

from shoal.client.client import Client
from shoal.client.errors import error_for
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey


async def last_sequence_of(
    client: Client, partition: TopicPartition, identity: ProducerIdentity
) -> int | None:
    """Return the last sequence that the leader has of this producer; None if it has no state."""
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
