"""The send rate limit of a mirror: one budget for everything that one process sends.

Rules:
- The limit is an average: after a request of n bytes nothing is sent for n / rate seconds. The
  runner and the transaction writers share one throttle, so their sum stays below the limit.
- A topic may have a limit of its own besides; while it is reached, other topics are sent.
- A mirror with several workers divides its limits by the number of partitions of each worker.
- The caller passes the time.
"""

from typing import Final

# With a limit, a request has at most the bytes of an eighth of a second, so that data arrives
# evenly.
_REQUESTS_PER_S: Final = 8


class Throttle:
    """The time at which the next request may be sent."""

    def __init__(self, max_bytes_per_s: float = 0) -> None:
        """0 for no limit."""
        self.max_bytes_per_s = max_bytes_per_s
        self.open_at_s = 0.0

    def is_open(self, now_s: float) -> bool:
        return self.open_at_s <= now_s

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Count a request that is sent now."""
        if self.max_bytes_per_s:
            self.open_at_s = max(self.open_at_s, now_s) + size_bytes / self.max_bytes_per_s

    def limit_span(self, room_bytes: int, span_s: float) -> int:
        """Limit what is sent at once, if nothing follows for a time."""
        if not self.max_bytes_per_s:
            return room_bytes
        return min(room_bytes, max(1, int(self.max_bytes_per_s * span_s)))

    def limit_request(self, request_bytes: int) -> int:
        """Limit the size of one request; a single larger batch is still sent alone."""
        return self.limit_span(request_bytes, 1 / _REQUESTS_PER_S)


def divide_limit(max_bytes_per_s: float, part: int, whole: int) -> float:
    """Return the share of a worker that has `part` of `whole` partitions."""
    if not max_bytes_per_s:
        return 0
    # With nothing to copy the share does not matter, but 0 would mean no limit.
    return max(1.0, max_bytes_per_s * part / max(1, whole))
