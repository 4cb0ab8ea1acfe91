"""Apache Kafka's `kafka-metadata-quorum` on a quorum of three of ours."""

import base64
import re
from collections.abc import Iterator
from uuid import UUID

import pytest

from shoal.lite.cluster import LiteCluster
from support.apache.kafka_tools import KafkaTools
from support.lite.clusters import eventually


@pytest.fixture
def quorum() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=1, controllers=3) as cluster:
        yield cluster


def kafka_uuid(directory: str) -> str:
    return base64.urlsafe_b64encode(UUID(directory).bytes).rstrip(b"=").decode()


def test_the_quorum_is_described(kafka_tools: KafkaTools, quorum: LiteCluster) -> None:
    server = ("--bootstrap-server", quorum.bootstrap)
    told = kafka_tools("metadata-quorum", *server, "describe", "--status")
    described = quorum.quorum()
    assert described is not None
    assert f"LeaderId:               {described.leader}" in told
    assert re.search(rf"LeaderEpoch: +{described.epoch}\b", told)
    for voter in described.voters:
        assert f'"id": {voter.id}' in told
        assert kafka_uuid(voter.directory) in told
    replicas = kafka_tools("metadata-quorum", *server, "describe", "--replication")
    lines = [line.split() for line in replicas.splitlines()[1:]]
    roles = {int(line[0]): line[-1] for line in lines if line and line[0].isdigit()}
    assert [role for role in roles.values() if role == "Leader"] == ["Leader"]
    assert {node_id for node_id, role in roles.items() if role == "Follower"} == (
        {101, 102, 103} - {described.leader}
    )
    assert roles[1] == "Observer"


def test_a_controller_is_removed(kafka_tools: KafkaTools, quorum: LiteCluster) -> None:
    server = ("--bootstrap-server", quorum.bootstrap)
    before = quorum.quorum()
    assert before is not None
    removed = next(voter for voter in before.voters if voter.id != before.leader)
    remove = ("remove-controller", "--controller-id", str(removed.id))
    directory = ("--controller-directory-id", kafka_uuid(removed.directory))
    told = kafka_tools("metadata-quorum", *server, *remove, *directory)
    assert f"KRaft controller {removed.id}" in told

    def voters() -> set[int]:
        described = quorum.quorum()
        return set() if described is None else {voter.id for voter in described.voters}

    eventually(lambda: voters() == {101, 102, 103} - {removed.id})
    again = kafka_tools.run("metadata-quorum", *server, *remove, *directory)
    assert again.code != 0
    assert "is not a voter" in again.text
