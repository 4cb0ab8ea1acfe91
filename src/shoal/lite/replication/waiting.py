"""Producers that wait until every in-sync replica has their records (acks=all).

Two heaps hold the same entries, ordered by required offset and by deadline. An entry that is done
is dropped from the other heap when it reaches its top. Nothing polls.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any


@dataclass(slots=True)
class _WaitingProduce:
    token: Any
    is_over: bool = field(default=False)


class WaitingProduces:
    """Waiting Produce requests, with their required offsets and deadlines."""

    __slots__ = ("_by_deadline", "_by_offset", "_number")

    def __init__(self) -> None:
        # The running number keeps entries with equal offsets or deadlines in arrival order.
        self._by_offset: list[tuple[int, int, _WaitingProduce]] = []
        self._by_deadline: list[tuple[int, int, _WaitingProduce]] = []
        self._number = 0

    def add(self, token: Any, required_offset: int, deadline_ms: int) -> None:
        """Add a request that waits until the high watermark reaches `required_offset`."""
        self._number += 1
        wait = _WaitingProduce(token)
        heappush(self._by_offset, (required_offset, self._number, wait))
        heappush(self._by_deadline, (deadline_ms, self._number, wait))

    def pop_reached(self, high_watermark: int) -> list[Any]:
        """Remove and return the requests whose records are below the high watermark."""
        return _pop_until(self._by_offset, high_watermark) if self._by_offset else []

    def pop_expired(self, now_ms: int) -> list[Any]:
        """Remove and return the requests whose deadline has passed."""
        return _pop_until(self._by_deadline, now_ms)

    def pop_all(self) -> list[Any]:
        """Remove and return all requests."""
        tokens = [wait.token for _, _, wait in sorted(self._by_offset) if not wait.is_over]
        self._by_offset.clear()
        self._by_deadline.clear()
        return tokens

    @property
    def next_deadline_ms(self) -> int | None:
        while self._by_deadline and self._by_deadline[0][2].is_over:
            heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else None


def _pop_until(heap: list[tuple[int, int, _WaitingProduce]], limit: int) -> list[Any]:
    tokens = []
    while heap and (heap[0][0] <= limit or heap[0][2].is_over):
        wait = heappop(heap)[2]
        if not wait.is_over:
            wait.is_over = True
            tokens.append(wait.token)
    return tokens
