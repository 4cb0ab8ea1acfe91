"""Producers who wait until every in-sync replica has their records (acks=all).

Two heaps over the same entries, by required offset and by deadline; an entry that is done is
dropped from the other heap when it comes to its top. Nothing polls.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any


@dataclass(slots=True)
class _Wait:
    token: Any
    is_over: bool = field(default=False)


class WaitingProduces:
    """Who waits for which offset, and until when."""

    __slots__ = ("_by_deadline", "_by_offset", "_number")

    def __init__(self) -> None:
        # The running number keeps those with the same offset or deadline in their order.
        self._by_offset: list[tuple[int, int, _Wait]] = []
        self._by_deadline: list[tuple[int, int, _Wait]] = []
        self._number = 0

    def add(self, token: Any, required_offset: int, deadline_ms: int) -> None:
        """Wait until the high watermark is `required_offset` or more."""
        self._number += 1
        wait = _Wait(token)
        heappush(self._by_offset, (required_offset, self._number, wait))
        heappush(self._by_deadline, (deadline_ms, self._number, wait))

    def reached(self, high_watermark: int) -> list[Any]:
        """Those whose records are below the high watermark now."""
        return _pop_until(self._by_offset, high_watermark) if self._by_offset else []

    def expired(self, now_ms: int) -> list[Any]:
        """Those whose deadline has come."""
        return _pop_until(self._by_deadline, now_ms)

    def give_up(self) -> list[Any]:
        """All of them."""
        tokens = [wait.token for _, _, wait in sorted(self._by_offset) if not wait.is_over]
        self._by_offset.clear()
        self._by_deadline.clear()
        return tokens

    @property
    def next_deadline_ms(self) -> int | None:
        while self._by_deadline and self._by_deadline[0][2].is_over:
            heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else None


def _pop_until(heap: list[tuple[int, int, _Wait]], limit: int) -> list[Any]:
    tokens = []
    while heap and (heap[0][0] <= limit or heap[0][2].is_over):
        wait = heappop(heap)[2]
        if not wait.is_over:
            wait.is_over = True
            tokens.append(wait.token)
    return tokens
