"""Damage stays in its partition: everything else is replicated and served meanwhile.

Each situation damages one replica of `victim` under a running cluster, and lets somebody meet
the damage. Then another replica leads, nothing that was acknowledged is lost, the status names
the offline replica, `bystander` has had no gap, and a restart brings the replica back.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from shoal.lite.base.codes import Code
from shoal.lite.cluster import LiteCluster
from support.lite.client import PlainClient, at
from support.lite.clusters import (
    Load,
    admin_of,
    await_in_sync,
    await_values,
    eventually,
    in_sync,
    partition_of,
    replicas_are_equal,
)

pytestmark = pytest.mark.slow

LEADER, SECOND, THIRD = 1, 2, 3
EVERYONE = {LEADER, SECOND, THIRD}
VALUE_BYTES = 20_000
COUNT = 120
SEGMENT_BYTES = 1024 * 1024
PROPERTIES = {
    "replica.lag.time.max.ms": "5000",
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "100",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, directory=tmp_path, properties=PROPERTIES) as running:
        # The others lead as much as the first will, so that no leadership is moved to balance.
        others = [[SECOND, THIRD, LEADER], [THIRD, SECOND, LEADER]]
        with admin_of(running) as admin:
            topic = NewTopic("ballast", num_partitions=4, replica_assignment=2 * others)
            admin.create_topics([topic])["ballast"].result(60)
        yield running


def create(cluster: LiteCluster, name: str, replicas: list[int], **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    with admin_of(cluster) as admin:
        topic = NewTopic(name, num_partitions=1, replica_assignment=[replicas], config=settings)
        admin.create_topics([topic])[name].result(60)
    eventually(lambda: partition_of(cluster, name).leader == replicas[0])


def value(number: int) -> bytes:
    return f"{number:06d}".encode() * (VALUE_BYTES // 6)


def produce(cluster: LiteCluster, first: int, count: int) -> list[bytes]:
    """Write values to the victim, a batch each, on all in-sync replicas."""
    values = [value(number) for number in range(first, first + count)]
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "batch.num.messages": 1}
    with Producer(settings | {"acks": "all", "enable.idempotence": True}) as producer:
        for each in values:
            producer.produce("victim", each, key=each[:6], partition=0)
        assert producer.flush(120) == 0
    return values


# Damage


def log_of(cluster: LiteCluster, broker_id: int) -> Path:
    """The first segment of a replica, which is sealed."""
    return min((cluster.log_dirs()[broker_id] / "victim-0").glob("*.log"))


def write_at(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def flip_a_record(path: Path) -> None:
    """Within the content of a batch in the middle."""
    content = path.read_bytes()
    write_at(path, content.index(b"000020" * 100) + 300, b"\xff\x00\xff\x00")


def destroy_all_headers(path: Path) -> None:
    write_at(path, path.stat().st_size // 2, b"\0" * (path.stat().st_size // 4))


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def spoil_index(path: Path) -> None:
    index = path.with_suffix(".index")
    write_at(index, 0, b"\x7f\x01" * (index.stat().st_size // 2))


def remove_index(path: Path) -> None:
    path.with_suffix(".index").unlink()


def cut_index(path: Path) -> None:
    index = path.with_suffix(".index")
    with index.open("r+b") as file:
        file.truncate(index.stat().st_size // 2 + 3)


# Those who meet it


def consume_all(cluster: LiteCluster) -> None:
    """As a consumer does that finds damage: it asks again."""
    node = next(node for node in cluster.nodes() if node.id == LEADER)
    fetched_to, codes = 0, []
    with PlainClient(f"{node.host}:{node.port}") as client:
        for _ in range(2 * COUNT):
            answer = client.fetch(at("victim", fetched_to)).partitions[0]
            codes.append(answer.error_code)
            if answer.error_code:
                break
            batches = whole_batches(bytes(answer.records), fetched_to)
            fetched_to += batches
            if fetched_to >= COUNT:
                break
    # Errors have Kafka's codes, on a connection that stays open.
    allowed = {Code.NONE, Code.KAFKA_STORAGE_ERROR, Code.NOT_LEADER_OR_FOLLOWER}
    assert set(codes) <= allowed


def whole_batches(records: bytes, first_offset: int) -> int:
    """How many undamaged batches there are, in order, from an offset on."""
    found = 0
    while (batch := next_batch(records)) is not None:
        offset, size = batch
        assert offset >= first_offset + found, "offsets go back"
        if offset != first_offset + found:
            raise AssertionError(f"{first_offset + found} was skipped")
        found += 1
        records = records[size:]
    return found


def next_batch(records: bytes) -> tuple[int, int] | None:
    from shoal.lite.storage.header import HEADER_SIZE, unpack_header
    from shoal.wire.records.crc import crc32c

    if len(records) < HEADER_SIZE:
        return None
    header = unpack_header(records)
    is_whole = header.magic == 2 and HEADER_SIZE <= header.size <= len(records)
    if not is_whole or crc32c(records[21 : header.size]) != header.crc:
        return None
    return header.base_offset, header.size


def follow_from_the_start(cluster: LiteCluster) -> None:
    """A follower that has nothing fetches all of it from the leader."""
    cluster.kill(THIRD)
    for path in (cluster.log_dirs()[THIRD] / "victim-0").iterdir():
        path.unlink()
    cluster.restart(THIRD)


def expire(cluster: LiteCluster) -> None:
    """Retention deletes the damaged segment."""
    path = log_of(cluster, LEADER)
    set_config(cluster, "victim", "retention.bytes", "1")
    eventually(lambda: not path.exists())


@dataclass(frozen=True)
class Situation:
    """What is damaged, who meets it, and whether the replica must go offline for it."""

    damage: Callable[[Path], None]
    meet: Callable[[LiteCluster], None]
    goes_offline: bool = True


SITUATIONS = {
    "record flipped, consumer": Situation(flip_a_record, consume_all),
    "record flipped, follower": Situation(flip_a_record, follow_from_the_start),
    "headers destroyed, consumer": Situation(destroy_all_headers, consume_all),
    "headers destroyed, follower": Situation(destroy_all_headers, follow_from_the_start),
    "truncated, consumer": Situation(truncate, consume_all),
    "truncated, follower": Situation(truncate, follow_from_the_start),
    "removed, consumer": Situation(Path.unlink, consume_all, goes_offline=False),
    "index spoilt, consumer": Situation(spoil_index, consume_all, goes_offline=False),
    "index removed, consumer": Situation(remove_index, consume_all, goes_offline=False),
    "index cut, follower": Situation(cut_index, follow_from_the_start, goes_offline=False),
    "record flipped, retention": Situation(flip_a_record, expire, goes_offline=False),
}


def offline_at(cluster: LiteCluster, broker_id: int) -> dict[str, str]:
    return next(node.offline for node in cluster.status() if node.id == broker_id)


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.quick("truncated, consumer", "record flipped, follower", "index removed, consumer")
def test_damage_of_a_leader_stays_in_its_partition(cluster: LiteCluster, name: str) -> None:
    situation = SITUATIONS[name]
    create(cluster, "victim", [LEADER, SECOND, THIRD], segment_bytes=str(SEGMENT_BYTES))
    create(cluster, "bystander", [LEADER, SECOND, THIRD])
    values = produce(cluster, 0, COUNT)
    eventually(lambda: in_sync(cluster, "victim") == EVERYONE)
    with Load(cluster, "bystander") as load:
        load.goes_on()
        situation.damage(log_of(cluster, LEADER))
        situation.meet(cluster)
        if situation.goes_offline:
            eventually(lambda: partition_of(cluster, "victim").leader in {SECOND, THIRD})
            eventually(lambda: "victim-0" in offline_at(cluster, LEADER))
            assert "could not be read" in offline_at(cluster, LEADER)["victim-0"]
        load.goes_on()
        values += produce(cluster, COUNT, 10)
        load.goes_on()
        if not situation.goes_offline:
            assert offline_at(cluster, LEADER) == {}
            # A broker that was restarted may be given its share of leaderships meanwhile.
            if situation.meet is not follow_from_the_start:
                assert partition_of(cluster, "victim").leader == LEADER
        # The bystander was led and replicated as before.
        if situation.meet is not follow_from_the_start:
            assert partition_of(cluster, "bystander").leader == LEADER
        eventually(lambda: in_sync(cluster, "bystander") == EVERYONE)
    load.check(cluster)
    if situation.meet is not expire:
        await_values(cluster, "victim", values)
    check_reconnects(cluster)
    cluster.restart(LEADER)
    eventually(lambda: in_sync(cluster, "victim") == EVERYONE)
    assert offline_at(cluster, LEADER) == {}
    eventually(lambda: replicas_are_equal(cluster, "victim"))


def check_reconnects(cluster: LiteCluster) -> None:
    """Followers did not spin: a lost connection to the leader is a rare thing."""
    for broker_id in (SECOND, THIRD):
        log = (cluster.log_dirs()[broker_id].parent / f"broker-{broker_id}.log").read_text()
        assert log.count(f"broker {LEADER} cannot be fetched from") < 10


def test_compaction_finds_damage_and_writes_nothing_of_it(cluster: LiteCluster) -> None:
    config = {"segment_bytes": str(SEGMENT_BYTES), "cleanup_policy": "delete"}
    create(cluster, "victim", [LEADER, SECOND, THIRD], **config)
    create(cluster, "bystander", [LEADER, SECOND, THIRD])
    values = produce(cluster, 0, COUNT)
    eventually(lambda: in_sync(cluster, "victim") == EVERYONE)
    with Load(cluster, "bystander") as load:
        flip_a_record(log_of(cluster, LEADER))
        set_config(cluster, "victim", "cleanup.policy", "compact")
        set_config(cluster, "victim", "min.cleanable.dirty.ratio", "0.01")
        eventually(lambda: "victim-0" in offline_at(cluster, LEADER))
        reason = offline_at(cluster, LEADER)["victim-0"]
        assert re.search(r"in \d{20}\.log the batch at offset \d+ contradicts its checksum", reason)
        eventually(lambda: partition_of(cluster, "victim").leader in {SECOND, THIRD})
        load.goes_on()
        assert partition_of(cluster, "bystander").leader == LEADER
    load.check(cluster)
    await_values(cluster, "victim", values)
    cluster.restart(LEADER)
    eventually(lambda: in_sync(cluster, "victim") == EVERYONE)


def set_config(cluster: LiteCluster, topic: str, name: str, content: str) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    operation = AlterConfigOpType.SET
    entry = ConfigEntry(name, content, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    with admin_of(cluster) as admin:
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)


def test_a_disk_that_cannot_be_read_costs_what_is_read_from_it(cluster: LiteCluster) -> None:
    create(cluster, "victim", [LEADER, SECOND, THIRD], segment_bytes=str(SEGMENT_BYTES))
    create(cluster, "bystander", [SECOND, LEADER, THIRD])
    values = produce(cluster, 0, COUNT)
    with Load(cluster, "bystander") as load:
        cluster.fail_disk(LEADER, reads="EIO")
        consume_all(cluster)
        eventually(lambda: partition_of(cluster, "victim").leader in {SECOND, THIRD})
        eventually(lambda: "victim-0" in offline_at(cluster, LEADER))
        load.goes_on()
        await_in_sync(cluster, "bystander", EVERYONE)
        assert "bystander-0" not in offline_at(cluster, LEADER)
    load.check(cluster)
    await_values(cluster, "victim", values)
    cluster.heal()
    cluster.restart(LEADER)
    eventually(lambda: in_sync(cluster, "victim") == EVERYONE)


@pytest.mark.parametrize("damage", [flip_a_record, destroy_all_headers, truncate, Path.unlink])
@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.quick("killed-flip_a_record", "stopped-unlink")
def test_damage_that_is_found_later_is_mended_from_the_others(
    cluster: LiteCluster, damage: Callable[[Path], None], end: str
) -> None:
    """The log is damaged while its broker is down; then it leads, and is read."""
    create(cluster, "victim", [LEADER, SECOND, THIRD], segment_bytes=str(SEGMENT_BYTES))
    create(cluster, "bystander", [LEADER, SECOND, THIRD])
    values = produce(cluster, 0, COUNT)
    eventually(lambda: in_sync(cluster, "victim") == EVERYONE)
    path = log_of(cluster, LEADER)
    with Load(cluster, "bystander") as load:
        cluster.kill(LEADER) if end == "killed" else cluster.stop_node(LEADER)
        damage(path)
        cluster.restart(LEADER)
        load.goes_on()
        eventually(lambda: in_sync(cluster, "bystander") == EVERYONE)
        eventually(lambda: in_sync(cluster, "victim") == EVERYONE)
        cluster.move_leader("victim", 0, LEADER)
        consume_all(cluster)
        await_values(cluster, "victim", values)
        load.goes_on()
    load.check(cluster)


def test_a_partition_without_another_replica_is_offline_and_says_so(cluster: LiteCluster) -> None:
    create(cluster, "victim", [LEADER], segment_bytes=str(SEGMENT_BYTES))
    create(cluster, "bystander", [LEADER, SECOND, THIRD])
    produce(cluster, 0, COUNT)
    with Load(cluster, "bystander") as load:
        path = log_of(cluster, LEADER)
        truncate(path)
        consume_all(cluster)
        eventually(lambda: partition_of(cluster, "victim").leader == -1)
        eventually(lambda: "victim-0" in offline_at(cluster, LEADER))
        load.goes_on()
        assert partition_of(cluster, "bystander").leader == LEADER
    load.check(cluster)
