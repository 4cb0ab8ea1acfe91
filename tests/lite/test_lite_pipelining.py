"""Requests behind a Produce that waits for followers: more writes are taken up, others wait."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.wire.fetch import decode_fetch_response
from shoal.wire.produce import ProducePartition, decode_produce_response
from support.lite.batches import batch_of, values_of
from support.lite.client import HungUp, PlainClient, at
from support.lite.clusters import create_topic, eventually, partition_of, segments

COUNT = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    # Long sessions: a paused follower stays in sync, so that writes wait for it.
    settings = {"broker.session.timeout.ms": "60000"}
    with LiteCluster(brokers=3, profile="strict", properties=settings) as running:
        yield running


@contextmanager
def waiting_leader(cluster: LiteCluster, topic: str) -> Iterator[tuple[PlainClient, int, int]]:
    """A client of a leader that has to wait for one of its followers, and the ids of both."""
    create_topic(cluster, topic, 1, 3)
    leader = partition_of(cluster, topic).leader
    follower = leader % 3 + 1
    [node] = [node for node in cluster.nodes() if node.id == leader]
    cluster.pause(follower)
    try:
        with PlainClient(f"{node.host}:{node.port}") as client:
            yield client, leader, follower
    finally:
        cluster.resume(follower)


def test_writes_are_not_held_up_by_writes_and_are_answered_in_order(cluster: LiteCluster) -> None:
    with waiting_leader(cluster, "writes") as (client, leader, follower):
        values = [b"%d" % number for number in range(COUNT)]
        for value in values:
            client.send_produce([ProducePartition("writes", 0, batch_of(value))])
        client.send_fetch(at("writes", 0), max_wait_ms=0)
        eventually(lambda: values_of(segments(cluster, leader, "writes")) == values)
        cluster.resume(follower)
        answers = [decode_produce_response(9, client.receive_frame())[0] for _ in values]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [
            (0, offset) for offset in range(COUNT)
        ]
        [fetched] = decode_fetch_response(12, client.receive_frame()).partitions
        assert values_of(bytes(fetched.records)) == values


def test_a_fatal_request_behind_writes_does_not_cost_them_their_answers(
    cluster: LiteCluster,
) -> None:
    with waiting_leader(cluster, "fatal") as (client, leader, follower):
        client.send_produce([ProducePartition("fatal", 0, batch_of(b"good"))])
        client.send_produce([ProducePartition("fatal", 0, b"rubbish")], acks=0)
        client.send_produce([ProducePartition("fatal", 0, batch_of(b"never"))])
        eventually(lambda: values_of(segments(cluster, leader, "fatal")) == [b"good"])
        cluster.resume(follower)
        [answer] = decode_produce_response(9, client.receive_frame())
        assert (answer.error_code, answer.base_offset) == (0, 0)
        with pytest.raises(HungUp):
            client.receive_frame()
        assert values_of(segments(cluster, leader, "fatal")) == [b"good"]
