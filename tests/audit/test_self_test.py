"""The judge judged: histories with anomalies planted in them."""

import pytest

from shoal.audit.self_test.plantings import PLANTINGS
from shoal.audit.self_test.report import page, summary
from shoal.audit.self_test.trial import run_trials
from shoal.model.findings import Finding
from support.sizes import size_cases

pytestmark = pytest.mark.slow

# What the lines of a history cannot say.
UNSAID = {
    *("altered: timestamp", "altered: partition"),
    *("unreadable", "batch differs"),
}


@size_cases("histories", quick=500, long=1000)
def test_plantings_are_found_and_nothing_else(histories: int) -> None:
    tally = run_trials(histories, seed=9)
    assert tally.failures == []
    assert tally.passed
    assert {planting.__name__ for planting in PLANTINGS} == set(tally.alone)
    assert set(tally.findings) == {finding.value for finding in Finding} - UNSAID
    assert "recall 100 %, 0 false alarms" in summary(tally)
    assert f"{histories:,} histories" in page(tally, conditions="Here and now.")


def test_a_planting_that_is_not_found_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(_world: object) -> set[str]:
        return {"corrupted"}

    monkeypatch.setattr("shoal.audit.self_test.trial.PLANTINGS", (blind,))
    tally = run_trials(20, seed=1)
    assert not tally.passed
    assert tally.missed["corrupted"] == sum(tally.alone.values())
