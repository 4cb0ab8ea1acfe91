"""A small read-only HTTP/1.1 server for metrics and health.

Rules:
- GET and HEAD only, of exactly the paths that were registered; a request has no body. Everything
  else gets an error status and the connection is closed.
- Limits: the size of a request's head, the time for it, the time to read an answer, and the number
  of connections. At the limit the connection that has been idle longest is closed, so that clients
  which connect and stay silent do not lock out Prometheus.
- With a token, pages other than health need `Authorization: Bearer TOKEN`, compared in constant
  time.
- One page is made at a time, in slices, and sent in slices: the event loop serves others in
  between, however many series a page has.
- It listens on 127.0.0.1 unless another host is given.
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from shoal.model.errors import ConfigError, SystemFailure
from shoal.telemetry.text import OPEN_METRICS, PLAIN

HEAD_LIMIT_BYTES: Final = 8 * 1024
MOST_CONNECTIONS: Final = 64
HEAD_TIMEOUT_S: Final = 60.0
SEND_TIMEOUT_S: Final = 30.0
_TOKEN_LIMIT_BYTES: Final = 4096
_HEALTH: Final = ("/healthz", "/readyz")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """Where metrics are served, and who may read them."""

    port: Annotated[int, "port"]
    host: Annotated[str, "host"] = "127.0.0.1"
    # A file with the token that readers must send; empty: no token.
    token_file: Annotated[str, "token_file"] = ""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a page may depend on."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False  # OpenMetrics


class BadPageRequest(Exception):
    """A page cannot be made with these parameters; the message is the answer."""


# Yields the text of a page in slices.
Page = Callable[[PageRequest], AsyncIterator[str]]
# Returns why the process is not ready; None if it is.
Readiness = Callable[[], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class _Head:
    """The parsed head of a request."""

    method: str
    path: str
    parameters: dict[str, str]
    headers: dict[str, str]
    is_kept_alive: bool


class _HttpError(Exception):
    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


def read_token(path: str) -> str:
    """The token in a file, without white space around it."""
    remedy = "write one line with a token of visible characters to it"
    try:
        with Path(path).open("rb") as file:
            data = file.read(_TOKEN_LIMIT_BYTES + 1)
        token = data.decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}", remedy=remedy) from error
    if not token or len(data) > _TOKEN_LIMIT_BYTES or not all("!" <= one <= "~" for one in token):
        raise ConfigError(f"the token file {path} does not contain one token", remedy=remedy)
    return token


class HttpPort:
    """Serves pages. `start`, then `close`."""

    def __init__(self, spec: EndpointSpec, pages: Mapping[str, Page], readiness: Readiness) -> None:
        self._spec = spec
        self._pages = pages
        self._readiness = readiness
        self._token = read_token(spec.token_file) if spec.token_file else ""
        self._server: asyncio.Server | None = None
        # Connections without a complete request, the one that waits longest first.
        self._idle: dict[asyncio.StreamWriter, None] = {}
        self._open: set[asyncio.StreamWriter] = set()
        self._page_lock = asyncio.Lock()

    async def start(self) -> int:
        """Listen; returns the port."""
        try:
            self._server = await asyncio.start_server(
                self._serve, self._spec.host, self._spec.port, limit=HEAD_LIMIT_BYTES
            )
        except (OSError, OverflowError) as error:
            raise SystemFailure(
                f"cannot serve metrics on {self._spec.host}:{self._spec.port}: {error}",
                remedy="choose another --metrics-port, or --metrics-port 0 for any free one",
            ) from error
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in [*self._open]:
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        while len(self._open) > MOST_CONNECTIONS and self._idle:
            oldest = next(iter(self._idle))
            self._drop(oldest)
        if len(self._open) > MOST_CONNECTIONS:  # all of them have a request in progress
            self._drop(writer)
            return
        _enable_keep_alive(writer)
        try:
            while await self._answer_next(reader, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError) as error:
            _logger.debug("metrics connection closed: %r", error)
        finally:
            self._drop(writer)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._idle.pop(writer, None)
        self._open.discard(writer)
        writer.close()

    async def _answer_next(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer the next request; False at the end of the connection."""
        self._idle[writer] = None
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = parse_head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            text = f"the head of a request is limited to {HEAD_LIMIT_BYTES} bytes"
            await _refuse(writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
            return False
        except _HttpError as error:
            await _refuse(writer, error.status, str(error))
            return False
        finally:
            self._idle.pop(writer, None)
        try:
            content, content_type = await self._content(head)
        except _HttpError as error:
            await _refuse(writer, error.status, str(error))
            return False
        await _send(
            writer,
            HTTPStatus.OK,
            content,
            content_type=content_type,
            is_head=head.method == "HEAD",
            is_kept_alive=head.is_kept_alive,
        )
        return head.is_kept_alive

    async def _content(self, head: _Head) -> tuple[list[bytes], str]:
        if head.path == "/healthz":
            return [b"ok\n"], PLAIN
        if head.path == "/readyz":
            reason = await self._readiness()
            if reason is not None:
                raise _HttpError(HTTPStatus.SERVICE_UNAVAILABLE, reason)
            return [b"ready\n"], PLAIN
        self._check_token(head.headers.get("authorization", ""))
        page = self._pages.get(head.path)
        if page is None:
            known = ", ".join((*self._pages, *_HEALTH))
            raise _HttpError(HTTPStatus.NOT_FOUND, f"the pages are {known}")
        is_open = "application/openmetrics-text" in head.headers.get("accept", "")
        slices: list[bytes] = []
        try:
            async with self._page_lock:
                async for part in page(PageRequest(head.parameters, is_open)):
                    slices.append(part.encode())
                    await asyncio.sleep(0)
        except BadPageRequest as error:
            raise _HttpError(HTTPStatus.BAD_REQUEST, str(error)) from error
        return slices, OPEN_METRICS if is_open else PLAIN

    def _check_token(self, given: str) -> None:
        wanted = f"Bearer {self._token}"
        if self._token and not hmac.compare_digest(given.encode(), wanted.encode()):
            raise _HttpError(HTTPStatus.UNAUTHORIZED, "send Authorization: Bearer TOKEN")


def parse_head(data: bytes) -> _Head:
    """Parse the head of a request; `_HttpError` if it is not one that is served."""
    lines = data.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in {"HTTP/1.0", "HTTP/1.1"}:
        raise _HttpError(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP/1.1")
    method, target, version = words
    if method not in {"GET", "HEAD"}:
        raise _HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "use GET")
    headers: dict[str, str] = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _HttpError(HTTPStatus.BAD_REQUEST, "a header is malformed")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise _HttpError(HTTPStatus.BAD_REQUEST, "a request must not have a body")
    try:
        split = urlsplit(target)
        parameters = dict(parse_qsl(split.query, max_num_fields=20))
    except ValueError as error:
        raise _HttpError(HTTPStatus.BAD_REQUEST, "the target is malformed") from error
    wish = headers.get("connection", "").lower()
    is_kept_alive = wish != "close" if version == "HTTP/1.1" else wish == "keep-alive"
    return _Head(method, split.path, parameters, headers, is_kept_alive)


async def _refuse(writer: asyncio.StreamWriter, status: HTTPStatus, text: str) -> None:
    await _send(writer, status, [f"{text}\n".encode()])


async def _send(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    slices: Sequence[bytes],
    *,
    content_type: str = PLAIN,
    is_head: bool = False,
    is_kept_alive: bool = False,
) -> None:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {sum(map(len, slices))}",
        f"Connection: {'keep-alive' if is_kept_alive else 'close'}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    ]
    if status is HTTPStatus.UNAUTHORIZED:
        lines.append("WWW-Authenticate: Bearer")
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    async with asyncio.timeout(SEND_TIMEOUT_S):
        for part in (head,) if is_head else (head, *slices):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if not is_kept_alive and writer.can_write_eof():
            writer.write_eof()


def _enable_keep_alive(writer: asyncio.StreamWriter) -> None:
    """Let the system notice peers that vanished."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
