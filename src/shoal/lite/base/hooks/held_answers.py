"""An answer that is held until there is data, and is released early if its client needs that.

A client that sends another request while one is held waits for both: answers keep the order of
their requests. A follower uses the early release to add new partitions at once.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

AnswerT = TypeVar("AnswerT")


class HeldAnswer(asyncio.Future[AnswerT]):
    """The future of an answer. Its connection calls `release` when another request arrives."""

    def __init__(self, release: Callable[[], None]) -> None:
        """`release` is called in the event loop, maybe more than once, and sets the result soon."""
        super().__init__(loop=asyncio.get_running_loop())
        self.release = release
