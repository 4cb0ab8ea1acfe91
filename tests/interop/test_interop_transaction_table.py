"""Every request of transactions in every state, against what Apache Kafka answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.systems.clusters import Cluster
from support.coordinator.transaction_table import (
    BROKERS,
    PENDING,
    PROPERTIES,
    REQUESTS,
    STATES,
    Table,
    play_table,
    read_table,
)
from support.lite.engines import running_cluster

RECORDED = read_table(Path(__file__).with_name("transaction_table.tsv").read_text())
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transaction-table")]


@pytest.fixture(scope="module")
def three_brokers(engine: str) -> Iterator[Cluster]:
    with running_cluster(engine, BROKERS, PROPERTIES) as running:
        yield running


@pytest.fixture(scope="module")
def played(three_brokers: Cluster) -> Table:
    return play_table(three_brokers)


def test_the_recorded_table_has_every_cell() -> None:
    assert set(RECORDED) == {(s, r) for s in [*STATES, *PENDING] for r in REQUESTS}


@pytest.mark.parametrize("state", [*STATES, *PENDING])
@pytest.mark.long
def test_answers_are_those_of_apache_kafka(played: Table, state: str) -> None:
    differences = [
        f"{request}, {relation}: {played[state, request].get(relation, '-')} instead of {recorded}"
        for request in REQUESTS
        for relation, recorded in RECORDED[state, request].items()
        if played[state, request].get(relation, "-") != recorded
    ]
    assert differences == []
