"""An answer that waits for something to say, and is given sooner if its client wants that.

A client that sends another request behind one that is held waits for both: answers keep the order
of their requests. A follower uses that to name new partitions at once.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

AnswerT = TypeVar("AnswerT")


class HeldAnswer(asyncio.Future[AnswerT]):
    """The future of an answer. Its connection calls `release` when another request is there."""

    def __init__(self, release: Callable[[], None]) -> None:
        """`release` is called in the event loop, maybe more than once, and sets the result soon."""
        super().__init__(loop=asyncio.get_running_loop())
        self.release = release
