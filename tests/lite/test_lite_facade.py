"""Eight calls: messages are written once and read back, whoever dies in between."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.client.errors import ClientClosed, OffsetOutOfRange
from shoal.lite.cluster import LiteCluster
from shoal.lite.facade import (
    DEFAULT_TOPIC,
    BrokerDisconnected,
    ConsumerGroup,
    ConsumerRecord,
    InvalidPartition,
    LeaderNotFound,
    MessageNotWritten,
    mount_consumer_group,
    mount_producer,
)
from shoal.lite.storage.recovery.high_watermarks import HIGH_WATERMARKS
from shoal.model.errors import UsageError
from support.lite.clusters import create_topic, eventually, in_sync, partition_of, send

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def trio() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, properties={"num.partitions": "4"}) as cluster:
        yield cluster


def test_messages_are_written_and_read(trio: LiteCluster) -> None:
    with mount_producer(trio.bootstrap) as producer:
        assert [producer.add_message(0, b"a%d" % number) for number in range(3)] == [0, 1, 2]
        assert producer.add_message_timeout(1, b"b0", PATIENCE_S) == 0
        leader = partition_of(trio, "messages", 1).leader
        node = next(node for node in trio.nodes() if node.id == leader)
        assert producer.get_leader(1) == f"{node.host}:{node.port}"
    with mount_consumer_group(trio.bootstrap, 3) as group:
        for _ in range(5):
            assert group.consume([0, 1, 2], 0, 10) == {0: [b"a0", b"a1", b"a2"], 1: [b"b0"], 2: []}
        assert group.consume([0], 1, 1) == {0: [b"a1"]}
        assert group.consume([0], 3, 1) == {0: []}
        assert group.consume([], 0, 1) == {}
        with pytest.raises(OffsetOutOfRange):
            group.consume([0], 4, 1)
        first = group.poll(PATIENCE_S)
        assert first == [
            ConsumerRecord(0, [b"a0", b"a1", b"a2"], 2),
            ConsumerRecord(1, [b"b0"], 0),
            ConsumerRecord(2, [], -1),
            ConsumerRecord(3, [], -1),
        ]
        nothing = group.poll(0.2)
        assert [record.messages for record in nothing] == [[], [], [], []]
        assert [record.last_offset for record in nothing] == [2, 0, -1, -1]


def test_a_poll_waits_for_what_comes(trio: LiteCluster) -> None:
    with (
        mount_producer(trio.bootstrap, topic="later") as producer,
        mount_consumer_group(trio.bootstrap, 2, topic="later") as group,
    ):
        sender = threading.Timer(0.3, producer.add_message, (3, b"late"))
        sender.start()
        found = group.poll(PATIENCE_S)
        sender.join()
        assert found[3] == ConsumerRecord(3, [b"late"], 0)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_partitions_are_split_evenly(trio: LiteCluster, count: int) -> None:
    with mount_consumer_group(trio.bootstrap, count, topic="split") as group:
        manifests = group.manifests
    assert len(manifests) == count
    assert sorted(partition for manifest in manifests for partition in manifest) == [0, 1, 2, 3]
    sizes = {len(manifest) for manifest in manifests}
    assert max(sizes) - min(sizes) <= 1


def test_messages_of_any_size(trio: LiteCluster) -> None:
    large = bytes(range(256)) * (20 * 1024 * 1024 // 256)
    with mount_producer(trio.bootstrap, topic="sizes") as producer:
        for message in (b"", b"x", large, b"y"):
            producer.add_message_timeout(0, message, PATIENCE_S)
    with mount_consumer_group(trio.bootstrap, 1, topic="sizes") as group:
        assert group.consume([0], 0, 10)[0] == [b"", b"x", large, b"y"]
        assert group.poll(PATIENCE_S)[0].messages == [b"", b"x", large, b"y"]


def test_a_topic_that_was_there_keeps_its_limit(trio: LiteCluster) -> None:
    create_topic(trio, "limited", 1, 3, max_message_bytes="1000")
    with mount_producer(trio.bootstrap, topic="limited") as producer:
        with pytest.raises(MessageNotWritten, match="MESSAGE_TOO_LARGE") as refused:
            producer.add_message(0, bytes(2000))
        assert not refused.value.may_be_written
        assert producer.add_message(0, b"fits") == 0


def test_errors_have_names(trio: LiteCluster) -> None:
    with mount_producer(trio.bootstrap) as producer:
        for wrong in (4, 99, -1):
            with pytest.raises(InvalidPartition, match=f"no partition {wrong}"):
                producer.add_message(wrong, b"x")
            with pytest.raises(InvalidPartition):
                producer.get_leader(wrong)
            with pytest.raises(InvalidPartition):
                producer.add_message_timeout(wrong, b"x", 5)
        with pytest.raises(UsageError, match="bytes, not NoneType"):
            producer.add_message(0, None)  # type: ignore[arg-type]
    with pytest.raises(ClientClosed):
        producer.add_message(0, b"x")
    producer.unmount()
    with mount_consumer_group(trio.bootstrap, 1) as group, pytest.raises(InvalidPartition):
        group.consume([0, 9], 0, 1)
    with pytest.raises(UsageError):
        mount_consumer_group(trio.bootstrap, 0)
    with pytest.raises(BrokerDisconnected):
        mount_producer("127.0.0.1:1")


def test_a_partition_without_a_leader_and_a_cluster_that_is_gone() -> None:
    with LiteCluster(brokers=2, profile="available") as cluster:
        create_topic(cluster, "t", 1, 1)
        only = partition_of(cluster, "t").leader
        with mount_producer(cluster.bootstrap, topic="t") as producer:
            producer.add_message(0, b"a")
            cluster.kill(only)
            eventually(lambda: partition_of(cluster, "t").leader == -1)
            with pytest.raises((LeaderNotFound, BrokerDisconnected)):
                producer.add_message(0, b"b")
            with pytest.raises(LeaderNotFound):
                producer.get_leader(0)
            again = threading.Timer(0.5, cluster.restart, (only,))
            again.start()
            assert producer.add_message_timeout(0, b"c", PATIENCE_S) == 1
            again.join()
            for broker_id in (1, 2):
                cluster.kill(broker_id)
            with pytest.raises((BrokerDisconnected, LeaderNotFound)):
                producer.add_message(0, b"d")


def test_a_message_is_written_once_though_leaders_die() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "t", 1, 3)
        ended = threading.Event()
        offsets: list[int] = []

        with mount_producer(cluster.bootstrap, topic="t") as producer:

            def write() -> None:
                while not ended.wait(0.001):
                    message = b"%d" % len(offsets)
                    offsets.append(producer.add_message_timeout(0, message, PATIENCE_S))

            writer = threading.Thread(target=write)
            writer.start()
            for _ in range(3):
                leader = partition_of(cluster, "t").leader
                cluster.kill(leader)
                known = len(offsets)
                eventually(lambda known=known: len(offsets) > known + 5)  # type: ignore[misc]
                cluster.restart(leader)
                eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
            ended.set()
            writer.join()
        with mount_consumer_group(cluster.bootstrap, 2, topic="t") as group:
            expected = [b"%d" % number for number in range(len(offsets))]
            assert group.consume([0], 0, 1 << 20)[0] == expected
            assert offsets == list(range(len(offsets)))
            # Whoever is asked, nothing is missing, also while one of them is gone.
            cluster.kill(partition_of(cluster, "t").leader)
            assert group.consume([0], 0, 1 << 20)[0] == expected
            assert group.poll(PATIENCE_S)[0].messages == expected


def test_the_example_of_the_page_runs() -> None:
    guides = Path(__file__).parents[2] / "docs" / "guides"
    page = (guides / "simple-api.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own page
    with pytest.raises(ClientClosed):
        names["group"].poll(1)


def test_a_leader_that_is_alone_is_read_up_to_what_it_knows_to_be_committed() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, DEFAULT_TOPIC, 1, 3)
        assert send(cluster, DEFAULT_TOPIC, b"a", b"b") == [None, None]
        last = partition_of(cluster, DEFAULT_TOPIC).leader
        for broker_id in {1, 2, 3} - {last}:
            cluster.kill(broker_id)
        # It begins its next epoch behind a record that is not committed, and lists no end.
        assert send(cluster, DEFAULT_TOPIC, b"c", acks=1) == [None]
        written_down = cluster.log_dirs()[last] / HIGH_WATERMARKS
        eventually(
            lambda: written_down.exists() and f"{DEFAULT_TOPIC} 0 2" in written_down.read_text()
        )
        cluster.kill(last)
        cluster.restart(last)
        eventually(lambda: partition_of(cluster, DEFAULT_TOPIC).leader == last)
        with mount_consumer_group(cluster.bootstrap, 1) as group:
            assert group.consume([0], offset=0, n=10) == {0: [b"a", b"b"]}
            assert group.consume([0], offset=2, n=10) == {0: []}
            assert group.poll(timeout=60) == [ConsumerRecord(0, [b"a", b"b"], 1)]


def test_a_message_has_the_time_it_was_given_also_when_nobody_answers() -> None:
    with LiteCluster() as cluster, mount_producer(cluster.bootstrap) as producer:
        producer.add_message(0, b"a")
        cluster.pause(1)
        for data in (b"b", b"c"):
            began_s = time.monotonic()
            with pytest.raises(BrokerDisconnected, match="unknown after 1 s") as caught:
                producer.add_message_timeout(0, data, timeout=1)
            assert caught.value.may_be_written
            assert time.monotonic() - began_s < 25
        cluster.resume(1)
        assert producer.add_message_timeout(0, b"d", timeout=30) == 3
        with mount_consumer_group(cluster.bootstrap, 1) as group:
            # What was under way is there, once and in its place.
            assert group.consume([0], 0, 10) == {0: [b"a", b"b", b"c", b"d"]}


def test_a_poll_has_the_time_it_was_given_also_when_a_leader_does_not_answer() -> None:
    # Long enough for the paused one to stay the leader.
    settings = {"num.partitions": "2", "broker.session.timeout.ms": "60000"}
    with (
        LiteCluster(brokers=2, properties=settings) as cluster,
        mount_producer(cluster.bootstrap) as producer,
        mount_consumer_group(cluster.bootstrap, 1) as group,
    ):
        for partition in (0, 1):
            producer.add_message(partition, b"a")
        assert [found.messages for found in group.poll(PATIENCE_S)] == [[b"a"], [b"a"]]
        led = {partition_of(cluster, DEFAULT_TOPIC, number).leader: number for number in (0, 1)}
        assert led.keys() == {1, 2}
        producer.add_message(led[1], b"b")
        cluster.pause(2)
        # The one that answers is read; when there is nothing else to say, the silence is.
        assert _until(group, led[1])[led[1]] == ConsumerRecord(led[1], [b"b"], 1)
        began_s = time.monotonic()
        with pytest.raises(BrokerDisconnected, match="in time"):
            group.poll(1)
        assert time.monotonic() - began_s < 25
        cluster.resume(2)
        producer.add_message_timeout(led[2], b"c", PATIENCE_S)
        assert [(found.messages, found.last_offset) for found in _until(group, led[2])] == [
            ([b"c"], 1) if number == led[2] else ([], 1) for number in (0, 1)
        ]


def _until(group: ConsumerGroup, partition: int) -> list[ConsumerRecord]:
    """The first poll that finds something in a partition."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with suppress(BrokerDisconnected):
            if (found := group.poll(1))[partition].messages:
                return found
    raise AssertionError("nothing came")


def test_polls_lose_nothing_while_leaders_die() -> None:
    with (
        LiteCluster(brokers=3, properties={"num.partitions": "3"}) as cluster,
        mount_producer(cluster.bootstrap) as producer,
        mount_consumer_group(cluster.bootstrap, 2) as group,
    ):
        ended = threading.Event()
        written: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

        def write() -> None:
            number = 0
            while not ended.is_set():
                message = b"%d" % number
                producer.add_message_timeout(number % 3, message, PATIENCE_S)
                written[number % 3].append(message)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        read: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

        def poll() -> None:
            with suppress(BrokerDisconnected, LeaderNotFound):
                for found in group.poll(0.3):
                    read[found.partition] += found.messages

        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
            for _ in range(8):
                poll()
            cluster.restart(broker_id)
            poll()
            eventually(lambda: in_sync(cluster, DEFAULT_TOPIC) == {1, 2, 3})
        ended.set()
        writer.join()
        assert sum(map(len, written.values())) > 100
        deadline_s = time.monotonic() + PATIENCE_S
        while read != written and time.monotonic() < deadline_s:
            poll()
        assert read == written
