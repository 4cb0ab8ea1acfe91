"""Split bytes into lines, with a limit on their length. No I/O.

A line longer than the limit is refused as soon as it exceeds the limit, before more of it is
buffered. The limit can be raised later, once the peer is authenticated.
"""

from shoal.net.messages import ControlError


class LineDecoder:
    """Buffers bytes and returns complete lines, without their newline."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        self._rest += data

    def next_line(self) -> bytes | None:
        """The next complete line, or None. Call it line by line: a line may change the limit."""
        end = self._rest.find(b"\n", 0, self.limit_bytes + 1)
        if end < 0:
            if len(self._rest) > self.limit_bytes:
                raise ControlError(f"a control line is longer than {self.limit_bytes} bytes")
            return None
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line
