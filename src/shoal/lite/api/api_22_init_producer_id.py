"""InitProducerId (22), versions 0 to 4.

Behaviour
- A new id with epoch 0 for every call. Ids are taken from blocks that the metadata log
  remembers: none is given twice, also after a restart.
- From version 3 a producer may send its old id and epoch (KIP-360). Without a transactional id
  they are ignored, as Apache Kafka does.

Versions
- 2 flexible. 3 old id and epoch. 4 PRODUCER_FENCED is known to the client.

Gaps
- With a transactional id: COORDINATOR_NOT_AVAILABLE, there are no transactions yet.
"""

from shoal.lite.api.registry import Answer, Request, register
from shoal.lite.codes import Code
from shoal.lite.core import BrokerCore
from shoal.wire.api_keys import ApiKey


async def handle(core: BrokerCore, request: Request) -> Answer:
    if request.body().transactional_id is not None:
        return request.answer(
            error_code=Code.COORDINATOR_NOT_AVAILABLE, producer_id=-1, producer_epoch=-1
        )
    producer_id = await core.new_producer_id()
    return request.answer(error_code=Code.NONE, producer_id=producer_id, producer_epoch=0)


API = register(ApiKey.INIT_PRODUCER_ID, 0, 4, handle)
