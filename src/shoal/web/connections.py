"""HTTP connections with limits: idle ones never keep others out.

Rules: at most `MOST_CONNECTIONS` are open; a further one takes the place of the one that was idle
longest. A connection that sends no complete request in `HEADER_TIMEOUT_S` is closed, and so is one
that reads nothing of its answer for `READ_TIMEOUT_S`. If all are busy, the new one is closed.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MOST_CONNECTIONS: Final = 256
HEADER_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 30.0


class LimitedProtocol(H11Protocol):
    """One connection."""

    # By age: a connection moves to the end when it completes a request.
    _open: dict["LimitedProtocol", None] = {}  # noqa: RUF012 - shared by all connections
    _first_request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _has_requested = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self._open) >= MOST_CONNECTIONS:
            idle = next((each for each in self._open if each.is_idle()), None)
            (idle or self).transport.abort()
            self._open.pop(idle or self, None)
            if idle is None:
                return
        self._open[self] = None
        self._first_request_timer = self.loop.call_later(HEADER_TIMEOUT_S, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.pop(self, None)
        for timer in (self._first_request_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._has_requested = True
        if self._open.pop(self, self) is None:
            self._open[self] = None
        super().on_response_complete()

    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _close_if_idle(self) -> None:
        # After its first request the server's own timer closes an idle connection.
        if not self._has_requested and self.is_idle():
            self.transport.abort()
