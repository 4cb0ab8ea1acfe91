"""Random histories keep every promise, and each sabotage of the rules is found by them."""

import pytest

from shoal.lite.replication.replica import PartitionReplica
from support.replication.histories import History
from support.replication.invariants import InvariantBroken
from support.replication.sabotage import SABOTAGES

pytestmark = pytest.mark.slow

HISTORIES = 30
STEPS = 400
MOST_SEEDS = 400


def test_nothing_committed_is_lost_or_changed() -> None:
    reached = dict.fromkeys(("leads", "truncates", "throws", "proposes", "acknowledges"), 0)
    for seed in range(HISTORIES):
        history = History(seed)
        history.run(STEPS)
        for name in reached:
            reached[name] += history.counts[name]
    # Histories in which nothing happens would prove nothing.
    assert all(count >= HISTORIES / 4 for count in reached.values()), reached
    assert reached["leads"] >= 2 * HISTORIES
    assert reached["acknowledges"] >= 3 * HISTORIES


def test_a_history_depends_on_its_seed_alone() -> None:
    histories = [History(7), History(7), History(8)]
    for history in histories:
        history.run(STEPS)
    assert histories[0].trace == histories[1].trace != histories[2].trace


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_sabotage_is_found(sabotage: type[PartitionReplica]) -> None:
    def look_for_it() -> None:
        for seed in range(MOST_SEEDS):
            History(seed, sabotage).run(STEPS)

    with pytest.raises(InvariantBroken, match="seed"):
        look_for_it()
