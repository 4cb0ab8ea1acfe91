"""A follower's fetch session with its leader; the test acts as a dead broker."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from uuid import UUID

import psutil
import pytest

from shoal.lite.base.codes import Code
from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import FetchPartition, FetchResponse, decode_fetch_response
from shoal.wire.messages import put_request_header
from shoal.wire.produce import ProducePartition
from support.lite.batches import batch_of, values_of
from support.lite.client import TIMEOUT_MS, PlainClient
from support.lite.clusters import create_topic, eventually, partition_of, send

VERSION = 15
PARTITIONS = 3
PATIENCE_MS = 20_000
NEVER_MS = 600_000
FIRST = (0, 0)
# Above all broker epochs of the cluster.
_BROKER_EPOCH = 1 << 40


@dataclass
class Stage:
    address: str
    producer: PlainClient
    follower: PlainClient
    topic_id: UUID
    leader_epochs: dict[int, int]

    def at(self, partition: int, offset: int) -> FetchPartition:
        epoch = self.leader_epochs[partition]
        last_epoch = epoch if offset else -1
        return FetchPartition("", self.topic_id, partition, offset, 1 << 20, epoch, last_epoch, 0)

    def write(self, partition: int, value: bytes) -> None:
        assert self.producer.produce("t", batch_of(value), partition=partition).error_code == 0

    def send(
        self, *asked: FetchPartition, session: tuple[int, int], wait_ms: int = PATIENCE_MS
    ) -> None:
        session_id, epoch = session
        limits = {"session_id": session_id, "session_epoch": epoch, "max_wait_ms": wait_ms}
        follower = {"replica_id": 2, "replica_epoch": _BROKER_EPOCH}
        self.follower.send_fetch(*asked, version=VERSION, **limits, **follower)

    def receive(self) -> FetchResponse:
        return decode_fetch_response(VERSION, self.follower.receive_frame())

    def fetch(
        self, *asked: FetchPartition, session: tuple[int, int], wait_ms: int = PATIENCE_MS
    ) -> FetchResponse:
        self.send(*asked, session=session, wait_ms=wait_ms)
        return self.receive()

    def begin(self) -> int:
        """Begin a session over all partitions, which are empty; return its id."""
        everything = [self.at(number, 0) for number in range(PARTITIONS)]
        response = self.fetch(*everything, session=FIRST, wait_ms=0)
        values_by_partition = [(each.partition, each.error_code) for each in response.partitions]
        assert values_by_partition == [(number, 0) for number in range(PARTITIONS)]
        assert response.session_id > 0
        return response.session_id


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Two brokers, the second of which is dead, and the partitions that it followed."""
    with LiteCluster(brokers=2, properties={"min.insync.replicas": "1"}) as cluster:
        create_topic(cluster, "t", PARTITIONS, 2)
        cluster.kill(2)
        for number in range(PARTITIONS):
            eventually(partial(_is_alone, cluster, number))
        address = cluster.bootstrap.split(",")[0]
        with PlainClient(address) as producer, PlainClient(address) as follower:
            flags = {"allow_auto_topic_creation": False}
            flags["include_topic_authorized_operations"] = False
            wanted = [{"topic_id": None, "name": "t"}]
            [topic] = producer.request(ApiKey.METADATA, 12, topics=wanted, **flags).topics
            epochs = {each.partition_index: each.leader_epoch for each in topic.partitions}
            yield Stage(address, producer, follower, topic.topic_id, epochs)


def _is_alone(cluster: LiteCluster, number: int) -> bool:
    found = partition_of(cluster, "t", number)
    return found.leader == 1 and set(found.isrs) == {1}


def values_by_partition(response: FetchResponse) -> dict[int, list[bytes | None]]:
    """Return the received values by partition; assert that there is no error."""
    assert response.error_code == 0
    assert [each.error_code for each in response.partitions] == [0] * len(response.partitions)
    return {each.partition: values_of(bytes(each.records)) for each in response.partitions}


def test_only_changed_partitions_are_requested_and_answered(stage: Stage) -> None:
    session_id = stage.begin()
    stage.send(session=(session_id, 1))
    stage.write(1, b"a")
    assert values_by_partition(stage.receive()) == {1: [b"a"]}
    stage.write(1, b"b")
    stage.write(2, b"c")
    # The next fetch offset shows that the follower has the first; the others are omitted.
    response = stage.fetch(stage.at(1, 1), session=(session_id, 2))
    assert values_by_partition(response) == {1: [b"b"], 2: [b"c"]}
    response = stage.fetch(stage.at(1, 2), stage.at(2, 1), session=(session_id, 3), wait_ms=50)
    assert all(not values for values in values_by_partition(response).values())


def test_large_batches_are_told_too(stage: Stage) -> None:
    session_id = stage.begin()
    stage.send(session=(session_id, 1))
    values = [bytes([number]) * 40_000 for number in range(3)]
    for value in values:
        stage.producer.send_produce([ProducePartition("t", 1, batch_of(value))], acks=0)
    found = values_by_partition(stage.receive())[1]
    for epoch in count(2):
        if found == values:
            break
        assert found == values[: len(found)]
        found += values_by_partition(
            stage.fetch(stage.at(1, len(found)), session=(session_id, epoch))
        )[1]


