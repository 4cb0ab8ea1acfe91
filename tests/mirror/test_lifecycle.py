"""A quick selection of the lifecycle matrix on real clusters, and proof that it finds defects.

All cells are played by `make prove-lifecycle`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lifecycle.cells import Cell, Delivery, Match, PlayKey, When
from support.lifecycle.events import SCRIPTS
from support.lifecycle.planting import Planted, plant_skips
from support.lifecycle.plays import Play, make_folder
from support.lifecycle.worlds import World

IDEMPOTENT, TRANSACTIONAL = Delivery.IDEMPOTENT, Delivery.TRANSACTIONAL
AT_LEAST_ONCE, COMPARE_AND_APPEND = Delivery.AT_LEAST_ONCE, Delivery.COMPARE_AND_APPEND
RUNNING, STOPPED = When.RUNNING, When.STOPPED
# Only a test that fails waits for so long: a busy machine takes its time.
PATIENCE = 6.0

# Both ways to match a topic are played in each.
QUICK = [
    ("source-grown", RUNNING, COMPARE_AND_APPEND),
    ("source-start-passed", STOPPED, TRANSACTIONAL),
    ("source-timestamps", RUNNING, IDEMPOTENT),
    ("source-recreated", RUNNING, IDEMPOTENT),
    ("target-recreated", RUNNING, TRANSACTIONAL),
    ("checkpoint-deleted", RUNNING, IDEMPOTENT),
    ("target-recreated-foreign", STOPPED, AT_LEAST_ONCE),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World("lite", make_folder(tmp_path_factory.mktemp("lifecycle"), 0))
    with world.running():
        yield world


@pytest.fixture
def own_world(tmp_path: Path) -> Iterator[World]:
    """For events that kill brokers, which other tests should not see come back."""
    world = World("lite", make_folder(tmp_path, 0))
    with world.running():
        yield world


def cells_of(key: PlayKey, *deliveries: Delivery) -> list[Cell]:
    return [Cell(*key, match, delivery) for delivery in deliveries for match in Match]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "when", "delivery"), QUICK, ids=[f"{each[0]}-{each[1]}" for each in QUICK]
)
@pytest.mark.quick("source-recreated-running", "target-recreated-foreign-stopped")
def test_an_event_is_never_silent(world: World, event: str, when: When, delivery: Delivery) -> None:
    check_outcomes(world, PlayKey(event, when), delivery)


@pytest.mark.slow
@pytest.mark.long
def test_a_leader_that_is_away_holds_back_nothing_else(own_world: World) -> None:
    check_outcomes(own_world, PlayKey("source-leader-away", STOPPED), IDEMPOTENT)


def check_outcomes(world: World, key: PlayKey, delivery: Delivery) -> None:
    cells = cells_of(key, delivery)
    results = Play(world, key, cells, SCRIPTS[key.event], patience=PATIENCE).run()
    assert [each.cell for each in results] == cells
    assert [f"{each.cell}: {each.verdict}" for each in results if not each.is_good] == []


@pytest.mark.slow
def test_a_planted_silent_skip_is_found(world: World) -> None:
    """A mirror that passes over batches of the topic that its pattern matches."""
    assert plant_skips(world, [IDEMPOTENT, COMPARE_AND_APPEND]) == Planted(found=2, planted=2)
