"""Coordinators are killed under load; `make prove-coordinators` does it fifty times."""

from pathlib import Path

import pytest

from support.coordinator.kills import CoordinatorKills


@pytest.mark.slow
def test_what_was_committed_survives_its_coordinators(tmp_path: Path) -> None:
    outcome = CoordinatorKills(tmp_path).run(2)
    assert outcome.problems == []
    assert (outcome.group_kills, outcome.transaction_kills) == (2, 2)
    assert outcome.copied > 0
    assert min(outcome.commits, outcome.transactions) > 1
