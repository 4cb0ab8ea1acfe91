"""Faults on purpose: links, disks and requests of real clusters go wrong, and are healed."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from shoal.lite.base.codes import Code
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure, UsageError
from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import decode_fetch_response
from shoal.wire.produce import ProducePartition
from support.lite.batches import batch_of, values_of
from support.lite.client import HungUp, PlainClient, at
from support.lite.clusters import (
    Load,
    await_in_sync,
    await_values,
    create_topic,
    eventually,
    in_sync,
    partition_of,
    read,
    replicas_are_equal,
    send,
)

IMPATIENT = {"replica.lag.time.max.ms": "1000"}
EVERYONE = {1, 2, 3}
_numbers = count(1)


@pytest.fixture(scope="module")
def three() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, properties=IMPATIENT) as cluster:
        yield cluster


@pytest.fixture
def own() -> Iterator[LiteCluster]:
    """For tests that restart brokers, with one topic, `t`."""
    with LiteCluster(brokers=3, properties=IMPATIENT) as cluster:
        create_topic(cluster, "t", 1, 3)
        yield cluster


@pytest.fixture
def topic(three: LiteCluster) -> Iterator[str]:
    """A topic of the test's own with one partition, all of whose replicas are in sync."""
    name = f"t{next(_numbers)}"
    create_topic(three, name, 1, 3)
    yield name
    three.heal()
    eventually(lambda: in_sync(three, name) == EVERYONE)


def leader_and_followers(cluster: LiteCluster, topic: str) -> tuple[int, int, int]:
    leader = partition_of(cluster, topic).leader
    first, second = sorted(EVERYONE - {leader})
    return leader, first, second


@pytest.mark.parametrize("towards", ["both", "leader", "follower"])
def test_a_follower_behind_a_cut_link_leaves_the_in_sync_set(
    three: LiteCluster, topic: str, towards: str
) -> None:
    leader, cut_off, other = leader_and_followers(three, topic)
    with Load(three, topic) as load:
        if towards == "leader":
            three.cut_link(cut_off, leader, one_way=True)
        else:
            three.cut_link(leader, cut_off, one_way=towards == "follower")
        eventually(lambda: in_sync(three, topic) == {leader, other})
        load.goes_on()
        three.heal_link(leader, cut_off)
        eventually(lambda: in_sync(three, topic) == EVERYONE)
        load.goes_on()
    load.check(three)
    eventually(lambda: replicas_are_equal(three, topic))
    assert three.faults() == []


def test_a_slow_link_slows_what_waits_for_all_replicas(three: LiteCluster, topic: str) -> None:
    leader, slow, _ = leader_and_followers(three, topic)
    with Load(three, topic) as load:
        three.slow_link(leader, slow, 150, one_way=True)
        assert max(load.goes_on() for _ in range(5)) >= 0.05
        await_in_sync(three, topic, EVERYONE)
        three.heal()
        load.goes_on()
    load.check(three)


def test_a_link_stays_cut_when_a_node_is_restarted(own: LiteCluster) -> None:
    leader, cut_off, other = leader_and_followers(own, "t")
    with Load(own, "t") as load:
        own.cut_link(leader, cut_off)
        eventually(lambda: in_sync(own, "t") == {leader, other})
        own.kill(cut_off)
        own.restart(cut_off)
        for _ in range(10):
            load.goes_on()
            assert cut_off not in in_sync(own, "t")
        own.heal()
        eventually(lambda: in_sync(own, "t") == EVERYONE)
    load.check(own)


def test_a_leader_that_is_cut_off_acknowledges_nothing(three: LiteCluster, topic: str) -> None:
    leader, first, second = leader_and_followers(three, topic)
    for follower in (first, second):
        three.cut_link(leader, follower)
    outcome = send(three, topic, b"a", message_timeout_ms=3000)
    # The in-sync set shrinks to the leader alone, which is too few.
    assert outcome == ["_MSG_TIMED_OUT"]
    three.heal()
    assert send(three, topic, b"b") == [None]
    eventually(lambda: read(three, topic)[0][-1:] == [b"b"])


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_disk_costs_the_leadership_and_nothing_else(own: LiteCluster, error: str) -> None:
    leader, first, second = leader_and_followers(own, "t")
    with Load(own, "t") as load:
        own.fail_disk(leader, writes=error)
        eventually(lambda: partition_of(own, "t").leader in {first, second})
        load.goes_on()
        eventually(lambda: leader not in in_sync(own, "t"))
        own.heal_disk(leader)
        own.restart(leader)
        eventually(lambda: in_sync(own, "t") == EVERYONE)
    load.check(own)
    eventually(lambda: replicas_are_equal(own, "t"))
    log = (own.log_dirs()[leader].parent / f"broker-{leader}.log").read_text()
    assert "cannot close the log" in log
    assert "Traceback" not in log


