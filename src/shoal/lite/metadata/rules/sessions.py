"""Which brokers live, told by when they were last heard of. Not in the log: a new controller
gives everyone a new session.

A controller whose own process was stopped for a while has not listened. What looks like
silence of all brokers is its own, so it gives everyone the time that it has missed.
"""

from collections.abc import Iterable


class Sessions:
    """The times until which brokers count as alive."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._ends_ms: dict[int, int] = {}
        self._awake_ms: int | None = None

    def wake(self, now_ms: int) -> None:
        """Take note of the time; to be called before anything else happens."""
        if self._awake_ms is not None and now_ms - self._awake_ms > self._timeout_ms // 2:
            missed_ms = now_ms - self._awake_ms
            self._ends_ms = {
                broker_id: end_ms + missed_ms for broker_id, end_ms in self._ends_ms.items()
            }
        self._awake_ms = now_ms

    def renew(self, broker_id: int, now_ms: int) -> None:
        self._ends_ms[broker_id] = now_ms + self._timeout_ms

    def end(self, broker_ids: Iterable[int]) -> None:
        for broker_id in broker_ids:
            self._ends_ms.pop(broker_id, None)

    def is_alive(self, broker_id: int, now_ms: int) -> bool:
        end_ms = self._ends_ms.get(broker_id)
        return end_ms is not None and now_ms < end_ms

    def take_expired(self, now_ms: int) -> list[int]:
        """Those who were not heard of for too long; they have no session any more."""
        expired = [broker_id for broker_id, end_ms in self._ends_ms.items() if end_ms <= now_ms]
        self.end(expired)
        return sorted(expired)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next one ends, or when we must look again to know that we were awake."""
        if self._awake_ms is None or not self._ends_ms:
            return None
        return min(self._awake_ms + self._timeout_ms // 3, *self._ends_ms.values())
