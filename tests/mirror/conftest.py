"""What most tests of the mirror need: two clusters, and a mirror that tells often how it is."""

from collections.abc import Iterator

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.mirror import flow


@pytest.fixture(autouse=True)
def report_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "STATUS_EVERY_S", 0.05)


@pytest.fixture(scope="module")
def source() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster
