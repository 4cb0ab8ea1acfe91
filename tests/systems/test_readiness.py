"""A node is ready when it is caught up: metadata, fencing and in-sync replicas."""

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli.main import execute
from shoal.client.cluster.metadata import (
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from shoal.lite.cluster import LiteCluster
from shoal.net.ports import free_ports
from shoal.systems.readiness import check_node, judge_metadata, judge_replicas


def quorum(*, error: int = 0, ends: dict[int, int]) -> Any:
    voters = [SimpleNamespace(replica_id=i, log_end_offset=end) for i, end in ends.items()]
    partition = SimpleNamespace(
        error_code=error, high_watermark=10, current_voters=voters[:1], observers=voters[1:]
    )
    return SimpleNamespace(error_code=0, topics=[SimpleNamespace(partitions=[partition])])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (quorum(ends={101: 10, 1: 10}), "node 1 has the whole metadata log"),
        (quorum(ends={101: 10, 1: 12}), "node 1 has the whole metadata log"),
        (quorum(ends={101: 10, 1: 7}), "node 1 lacks 3 records of the metadata log"),
        (quorum(ends={101: 10}), "the active controller has not heard of node 1"),
        (quorum(error=41, ends={101: 10, 1: 10}), "no controller is active"),
        (SimpleNamespace(error_code=41, topics=[]), "no controller is active"),
    ],
)
def test_the_metadata_of_a_node(answer: Any, said: str) -> None:
    verdict = judge_metadata(answer, 1)
    assert (verdict.sentence, verdict.is_ready) == (said, "whole" in said)


def cluster(in_sync: dict[int, tuple[int, ...]], *, brokers: tuple[int, ...]) -> ClusterMetadata:
    partitions = {
        number: PartitionMetadata(leader=2, replicas=(1, 2), isr=isr)
        for number, isr in in_sync.items()
    }
    return ClusterMetadata(
        brokers={i: BrokerAddress(i, "host", 9092) for i in brokers},
        topics={"t": TopicMetadata("t", partitions=partitions)},
    )


@pytest.mark.parametrize(
    ("metadata", "said", "is_ready"),
    [
        (cluster({0: (1, 2), 1: (2, 1)}, brokers=(1, 2)), "2 replicas are in sync", True),
        (cluster({}, brokers=(1,)), "0 replicas are in sync", True),
        (cluster({0: (2,), 1: (1, 2)}, brokers=(1, 2)), "not in sync for t-0", False),
        (
            cluster(dict.fromkeys(range(5), (2,)), brokers=(1, 2)),
            "not in sync for t-0, t-1, t-2 and 2 more",
            False,
        ),
        (cluster({0: (2,)}, brokers=(2,)), "broker 1 is fenced or not registered", False),
    ],
)
def test_the_replicas_of_a_broker(metadata: ClusterMetadata, said: str, is_ready: bool) -> None:
    verdict = judge_replicas(metadata, 1)
    assert said in verdict.sentence
    assert verdict.is_ready == is_ready


async def test_a_running_broker_is_ready_and_an_unknown_id_is_not() -> None:
    with LiteCluster() as running:
        assert (await check_node(running.bootstrap, 1, timeout_s=30)).is_ready
        assert not (await check_node(running.bootstrap, 7, timeout_s=30)).is_ready


def test_a_node_that_does_not_answer_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    [port] = free_ports(1)
    assert execute(["ready", "--id", "1", f"127.0.0.1:{port}"]) == 3
    assert "does not answer" in capsys.readouterr().err
