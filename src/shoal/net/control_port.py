"""Control ports: JSON objects on lines, and a token. The framing of all control connections.

Rules:
- A line is one JSON object. Its length is limited before it is parsed, and a longer line is refused
  as soon as it exceeds the limit.
- A peer must know the token, which is compared in constant time.
- A peer that sends no request, or does not read its answer, for `IDLE_LIMIT_S` is closed.
- `ControlPort` answers each request with one line. A peer that breaks a rule gets no answer: its
  connection is closed, and the log says why.
- A command from another terminal is one connection with one request (`request_answer`).
"""

import asyncio
import hmac
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from shoal.model.errors import ShoalError

HOST: Final = "127.0.0.1"
LINE_LIMIT_BYTES: Final = 1 << 20
ANSWER_LIMIT_BYTES: Final = 64 << 20
IDLE_LIMIT_S: Final = 30.0

Json = dict[str, Any]

_log = logging.getLogger(__name__)


class ControlError(ShoalError):
    """The other side of a control connection broke the protocol."""

    blame = "remote"


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


def decode_object(line: bytes) -> Json:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"a control line is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ControlError("a control line is not a JSON object")
    return body


def check_token(given: object, token: str) -> None:
    """Refuse a peer that does not know the token."""
    if not hmac.compare_digest(str(given).encode(), token.encode()):
        raise ControlError(
            "a control line has a wrong token: this process did not start the peer, which has not "
            "read its control file"
        )


class ControlPort:
    """Listens on the loopback interface and answers the requests of peers that know the token."""

    def __init__(
        self,
        answer: Callable[[Json], Awaitable[Json]],
        *,
        token: str,
        timeout_s: float | None = None,
    ) -> None:
        """`timeout_s` limits the time from the connection or the last answer to the next answer."""
        self._answer = answer
        self._token = token
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        # Connections without a request; the others end after their answer.
        self._idle: set[asyncio.StreamWriter] = set()
        self._is_closed = False

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=LINE_LIMIT_BYTES)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening; requests that are being executed are still answered."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
            for writer in self._idle:
                writer.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self._is_closed and await self._answer_next(reader, writer):
                pass
        except (ControlError, ValueError, ConnectionError, TimeoutError) as error:
            _log.info("control connection closed: %s", str(error) or "no request in time")
        finally:
            writer.close()

    async def _answer_next(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer the next request; False at the end of the connection."""
        async with asyncio.timeout(self._timeout_s):
            self._idle.add(writer)
            try:
                async with asyncio.timeout(IDLE_LIMIT_S):
                    line = await reader.readline()
            except ValueError as error:  # raised by asyncio beyond the limit
                raise ControlError(
                    f"a control line is longer than {LINE_LIMIT_BYTES} bytes"
                ) from error
            finally:
                self._idle.discard(writer)
            if not line:
                return False
            request = decode_object(line)
            check_token(request.get("token"), self._token)
            writer.write(_encode(await self._answer(request)))
            async with asyncio.timeout(IDLE_LIMIT_S):
                await writer.drain()
        return True


def request_answer(port: int, request: Json, *, timeout_s: float) -> Json:
    """Send one request to a control port and return the answer.

    Raises `OSError` if nothing listens or answers in time, `ControlError` for a bad answer.
    """
    with socket.create_connection((HOST, port), timeout_s) as connection:
        connection.sendall(_encode(request))
        with connection.makefile("rb") as answers:
            line = answers.readline(ANSWER_LIMIT_BYTES)
    if not line.endswith(b"\n"):
        raise ControlError(
            f"the connection to port {port} ended before the answer",
            remedy="see whether it still runs, with shoal cluster status or shoal mirror status",
        )
    return decode_object(line)


def _encode(body: Json) -> bytes:
    return json.dumps(body).encode() + b"\n"
