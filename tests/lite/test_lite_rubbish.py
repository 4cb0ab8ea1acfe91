"""A client that misbehaves loses its connection; the broker goes on, and stays small."""

import random
import struct

import psutil
import pytest

from shoal.lite.cluster import LiteCluster
from support.lite_batches import batch_of
from support.lite_client import HungUp, PlainClient, at

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
    chance = random.Random(7)
    connections = 0
    vandal = PlainClient(cluster.bootstrap)
    for number in range(2000):
        key, version = chance.choice([0, 1, 2, 3, 10, 18, 19, 22, 32]), chance.randrange(13)
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
    assert memory_mb(cluster) < 120


def test_many_idle_connections(client: PlainClient, cluster: LiteCluster, topic: str) -> None:
    idle = [PlainClient(cluster.bootstrap) for _ in range(300)]
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