def test_a_slow_disk_makes_everything_slow(three: LiteCluster, topic: str) -> None:
    with Load(three, topic) as load:
        three.fail_disk(partition_of(three, topic).leader, delay_ms=100)
        assert max(load.goes_on() for _ in range(5)) >= 0.05
        three.heal()
        load.goes_on()
    load.check(three)


def test_requests_fail_with_an_error_so_many_times(three: LiteCluster, topic: str) -> None:
    leader = next(n for n in three.nodes() if n.id == partition_of(three, topic).leader)
    fault = three.fail_requests(leader.id, ApiKey.PRODUCE, times=2, error=Code.NOT_ENOUGH_REPLICAS)
    assert three.requests_left(fault) == 2
    with PlainClient(f"{leader.host}:{leader.port}") as client:
        for _ in range(2):
            assert client.produce(topic, batch_of(b"x")).error_code == Code.NOT_ENOUGH_REPLICAS
        assert client.produce(topic, batch_of(b"a")).error_code == 0
        assert values_of(bytes(client.fetch(at(topic, 0)).partitions[0].records)) == [b"a"]
    assert three.requests_left(fault) == 0


def test_a_request_fails_by_a_closed_connection_before_or_after_it_took_effect(
    three: LiteCluster, topic: str
) -> None:
    leader = next(n for n in three.nodes() if n.id == partition_of(three, topic).leader)
    address = f"{leader.host}:{leader.port}"
    three.fail_requests(leader.id, ApiKey.PRODUCE)
    with PlainClient(address) as client, pytest.raises(HungUp):
        client.produce(topic, batch_of(b"not written"))
    three.fail_requests(leader.id, ApiKey.PRODUCE, lose_answer=True)
    with PlainClient(address) as client, pytest.raises(HungUp):
        client.produce(topic, batch_of(b"written"))
    await_values(three, topic, [b"written"])
    # An idempotent producer that hears nothing sends again, and is not counted twice.
    three.fail_requests(leader.id, ApiKey.PRODUCE, times=3, lose_answer=True)
    assert send(three, topic, b"a", b"b", enable_idempotence=True) == [None, None]
    await_values(three, topic, [b"written", b"a", b"b"])


def test_fetches_of_followers_and_of_other_clients_are_let_through(
    three: LiteCluster, topic: str
) -> None:
    leader = next(n for n in three.nodes() if n.id == partition_of(three, topic).leader)
    three.fail_requests(leader.id, ApiKey.FETCH, times=1, error=Code.FENCED_LEADER_EPOCH)
    three.fail_requests(leader.id, ApiKey.PRODUCE, times=1, client_id="somebody else")
    assert send(three, topic, b"a") == [None]
    with PlainClient(f"{leader.host}:{leader.port}") as client:
        [failed] = client.fetch(at(topic, 0)).partitions
        assert failed.error_code == Code.FENCED_LEADER_EPOCH
        [fetched] = client.fetch(at(topic, 0)).partitions
        assert values_of(bytes(fetched.records)) == [b"a"]
    assert [fault["client_id"] for fault in three.faults()] == ["somebody else"]


def test_a_paused_node_takes_a_fault_in_when_it_goes_on(three: LiteCluster, topic: str) -> None:
    leader, cut_off, other = leader_and_followers(three, topic)
    with Load(three, topic) as load:
        three.pause(cut_off)
        three.cut_link(leader, cut_off)
        assert len(three.faults()) == 2
        three.resume(cut_off)
        eventually(lambda: in_sync(three, topic) == {leader, other})
        load.goes_on()


def test_what_is_no_fault_is_refused(three: LiteCluster) -> None:
    with pytest.raises(SystemFailure, match="unknown node 7"):
        three.cut_link(1, 7)
    with pytest.raises(SystemFailure, match="two different nodes"):
        three.cut_link(2, 2)
    with pytest.raises(SystemFailure, match="not a valid delay"):
        three.slow_link(1, 2, -1)
    with pytest.raises(SystemFailure, match="not a valid bandwidth"):
        three.slow_link(1, 2, bytes_per_s=-1)
    with pytest.raises(SystemFailure, match="two different nodes"):
        three.reset_link(3, 3)
    with pytest.raises(SystemFailure, match="is not a disk error"):
        three.fail_disk(1, writes="EFUN")
    with pytest.raises(SystemFailure, match="unknown API key 1000"):
        three.fail_requests(1, 1000)
    with pytest.raises(SystemFailure, match="12345 is not an error code"):
        three.fail_requests(1, ApiKey.FETCH, error=12345)
    with pytest.raises(SystemFailure, match="COMPARE_AND_APPEND cannot fail with"):
        three.fail_requests(1, ApiKey.COMPARE_AND_APPEND, error=Code.INVALID_REQUEST)
    with pytest.raises(SystemFailure, match="0 times"):
        three.fail_requests(1, ApiKey.FETCH, times=0)
    with pytest.raises(SystemFailure, match="whole number"):
        three.slow_link(1, 2, delay_ms=0.5)  # type: ignore[arg-type]
    for endless in (float("inf"), float("nan")):
        with pytest.raises(SystemFailure, match="invalid fault"):
            three.slow_link(1, 2, delay_ms=endless)  # type: ignore[arg-type]
        with pytest.raises(SystemFailure, match="disk delay of"):
            three.fail_disk(1, delay_ms=endless)
    with pytest.raises(SystemFailure, match="'x' is not a partition number"):
        three.move_leader("t", "x", 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="exclude each other"):
        three.fail_requests(1, ApiKey.FETCH, error=1, lose_answer=True)
    assert three.faults() == []


