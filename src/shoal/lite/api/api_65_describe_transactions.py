"""DescribeTransactions (65), version 0.

Behaviour
- The state of transactional ids at their coordinator (KIP-664). An unknown id:
  TRANSACTIONAL_ID_NOT_FOUND.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.transactions.markers import group_by_topic
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        DescribeTransactionsResponseTransactionState,
    )


def handle(
    core: BrokerCore,
    request: "ApiRequest[DescribeTransactionsRequest, DescribeTransactionsResponse]",
) -> Answer:
    ids = request.body().transactional_ids
    return request.answer({"transaction_states": [_describe_transaction(core, one) for one in ids]})


def _describe_transaction(
    core: BrokerCore, transactional_id: str
) -> "DescribeTransactionsResponseTransactionState":
    if not transactional_id:
        return _error_answer(transactional_id, Code.INVALID_REQUEST)
    try:
        machine = core.transactions.host.shard_for(transactional_id).machine
    except ApiError as error:
        return _error_answer(transactional_id, error.code)
    known = machine.transactions.get(transactional_id)
    if known is None:
        return _error_answer(transactional_id, Code.TRANSACTIONAL_ID_NOT_FOUND)
    return {
        "error_code": Code.NONE,
        "transactional_id": transactional_id,
        "transaction_state": known.state.title,
        "transaction_timeout": known.timeout_ms,
        "transaction_start_time": known.started_ms,
        "producer_id": known.producer_id,
        "producer_epoch": known.epoch,
        "topics": [
            {"topic": name, "partitions": indexes}
            for name, indexes in group_by_topic(sorted(known.partitions)).items()
        ],
    }


def _error_answer(
    transactional_id: str, code: Code
) -> "DescribeTransactionsResponseTransactionState":
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }


API = register(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, handle)
