"""EndTxn (26), versions 0 to 5.

Behaviour
- Commits or aborts. The response is sent when the decision is durable; the markers follow. Until
  they are written, any request that ends a transaction of this transactional id gets
  CONCURRENT_TRANSACTIONS, even from a producer that is already at the next epoch.
- A repeated request with the same outcome gets the same response as the first one; in version 5
  this includes requests with the previous epoch.
- `tests/interop/transaction_table.tsv` has Apache Kafka's code for every state.

Versions
- 2 the client knows PRODUCER_FENCED, older ones get INVALID_PRODUCER_EPOCH. 3 flexible.
  4 TRANSACTION_ABORTABLE. 5 the second protocol: the response has the producer's next epoch, and
  a producer may abort a transaction that it has not begun (both KIP-890).
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.transactions.machine import TransactionDecision
from shoal.lite.coordinator.transactions.model import (
    FIRST_PROTOCOL,
    SECOND_PROTOCOL,
    ProducerIdAndEpoch,
)
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import EndTxnRequest, EndTxnResponse

_FIRST_THAT_KNOWS_FENCED = 2
_FIRST_OF_SECOND_PROTOCOL = 5


async def handle(core: BrokerCore, request: "ApiRequest[EndTxnRequest, EndTxnResponse]") -> Answer:
    body = request.body()
    is_second = request.version >= _FIRST_OF_SECOND_PROTOCOL
    if not body.transactional_id:
        return request.answer(
            {"error_code": Code.INVALID_REQUEST, "producer_id": -1, "producer_epoch": -1}
        )
    try:
        decision = await core.transactions.host.shard_for(body.transactional_id).end(
            body.transactional_id,
            ProducerIdAndEpoch(body.producer_id, body.producer_epoch),
            is_commit=body.committed,
            protocol=SECOND_PROTOCOL if is_second else FIRST_PROTOCOL,
        )
    except ApiError as error:
        decision = TransactionDecision(error.code)
    code = decision.code
    if code == Code.PRODUCER_FENCED and request.version < _FIRST_THAT_KNOWS_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return request.answer(
        {
            "error_code": code,
            "producer_id": decision.identity.producer_id,
            "producer_epoch": decision.identity.epoch,
        }
    )


API = register(ApiKey.END_TXN, 0, 5, handle)