def test_controllers_can_be_cut_off_and_their_disks_fail() -> None:
    with LiteCluster(brokers=3, controllers=3, properties=IMPATIENT) as cluster:
        create_topic(cluster, "t", 1, 3)
        quorum = cluster.quorum()
        assert quorum is not None
        with Load(cluster, "t") as load:
            cluster.isolate(quorum.leader)
            eventually(lambda: _active(cluster) not in {None, quorum.leader})
            _move_leader(cluster)
            load.goes_on()
            cluster.heal()
            active = _active(cluster)
            assert active is not None
            cluster.fail_disk(active, syncs="EIO", writes="EIO")
            eventually(lambda: _somebody_dies_of_a_change(cluster))
            load.goes_on()
            cluster.heal()
            cluster.restart(active)
            eventually(lambda: active in _followers(cluster))
        load.check(cluster)
        with pytest.raises(SystemFailure, match="unknown node 101"):
            cluster.fail_requests(101, ApiKey.FETCH)


def _move_leader(cluster: LiteCluster) -> None:
    eventually(lambda: len(partition_of(cluster, "t").isrs) == 3)
    cluster.move_leader("t", 0, 1 + partition_of(cluster, "t").leader % 3)


def _somebody_dies_of_a_change(cluster: LiteCluster) -> bool:
    # One is not enough: whoever is asked who leads may be behind, and then nothing is changed.
    _move_leader(cluster)
    return "dead" in [node.state for node in cluster.controllers()]


def _active(cluster: LiteCluster) -> int | None:
    quorum = cluster.quorum()
    return None if quorum is None else quorum.leader


def _followers(cluster: LiteCluster) -> set[int]:
    """Controllers that have everything."""
    quorum = cluster.quorum()
    return set() if quorum is None else {voter.id for voter in quorum.voters if voter.lag == 0}


def test_a_broker_that_cannot_reach_the_controller_waits_and_can_be_stopped(
    own: LiteCluster,
) -> None:
    own.kill(2)
    own.isolate(2)
    waiting = threading.Thread(target=_restart, args=(own, 2))
    waiting.start()
    eventually(lambda: own.status()[1].state == "starting")
    own.stop_node(2)
    waiting.join()
    assert own.status()[1].state == "dead"
    waiting = threading.Thread(target=_restart, args=(own, 2))
    waiting.start()
    eventually(lambda: own.status()[1].state == "starting")
    own.heal()
    waiting.join()
    assert own.status()[1].state == "running"
    eventually(lambda: in_sync(own, "t") == EVERYONE)


def _restart(cluster: LiteCluster, node_id: int) -> None:
    with suppress(SystemFailure):
        cluster.restart(node_id)


@pytest.mark.long
def test_a_broker_far_from_its_controller_can_be_stopped_and_started() -> None:
    with LiteCluster(brokers=2, controllers=1) as cluster:
        create_topic(cluster, "t", 1, 2)
        [controller] = cluster.controllers()
        cluster.slow_link(1, controller.id, 400)
        for end in (cluster.stop_node, cluster.kill):
            end(1)
            cluster.restart(1)
            eventually(lambda: in_sync(cluster, "t") == {1, 2})
        assert send(cluster, "t", b"a") == [None]


def test_a_write_that_came_before_the_last_was_committed_wakes_its_reader(
    three: LiteCluster, topic: str
) -> None:
    leader, *followers = leader_and_followers(three, topic)
    for follower in followers:
        three.slow_link(follower, leader, delay_ms=300)
    address = three.bootstrap.split(",")[leader - 1]
    began = time.monotonic()
    read: list[bytes | None] = []
    with PlainClient(address) as producer, PlainClient(address) as consumer:
        consumer.send_fetch(at(topic, 0), max_wait_ms=40_000)
        for value in (b"a", b"b"):
            producer.send_produce([ProducePartition(topic, 0, [batch_of(value)])])
            time.sleep(0.05)  # so that followers fetch one by one
        while len(read) < 2:
            [fetched] = decode_fetch_response(12, consumer.receive_frame()).partitions
            read += values_of(bytes(fetched.records))
            if len(read) < 2:
                consumer.send_fetch(at(topic, len(read)), max_wait_ms=40_000)
    assert read == [b"a", b"b"]
    assert time.monotonic() - began < 30
