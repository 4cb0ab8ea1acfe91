"""Which engine the interop tests run on: `--engine lite`, or `--engine apache`.

A pytest plugin. The tests in `tests/interop` hold for every Kafka; one that only ours passes is
a wrong test. Those of what only Kafka Lite has are marked `lite_only` and are left out elsewhere.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from shoal.systems.clusters import ENGINES, Cluster, make_cluster
from support.apache.clusters import PROPERTIES, short_lived_jvm

CLUSTER_FIXTURES = {"cluster", "trio", "bootstrap", "topic"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=ENGINES,
        default="lite",
        help="what the tests in tests/interop run on",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lite_only: about what no other Kafka has")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--engine") == "lite":
        return
    left_out = [item for item in items if item.get_closest_marker("lite_only")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        is_interop = "interop" in item.path.parts
        if is_interop and CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            # One real cluster is shared by all, so one process runs them all.
            item.add_marker("apache")
            item.add_marker(pytest.mark.xdist_group("apache"))


@contextmanager
def running_cluster(
    engine: str, brokers: int = 1, properties: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A cluster of either engine, made for tests: quick to start, few internal partitions."""
    with pytest.MonkeyPatch.context() as patch:
        short_lived_jvm(patch)
        small = PROPERTIES if engine == "apache" else {}
        quick = small | {"log.cleaner.backoff.ms": "100"}
        cluster = make_cluster(
            engine, brokers=brokers, properties={**quick, **(properties or {})}
        ).start()
    try:
        yield cluster
    finally:
        cluster.stop()
