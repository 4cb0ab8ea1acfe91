"""The parts of faults by themselves: answers with an error of every API, links, what is told."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import pytest

from shoal.client.errors import ConnectionLost
from shoal.client.transport.connection import Connection, connect
from shoal.lite.api.table import APIS
from shoal.lite.base.codes import Code
from shoal.lite.base.hooks.links import NodeLink, NodeLinkFaults
from shoal.lite.base.hooks.request_faults import NODE_CLIENT_PREFIX, RequestFaults
from shoal.lite.broker.registry import ApiRequest
from shoal.lite.testing.faults.answers import error_values
from shoal.lite.testing.faults.plan import FIRST_SHOAL_API_KEY, FaultPlan
from shoal.net.link_faults import NO_EFFECT, LinkEffect
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import shape_of
from shoal.wire.messages import (
    RequestFrame,
    decode_request_header,
    decode_response,
    encode_request,
    request_class,
    response_class,
)

EVERY_VERSION = [
    (key, version)
    for key, api in APIS.items()
    if key < FIRST_SHOAL_API_KEY
    for version in range(api.least, api.most + 1)
]


def sample(cls: type[Any]) -> Any:
    """A message with one of everything."""
    values: dict[str, Any] = {}
    for field in fields(cls):
        shape = shape_of(field)
        kind = str(field.metadata.get("kafka_type"))
        if shape.is_structure:
            item: Any = sample(shape.item_type)
        elif kind.startswith("timedelta"):
            item = dt.timedelta(milliseconds=1)
        else:
            plain = {"string": "x", "bytes": b"", "records": None, "bool": False, "float64": 0.0}
            item = UUID(int=5) if kind == "uuid" else plain.get(kind, 1)
        values[field.name] = (item,) if shape.is_array else item
    return cls(**values)


def codes_in(message: Any) -> set[int]:
    """Every error code in an answer."""
    found = set()
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name.endswith("error_code"):
            found.add(int(value))
        for item in value if isinstance(value, tuple) else [value]:
            if is_dataclass(item) and not isinstance(item, type):
                found |= codes_in(item)
    return found


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_every_api_can_answer_with_an_error(key: int, version: int) -> None:
    asked = sample(request_class(key, version))
    frame = memoryview(encode_request(asked, correlation_id=7, client_id="me"))
    request: ApiRequest[Any, Any] = ApiRequest(frame, decode_request_header(frame))
    answer = request.answer(error_values(request, Code.INVALID_REQUEST))
    assert answer is not None
    data = b"".join(bytes(part) for part in answer)
    correlation_id, response = decode_response(data, response_class(key, version))
    assert correlation_id == 7
    told = codes_in(response) - {0}
    # Metadata has no room above its topics, and Fetch says what concerns partitions there.
    assert told == {Code.INVALID_REQUEST}


# Links, over a socket to somebody who sends everything back


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    made = await connect(host, port, max_in_flight=5, limit_bytes=1000)
    yield made
    await made.close()
    server.close()


def ask(connection: Connection) -> "asyncio.Future[memoryview]":
    """The answer to a request is the request itself."""
    return connection.submit(lambda number: [number.to_bytes(4, "big")], name="Echo", timeout_s=60)


@pytest.mark.parametrize(
    "link", [NodeLink(LinkEffect(True), NO_EFFECT), NodeLink(NO_EFFECT, LinkEffect(True))]
)
async def test_a_cut_link_stalls_and_nothing_is_lost(
    connection: Connection, link: NodeLink
) -> None:
    links = NodeLinkFaults()
    links.on_connected(2, connection)
    first = await ask(connection)
    links.change({2: link})
    held = [ask(connection) for _ in range(3)]
    done, _ = await asyncio.wait(held, timeout=0.2)
    assert not done
    assert not connection.is_closed
    links.change({3: link})
    assert [bytes(frame) for frame in await asyncio.gather(*held)] == [
        number.to_bytes(4, "big") for number in (2, 3, 4)
    ]
    assert bytes(first) == b"\0\0\0\1"
    assert bytes(await ask(connection)) == b"\0\0\0\5"


async def test_while_a_link_is_cut_even_the_end_of_the_other_side_is_not_heard() -> None:
    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(8))
        writer.close()

    server = await asyncio.start_server(answer_and_close, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    connection = await connect(host, port, max_in_flight=1, limit_bytes=1000)
    links = NodeLinkFaults()
    links.change({2: NodeLink(incoming=LinkEffect(True))})
    links.on_connected(2, connection)
    answer = ask(connection)
    await asyncio.sleep(0.2)
    assert not connection.is_closed
    links.change({})
    assert bytes(await answer) == b"\0\0\0\1"
    with pytest.raises(ConnectionLost, match="closed"):
        await ask(connection)
    await connection.close()
    server.close()


async def test_a_slow_link_keeps_the_order(connection: Connection) -> None:
    links = NodeLinkFaults()
    links.on_connected(2, connection)
    links.change({2: NodeLink(LinkEffect(delay_ms=30), LinkEffect(delay_ms=40))})
    loop = asyncio.get_running_loop()
    began = loop.time()
    frames = await asyncio.gather(*(ask(connection) for _ in range(4)))
    assert [frame[3] for frame in frames] == [1, 2, 3, 4]
    assert loop.time() - began >= 0.07


@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
async def test_a_narrow_link_lets_so_many_bytes_pass(
    connection: Connection, direction: str
) -> None:
    links = NodeLinkFaults()
    links.on_connected(2, connection)
    links.change({2: NodeLink(**{direction: LinkEffect(bytes_per_s=40)})})
    loop = asyncio.get_running_loop()
    began = loop.time()
    frames = await asyncio.gather(*(ask(connection) for _ in range(4)))
    assert [frame[3] for frame in frames] == [1, 2, 3, 4]
    # An answer is four bytes, a request is that and its length.
    assert loop.time() - began >= 4 * 4 / 40
    held = ask(connection)
    links.change({})
    assert (await held)[3] == 5


async def test_connections_share_a_narrow_link() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    both = [await connect(host, port, max_in_flight=5, limit_bytes=1000) for _ in range(2)]
    links = NodeLinkFaults()
    links.change(
        {
            2: NodeLink(incoming=LinkEffect(bytes_per_s=40)),
            3: NodeLink(LinkEffect(is_cut=True)),
        }
    )
    for connection in both:
        links.on_connected(2, connection)
    loop = asyncio.get_running_loop()
    began = loop.time()
    asked = [ask(connection) for connection in both for _ in range(2)]
    links.change({2: NodeLink(incoming=LinkEffect(bytes_per_s=40))})  # which changes nothing here
    await asyncio.gather(*asked)
    assert loop.time() - began >= 4 * 4 / 40
    for connection in both:
        await connection.close()
    server.close()


async def test_a_reset_is_heard_at_both_ends_and_happens_once() -> None:
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                pass
        except ConnectionError as error:
            heard.set_result(type(error).__name__)
        finally:
            writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    links = NodeLinkFaults()
    links.reset({2: 7})  # before this node was there
    connection = await connect(host, port, max_in_flight=5, limit_bytes=1000)
    links.on_connected(2, connection)
    waiting = ask(connection)
    links.reset({2: 7, 3: 1})
    assert not connection.is_closed
    links.reset({2: 8, 3: 1})
    with pytest.raises(ConnectionLost, match="was reset"):
        await waiting
    assert await asyncio.wait_for(heard, 60) == "ConnectionResetError"
    await connection.close()
    server.close()


async def test_no_connection_is_made_over_a_cut_link() -> None:
    links = NodeLinkFaults()
    links.change({2: NodeLink(incoming=LinkEffect(True))})
    await links.wait_until_open(3)
    waiting = asyncio.create_task(links.wait_until_open(2))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    links.change({})
    await waiting


# What nodes are told


def test_each_node_is_told_its_own_end_of_a_link() -> None:
    plan = FaultPlan()
    wish = {"kind": "link", "source": 1, "target": 2, "is_cut": True, "delay_ms": 0}
    plan.inject(wish | {"bytes_per_s": 0, "one_way": True}, {1, 2, 3})
    assert plan.faults_of(1)["links"] == {2: [LinkEffect(True), NO_EFFECT]}
    assert plan.faults_of(2)["links"] == {1: [NO_EFFECT, LinkEffect(True)]}
    assert plan.faults_of(3)["links"] == {}
    plan.inject({"kind": "isolate", "node": 3}, {1, 2, 3})
    assert plan.faults_of(3)["links"] == {
        1: [LinkEffect(True)] * 2,
        2: [LinkEffect(True)] * 2,
    }
    for _ in range(2):
        plan.inject({"kind": "reset", "source": 3, "target": 1}, {1, 2, 3})
    assert [plan.faults_of(node)["resets"] for node in (1, 2, 3)] == [{3: 2}, {}, {1: 2}]
    plan.forget(3)
    assert plan.faults_of(1)["links"] == {2: [LinkEffect(True), NO_EFFECT]}
    assert plan.faults_of(1)["resets"] == {}


def test_a_fault_goes_on_counting_when_others_come_and_when_its_node_is_restarted() -> None:
    plan = FaultPlan()
    wish = {
        "kind": "request",
        "node": 1,
        "api_key": ApiKey.FETCH,
        "times": 3,
        "how": "hang-up",
        "error_code": 0,
        "client_id": None,
    }
    number = plan.inject(wish, {1})["fault"]
    node = RequestFaults()
    node.on_hit = plan.on_request_hit
    node.change(plan.faults_of(1)["requests"])
    header = RequestFrame(ApiKey.FETCH, 12, 1, "me", 0)
    assert node.take(header) is not None
    assert node.take(header._replace(api_key=ApiKey.PRODUCE)) is None
    assert node.take(header._replace(client_id=f"{NODE_CLIENT_PREFIX}2")) is None
    node.change(plan.faults_of(1)["requests"])
    assert plan.requests_left(number) == 2
    again = RequestFaults()
    again.on_hit = plan.on_request_hit
    again.change(plan.faults_of(1)["requests"])
    assert again.take(header)
    assert again.take(header)
    assert again.take(header) is None
    assert not again
    assert plan.requests_left(number) == 0
