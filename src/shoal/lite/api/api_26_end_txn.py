"""EndTxn (26), versions 0 to 5.

Behaviour
- Commits or aborts. The answer comes when that is decided and cannot be lost any more; the
  markers follow. Until they are written the transactional id is busy: CONCURRENT_TRANSACTIONS
  for whatever ends a transaction of it, also for a producer that is already at the next epoch.
- Ending the same way again is answered as the first time, in version 5 to the epoch before.
- `tests/interop/transaction_table.tsv` has Apache Kafka's code for every state.

Versions
- 2 PRODUCER_FENCED is known to the client, before it is INVALID_PRODUCER_EPOCH. 3 flexible.
  4 TRANSACTION_ABORTABLE. 5 the second protocol: the answer has the producer's next epoch, and
  a producer may abort what it has not begun (both KIP-890).
"""

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.transactions.machine import Decision
from shoal.lite.coordinator.transactions.model import FIRST_PROTOCOL, SECOND_PROTOCOL, Identity
from shoal.wire.api_keys import ApiKey

_FIRST_THAT_KNOWS_FENCED = 2
_FIRST_OF_SECOND_PROTOCOL = 5


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    is_second = request.version >= _FIRST_OF_SECOND_PROTOCOL
    if not body.transactional_id:
        return request.answer(error_code=Code.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    try:
        decision = await core.transactions.host.shard_for(body.transactional_id).end(
            body.transactional_id,
            Identity(body.producer_id, body.producer_epoch),
            is_commit=body.committed,
            protocol=SECOND_PROTOCOL if is_second else FIRST_PROTOCOL,
        )
    except Refused as refused:
        decision = Decision(refused.code)
    code = decision.code
    if code == Code.PRODUCER_FENCED and request.version < _FIRST_THAT_KNOWS_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    return request.answer(
        error_code=code,
        producer_id=decision.identity.producer_id,
        producer_epoch=decision.identity.epoch,
    )


API = register(ApiKey.END_TXN, 0, 5, handle)
