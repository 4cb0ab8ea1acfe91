"""One real Apache Kafka broker for a whole test session, started when first asked for.

A pytest plugin: tests that take `apache_cluster` or `apache_bootstrap` share the broker,
must use topics of their own, must leave it running, and carry the marker `apache`. The jars
come from Maven Central on first use and from the user's cache afterwards.
"""

from collections.abc import Iterator

import pytest

from shoal.systems.apache import ApacheCluster

SHARED_CLUSTER_FIXTURES = {"apache_cluster", "apache_bootstrap"}
# One small broker: few partitions inside, and nobody waits for a session to expire.
PROPERTIES = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
# A broker that lives for seconds is up in half the CPU time without the optimising compiler.
SHORT_LIVED_JVM = "-Xms64m -Xmx256m -XX:TieredStopAtLevel=1"


@pytest.fixture(scope="session")
def apache_cluster() -> Iterator[ApacheCluster]:
    """A running cluster of one real broker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_HEAP_OPTS", SHORT_LIVED_JVM)
        cluster = ApacheCluster(properties=PROPERTIES).start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def apache_bootstrap(apache_cluster: ApacheCluster) -> str:
    """Where the shared real broker listens."""
    return apache_cluster.bootstrap


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SHARED_CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("apache")
            item.add_marker(pytest.mark.xdist_group("apache"))
