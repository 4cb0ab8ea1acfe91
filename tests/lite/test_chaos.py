"""A storm over three brokers under load, judged twice. `make prove-chaos` is the long form."""

import os
from pathlib import Path
from random import Random

import pytest

from support.lite.chaos import Chaos
from support.lite.storm import Storm

SECONDS = 15.0
SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "has_quorum"),
    [
        ("default", True),
        *(
            pytest.param(profile, False, marks=pytest.mark.long)
            for profile in ("default", "strict", "available")
        ),
    ],
)
def test_nothing_acknowledged_is_lost_in_a_storm(
    profile: str, has_quorum: bool, tmp_path: Path
) -> None:
    said: list[str] = []
    outcome = Chaos(profile, SEED, tmp_path, has_quorum=has_quorum).run(SECONDS, said.append)
    assert outcome.problems() == [], said
    assert sum(outcome.acts.values()) > 5


def test_a_seed_is_a_storm() -> None:
    def acts(seed: int) -> list[str]:
        storm = Storm(Random(seed), (1, 2, 3), 3, disks=1)
        return [str(storm.next()) for _ in range(1000)]

    assert acts(5) == acts(5)
    assert acts(5) != acts(6)
    kinds = {act.partition(" ")[0] for act in acts(5)}
    assert {"kill", "pause", "cut_link", "restart", "crash", "wipe", "heal"} <= kinds


def test_no_more_disks_are_lost_at_once_than_is_promised() -> None:
    storm = Storm(Random(1), (1, 2, 3), 3, disks=0)
    assert not {act for act in (storm.next().what for _ in range(2000)) if act == "wipe"}
    storm = Storm(Random(1), (1, 2, 3), 3, disks=1)
    wiped = {act.values[0] for act in (storm.next() for _ in range(2000)) if act.what == "wipe"}
    assert len(wiped) == 1
