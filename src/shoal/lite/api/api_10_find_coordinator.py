"""FindCoordinator (10), versions 0 to 6.

Behaviour
- The broker that leads the partition of the internal topic that a key belongs to. The topic is
  created when it is first requested. The same response already has the broker, whereas Apache Kafka
  makes the client retry.
- COORDINATOR_NOT_AVAILABLE while that partition has no leader. An unknown type of coordinator:
  INVALID_REQUEST.
- librdkafka compresses with lz4 only for brokers that list this API.

Versions
- 1 transaction coordinators. 3 flexible. 4 many keys at once (KIP-699). 5 the client knows
  TRANSACTION_ABORTABLE (KIP-890). 6 share groups (KIP-932), which do not exist here.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.host import CoordinatorHost
from shoal.lite.coordinator.topics import KeyType
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import (
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        FindCoordinatorResponseCoordinator,
    )

_FIRST_BATCHED = 4


async def handle(
    core: BrokerCore, request: "ApiRequest[FindCoordinatorRequest, FindCoordinatorResponse]"
) -> Answer:
    body = request.body()
    kind = body.key_type if request.version >= 1 else 0
    keys = [body.key] if request.version < _FIRST_BATCHED else body.coordinator_keys
    found = [await _find_coordinator(core, kind, key) for key in keys]
    if kind == KeyType.GROUP:
        _note_lookups(core, request, found)
    if request.version >= _FIRST_BATCHED:
        return request.answer({"coordinators": found})
    only = found[0]
    return request.answer(
        {
            "error_code": only["error_code"],
            "error_message": only["error_message"],
            "node_id": only["node_id"],
            "host": only["host"],
            "port": only["port"],
        }
    )


def _note_lookups(
    core: BrokerCore,
    request: "ApiRequest[FindCoordinatorRequest, FindCoordinatorResponse]",
    found: "list[FindCoordinatorResponseCoordinator]",
) -> None:
    """Note that the client should send group requests to this broker, its coordinator."""
    now_s = asyncio.get_running_loop().time()
    for each in found:
        if each["node_id"] == core.broker_id:
            core.unserved.on_lookup(
                request.header, request.client_host, group=each["key"], now_s=now_s
            )


async def _find_coordinator(
    core: BrokerCore, kind: int, key: str
) -> "FindCoordinatorResponseCoordinator":
    try:
        broker = await _host(core, kind).locate(key)
    except ApiError as error:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error.code,
            "error_message": str(error),
        }
    return {
        "key": key,
        "node_id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "error_code": Code.NONE,
        "error_message": None,
    }


def _host(core: BrokerCore, kind: int) -> CoordinatorHost[Any]:
    if kind not in set(KeyType):
        raise ApiError(Code.INVALID_REQUEST, f"key type {kind} is not supported")
    host = core.coordinators.get(KeyType(kind))
    if host is None:
        message = f"there is no coordinator for key type {KeyType(kind).name.lower()}"
        raise ApiError(Code.COORDINATOR_NOT_AVAILABLE, message)
    return host


API = register(ApiKey.FIND_COORDINATOR, 0, 6, handle)
