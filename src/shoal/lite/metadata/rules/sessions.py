"""Sessions of brokers: which are alive, by their last heartbeats. Not in the metadata log: a new
controller gives every broker a new session.

A controller whose own process was paused has missed heartbeats. What looks like silence of all
brokers is its own pause, so it extends all sessions by the time that it missed.
"""

from collections.abc import Iterable


class Sessions:
    """The times at which the sessions of brokers expire."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._ends_ms: dict[int, int] = {}
        self._awake_ms: int | None = None

    def note_time(self, now_ms: int) -> None:
        """Note the time and extend sessions after a pause; call this first for every event."""
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
        """Remove and return the brokers whose sessions have expired."""
        expired = [broker_id for broker_id, end_ms in self._ends_ms.items() if end_ms <= now_ms]
        self.end(expired)
        return sorted(expired)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next session ends, or when to note the time again so that a pause is noticed."""
        if self._awake_ms is None or not self._ends_ms:
            return None
        return min(self._awake_ms + self._timeout_ms // 3, *self._ends_ms.values())
