"""The clusters that interop tests share, of the engine that `--engine` names.

`cluster` has one broker and `trio` three; both live as long as the session, so a test must leave
them running, uses topics of its own (`topic`, `new_topic`) and undoes what it changed besides.
"""

from collections.abc import Callable, Iterator
from itertools import count
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from shoal.systems.clusters import Cluster
from support.lite.clusters import eventually
from support.lite.engines import running_cluster

PATIENCE_S = 60.0
_numbers = count(1)


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--engine"))


@pytest.fixture(scope="session")
def cluster(engine: str) -> Iterator[Cluster]:
    """One broker."""
    with running_cluster(engine) as running:
        yield running


@pytest.fixture(scope="session")
def trio(engine: str) -> Iterator[Cluster]:
    """Three brokers."""
    with running_cluster(engine, brokers=3) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """A name that nobody else has, for topics, groups and transactional ids."""
    return lambda word: f"{word}-{next(_numbers)}-{uuid4().hex[:6]}"


@pytest.fixture
def new_topic(bootstrap: str, new_name: Callable[[str], str]) -> Callable[..., str]:
    """Makes a topic on `cluster`; underscores in the names of settings stand for dots."""

    def create(partitions: int = 1, **config: str) -> str:
        name = new_name("topic")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
            wanted = NewTopic(name, partitions, 1, config=settings)
            admin.create_topics([wanted])[name].result(PATIENCE_S)
            eventually(lambda: _is_led(admin, name, partitions))
        return name

    return create


def _is_led(admin: AdminClient, name: str, partitions: int) -> bool:
    """Whether all leaders know of themselves, which with Apache Kafka takes a moment."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(name, index): latest for index in range(partitions)}
    try:
        for answer in admin.list_offsets(wanted).values():
            answer.result(PATIENCE_S)
    except KafkaException:
        return False
    return True


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """A topic of the test's own, with one partition, on `cluster`."""
    return new_topic()
