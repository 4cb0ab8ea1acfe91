"""Finds and calls the coordinator of a group or of a transactional id.

Rules of this file:
- A coordinator is cached until it answers that it is not the coordinator, or is lost.
- Codes 14, 15, 16 and 51 (loading, not available, moved, still completing) are retried until
  the call times out; the caller gets any other code.
"""

from collections.abc import Callable, Container, Mapping
from enum import IntEnum
from typing import Any

from shoal.client.cluster.router import Core
from shoal.client.codes import COORDINATOR_MOVED, COORDINATOR_RETRY, Code
from shoal.client.errors import ConnectionLost, KafkaError, RequestTimedOut, error_for
from shoal.client.transport.pool import CONTROL
from shoal.wire.api_keys import ApiKey

_FIRST_VERSION_WITH_KEYS = 4


class CoordinatorType(IntEnum):
    """What the coordinator is responsible for."""

    GROUP = 0
    TRANSACTION = 1


class Coordinator:
    """The coordinator of one key, on its current broker."""

    def __init__(self, core: Core, kind: CoordinatorType, key: str) -> None:
        self._core = core
        self._kind = kind
        self._key = key
        self._node_id: int | None = None

    async def call(
        self,
        api_key: int,
        values: Mapping[str, Any],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a request with retries; raises for the error code of the response.

        `check` raises for codes inside the response, by `Coordinator.check`.
        """

        async def attempt() -> Any:
            response = await self.ask(api_key, values, at_least=at_least, at_most=at_most)
            if check is not None:
                check(response)
            return response

        return await self._core.with_retries(attempt)

    async def ask(
        self,
        api_key: int,
        values: Mapping[str, Any],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        channel: str = CONTROL,
        timeout_s: float | None = None,
        accepts: Container[int] = (),
    ) -> Any:
        """Send a request once; raises for the error code of the response.

        `accepts` are codes with which the response is returned anyway.
        """
        try:
            node_id = await self.node_id()
            link = await self._core.any_link(node_id, channel)
            version = link.versions.newest(api_key, at_least=at_least, at_most=at_most)
            limit_s = self._core.request_timeout_s if timeout_s is None else timeout_s
            response = await link.ask(api_key, version, values, timeout_s=limit_s)
        except (ConnectionLost, RequestTimedOut):
            self._node_id = None
            raise
        code = int(getattr(response, "error_code", Code.NONE))
        if code not in accepts:
            self.check(code)
        return response

    async def node_id(self) -> int:
        """The id of the broker."""
        if self._node_id is None:
            self._node_id = await self._core.with_retries(self._find)
        return self._node_id

    def check(self, code: int, *, topic: str | None = None, partition: int | None = None) -> None:
        """Raise the error for a code; those that `call` retries are marked as retriable."""
        if code == Code.NONE:
            return
        if code in COORDINATOR_MOVED:
            self._node_id = None
        error = error_for(code, topic=topic, partition=partition)
        error.retriable = error.retriable or code in COORDINATOR_RETRY
        raise error

    async def _find(self) -> int:
        link = await self._core.any_link()
        least = 1 if self._kind is CoordinatorType.TRANSACTION else 0
        version = link.versions.newest(ApiKey.FIND_COORDINATOR, at_least=least)
        values = {"key": self._key, "coordinator_keys": [self._key], "key_type": self._kind}
        response = await link.ask(
            ApiKey.FIND_COORDINATOR, version, values, timeout_s=self._core.request_timeout_s
        )
        found = response.coordinators[0] if version >= _FIRST_VERSION_WITH_KEYS else response
        if found.error_code != Code.NONE:
            raise _with_retry(error_for(int(found.error_code), message=found.error_message))
        node_id = int(found.node_id)
        if node_id not in self._core.cluster.brokers:
            await self._core.metadata((), refresh=True)
        return node_id


def _with_retry(error: KafkaError) -> KafkaError:
    error.retriable = error.retriable or error.code in COORDINATOR_RETRY
    return error
