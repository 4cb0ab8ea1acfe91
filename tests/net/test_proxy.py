"""The proxy on real sockets: bytes that pass, bytes that are held, connections that end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from shoal.net.link_faults import EndpointNames, LinkEffect
from shoal.net.proxy import HELD_LIMIT_BYTES, Proxy, ProxyRoute

pytestmark = pytest.mark.slow

CALLER, TARGET = frozenset({"caller"}), frozenset({"target"})
LIMIT_S = 60.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class World:
    """A server, a proxy before it, and the connections that a test makes."""

    def __init__(self, proxy: Proxy, server_port: int) -> None:
        self.proxy = proxy
        self.server_port = server_port
        self.route = self.open_route()
        self._writers: list[asyncio.StreamWriter] = []

    def open_route(self, **options: object) -> ProxyRoute:
        caller = None if "caller_identifier" in options else CALLER
        route = ProxyRoute(("127.0.0.1", self.server_port), TARGET, caller=caller, **options)  # type: ignore[arg-type]
        self.proxy.open(route)
        return route

    async def connect(self, route: ProxyRoute | None = None) -> Streams:
        port = (route or self.route).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def world(serve: Serve = echo) -> AsyncIterator[World]:
    async with asyncio.timeout(LIMIT_S):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = Proxy()
        made = World(proxy, server.sockets[0].getsockname()[1])
        try:
            yield made
        finally:
            await made.close()
            await proxy.close()
            server.close()
            await server.wait_closed()


async def passes(streams: Streams, data: bytes = b"hello") -> None:
    reader, writer = streams
    writer.write(data)
    assert await reader.readexactly(len(data)) == data


async def waits(streams: Streams, data: bytes = b"held") -> None:
    """Send data, and check that the echo does not arrive in the time an open link needs."""
    reader, writer = streams
    writer.write(data)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(len(data)), 0.3)


async def test_bytes_pass_both_ways_and_the_end_too() -> None:
    async with world() as it:
        reader, writer = await it.connect()
        data = bytes(range(256)) * 40_000
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.write_eof()
        assert await reader.read() == b""


@pytest.mark.parametrize(("source", "target"), [("caller", "target"), ("target", "caller")])
async def test_a_cut_holds_everything_until_it_is_healed(source: str, target: str) -> None:
    async with world() as it:
        streams = await it.connect()
        await passes(streams)
        number = it.proxy.add_fault({source}, {target}, LinkEffect(is_cut=True))
        await waits(streams)
        fresh = await it.connect()
        await waits(fresh)
        it.proxy.remove_fault(number)
        assert await streams[0].readexactly(4) == b"held"
        assert await fresh[0].readexactly(4) == b"held"
        await passes(streams)


async def test_a_cut_hides_a_closed_peer_until_it_is_healed() -> None:
    async with world() as it:
        reader, writer = await it.connect()
        await passes((reader, writer))
        number = it.proxy.add_fault({"target"}, {"caller"}, LinkEffect(is_cut=True))
        # The server answers the end of the stream with its own.
        writer.write_eof()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.3)
        it.proxy.remove_fault(number)
        assert await reader.read() == b""


async def test_a_stall_lets_new_connections_pass() -> None:
    async with world() as it:
        old = await it.connect()
        await passes(old)
        number = it.proxy.add_fault({"caller"}, {"target"}, LinkEffect(is_stalled=True))
        await waits(old)
        await passes(await it.connect())
        it.proxy.remove_fault(number)
        assert await old[0].readexactly(4) == b"held"


async def test_a_reset_ends_connections_of_the_named_endpoints_only() -> None:
    async with world() as it:
        reader, writer = await it.connect()
        await passes((reader, writer))
        assert it.proxy.reset({"caller"}, {"elsewhere"}) == 0
        await passes((reader, writer))
        assert it.proxy.reset({"target"}, {"caller"}) == 1
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await passes(await it.connect())


async def test_a_delay_and_a_bandwidth_take_their_time() -> None:
    async with world() as it:
        streams = await it.connect()
        await passes(streams)
        clock = asyncio.get_running_loop().time
        number = it.proxy.add_fault({"caller"}, {"target"}, LinkEffect(delay_ms=150))
        begun = clock()
        await passes(streams)
        assert clock() - begun >= 0.15
        it.proxy.remove_fault(number)
        it.proxy.add_fault({"caller"}, {"target"}, LinkEffect(bytes_per_s=200_000))
        begun = clock()
        await passes(streams, b"x" * 100_000)
        # Neither the catch-up of a late timer nor the last piece is delayed.
        assert clock() - begun >= 0.4


async def test_held_bytes_are_bounded_and_arrive_whole() -> None:
    received = bytearray()
    done = asyncio.Event()
    total = 4 * HELD_LIMIT_BYTES

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            received.extend(data)
        done.set()
        writer.close()

    async with world(swallow) as it:
        number = it.proxy.add_fault({"caller"}, {"target"}, LinkEffect(is_stalled=True))
        it.proxy.remove_fault(number)
        _, writer = await it.connect()
        number = it.proxy.add_fault({"caller"}, {"target"}, LinkEffect(is_cut=True))
        sent = bytes(range(251)) * (total // 251)
        writer.write(sent)
        drained = asyncio.ensure_future(writer.drain())
        _, pending = await asyncio.wait([drained], timeout=0.5)
        assert pending, "the proxy swallowed more than it may hold"
        it.proxy.remove_fault(number)
        await drained
        writer.write_eof()
        await done.wait()
        assert received == sent


async def test_an_unreachable_target_resets_the_caller() -> None:
    # A port that is bound, so that nothing else takes it, and refuses connections.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        await _expect_reset(ProxyRoute(closed.getsockname(), TARGET, caller=CALLER))


async def _expect_reset(gone: ProxyRoute) -> None:
    async with world() as it:
        it.proxy.open(gone)
        reader, _ = await it.connect(gone)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)


class FirstByte:
    """Takes the first bytes of a connection as the name of its caller."""

    def identify_caller(self, data: bytes) -> EndpointNames | None:
        return frozenset({f"node-{data[:2].decode()}"}) if len(data) >= 2 else None


async def test_a_caller_is_identified_by_its_first_bytes() -> None:
    async with world() as it:
        route = it.open_route(caller_identifier=FirstByte())
        it.proxy.add_fault({"node-07"}, {"target"}, LinkEffect(is_cut=True))
        seven, eight = await it.connect(route), await it.connect(route)
        seven[1].write(b"0")
        await waits(seven, b"7")
        await passes(eight, b"08")
        assert it.proxy.reset({"node-08"}, {"target"}) == 1


class Shout:
    """Changes the bytes of each direction in a different way."""

    def rewrite_request(self, data: bytes) -> list[bytes]:
        return [data.upper()]

    def rewrite_response(self, data: bytes) -> list[bytes]:
        return [data.replace(b"L", b"-")]


async def test_a_rewriter_sees_both_directions() -> None:
    async with world() as it:
        reader, writer = await it.connect(it.open_route(rewriter=Shout))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HE--O"