def test_what_the_follower_did_not_take_comes_again(stage: Stage) -> None:
    session_id = stage.begin()
    stage.write(0, b"a")
    assert values_by_partition(stage.fetch(session=(session_id, 1))) == {0: [b"a"]}
    # The leader checks the omitted partitions only at intervals.
    for epoch in count(2):
        if found := values_by_partition(stage.fetch(session=(session_id, epoch), wait_ms=100)):
            assert found == {0: [b"a"]}
            break


def test_requests_out_of_turn_and_of_no_session_are_refused(stage: Stage) -> None:
    session_id = stage.begin()
    for session, code in [
        ((session_id, 2), Code.INVALID_FETCH_SESSION_EPOCH),
        ((session_id + 1, 1), Code.FETCH_SESSION_ID_NOT_FOUND),
    ]:
        assert stage.fetch(session=session).error_code == code
    assert values_by_partition(stage.fetch(session=(session_id, 1), wait_ms=0)) == {}


def test_an_error_is_answered_at_once_and_the_partition_leaves(stage: Stage) -> None:
    session_id = stage.begin()
    wrong = stage.at(0, 0)._replace(leader_epoch=stage.leader_epochs[0] + 5)
    [refused] = stage.fetch(wrong, session=(session_id, 1)).partitions
    assert refused.error_code == Code.UNKNOWN_LEADER_EPOCH
    stage.write(0, b"a")
    assert values_by_partition(stage.fetch(session=(session_id, 2), wait_ms=300)) == {}
    assert values_by_partition(stage.fetch(stage.at(0, 0), session=(session_id, 3))) == {0: [b"a"]}


def test_a_new_session_ends_the_old_one_and_its_fetch(stage: Stage) -> None:
    session_id = stage.begin()
    stage.send(session=(session_id, 1))
    with PlainClient(stage.address) as other:
        heir = replace(stage, follower=other)
        heir_id = heir.begin()
        assert heir_id != session_id
        assert stage.receive().error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        assert stage.fetch(session=(session_id, 2)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        stage.write(0, b"a")
        assert values_by_partition(heir.fetch(session=(heir_id, 1))) == {0: [b"a"]}


def test_a_fetch_that_is_held_is_answered_when_another_request_comes(stage: Stage) -> None:
    session_id = stage.begin()
    # The test does not wait that long: without the second request no answer comes.
    stage.send(session=(session_id, 1), wait_ms=NEVER_MS)
    header = put_request_header(ApiKey.API_VERSIONS, 0, correlation_id=77, client_id="test")
    stage.follower.send_frame(header)
    assert values_by_partition(stage.receive()) == {}
    assert stage.follower.receive_frame()[:4] == (77).to_bytes(4, "big")
    # The session continues: the next request contains only changes.
    stage.write(0, b"a")
    assert values_by_partition(stage.fetch(stage.at(0, 0), session=(session_id, 2))) == {0: [b"a"]}


def connections_between_brokers(cluster: LiteCluster) -> set[tuple[int, int]]:
    """The pairs of ports over which brokers fetch from each other."""
    ports = {int(address.rpartition(":")[2]) for address in cluster.bootstrap.split(",")}
    return {
        (link.laddr.port, link.raddr.port)
        for node in cluster.status()
        for link in psutil.Process(node.pid).net_connections("tcp")
        if link.status == psutil.CONN_ESTABLISHED and link.raddr.port in ports
    }


def test_new_partitions_join_a_session_that_goes_on() -> None:
    """They are fetched at once, although their leaders hold a fetch for very long."""
    properties = {
        "replica.fetch.wait.max.ms": str(NEVER_MS),
        "replica.lag.time.max.ms": str(2 * NEVER_MS),
    }
    with LiteCluster(brokers=3, properties=properties) as cluster:
        create_topic(cluster, "first", 6, 3)
        for number in range(6):
            eventually(lambda number=number: partition_of(cluster, "first", number).leader > 0)  # type: ignore[misc]
        assert send(cluster, "first", b"a") == [None]
        eventually(lambda: len(connections_between_brokers(cluster)) == 6)
        known = connections_between_brokers(cluster)
        for number in range(5):
            create_topic(cluster, f"later-{number}", 3, 3)
            assert send(cluster, f"later-{number}", b"a") == [None]
        assert connections_between_brokers(cluster) == known


def test_a_topic_that_goes_away_is_told(stage: Stage) -> None:
    session_id = stage.begin()
    stage.send(session=(session_id, 1))
    stage.producer.request(ApiKey.DELETE_TOPICS, 5, topic_names=["t"], timeout=TIMEOUT_MS)
    codes = {each.error_code for each in stage.receive().partitions}
    assert codes <= {Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_ID}
    assert codes
