"""A topic that is deleted and created again has none of the offsets that were committed before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code
from support.client.transaction_client import NEVER_MS, Producer, TransactionClient
from support.lite.client import TIMEOUT_MS
from support.lite.clusters import eventually

pytestmark = pytest.mark.slow

GROUP, TOPIC = "group", "topic"
COORDINATOR, OTHER = 1, 2
PROPERTIES = {
    "broker.session.timeout.ms": str(NEVER_MS),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class GroupClient(TransactionClient):
    """Commits and fetches offsets; asks again while the coordinator loads."""

    def create(self, name: str, broker_id: int) -> UUID:
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [broker_id]}],
            "configs": [],
        }
        answer = self.request(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=TIMEOUT_MS)
        assert answer.topics[0].error_code == 0, answer
        topic_id: UUID = answer.topics[0].topic_id
        return topic_id

    def delete(self, name: str) -> None:
        answer = self.request(
            ApiKey.DELETE_TOPICS, 6, topics=[{"name": name, "topic_id": None}], timeout=TIMEOUT_MS
        )
        assert answer.responses[0].error_code == 0, answer

    def commit(self, offset: int, **more: Any) -> None:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        values: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "retention_time": -1,
            "topics": [{"name": TOPIC, "partitions": [partition]}],
        }

        def is_committed() -> bool:
            answer = self.request(ApiKey.OFFSET_COMMIT, 4, **(values | more))
            return bool(answer.topics[0].partitions[0].error_code == 0)

        eventually(is_committed)

    def fetch_committed(self, version: int = 7, **topic: Any) -> int:
        """Return the committed offset, or -1, once the coordinator is loaded."""
        wanted = [{"name": TOPIC, "partition_indexes": [0], **topic}]
        found: list[Any] = []

        def is_answered() -> bool:
            values = {"group_id": GROUP, "topics": wanted, "require_stable": False}
            answer = self.request(ApiKey.OFFSET_FETCH, version, groups=[values], **values)
            found.append(answer.groups[0] if version >= 8 else answer)
            return bool(found[-1].error_code == 0)

        eventually(is_answered)
        partition = found[-1].topics[0].partitions[0]
        assert partition.error_code == 0, partition
        return int(partition.committed_offset)

    def all_topics(self) -> list[str]:
        values = {"group_id": GROUP, "topics": None, "require_stable": True}
        answer = self.request(ApiKey.OFFSET_FETCH, 7, **values)
        assert answer.error_code == 0
        return [topic.name for topic in answer.topics]


@pytest.fixture
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=2, properties=PROPERTIES) as running:
        yield running


@contextmanager
def connect(cluster: LiteCluster, broker_id: int) -> Iterator[GroupClient]:
    node = next(node for node in cluster.nodes() if node.id == broker_id)
    with GroupClient(f"{node.host}:{node.port}") as client:
        yield client


def create_topics(client: GroupClient) -> UUID:
    client.create("__consumer_offsets", COORDINATOR)
    client.create("__transaction_state", COORDINATOR)
    # Both brokers lead equally many, so that no leadership moves.
    client.create("filler", OTHER)
    return client.create(TOPIC, OTHER)


@contextmanager
def pause_coordinator(cluster: LiteCluster) -> Iterator[None]:
    """What happens meanwhile reaches the coordinator in one batch of metadata."""
    cluster.pause(COORDINATOR)
    try:
        yield
    finally:
        cluster.resume(COORDINATOR)


@contextmanager
def restart_coordinator(cluster: LiteCluster) -> Iterator[None]:
    """What happens meanwhile is known to the coordinator before it loads."""
    cluster.stop_node(COORDINATOR)
    try:
        yield
    finally:
        cluster.restart(COORDINATOR)


Absence = Callable[[LiteCluster], Any]


@pytest.mark.parametrize("absent", [pause_coordinator, restart_coordinator])
def test_offsets_of_the_topic_before_are_absent(cluster: LiteCluster, absent: Absence) -> None:
    with connect(cluster, OTHER) as other:
        with connect(cluster, COORDINATOR) as client:
            old_id = create_topics(client)
            client.commit(100)
            assert client.fetch_committed() == 100
        with absent(cluster):
            other.delete(TOPIC)
            new_id = other.create(TOPIC, OTHER)
        with connect(cluster, COORDINATOR) as client:
            eventually(lambda: _knows(client, new_id))
            assert client.fetch_committed() == -1
            assert client.fetch_committed(10, topic_id=new_id) == -1
            assert client.all_topics() == []
            refused = client.request(ApiKey.OFFSET_FETCH, 10, groups=[_by_id(old_id)])
            [partition] = refused.groups[0].topics[0].partitions
            assert partition.error_code == Code.UNKNOWN_TOPIC_ID
            client.commit(7)
            assert client.fetch_committed() == 7
        # Removing what is left of the topic before does not take the new offset with it.
        with restart_coordinator(cluster):
            pass
        with connect(cluster, COORDINATOR) as client:
            assert client.fetch_committed() == 7
            assert client.fetch_committed(10, topic_id=new_id) == 7


def test_a_transaction_commits_offsets_of_a_topic_that_is_gone(cluster: LiteCluster) -> None:
    with connect(cluster, OTHER) as other, connect(cluster, COORDINATOR) as client:
        create_topics(client)
        client.commit(1)
        found: list[tuple[Code, Producer]] = []

        def is_started() -> bool:
            found.append(client.init(Producer(GROUP)))
            return found[-1][0] == Code.NONE

        eventually(is_started)
        producer = found[-1][1]
        assert client.commit_offsets(producer, TOPIC, version=5) == Code.NONE
        with pause_coordinator(cluster):
            other.delete(TOPIC)
            new_id = other.create(TOPIC, OTHER)
        eventually(lambda: _knows(client, new_id))
        # Nothing is pending for the new topic: its stable offset is absent.
        assert client.fetch_committed(10, topic_id=new_id) == -1
        assert client.all_topics() == []
        assert client.end(producer, commits=True, version=5)[0] == Code.NONE
        eventually(lambda: client.describe(GROUP).transaction_state == "CompleteCommit")
        assert client.fetch_committed() == -1
        client.commit(3)
        assert client.fetch_committed() == 3


def test_offsets_without_a_topic_id_go_with_the_topic(cluster: LiteCluster) -> None:
    """Commits that name a time to keep them for have no place for a topic id in their format."""
    with connect(cluster, OTHER) as other, connect(cluster, COORDINATOR) as client:
        create_topics(client)
        client.commit(100, retention_time=NEVER_MS)
        assert client.fetch_committed() == 100
        with pause_coordinator(cluster):
            other.delete(TOPIC)
            new_id = other.create(TOPIC, OTHER)
        eventually(lambda: _knows(client, new_id))
        assert client.fetch_committed() == -1


def _knows(client: GroupClient, topic_id: UUID) -> bool:
    answer = client.request(
        ApiKey.METADATA,
        12,
        topics=[{"name": TOPIC, "topic_id": None}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return bool(answer.topics[0].topic_id == topic_id)


def _by_id(topic_id: UUID) -> dict[str, Any]:
    topics = [{"topic_id": topic_id, "partition_indexes": [0]}]
    return {"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": topics}
