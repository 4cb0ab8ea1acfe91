"""DescribeProducers (61), version 0.

Behaviour
- What a partition knows of its producers: epoch, last sequence and time, and where an open
  transaction begins (KIP-664). Followers answer too, as in Apache Kafka.
- What was not replicated yet shows as well.
"""

from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.storage.state.producer_state import Producer
from shoal.wire.api_keys import ApiKey


def handle(core: BrokerCore, request: Request) -> Answer:
    return request.answer(
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    _described(core, topic.name, index) for index in topic.partition_indexes
                ],
            }
            for topic in request.body().topics
        ]
    )


def _described(core: BrokerCore, topic: str, index: int) -> dict[str, Any]:
    try:
        producers = core.partition(topic, index).log.producers
    except Refused as refused:
        return {
            "partition_index": index,
            "error_code": refused.code,
            "error_message": str(refused),
            "active_producers": [],
        }
    return {
        "partition_index": index,
        "error_code": Code.NONE,
        "error_message": None,
        "active_producers": [_producer(*item) for item in producers.items()],
    }


def _producer(producer_id: int, producer: Producer) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.timestamp_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.first_offset,
    }


API = register(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle)
