"""InitProducerId (22), versions 0 to 5.

Behaviour
- Without a transactional id: a new id with epoch 0 for every call. Ids are taken from blocks that
  the metadata log remembers: none is given twice, also after a restart. An old id and epoch,
  which a producer may send from version 3 on (KIP-360), are ignored, as Apache Kafka does.
- With one: the coordinator raises the epoch, which fences older producers of the same id. What
  they left open is aborted first, and the client told to come back (CONCURRENT_TRANSACTIONS).
  Old id and epoch say that it is the same producer: then PRODUCER_FENCED if it was replaced.

Versions
- 2 flexible. 3 old id and epoch. 4 PRODUCER_FENCED is known to the client, before it is
  INVALID_PRODUCER_EPOCH. 5 TRANSACTION_ABORTABLE is known to the client (KIP-890).

Gaps
- 6 (two-phase commit, KIP-939).
"""

from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.transactions.model import NOBODY, Identity
from shoal.wire.api_keys import ApiKey

_FIRST_THAT_KNOWS_FENCED = 4


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    code, identity = Code.NONE, NOBODY
    try:
        if body.transactional_id is None:
            identity = Identity(await core.new_producer_id(), 0)
        else:
            code, identity = await _taken_over(core, body)
    except Refused as refused:
        code = refused.code
    if code == Code.PRODUCER_FENCED and request.version < _FIRST_THAT_KNOWS_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return request.answer(
        error_code=code, producer_id=identity.producer_id, producer_epoch=identity.epoch
    )


async def _taken_over(core: BrokerCore, body: Any) -> tuple[Code, Identity]:
    expected = Identity(
        getattr(body, "producer_id", NOBODY.producer_id),
        getattr(body, "producer_epoch", NOBODY.epoch),
    )
    is_half = (expected.producer_id == NOBODY.producer_id) != (expected.epoch == NOBODY.epoch)
    if not body.transactional_id or is_half:
        return Code.INVALID_REQUEST, NOBODY
    decision = await core.transactions.host.shard_for(body.transactional_id).init(
        body.transactional_id,
        int(body.transaction_timeout.total_seconds() * 1000),
        None if expected == NOBODY else expected,
    )
    return decision.code, decision.identity


API = register(ApiKey.INIT_PRODUCER_ID, 0, 5, handle)
