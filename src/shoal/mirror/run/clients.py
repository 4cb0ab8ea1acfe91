"""The two clients of a mirror: what they are told unless the user says otherwise."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.mirror.config import MirrorConfig

# What was fetched is held until the target has acknowledged all of it, so some answers are held
# at a time: `MirrorLimits.queue_bytes` by `fetch_bytes`.
_OF_SOURCE: Final = {"shoal.receive.spares": 4}
# A topic that was just made has its leaders a few milliseconds later.
_OF_TARGET: Final = {"retry.backoff.ms": 10}


@asynccontextmanager
async def both_clients(config: MirrorConfig) -> AsyncIterator[tuple[Client, Client]]:
    """Source and target; an error says which of the two cannot be reached."""
    async with AsyncExitStack() as stack:
        source = await _reached(stack, "source", _OF_SOURCE | dict(config.source))
        target = await _reached(stack, "target", _OF_TARGET | dict(config.target))
        yield source, target


async def _reached(stack: AsyncExitStack, side: str, properties: Mapping[str, Any]) -> Client:
    try:
        return await stack.enter_async_context(Client(properties))
    except ClientError as error:
        error.args = (f"the {side} cluster: {error}",)
        error.remedy = error.remedy or "check bootstrap.servers and security.protocol"
        raise
