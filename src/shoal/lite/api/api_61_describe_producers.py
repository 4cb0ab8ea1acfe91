"""DescribeProducers (61), version 0.

Behaviour
- The producer state of a partition: epoch, last sequence and timestamp, and the start of an open
  transaction (KIP-664). Followers answer too, as in Apache Kafka.
- Batches that are not replicated yet are included.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.storage.state.producer_state import ProducerState
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import (
        DescribeProducersRequest,
        DescribeProducersResponse,
        DescribeProducersResponsePartition,
        DescribeProducersResponseProducerState,
    )


def handle(
    core: BrokerCore, request: "ApiRequest[DescribeProducersRequest, DescribeProducersResponse]"
) -> Answer:
    return request.answer(
        {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        _describe_partition(core, topic.name, index)
                        for index in topic.partition_indexes
                    ],
                }
                for topic in request.body().topics
            ]
        }
    )


def _describe_partition(
    core: BrokerCore, topic: str, index: int
) -> "DescribeProducersResponsePartition":
    try:
        producers = core.partition(topic, index).log.producers
    except ApiError as error:
        return {
            "partition_index": index,
            "error_code": error.code,
            "error_message": str(error),
            "active_producers": [],
        }
    return {
        "partition_index": index,
        "error_code": Code.NONE,
        "error_message": None,
        "active_producers": [_describe_producer(*item) for item in producers.items()],
    }


def _describe_producer(
    producer_id: int, producer: ProducerState
) -> "DescribeProducersResponseProducerState":
    return {
        "producer_id": producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.timestamp_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.first_offset,
    }


API = register(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle)
