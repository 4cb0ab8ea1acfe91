"""The control channel over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from shoal.net import channel, control
from shoal.net.channel import DriverLost, WorkerEvent
from shoal.net.control import ControlClient, ControlServer, DriverGoneError
from shoal.net.messages import (
    Ack,
    Commit,
    Hello,
    Lease,
    LeaseRefused,
    Probe,
    ProbeReply,
    ProgressReport,
    StartAt,
    WorkerMessage,
    encode_message,
)

PATIENCE_S = 60.0
HELLO = Hello("p0", 1, "secret", "instance", 7, "host")


@dataclass
class Driver:
    """A driver that leases to all workers and acknowledges every commit by default."""

    server: ControlServer = field(init=False)
    messages: list[tuple[int, WorkerMessage]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    acknowledges: bool = True
    refuses: bool = False

    def __post_init__(self) -> None:
        self.server = ControlServer("secret", on_message=self._take, on_closed=self.closed.append)

    def _take(self, connection: int, message: WorkerMessage) -> None:
        self.messages.append((connection, message))
        if isinstance(message, Hello):
            answer = LeaseRefused("fenced") if self.refuses else Lease("p0", 1, None)
            self.server.send(connection, answer)
        elif isinstance(message, Commit) and self.acknowledges:
            self.server.send(connection, Ack(message.number))

    def said(self, kind: type[WorkerMessage]) -> list[WorkerMessage]:
        return [message for _, message in self.messages if isinstance(message, kind)]


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    driver = Driver()
    await driver.server.start()
    yield driver
    await driver.server.stop()


@contextlib.asynccontextmanager
async def _client(
    address: tuple[str, int], events: list[WorkerEvent], *, lost_after_s: float = 10.0
) -> AsyncIterator[ControlClient]:
    client = ControlClient(address, HELLO, on_event=events.append, lost_after_s=lost_after_s)
    client.start()
    try:
        yield client
    finally:
        await client.close()


async def _until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it never came to pass")


async def test_lease_commit_progress_and_orders_travel(driver: Driver) -> None:
    events: list[WorkerEvent] = []
    async with _client(driver.server.address, events) as client:
        await client.commit({"kind": "reserve", "until": 10})
        client.progress({"sent": 5})
        await _until(lambda: driver.said(ProgressReport))
        connection = driver.messages[0][0]
        driver.server.send(connection, StartAt(123))
        driver.server.send(connection, Probe(7))
        await _until(lambda: driver.said(ProbeReply))
    assert events == [Lease("p0", 1, None), StartAt(123)]
    assert driver.said(Commit) == [Commit(1, {"kind": "reserve", "until": 10})]
    assert driver.said(ProgressReport) == [ProgressReport({"sent": 5})]
    await _until(lambda: driver.closed == [connection])


async def test_a_commit_survives_a_lost_connection_and_keeps_its_number(
    driver: Driver,
) -> None:
    driver.acknowledges = False
    async with _client(driver.server.address, []) as client:
        waiting = asyncio.ensure_future(client.commit({"kind": "segment"}))
        await _until(lambda: driver.said(Commit))
        driver.acknowledges = True
        driver.server.close(driver.messages[0][0])
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert driver.said(Commit) == [Commit(1, {"kind": "segment"})] * 2
    assert len({connection for connection, _ in driver.messages}) == 2


async def test_a_refused_worker_ends_and_its_commits_fail(driver: Driver) -> None:
    driver.refuses = True
    events: list[WorkerEvent] = []
    async with _client(driver.server.address, events) as client:
        with pytest.raises(DriverGoneError, match="refused this worker: fenced"):
            await client.commit({"kind": "segment"})
        await asyncio.wait_for(client.wait_end(), PATIENCE_S)
        with pytest.raises(DriverGoneError):
            await client.commit({})
    assert events == [LeaseRefused("fenced")]


async def test_a_driver_that_dies_is_lost_after_the_time(driver: Driver) -> None:
    events: list[WorkerEvent] = []
    async with _client(driver.server.address, events, lost_after_s=1.5) as client:
        await client.commit({})
        began = asyncio.get_running_loop().time()
        await driver.server.stop()
        with pytest.raises(DriverGoneError, match="silent"):
            await client.commit({})
        assert 1.4 < asyncio.get_running_loop().time() - began < PATIENCE_S
        assert isinstance(client.ended_by, DriverLost)
    assert [type(event) for event in events] == [Lease, DriverLost]


async def test_a_driver_that_comes_back_in_time_is_not_lost(driver: Driver) -> None:
    host, port = driver.server.address
    async with _client((host, port), []) as client:
        await client.commit({})
        await driver.server.stop()
        await driver.server.start(host, port)
        await asyncio.wait_for(client.commit({}), PATIENCE_S)
        assert client.ended_by is None


@pytest.mark.parametrize(
    "data",
    [
        encode_message(Hello("p0", 1, "wrong", "i", 7, "h")),
        encode_message(ProgressReport({})),
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 5000,
    ],
)
async def test_the_server_closes_unauthenticated_connections_without_an_answer(
    driver: Driver, data: bytes
) -> None:
    reader, writer = await asyncio.open_connection(*driver.server.address)
    writer.write(data)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
    assert driver.messages == []
    assert driver.closed == []


async def test_the_server_closes_a_connection_without_a_hello(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "UNAUTHENTICATED_LIMIT_S", 0.1)
    monkeypatch.setattr(control, "UNAUTHENTICATED_LIMIT_S", 0.1)
    reader, writer = await asyncio.open_connection(*driver.server.address)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()


async def test_the_server_limits_the_number_of_connections(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_LIMIT", 1)
    async with _client(driver.server.address, []) as client:
        await client.commit({})
        reader, writer = await asyncio.open_connection(*driver.server.address)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
        await client.commit({})
