"""One connection against raw servers: order, time-outs, cuts, half answers, cancellation."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trustme

from shoal.client.errors import AuthenticationFailed, ConnectionLost, RequestTimedOut
from shoal.client.transport.connection import Connection, connect
from shoal.model.errors import ShoalError
from support.client.waiting import eventually

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMIT = 64 * 1024 * 1024


@contextlib.asynccontextmanager
async def serving(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that holds this talk on each connection."""
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def open_connection(
    port: int, *, in_flight: int = 5, limit: int = LIMIT
) -> AsyncIterator[Connection]:
    connection = await connect("127.0.0.1", port, max_in_flight=in_flight, limit_bytes=limit)
    try:
        yield connection
    finally:
        await connection.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def add_length(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def asking(body: bytes) -> Callable[[int], list[bytes]]:
    return lambda correlation_id: [correlation_id.to_bytes(4, "big"), body]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with itself, which begins with its correlation id."""
    while True:
        writer.write(add_length(await read_frame(reader)))


async def ask(connection: Connection, body: bytes, timeout_s: float = 5.0) -> bytes:
    answer = await connection.request(asking(body), name="TEST v0", timeout_s=timeout_s)
    return bytes(answer[4:])


async def test_many_requests_are_answered_in_order() -> None:
    async with serving(echo) as port, open_connection(port) as connection:
        answers = await asyncio.gather(*(ask(connection, b"%d" % i) for i in range(100)))
        assert answers == [b"%d" % i for i in range(100)]
        assert connection.unanswered == 0


async def test_no_more_than_the_limit_is_in_flight() -> None:
    received: list[bytes] = []
    answer_now = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await read_frame(reader)
            received.append(data)
            await answer_now.wait()
            writer.write(add_length(data))

    async with serving(slow) as port, open_connection(port, in_flight=3) as connection:
        tasks = [asyncio.create_task(ask(connection, b"%d" % i)) for i in range(8)]
        await asyncio.sleep(0.05)
        assert len(connection._in_flight) == 3
        assert connection.unanswered == 8
        answer_now.set()
        assert await asyncio.gather(*tasks) == [b"%d" % i for i in range(8)]
        assert connection.unanswered == 0


async def test_large_requests_in_parts_arrive_whole() -> None:
    parts = [bytes([number]) * 300_000 for number in range(40)]

    async with serving(echo) as port, open_connection(port) as connection:
        for _ in range(3):
            answer = await connection.request(
                lambda correlation_id: [correlation_id.to_bytes(4, "big"), *parts],
                name="LARGE",
                timeout_s=60,
            )
            assert bytes(answer[4:]) == b"".join(parts)


async def test_more_parts_than_the_kernel_takes_at_once() -> None:
    parts = [b"%04d" % number for number in range(3000)]
    async with serving(echo) as port, open_connection(port) as connection:
        answer = await connection.request(
            lambda correlation_id: [correlation_id.to_bytes(4, "big"), *parts],
            name="PARTS",
            timeout_s=60,
        )
        assert bytes(answer[4:]) == b"".join(parts)


async def test_a_request_without_an_answer_is_done_when_sent() -> None:
    async def listen(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while True:
            received.append(await read_frame(reader))

    received: list[bytes] = []
    async with serving(listen) as port, open_connection(port) as connection:
        for number in range(10):
            sent = connection.submit(
                asking(b"%d" % number), name="ACKS 0", timeout_s=1, expects_answer=False
            )
            assert bytes(await sent) == b""
        await eventually(lambda: len(received) == 10)
        assert connection.unanswered == 0


async def stay_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_a_time_out_closes_the_connection_and_takes_the_others_along() -> None:
    async with serving(stay_silent) as port, open_connection(port, in_flight=2) as connection:
        slow = asyncio.create_task(ask(connection, b"slow", timeout_s=0.05))
        other = asyncio.create_task(ask(connection, b"other"))
        queued = asyncio.create_task(ask(connection, b"queued"))
        with pytest.raises(
            RequestTimedOut, match=r"did not answer TEST v0 within 0\.05 s"
        ) as timed:
            await slow
        assert timed.value.sent
        with pytest.raises(ConnectionLost) as lost:
            await other
        assert lost.value.sent
        with pytest.raises(ConnectionLost) as unsent:
            await queued
        assert not unsent.value.sent
        assert connection.is_closed
        with pytest.raises(ConnectionLost) as late:
            await ask(connection, b"late")
        assert not late.value.sent


async def test_a_queued_request_times_out_alone() -> None:
    async with serving(stay_silent) as port, open_connection(port, in_flight=1) as connection:
        first = asyncio.create_task(ask(connection, b"first"))
        await asyncio.sleep(0)
        with pytest.raises(RequestTimedOut) as timed:
            await ask(connection, b"queued", timeout_s=0.05)
        assert not timed.value.sent
        assert not connection.is_closed
        first.cancel()


async def test_a_cancelled_caller_leaves_the_connection_in_step() -> None:
    hold = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await read_frame(reader)
            await hold.wait()
            writer.write(add_length(data))

    async with serving(slow) as port, open_connection(port, in_flight=2) as connection:
        tasks = [asyncio.create_task(ask(connection, b"%d" % i)) for i in range(6)]
        await asyncio.sleep(0.02)
        for number in (0, 1, 3):  # two in flight, one queued
            tasks[number].cancel()
        await asyncio.sleep(0)
        hold.set()
        assert [await tasks[number] for number in (2, 4, 5)] == [b"2", b"4", b"5"]
        assert await ask(connection, b"after") == b"after"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "closed the connection"),
        (b"\0\0\0\x64half", "closed the connection in the middle of a response"),
        (
            b"\xff\xff\xff\xffxxxx",
            "sent an invalid response: a frame has an invalid length: -1 bytes",
        ),
        (
            b"\x7f\xff\xff\xff",
            "sent an invalid response: a frame of 2147483647 bytes exceeds the limit",
        ),
        (add_length(b"\0\0\0\x63lies"), "correlation id 99 instead of 1"),
        (add_length(b"\0"), "sent a response of 1 bytes"),
    ],
)
async def test_a_broker_that_breaks_off_or_lies_costs_its_connection(
    sent: bytes, message: str
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(sent)
        await writer.drain()

    async with serving(talk) as port, open_connection(port) as connection:
        with pytest.raises(ConnectionLost) as lost:
            await ask(connection, b"question")
        assert message in str(lost.value)
        assert lost.value.sent
        assert connection.is_closed


async def test_an_answer_to_nothing_closes_the_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(add_length(b"\0\0\0\1surprise"))
        await reader.read()

    async with serving(talk) as port, open_connection(port) as connection:
        await eventually(lambda: connection.is_closed)
        with pytest.raises(ConnectionLost, match="sent a response without a request"):
            await ask(connection, b"question")


async def test_an_error_while_encoding_is_the_callers_alone() -> None:
    def broken(_: int) -> list[bytes]:
        raise ShoalError("cannot be written")

    async with serving(echo) as port, open_connection(port) as connection:
        with pytest.raises(ShoalError, match="cannot be written"):
            await connection.request(broken, name="BROKEN", timeout_s=1)
        assert await ask(connection, b"fine") == b"fine"


async def test_closing_fails_what_is_unanswered_and_leaves_no_socket() -> None:
    async with serving(stay_silent) as port, open_connection(port) as connection:
        waiting = asyncio.create_task(ask(connection, b"question"))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(ConnectionLost, match="this client closed") as lost:
            await waiting
        assert lost.value.sent
        assert not connection.is_open
        await connection.close()


async def test_a_retired_connection_closes_after_its_last_answer() -> None:
    async with serving(echo) as port, open_connection(port) as connection:
        last = connection.submit(asking(b"last"), name="LAST", timeout_s=60)
        connection.retire()
        assert connection.is_closed
        assert bytes((await last)[4:]) == b"last"
        await eventually(lambda: not connection.is_open)
        assert not connection.is_open


async def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConnectionLost, match="connection refused") as lost:
            await connect("127.0.0.1", port, max_in_flight=1, limit_bytes=LIMIT)
        assert not lost.value.sent


async def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(ConnectionLost, match="unknown host"):
        await connect("no-such-host.invalid", 9092, max_in_flight=1, limit_bytes=LIMIT)


def contexts(name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    return server, client


async def test_tls_carries_large_answers() -> None:
    server, client = contexts("127.0.0.1")
    body = bytes(range(256)) * 20_000
    async with serving(echo, server) as port:
        connection = await connect(
            "127.0.0.1", port, max_in_flight=5, limit_bytes=LIMIT, tls=client
        )
        assert await asyncio.gather(*(ask(connection, body, 20) for _ in range(4))) == [body] * 4
        await connection.close()


async def test_a_certificate_for_another_host_is_not_accepted() -> None:
    server, client = contexts("example.org")
    async with serving(echo, server) as port:
        with pytest.raises(AuthenticationFailed, match="certificate is not trusted") as failed:
            await connect("127.0.0.1", port, max_in_flight=5, limit_bytes=LIMIT, tls=client)
        assert failed.value.remedy


async def test_tls_to_a_plain_port_says_so() -> None:
    async def rude(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4oops")

    _, client = contexts("127.0.0.1")
    async with serving(rude) as port:
        with pytest.raises(ConnectionLost) as lost:
            await connect("127.0.0.1", port, max_in_flight=5, limit_bytes=LIMIT, tls=client)
        assert lost.value.remedy == "check that the port uses TLS"
