"""Waiting in tests for what happens soon."""

import asyncio
from collections.abc import Callable


async def eventually(holds: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Return once the condition holds; fail if it does not come to hold."""
    for _ in range(int(within_s / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("what was waited for did not happen")
