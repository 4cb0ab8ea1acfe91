"""One real Apache Kafka broker for a whole test session, started when first asked for.

A pytest plugin: tests that take `apache`, `apache_cluster` or `apache_bootstrap` share the
broker, must use topics of their own, must leave it running, and carry the marker `apache`. The
jars come from Maven Central on first use and from the user's cache afterwards.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shoal.systems.apache.apache import ApacheCluster

if TYPE_CHECKING:
    from support.apache.client import SecureApache

SHARED_CLUSTER_FIXTURES = {"apache", "apache_cluster", "apache_bootstrap"}
# One small broker: few partitions inside, and nobody waits for a session to expire.
PROPERTIES = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
# A broker that lives for seconds is up in half the CPU time without the optimising compiler.
SHORT_LIVED_JVM = "-Xms64m -Xmx256m -XX:TieredStopAtLevel=1"


def short_lived_jvm(patch: pytest.MonkeyPatch) -> None:
    """Make brokers that are started from now on fast to start."""
    patch.setenv("KAFKA_HEAP_OPTS", SHORT_LIVED_JVM)


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SecureApache"]:
    """A running cluster of one real broker, and how to reach each of its listeners."""
    # Certificates and a client: not for test sessions that need no broker.
    from support.apache.client import secure_apache

    with secure_apache(tmp_path_factory.mktemp("apache")) as running:
        yield running


@pytest.fixture(scope="session")
def apache_cluster(apache: "SecureApache") -> ApacheCluster:
    """A running cluster of one real broker."""
    return apache.cluster


@pytest.fixture(scope="session")
def apache_bootstrap(apache_cluster: ApacheCluster) -> str:
    """Where the shared real broker listens."""
    return apache_cluster.bootstrap


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SHARED_CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("apache")
            item.add_marker(pytest.mark.xdist_group("apache"))
