"""A broker waits for the transaction before, as long as its settings say, before it refuses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code
from support.client.transaction_client import NEVER_MS, Producer, TransactionClient
from support.lite.client import TIMEOUT_MS
from support.lite.clusters import eventually

HELD, FREE = "held", "free"


@contextmanager
def finishing(patience_ms: int) -> Iterator[tuple[LiteCluster, TransactionClient, Producer]]:
    """A producer that has committed, while the leader of one partition is paused."""
    properties = {
        "broker.session.timeout.ms": str(NEVER_MS),
        "add.partitions.to.txn.retry.backoff.max.ms": str(patience_ms),
    }
    with LiteCluster(brokers=2, properties=properties) as cluster:
        address = cluster.bootstrap.split(",")[0]
        with TransactionClient(address) as client:
            _create_topics(client)
            producer = _start_producer(client)
            assert client.add(producer, HELD, version=5) == Code.NONE
            cluster.pause(2)
            try:
                code, producer = client.end(producer, commits=True, version=5)
                assert code == Code.NONE
                yield cluster, client, producer
            finally:
                cluster.resume(2)


def _create_topics(client: TransactionClient) -> None:
    """All on the first broker but for one topic; both lead equally many, so nothing moves."""
    brokers = {"__transaction_state": [1], FREE: [1], HELD: [2], "filler": [2]}
    topics = [
        {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": assignment}],
            "configs": [],
        }
        for name, assignment in brokers.items()
    ]
    answer = client.request(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=TIMEOUT_MS)
    assert not any(topic.error_code for topic in answer.topics)


def _start_producer(client: TransactionClient) -> Producer:
    found: list[tuple[Code, Producer]] = []

    def is_started() -> bool:
        found.append(client.init(Producer("id")))
        return found[-1][0] == Code.NONE

    eventually(is_started)
    return found[-1][1]


def test_a_produce_request_waits_for_the_markers_of_the_transaction_before() -> None:
    with finishing(patience_ms=60_000) as (cluster, client, producer):
        codes: list[Code] = []

        def write() -> None:
            codes.append(client.write(producer, FREE, version=12, sequence=0))

        writing = threading.Thread(target=write)
        writing.start()
        writing.join(0.5)
        assert writing.is_alive(), codes
        cluster.resume(2)
        writing.join(60)
        assert codes == [Code.NONE]


@pytest.mark.parametrize("version", [11, 12])
def test_a_produce_request_is_refused_when_the_time_is_over(version: int) -> None:
    with finishing(patience_ms=0) as (_, client, producer):
        code = client.write(producer, FREE, version=version, sequence=0)
        # The first protocol never waits.
        assert code == (Code.CONCURRENT_TRANSACTIONS if version == 12 else Code.NOT_ENOUGH_REPLICAS)
