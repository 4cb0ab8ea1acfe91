"""AddOffsetsToTxn (25), versions 0 to 4.

Behaviour
- Lets a group's offsets join a transaction: the partition of `__consumer_offsets` that the group
  belongs to is announced like any other.

Versions
- 2 PRODUCER_FENCED is known to the client, before it is INVALID_PRODUCER_EPOCH. 3 flexible.
  4 TRANSACTION_ABORTABLE (KIP-890).
"""

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.topics import GROUP_TOPIC, KeyType
from shoal.lite.coordinator.transactions.model import FIRST_PROTOCOL, Identity
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

_FIRST_THAT_KNOWS_FENCED = 2


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    transactional_id = body.transactional_id
    if not transactional_id:
        return request.answer(error_code=Code.INVALID_REQUEST)
    groups = core.coordinators[KeyType.GROUP]
    partition = TopicPartition(GROUP_TOPIC.name, groups.partition_for(body.group_id))
    identity = Identity(body.producer_id, body.producer_epoch)
    try:
        # The topic must be there: its number of partitions says where the group's offsets go.
        await groups.locate(body.group_id)
        shard = core.transactions.host.shard_for(transactional_id)
        code = await shard.add_partitions(transactional_id, identity, [partition], FIRST_PROTOCOL)
    except Refused as refused:
        code = refused.code
    if code == Code.PRODUCER_FENCED and request.version < _FIRST_THAT_KNOWS_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return request.answer(error_code=code)


API = register(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, handle)
