"""AddOffsetsToTxn (25), versions 0 to 4.

Behaviour
- Adds the offsets of a group to a transaction: the partition of `__consumer_offsets` that the group
  belongs to is added like any other.

Versions
- 2 the client knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH. 3 flexible.
  4 TRANSACTION_ABORTABLE (KIP-890).
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.topics import GROUP_TOPIC, KeyType
from shoal.lite.coordinator.transactions.model import FIRST_PROTOCOL, ProducerIdAndEpoch
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_FIRST_THAT_KNOWS_FENCED = 2


async def handle(
    core: BrokerCore, request: "ApiRequest[AddOffsetsToTxnRequest, AddOffsetsToTxnResponse]"
) -> Answer:
    body = request.body()
    transactional_id = body.transactional_id
    if not transactional_id:
        return request.answer({"error_code": Code.INVALID_REQUEST})
    groups = core.coordinators[KeyType.GROUP]
    partition = TopicPartition(GROUP_TOPIC.name, groups.partition_for(body.group_id))
    identity = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
    try:
        # The topic must exist: its number of partitions decides where the group's offsets go.
        await groups.locate(body.group_id)
        shard = core.transactions.host.shard_for(transactional_id)
        code = await shard.add_partitions(transactional_id, identity, [partition], FIRST_PROTOCOL)
    except ApiError as error:
        code = error.code
    if code == Code.PRODUCER_FENCED and request.version < _FIRST_THAT_KNOWS_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return request.answer({"error_code": code})


API = register(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, handle)
