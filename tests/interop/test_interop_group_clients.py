"""Groups of the clients that people run: they share partitions, hand them over, and go on."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from support.apache.kafka_tools import KafkaTools
from support.coordinator.group_readers import COOPERATIVE, RANGE, READERS, Reader
from support.lite.clusters import eventually

PARTITIONS = 6
PATIENCE_S = 60.0
NewName = Callable[[str], str]
KINDS = [
    *((kind, RANGE) for kind in READERS),
    # aiokafka has no cooperative assignor.
    *((kind, COOPERATIVE) for kind in READERS if kind != "aiokafka"),
]


@pytest.fixture
def wide(new_topic: Callable[..., str]) -> str:
    """A topic with several partitions."""
    return new_topic(PARTITIONS)


@pytest.fixture
def group(new_name: NewName) -> str:
    return new_name("group")


def produce(bootstrap: str, topic: str, each: int) -> None:
    """So many records to each partition."""
    with Producer({"bootstrap.servers": bootstrap, "log_level": 0}) as producer:
        for index in range(PARTITIONS):
            for number in range(each):
                producer.produce(topic, b"%d" % number, partition=index)
        assert producer.flush(PATIENCE_S) == 0


def read_committed_offsets(bootstrap: str, group: str, topic: str) -> list[int]:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
    with Consumer(settings) as consumer:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return [place.offset for place in consumer.committed(places, PATIENCE_S)]


def settle(reader: Reader, quiet_s: float = 2.0) -> int:
    """Wait until the group has changed nothing for a while; returns the changes so far."""
    seen, since = reader.changes, time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since
        if reader.changes != seen:
            seen, since = reader.changes, time.monotonic()
        return time.monotonic() - since > quiet_s

    eventually(is_quiet, PATIENCE_S)
    return seen


def expect_shares(readers: Sequence[Reader], sizes: Sequence[int]) -> None:
    def is_so() -> bool:
        owned = [index for reader in readers for index in reader.assigned]
        shared = sorted(len(reader.assigned) for reader in readers)
        return shared == sorted(sizes) and sorted(owned) == list(range(PARTITIONS))

    eventually(is_so, PATIENCE_S)


def expect_read(readers: Sequence[Reader], each: int) -> None:
    wanted = {(index, offset) for index in range(PARTITIONS) for offset in range(each)}
    eventually(lambda: {item for reader in readers for item in reader.read} == wanted, PATIENCE_S)


@contextmanager
def together(*readers: Reader) -> Iterator[None]:
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader)
        yield


@pytest.mark.parametrize(("kind", "strategy"), KINDS)
@pytest.mark.quick("own-range", "librdkafka-cooperative-sticky", "kafka-python-range")
def test_members_share_and_hand_over(
    bootstrap: str, wide: str, group: str, kind: str, strategy: str
) -> None:
    a, b, c = (READERS[kind](bootstrap, group, wide, strategy=strategy) for _ in range(3))
    produce(bootstrap, wide, 20)
    with together(a, b, c):
        expect_shares([a, b, c], [2, 2, 2])
        expect_read([a, b, c], 20)
        c.stop()
        expect_shares([a, b], [3, 3])
        produce(bootstrap, wide, 10)
        expect_read([a, b, c], 30)
        eventually(lambda: read_committed_offsets(bootstrap, group, wide) == [30] * PARTITIONS)
    # Another member goes on where the group has stopped.
    produce(bootstrap, wide, 5)
    with READERS[kind](bootstrap, group, wide, strategy=strategy) as late:
        eventually(lambda: len(set(late.read)) == 5 * PARTITIONS, PATIENCE_S)
        assert min(offset for _, offset in late.read) == 30


@pytest.mark.parametrize("strategy", [RANGE, COOPERATIVE])
def test_members_of_all_kinds_in_one_group(
    bootstrap: str, wide: str, group: str, strategy: str
) -> None:
    kinds = [kind for kind, known in KINDS if known == strategy]
    readers = [READERS[kind](bootstrap, group, wide, strategy=strategy) for kind in kinds]
    produce(bootstrap, wide, 10)
    with together(*readers):
        each, rest = divmod(PARTITIONS, len(readers))
        shares = [each + (place < rest) for place in range(len(readers))]
        expect_shares(readers, shares)
        expect_read(readers, 10)
        # Whoever leads goes, and the others must agree again.
        readers[0].stop()
        each, rest = divmod(PARTITIONS, len(readers) - 1)
        shares = [each + (place < rest) for place in range(len(readers) - 1)]
        expect_shares(readers[1:], shares)
        produce(bootstrap, wide, 10)
        expect_read(readers, 20)


@pytest.mark.parametrize("kind", READERS)
def test_a_static_member_comes_back_and_nobody_notices(
    bootstrap: str, wide: str, group: str, kind: str
) -> None:
    produce(bootstrap, wide, 5)
    make = READERS[kind]
    with make(bootstrap, group, wide, instance="one") as one:
        with make(bootstrap, group, wide, instance="two") as two:
            expect_shares([one, two], [3, 3])
            expect_read([one, two], 5)
            # kafka-python joins once more when its metadata arrives after it has joined.
            changes = settle(one)
            shares = set(two.assigned)
        produce(bootstrap, wide, 5)
        with make(bootstrap, group, wide, instance="two") as reborn:
            eventually(lambda: reborn.assigned == shares, PATIENCE_S)
            eventually(
                lambda: {item[0] for item in reborn.read if item[1] >= 5} == shares, PATIENCE_S
            )
            assert one.changes == changes


def test_administration_by_librdkafka(bootstrap: str, wide: str, group: str) -> None:
    produce(bootstrap, wide, 3)
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        with READERS["librdkafka"](bootstrap, group, wide) as reader:
            expect_shares([reader], [PARTITIONS])
            expect_read([reader], 3)
            eventually(lambda: read_committed_offsets(bootstrap, group, wide) == [3] * PARTITIONS)
            listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(60)
            assert group in {one.group_id for one in listed.valid}
            told = admin.describe_consumer_groups([group])[group].result(60)
            assert told.state is ConsumerGroupState.STABLE
            assert told.partition_assignor == "range"
            [member] = told.members
            assert {tp.partition for tp in member.assignment.topic_partitions} == reader.assigned
        eventually(
            lambda: (
                admin.describe_consumer_groups([group])[group].result(60).state
                is ConsumerGroupState.EMPTY
            )
        )
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(wide, 0, 1)])
        admin.alter_consumer_group_offsets([wanted])[group].result(60)
        asked = ConsumerGroupTopicPartitions(group)
        found = admin.list_consumer_group_offsets([asked])[group].result(60)
        offsets = {tp.partition: tp.offset for tp in found.topic_partitions}
        assert offsets == {0: 1} | dict.fromkeys(range(1, PARTITIONS), 3)
        admin.delete_consumer_groups([group])[group].result(60)
        listed = admin.list_consumer_groups().result(60)
        assert group not in {one.group_id for one in listed.valid}


def test_administration_by_kafkas_own_tools(
    kafka_tools: KafkaTools, bootstrap: str, wide: str, group: str
) -> None:
    server = ("--bootstrap-server", bootstrap)
    named = (*server, "--group", group)
    produce(bootstrap, wide, 4)
    kafka_tools(
        "console-consumer",
        *named,
        "--topic",
        wide,
        "--from-beginning",
        "--max-messages",
        str(4 * PARTITIONS),
    )
    told = kafka_tools("consumer-groups", *named, "--describe")
    rows = [line.split() for line in told.splitlines() if wide in line]
    assert sorted(row[2:6] for row in rows) == [[str(i), "4", "4", "0"] for i in range(PARTITIONS)]
    assert group in kafka_tools("consumer-groups", *server, "--list").split()
    assert "Empty" in kafka_tools("consumer-groups", *named, "--describe", "--state")
    kafka_tools(
        "consumer-groups",
        *named,
        "--reset-offsets",
        "--to-offset",
        "1",
        "--topic",
        wide,
        "--execute",
    )
    assert read_committed_offsets(bootstrap, group, wide) == [1] * PARTITIONS
    kafka_tools("consumer-groups", *named, "--delete-offsets", "--topic", f"{wide}:0,1")
    assert read_committed_offsets(bootstrap, group, wide)[:3] == [-1001, -1001, 1]
    with READERS["librdkafka"](bootstrap, group, wide) as reader:
        expect_shares([reader], [PARTITIONS])
        told = kafka_tools("consumer-groups", *named, "--describe", "--members", "--verbose")
        assert "/127.0.0.1" in told
        assert f"{wide}(0,1,2,3,4,5)" in told.replace(" ", "") or f"{wide}:0,1,2,3,4,5" in told
        refused = kafka_tools.run("consumer-groups", *named, "--delete")
        assert "not empty" in refused.text.lower() or "non_empty" in refused.text.lower()
    kafka_tools("consumer-groups", *named, "--delete")
    assert group not in kafka_tools("consumer-groups", *server, "--list").split()


def test_kafkas_own_formatters_read_the_records_of_groups(
    kafka_tools: KafkaTools, bootstrap: str, wide: str, group: str
) -> None:
    produce(bootstrap, wide, 2)
    with READERS["librdkafka"](bootstrap, group, wide, instance="fixed") as reader:
        expect_shares([reader], [PARTITIONS])
        eventually(lambda: read_committed_offsets(bootstrap, group, wide) == [2] * PARTITIONS)

    def read(formatter: str, patience_ms: int) -> list[str]:
        named = f"org.apache.kafka.tools.consumer.{formatter}"
        options = ("--topic", "__consumer_offsets", "--from-beginning", "--formatter", named)
        server = ("--bootstrap-server", bootstrap, "--timeout-ms", str(patience_ms))
        said = kafka_tools.run("console-consumer", *server, *options)
        return [line for line in said.lines if f'"group":"{group}"' in line]

    def has(formatter: str, *texts: str) -> bool:
        """Whether a line has all of them; a tool ends early on a machine that is busy."""
        for patience_ms in (3_000, 10_000, 30_000):
            lines = read(formatter, patience_ms)
            if any(all(text in line for text in texts) for line in lines):
                return True
        return False

    assert has("OffsetsMessageFormatter", f'"topic":"{wide}"', '"offset":2,')
    assert has("GroupMetadataMessageFormatter", '"groupInstanceId":"fixed"')


@pytest.mark.system("kcat")
def test_kcat(bootstrap: str, wide: str, group: str) -> None:
    produce(bootstrap, wide, 3)
    options = ["-c", "18", "-q", "-f", "%p:%o\\n", "-X", "auto.offset.reset=earliest"]
    command = ["kcat", "-b", bootstrap, "-G", group, *options, wide]
    said = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    read = {tuple(map(int, line.split(":"))) for line in said.stdout.split()}
    assert read == {(index, offset) for index in range(PARTITIONS) for offset in range(3)}
    eventually(lambda: read_committed_offsets(bootstrap, group, wide) == [3] * PARTITIONS)
