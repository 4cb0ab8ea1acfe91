"""InitProducerId (22), versions 0 to 5.

Behaviour
- Without a transactional id: a new producer id with epoch 0 for every call. Ids come from blocks
  that the metadata log allocates, so no id is given twice, even after a restart. The old id and
  epoch that a producer may send from version 3 on (KIP-360) are ignored, as in Apache Kafka.
- With one: the coordinator raises the epoch, which fences older producers with the same id. Their
  open transaction is aborted first, and the client must retry (CONCURRENT_TRANSACTIONS). Old id and
  epoch identify the same producer: PRODUCER_FENCED if another one has replaced it.

Versions
- 2 flexible. 3 old id and epoch. 4 the client knows PRODUCER_FENCED, older ones get
  INVALID_PRODUCER_EPOCH. 5 the client knows TRANSACTION_ABORTABLE (KIP-890).

Gaps
- 6 (two-phase commit, KIP-939).
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.transactions.model import NO_IDENTITY, ProducerIdAndEpoch
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import InitProducerIdRequest, InitProducerIdResponse

_FIRST_WITH_IDENTITY = 3
_FIRST_THAT_KNOWS_FENCED = 4


async def handle(
    core: BrokerCore, request: "ApiRequest[InitProducerIdRequest, InitProducerIdResponse]"
) -> Answer:
    body = request.body()
    code, identity = Code.NONE, NO_IDENTITY
    try:
        if body.transactional_id is None:
            identity = ProducerIdAndEpoch(await core.new_producer_id(), 0)
        else:
            expected = NO_IDENTITY
            if request.version >= _FIRST_WITH_IDENTITY:
                expected = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
            code, identity = await _init_transactional_id(core, body, expected)
    except ApiError as error:
        code = error.code
    if code == Code.PRODUCER_FENCED and request.version < _FIRST_THAT_KNOWS_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return request.answer(
        {"error_code": code, "producer_id": identity.producer_id, "producer_epoch": identity.epoch}
    )


async def _init_transactional_id(
    core: BrokerCore, body: "InitProducerIdRequest", expected: ProducerIdAndEpoch
) -> tuple[Code, ProducerIdAndEpoch]:
    is_half = (expected.producer_id == NO_IDENTITY.producer_id) != (
        expected.epoch == NO_IDENTITY.epoch
    )
    if not body.transactional_id or is_half:
        return Code.INVALID_REQUEST, NO_IDENTITY
    decision = await core.transactions.host.shard_for(body.transactional_id).init(
        body.transactional_id,
        int(body.transaction_timeout.total_seconds() * 1000),
        None if expected == NO_IDENTITY else expected,
    )
    return decision.code, decision.identity


API = register(ApiKey.INIT_PRODUCER_ID, 0, 5, handle)
