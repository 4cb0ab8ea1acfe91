"""The proxy on real sockets: what passes, what waits, what ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from shoal.net.proxy import HELD_LIMIT_BYTES, Proxy, Route
from shoal.net.ways import Effect, Names

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
        self.route = self.routed()
        self._writers: list[asyncio.StreamWriter] = []

    def routed(self, **options: object) -> Route:
        caller = None if "greeter" in options else CALLER
        route = Route(("127.0.0.1", self.server_port), TARGET, caller=caller, **options)  # type: ignore[arg-type]
        self.proxy.open(route)
        return route

    async def connect(self, route: Route | None = None) -> Streams:
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
    """Sent, and not back after a while that an open link would not need."""
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
        number = it.proxy.hinder({source}, {target}, Effect(is_cut=True))
        await waits(streams)
        fresh = await it.connect()
        await waits(fresh)
        it.proxy.relieve(number)
        assert await streams[0].readexactly(4) == b"held"
        assert await fresh[0].readexactly(4) == b"held"
        await passes(streams)


async def test_a_cut_hides_a_death_until_it_is_healed() -> None:
    async with world() as it:
        reader, writer = await it.connect()
        await passes((reader, writer))
        number = it.proxy.hinder({"target"}, {"caller"}, Effect(is_cut=True))
        # The server answers the end of the stream with its own.
        writer.write_eof()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.3)
        it.proxy.relieve(number)
        assert await reader.read() == b""


async def test_a_stall_lets_new_connections_pass() -> None:
    async with world() as it:
        old = await it.connect()
        await passes(old)
        number = it.proxy.hinder({"caller"}, {"target"}, Effect(is_stalled=True))
        await waits(old)
        await passes(await it.connect())
        it.proxy.relieve(number)
        assert await old[0].readexactly(4) == b"held"


async def test_a_reset_ends_connections_of_the_named_places_only() -> None:
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
        number = it.proxy.hinder({"caller"}, {"target"}, Effect(delay_ms=150))
        begun = clock()
        await passes(streams)
        assert clock() - begun >= 0.15
        it.proxy.relieve(number)
        it.proxy.hinder({"caller"}, {"target"}, Effect(bytes_per_s=200_000))
        begun = clock()
        await passes(streams, b"x" * 100_000)
        # What a late timer may catch up, and the last piece, go for nothing.
        assert clock() - begun >= 0.4


async def test_what_is_held_is_bounded_and_comes_out_whole() -> None:
    received = bytearray()
    done = asyncio.Event()
    total = 4 * HELD_LIMIT_BYTES

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            received.extend(data)
        done.set()
        writer.close()

    async with world(swallow) as it:
        number = it.proxy.hinder({"caller"}, {"target"}, Effect(is_stalled=True))
        it.proxy.relieve(number)
        _, writer = await it.connect()
        number = it.proxy.hinder({"caller"}, {"target"}, Effect(is_cut=True))
        sent = bytes(range(251)) * (total // 251)
        writer.write(sent)
        drained = asyncio.ensure_future(writer.drain())
        _, pending = await asyncio.wait([drained], timeout=0.5)
        assert pending, "the proxy swallowed more than it may hold"
        it.proxy.relieve(number)
        await drained
        writer.write_eof()
        await done.wait()
        assert received == sent


async def test_a_target_that_is_not_there_resets_the_caller() -> None:
    async with world() as it:
        gone = Route(("127.0.0.1", 1), TARGET, caller=CALLER)
        it.proxy.open(gone)
        reader, _ = await it.connect(gone)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)


class FirstByte:
    """The caller is named by what it says first."""

    def hear(self, data: bytes) -> Names | None:
        return frozenset({f"node-{data[:2].decode()}"}) if len(data) >= 2 else None


async def test_a_caller_is_known_by_its_greeting() -> None:
    async with world() as it:
        route = it.routed(greeter=FirstByte())
        it.proxy.hinder({"node-07"}, {"target"}, Effect(is_cut=True))
        seven, eight = await it.connect(route), await it.connect(route)
        seven[1].write(b"0")
        await waits(seven, b"7")
        await passes(eight, b"08")
        assert it.proxy.reset({"node-08"}, {"target"}) == 1


class Shout:
    """Changes what passes, each way in its own manner."""

    def asked(self, data: bytes) -> list[bytes]:
        return [data.upper()]

    def answered(self, data: bytes) -> list[bytes]:
        return [data.replace(b"L", b"-")]


async def test_a_translator_sees_both_ways() -> None:
    async with world() as it:
        reader, writer = await it.connect(it.routed(translator=Shout))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HE--O"
