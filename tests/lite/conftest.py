"""A cluster that the tests of one file share, and what most of them want of it."""

from collections.abc import Iterator
from itertools import count

import pytest

from shoal.lite.cluster import LiteCluster
from support.lite.client import PlainClient

_numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(cluster: LiteCluster) -> str:
    return cluster.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[PlainClient]:
    with PlainClient(bootstrap) as plain:
        yield plain


@pytest.fixture
def topic(client: PlainClient) -> str:
    """A topic of the test's own, with one partition."""
    name = f"topic-{next(_numbers)}"
    client.create_topic(name)
    return name
