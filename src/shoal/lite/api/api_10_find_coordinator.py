"""FindCoordinator (10), versions 0 to 6.

Behaviour
- The broker that leads the partition of the internal topic that a key belongs to. The topic is
  made when it is first asked for, and the answer tells of it at once, where Apache Kafka asks
  the client to come back.
- COORDINATOR_NOT_AVAILABLE while nobody leads that partition. A kind of coordinator that there
  is not: INVALID_REQUEST.
- librdkafka compresses with lz4 only for brokers that list this API.

Versions
- 1 transactions too. 3 flexible. 4 many keys at once (KIP-699). 5 TRANSACTION_ABORTABLE is known
  to the client (KIP-890). 6 share groups may be asked for (KIP-932), which there are not.
"""

import asyncio
from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.host import CoordinatorHost
from shoal.lite.coordinator.topics import KeyType
from shoal.wire.api_keys import ApiKey

_FIRST_BATCHED = 4


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    kind = getattr(body, "key_type", 0)
    keys = [body.key] if request.version < _FIRST_BATCHED else body.coordinator_keys
    found = [await _found(core, kind, key) for key in keys]
    if kind == KeyType.GROUP:
        _note_lookups(core, request, found)
    return (
        request.answer(**found[0])
        if request.version < _FIRST_BATCHED
        else request.answer(coordinators=found)
    )


def _note_lookups(core: BrokerCore, request: Request, found: list[dict[str, Any]]) -> None:
    """A group whose coordinator is this very broker is expected to be heard of here."""
    now_s = asyncio.get_running_loop().time()
    for each in found:
        if each["node_id"] == core.broker_id:
            core.unserved.on_lookup(
                request.header, request.client_host, group=each["key"], now_s=now_s
            )


async def _found(core: BrokerCore, kind: int, key: str) -> dict[str, Any]:
    try:
        broker = await _host(core, kind).locate(key)
    except Refused as refused:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": refused.code,
            "error_message": str(refused),
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
        raise Refused(Code.INVALID_REQUEST, f"there are no coordinators of kind {kind}")
    host = core.coordinators.get(KeyType(kind))
    if host is None:
        message = f"this broker has no coordinators for keys of type {KeyType(kind).name.lower()}"
        raise Refused(Code.COORDINATOR_NOT_AVAILABLE, message)
    return host


API = register(ApiKey.FIND_COORDINATOR, 0, 6, handle)
