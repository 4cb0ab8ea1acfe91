"""The HTTP port with real sockets: pages, refusals and limits."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.model.errors import ConfigError, SystemFailure
from shoal.telemetry.http_port import (
    HEAD_LIMIT_BYTES,
    MOST_CONNECTIONS,
    EndpointSpec,
    HttpPort,
    PageRequest,
    read_token,
)


async def _page(request: PageRequest) -> AsyncIterator[str]:
    yield "shoal_b 1\n"
    if request.is_open:
        yield "# EOF\n"


@asynccontextmanager
async def _serve(token_file: str = "", reason: str | None = None) -> AsyncIterator[int]:
    async def readiness() -> str | None:
        return reason

    spec = EndpointSpec(0, token_file=token_file)
    port = HttpPort(spec, {"/metrics": _page}, readiness)
    number = await port.start()
    try:
        yield number
    finally:
        await port.close()


async def _exchange(port: int, request: bytes) -> bytes:
    """Everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def _get(path: str, *headers: str, method: str = "GET") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_pages_of_metrics_and_health() -> None:
    async with _serve() as port:
        answer = await _exchange(port, _get("/metrics?x=1"))
        assert _status(answer) == 200
        assert b"text/plain; version=0.0.4" in answer
        assert answer.endswith(b"\r\n\r\nshoal_b 1\n")
        accept = "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1"
        assert (await _exchange(port, _get("/metrics", accept))).endswith(b"# EOF\n")
        assert _status(await _exchange(port, _get("/healthz"))) == 200
        assert _status(await _exchange(port, _get("/readyz"))) == 200
        head = await _exchange(port, _get("/metrics", method="HEAD"))
        assert b"Content-Length: 10" in head
        assert head.endswith(b"\r\n\r\n")


async def test_a_process_that_is_not_ready_says_why() -> None:
    async with _serve(reason="broker 2 does not run") as port:
        answer = await _exchange(port, _get("/readyz"))
        assert _status(answer) == 503
        assert b"broker 2 does not run" in answer
        assert _status(await _exchange(port, _get("/healthz"))) == 200


_BAD_REQUESTS = {
    "post": (_get("/metrics", method="POST"), 405),
    "delete": (_get("/metrics", method="DELETE"), 405),
    "trace": (_get("/metrics", method="TRACE"), 405),
    "unknown": (_get("/"), 404),
    "traversal": (_get("/metrics/../../../../etc/passwd"), 404),
    "encoded": (_get("/metrics/%2e%2e/%2e%2e/etc/passwd"), 404),
    "absolute": (_get("//etc/passwd"), 404),
    "body": (_get("/metrics", "Content-Length: 5"), 400),
    "chunked": (_get("/metrics", "Transfer-Encoding: chunked"), 400),
    "no-version": (b"GET /metrics\r\n\r\n", 400),
    "http2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "malformed-header": (_get("/metrics", "no colon"), 400),
    "spaced-header": (_get("/metrics", "Content-Length : 5"), 400),
    "malformed-target": (_get("http://[x/metrics"), 400),
    "many-parameters": (_get("/metrics?" + "a=1&" * 100), 400),
    "large-header": (_get("/metrics", "X: " + "x" * HEAD_LIMIT_BYTES), 431),
    "binary": (bytes(range(128, 256)) + b"\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", _BAD_REQUESTS)
async def test_a_bad_request_is_refused(name: str) -> None:
    request, status = _BAD_REQUESTS[name]
    async with _serve() as port:
        answer = await _exchange(port, request)
        assert _status(answer) == status
        assert b"shoal_b" not in answer
        assert _status(await _exchange(port, _get("/metrics"))) == 200


async def test_an_endless_head_is_cut_off() -> None:
    async with _serve() as port:
        answer = await _exchange(port, b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 100_000)
        # The rest of the request may reset the connection before the answer is read.
        assert answer == b"" or _status(answer) == 431
        assert _status(await _exchange(port, _get("/metrics"))) == 200


async def test_a_connection_is_kept_for_the_next_scrape() -> None:
    async with _serve() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"keep-alive" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(10) == b"shoal_b 1\n"
        writer.close()


async def test_a_token_is_required_for_metrics_and_not_for_health(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    async with _serve(str(file)) as port:
        for header, status in (
            ("X: y", 401),
            ("Authorization: Bearer wrong", 401),
            ("Authorization: secret-1", 401),
            ("Authorization: Bearer secret-1", 200),
        ):
            assert _status(await _exchange(port, _get("/metrics", header))) == status
        # Without the token nobody learns which pages exist.
        assert _status(await _exchange(port, _get("/other"))) == 401
        assert _status(await _exchange(port, _get("/healthz"))) == 200


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe", b"x" * 5000])
def test_a_bad_token_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="token"):
        read_token(str(file))


async def test_silent_connections_do_not_lock_out_a_scrape() -> None:
    """1,000 connections that send nothing, and some that send half a request."""
    async with _serve() as port:
        silent = []
        try:
            for number in range(1000):
                one = socket.create_connection(("127.0.0.1", port))
                silent.append(one)
                if number % 10 == 0:
                    one.sendall(b"GET /metrics HTTP/1.1\r\n")
                if number % 50 == 0:
                    await asyncio.sleep(0)
            assert _status(await _exchange(port, _get("/metrics"))) == 200
            assert len(silent) > MOST_CONNECTIONS
        finally:
            for one in silent:
                one.close()


async def test_a_port_in_use_is_an_error_with_a_remedy() -> None:
    async def readiness() -> str | None:
        return None

    async with _serve() as port:
        second = HttpPort(EndpointSpec(port), {}, readiness)
        with pytest.raises(SystemFailure, match="cannot serve metrics") as raised:
            await second.start()
        assert "--metrics-port" in str(raised.value.remedy)
