"""The two clients of a mirror, with their default properties."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

from shoal.client.client import Client
from shoal.client.consume.fetch_session import FetchSession
from shoal.client.errors import ClientError
from shoal.mirror.config import MirrorConfig

# The buffer of a fetch response is in use until the target has acknowledged all its batches, so
# several are in use at a time: `MirrorLimits.queue_bytes` divided by `fetch_bytes`.
_OF_SOURCE: Final = {"shoal.receive.spares": 4}
# A new topic gets its leaders a few milliseconds later.
_OF_TARGET: Final = {"retry.backoff.ms": 10}
_END_SESSIONS_S: Final = 1.0


@asynccontextmanager
async def open_clients(config: MirrorConfig) -> AsyncIterator[tuple[Client, Client]]:
    """Connect to source and target; an error says which of the two is not reachable."""
    async with AsyncExitStack() as stack:
        source = await _connect(stack, "source", _OF_SOURCE | dict(config.source))
        target = await _connect(stack, "target", _OF_TARGET | dict(config.target))
        yield source, target


async def _connect(stack: AsyncExitStack, side: str, properties: Mapping[str, Any]) -> Client:
    try:
        return await stack.enter_async_context(Client(properties))
    except ClientError as error:
        error.args = (f"cannot connect to the {side} cluster: {error.message}",)
        error.remedy = error.remedy or "check bootstrap.servers and security.protocol"
        raise


async def end_fetch_sessions(source: Client, sessions: Mapping[int, FetchSession]) -> None:
    """Free the memory of the source's brokers; one that does not answer expires it later."""
    ends = (source.end_fetch_session(node_id, session) for node_id, session in sessions.items())
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SESSIONS_S):
            await asyncio.gather(*ends, return_exceptions=True)
