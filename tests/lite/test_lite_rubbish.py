"""A client that misbehaves loses its connection; the broker goes on, and stays small."""

import random
import resource
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from shoal.lite.api.table import APIS
from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import decode_fetch_response
from support.lite.batches import batch_of
from support.lite.client import HungUp, PlainClient, at
from support.lite.clusters import eventually

RUBBISH = {
    "negative length": struct.pack(">i", -5),
    "2 GiB announced": struct.pack(">i", (1 << 31) - 1) + b"x" * 100,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + b"\x00" * 300,
    "empty frame": struct.pack(">i", 0),
    "half a header": struct.pack(">ihh", 4, 0, 9),
    "client id cut": struct.pack(">ihhih", 10, 3, 9, 1, 500),
    "huge array": struct.pack(">ihhih", 14, 3, 4, 1, -1) + struct.pack(">i", (1 << 31) - 1),
    "produce of nothing": struct.pack(">ihhih", 10, 0, 9, 1, -1),
}


def memory_mb(cluster: LiteCluster) -> float:
    [node] = cluster.nodes()
    resident: int = psutil.Process(node.pid).memory_info().rss
    return resident / 1e6


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_costs_the_connection(
    client: PlainClient, bootstrap: str, topic: str, rubbish: bytes
) -> None:
    with PlainClient(bootstrap) as vandal:
        vandal.send(rubbish)
        assert vandal.is_hung_up()
    assert client.produce(topic, batch_of(b"still here")).error_code == 0


def test_random_frames(client: PlainClient, cluster: LiteCluster, topic: str) -> None:
    # Other tests ran before, in whatever order; what they made it take does not count here.
    before_mb = memory_mb(cluster)
    chance = random.Random(7)
    connections = 0
    vandal = PlainClient(cluster.bootstrap)
    for number in range(10_000):
        key, version = chance.choice([*APIS, 999]), chance.randrange(13)
        noise = chance.randbytes(chance.randrange(60))
        try:
            vandal.send_frame(struct.pack(">hhih", key, version, 1, -1), noise)
            if number % 20 == 0:
                vandal.receive_frame()
        except (OSError, HungUp):
            vandal.close()
            connections += 1
            vandal = PlainClient(cluster.bootstrap)
    vandal.close()
    assert connections > 10
    assert client.produce(topic, batch_of(b"still here")).error_code == 0
    assert memory_mb(cluster) - before_mb < 60


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process have more sockets than usual."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(5000, limits[1]), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("many_files")
def test_many_idle_connections(client: PlainClient, cluster: LiteCluster, topic: str) -> None:
    idle = [PlainClient(cluster.bootstrap) for _ in range(1000)]
    half = [PlainClient(cluster.bootstrap) for _ in range(50)]
    for one in half:
        one.send(struct.pack(">i", 90_000_000) + b"x" * 1000)
    assert client.produce(topic, batch_of(b"still here")).error_code == 0
    assert memory_mb(cluster) < 250
    for one in idle + half:
        one.close()


def test_a_client_that_does_not_read_its_answers(
    client: PlainClient, cluster: LiteCluster, topic: str
) -> None:
    for _ in range(20):
        client.produce(topic, batch_of(bytes(1_000_000)))
    before = memory_mb(cluster)
    with PlainClient(cluster.bootstrap) as lazy:
        for _ in range(200):
            lazy.send_fetch(at(topic, 0, max_bytes=20_000_000))
        assert client.produce(topic, batch_of(b"still here")).error_code == 0
        assert memory_mb(cluster) - before < 100


def test_connections_are_limited() -> None:
    with LiteCluster(properties={"max.connections": "3"}) as small:
        clients = [PlainClient(small.bootstrap) for _ in range(3)]
        for number, one in enumerate(clients):
            one.create_topic(f"t-{number}")
        with PlainClient(small.bootstrap) as fourth, pytest.raises((HungUp, OSError)):
            fourth.create_topic("refused")
        for one in clients:
            one.close()


def test_frames_are_limited() -> None:
    with (
        LiteCluster(properties={"socket.request.max.bytes": "5000"}) as small,
        PlainClient(small.bootstrap) as client,
    ):
        client.create_topic("t")
        assert client.produce("t", batch_of(bytes(4000))).error_code == 0
        client.send(struct.pack(">i", 5001))
        assert client.is_hung_up()


def test_connections_from_one_address_are_limited() -> None:
    properties = {
        "max.connections.per.ip": "0",
        "max.connections.per.ip.overrides": "10.0.0.1:9,127.0.0.1:2",
    }
    with LiteCluster(properties=properties) as small:
        clients = [PlainClient(small.bootstrap) for _ in range(2)]
        for number, one in enumerate(clients):
            one.create_topic(f"t-{number}")
        with PlainClient(small.bootstrap) as third, pytest.raises((HungUp, OSError)):
            third.create_topic("refused")
        clients[0].close()
        eventually(lambda: is_served(small.bootstrap))
        clients[1].close()


def read_all(client: PlainClient) -> None:
    while True:
        client.receive_frame()


def is_served(bootstrap: str) -> bool:
    try:
        with PlainClient(bootstrap) as one:
            return bool(one.request(ApiKey.API_VERSIONS, 0).error_code == 0)
    except (HungUp, OSError):
        return False


def test_connections_on_which_nothing_moves_are_closed() -> None:
    with (
        LiteCluster(properties={"connections.max.idle.ms": "600"}) as small,
        PlainClient(small.bootstrap) as client,
        PlainClient(small.bootstrap) as silent,
        PlainClient(small.bootstrap) as half,
        PlainClient(small.bootstrap) as lazy,
        PlainClient(small.bootstrap) as waiting,
    ):
        client.create_topic("t")
        waiting.send_fetch(at("t", 0), max_wait_ms=3000)
        for _ in range(10):
            client.produce("t", batch_of(bytes(900_000)), partition=0)
        half.send(struct.pack(">i", 1000) + b"x" * 10)
        for _ in range(20):
            lazy.send_fetch(at("t", 0, max_bytes=9_000_000))
        assert silent.is_hung_up()
        assert half.is_hung_up()
        assert client.is_hung_up()
        # Whoever waits for the broker is not idle.
        [fetched] = decode_fetch_response(12, waiting.receive_frame()).partitions
        assert fetched.error_code == 0
        # The lazy one finds what the kernel had taken for it, and then the end.
        with pytest.raises((HungUp, OSError)):
            read_all(lazy)
        assert is_served(small.bootstrap)


def test_what_requests_hold_is_limited_altogether() -> None:
    with (
        LiteCluster(properties={"queued.max.request.bytes": "30000000"}) as small,
        PlainClient(small.bootstrap) as client,
        ExitStack() as stack,
    ):
        client.create_topic("t")
        greedy = [stack.enter_context(PlainClient(small.bootstrap)) for _ in range(20)]
        for one in greedy:
            with suppress(OSError):  # closed while it sent
                one.send(struct.pack(">i", 90_000_000) + bytes(15_000_000))
        # There is room for one of them, any one.
        eventually(lambda: sum(one.is_hung_up(within_s=0.01) for one in greedy) >= 19)
        assert client.produce("t", batch_of(b"still here")).error_code == 0
        eventually(lambda: memory_mb(small) < 250)
