"""AddPartitionsToTxn (24), versions 0 to 5.

Behaviour
- A client (versions 0 to 3) adds the partitions that its transaction will write to, all or none:
  a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, one of an internal topic
  TOPIC_AUTHORIZATION_FAILED, and the others OPERATION_NOT_ATTEMPTED.
- A broker (from version 4 on; many transactions at once) verifies that its client has added a
  partition (`verify_only`), or adds it for the client (KIP-890).

Versions
- 2 the client knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH. 3 flexible.
  4 for brokers. 5 TRANSACTION_ABORTABLE.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.topics import INTERNAL_TOPICS
from shoal.lite.coordinator.transactions.markers import group_by_topic
from shoal.lite.coordinator.transactions.model import (
    FIRST_PROTOCOL,
    SECOND_PROTOCOL,
    ProducerIdAndEpoch,
)
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnRequestTopic,
        AddPartitionsToTxnRequestTransaction,
        AddPartitionsToTxnResponse,
        AddPartitionsToTxnResponseResult,
        AddPartitionsToTxnResponseTopic,
    )

_FIRST_THAT_KNOWS_FENCED = 2
_FIRST_OF_BROKERS = 4

Codes = dict[TopicPartition, Code]


async def handle(
    core: BrokerCore, request: "ApiRequest[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse]"
) -> Answer:
    body = request.body()
    if request.version >= _FIRST_OF_BROKERS:
        results: list[AddPartitionsToTxnResponseResult] = [
            {"transactional_id": one.transactional_id, "topic_results": _topics(codes)}
            for one in body.transactions
            for codes in [await _add_or_verify_for_broker(core, one)]
        ]
        return request.answer({"error_code": Code.NONE, "results_by_transaction": results})
    identity = ProducerIdAndEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    codes = await _add_partitions(
        core,
        body.v3_and_below_transactional_id,
        identity,
        _partitions_of(body.v3_and_below_topics),
        protocol=FIRST_PROTOCOL,
    )
    if request.version < _FIRST_THAT_KNOWS_FENCED:
        codes = {
            partition: Code.INVALID_PRODUCER_EPOCH if code == Code.PRODUCER_FENCED else code
            for partition, code in codes.items()
        }
    return request.answer({"results_by_topic_v3_and_below": _topics(codes)})


def _partitions_of(topics: "Iterable[AddPartitionsToTxnRequestTopic]") -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


async def _add_or_verify_for_broker(
    core: BrokerCore, one: "AddPartitionsToTxnRequestTransaction"
) -> Codes:
    identity = ProducerIdAndEpoch(one.producer_id, one.producer_epoch)
    wanted = _partitions_of(one.topics)
    if not one.verify_only:
        return await _add_partitions(
            core, one.transactional_id, identity, wanted, protocol=SECOND_PROTOCOL
        )
    try:
        shard = core.transactions.host.shard_for(one.transactional_id)
        verdict = shard.machine.verify(one.transactional_id, identity, wanted)
    except ApiError as error:
        verdict = error.code
    return dict.fromkeys(wanted, verdict) if isinstance(verdict, Code) else verdict


async def _add_partitions(
    core: BrokerCore,
    transactional_id: str,
    identity: ProducerIdAndEpoch,
    wanted: list[TopicPartition],
    *,
    protocol: int,
) -> Codes:
    refused = {
        partition: code
        for partition in wanted
        if (code := _check_partition(core, partition, protocol)) != Code.NONE
    }
    if refused:
        return {
            partition: refused.get(partition, Code.OPERATION_NOT_ATTEMPTED) for partition in wanted
        }
    if not transactional_id:
        return dict.fromkeys(wanted, Code.INVALID_REQUEST)
    try:
        shard = core.transactions.host.shard_for(transactional_id)
        code = await shard.add_partitions(transactional_id, identity, wanted, protocol)
    except ApiError as error:
        code = error.code
    return dict.fromkeys(wanted, code)


def _check_partition(core: BrokerCore, partition: TopicPartition, protocol: int) -> Code:
    """Return why a partition cannot be added, or NONE. Only brokers add internal topics."""
    if protocol == FIRST_PROTOCOL and partition.topic in INTERNAL_TOPICS:
        return Code.TOPIC_AUTHORIZATION_FAILED
    topic = core.state.topics.get(partition.topic)
    is_known = topic is not None and partition.partition in topic.partitions
    return Code.NONE if is_known else Code.UNKNOWN_TOPIC_OR_PARTITION


def _topics(codes: Codes) -> "list[AddPartitionsToTxnResponseTopic]":
    return [
        {
            "name": name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": codes[TopicPartition(name, index)],
                }
                for index in indexes
            ],
        }
        for name, indexes in group_by_topic(codes).items()
    ]


API = register(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, handle)
