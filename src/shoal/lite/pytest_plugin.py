"""Kafka clusters for tests. pytest loads this plugin automatically where shoal is installed.

    def test_orders(shoal_bootstrap, shoal_topic):
        producer = Producer({"bootstrap.servers": shoal_bootstrap})
        producer.produce(shoal_topic, b"order")

    @pytest.mark.shoal_cluster(brokers=3, profile="strict")
    def test_failover(shoal_cluster, shoal_topic):
        shoal_cluster.kill(1)

Rules of this file:
- Tests that ask for the same kind of cluster share one, which runs until the session ends.
  After each test it is restored: faults are healed, brokers that are down or paused are started.
- A test with `fresh=True` in its marker gets its own cluster.
- Every test gets its own topic, which is deleted after it.
- Nothing is imported before a fixture is used: runs without Kafka have no extra cost.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shoal.lite.cluster import LiteCluster

CLUSTER_MARK = "shoal_cluster"
TOPIC_MARK = "shoal_topic"
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{CLUSTER_MARK}(brokers=1, profile=None, properties=None, fresh=False): "
        "the Kafka Lite cluster that the test runs against",
    )
    config.addinivalue_line(
        "markers",
        f"{TOPIC_MARK}(partitions=1, replication_factor=-1, config=None): "
        "the topic that the test gets",
    )


@pytest.fixture(scope="session")
def shoal_clusters() -> "Iterator[Callable[..., LiteCluster]]":
    """A function that returns a running cluster of a kind (the arguments of `LiteCluster`); equal
    arguments return the same cluster."""
    from shoal.lite.cluster import LiteCluster

    running: dict[str, LiteCluster] = {}

    def cluster_of(**kind: Any) -> LiteCluster:
        key = repr(sorted(kind.items()))
        if key not in running:
            running[key] = LiteCluster(**kind).start()
        return running[key]

    yield cluster_of
    for cluster in running.values():
        cluster.stop()


@pytest.fixture
def shoal_cluster(
    request: pytest.FixtureRequest, shoal_clusters: "Callable[..., LiteCluster]"
) -> "Iterator[LiteCluster]":
    """The cluster that the test's marker describes; without a marker, a single broker."""
    kind = _marker_arguments(request, CLUSTER_MARK)
    if kind.pop("fresh", False):
        from shoal.lite.cluster import LiteCluster

        with LiteCluster(**kind) as own:
            yield own
        return
    shared = shoal_clusters(**kind)
    yield shared
    _restore_cluster(shared)


@pytest.fixture
def shoal_bootstrap(shoal_cluster: "LiteCluster") -> str:
    """The value for `bootstrap.servers` of clients."""
    return shoal_cluster.bootstrap


@pytest.fixture
def shoal_topic(request: pytest.FixtureRequest, shoal_cluster: "LiteCluster") -> Iterator[str]:
    """The name of a new topic; its marker may set the numbers of partitions and replicas."""
    from shoal.client.admin import NewTopic

    wanted = {"partitions": 1, "replication_factor": -1} | _marker_arguments(request, TOPIC_MARK)
    configs: Mapping[str, str] = wanted.pop("config", None) or {}
    topic = NewTopic(f"test-{next(_numbers)}", **wanted, configs=configs)
    bootstrap = shoal_cluster.bootstrap
    _run_admin(bootstrap, lambda admin: admin.create_topics([topic]))
    yield topic.name
    _restore_cluster(shoal_cluster)
    _run_admin(bootstrap, lambda admin: admin.delete_topics([topic.name]))


def _marker_arguments(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    marker = request.node.get_closest_marker(name)
    return {} if marker is None else dict(marker.kwargs)


def _restore_cluster(cluster: "LiteCluster") -> None:
    """Heal faults and start all brokers, for the next test."""
    if cluster.faults():
        cluster.heal()
    for node in cluster.status():
        if node.state == "paused":
            cluster.resume(node.id)
        elif node.state == "dead":
            cluster.restart(node.id)


def _run_admin(bootstrap: str, action: Callable[[Any], Any]) -> None:
    """Run an admin action in a thread: the test may already have an event loop."""
    failed: list[BaseException] = []

    async def ask() -> None:
        from shoal.client.client import Client

        async with Client({"bootstrap.servers": bootstrap}) as client:
            await action(client.admin)

    def run() -> None:
        try:
            asyncio.run(ask())
        except BaseException as error:  # noqa: BLE001 - raised again, where the test sees it
            failed.append(error)

    from shoal.runtime.tasks import start_thread

    start_thread("shoal-topic", run, on_failure=failed.append, is_daemon=False).join()
    if failed:
        raise failed[0]
