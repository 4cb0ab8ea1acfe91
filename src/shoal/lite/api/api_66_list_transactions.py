"""ListTransactions (66), versions 0 to 2.

Behaviour
- The transactional ids that this broker coordinates and that match the filters. The response lists
  unknown states of the filter. COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded.

Versions
- 1 only transactions that have been open for some time (KIP-994). 2 only ids that match a pattern
  (KIP-1152); an invalid pattern: INVALID_REGULAR_EXPRESSION.
"""

import re
from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.transactions.coordinator import wall_ms
from shoal.lite.coordinator.transactions.model import NO_TIME_MS, Transaction, TxnState
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import ListTransactionsRequest, ListTransactionsResponse

_STATES = {state.title: state for state in TxnState}

_FIRST_WITH_PATTERN = 2


def handle(
    core: BrokerCore, request: "ApiRequest[ListTransactionsRequest, ListTransactionsResponse]"
) -> Answer:
    host = core.transactions.host
    if host.is_loading:
        return _error_answer(request, Code.COORDINATOR_LOAD_IN_PROGRESS)
    body = request.body()
    by_pattern = request.version >= _FIRST_WITH_PATTERN
    longer_than_ms = body.duration_filter if request.version >= 1 else NO_TIME_MS
    try:
        pattern = re.compile((by_pattern and body.transactional_id_pattern) or "")
    except re.error:
        return _error_answer(request, Code.INVALID_REGULAR_EXPRESSION)
    found = [
        known
        for shard in host.active_shards()
        for known in shard.machine.transactions.values()
        if _matches_filters(body, known, longer_than_ms)
        and (not pattern.pattern or pattern.fullmatch(known.transactional_id))
    ]
    return request.answer(
        {
            "error_code": Code.NONE,
            "unknown_state_filters": [name for name in body.state_filters if name not in _STATES],
            "transaction_states": [
                {
                    "transactional_id": known.transactional_id,
                    "producer_id": known.producer_id,
                    "transaction_state": known.state.title,
                }
                for known in found
            ],
        }
    )


def _error_answer(
    request: "ApiRequest[ListTransactionsRequest, ListTransactionsResponse]", code: Code
) -> Answer:
    return request.answer(
        {"error_code": code, "unknown_state_filters": [], "transaction_states": []}
    )


def _matches_filters(
    body: "ListTransactionsRequest", known: Transaction, longer_than_ms: int
) -> bool:
    if body.state_filters and known.state.title not in body.state_filters:
        return False
    if body.producer_id_filters and known.producer_id not in body.producer_id_filters:
        return False
    return longer_than_ms < 0 or (
        known.started_ms != NO_TIME_MS and wall_ms() - known.started_ms > longer_than_ms
    )


API = register(ApiKey.LIST_TRANSACTIONS, 0, 2, handle)
