"""The world of `test_delivery` finds a line that breaks a rule, whichever rule it is.

Each line here breaks one rule of `shoal.client.produce.sequencing`. Rules that cost time or
knowledge but
no truth when they are broken (to wait until all is back after a failure, to learn from batches
behind a doubted one) are not among them: the tests of single steps have those.
"""

from itertools import product

import pytest

from shoal.client.produce.sequencing import UNSENT, Identity, Parcel, PartitionLine
from shoal.client.results import ProduceResult
from shoal.model.findings import Outcome
from support.client_partition import World

SEEDS = range(400)
TROUBLES = (0.0, 0.1, 0.2)


class NewNumberForEachTry(PartitionLine):
    def _refused(self, parcel: Parcel, result: ProduceResult, now: float) -> list[Parcel]:
        decided = super()._refused(parcel, result, now)
        parcel.base_sequence = UNSENT
        return decided


class OvertakesWhatIsRepeated(PartitionLine):
    def sendable(self, now: float) -> Parcel | None:
        parcel = super().sendable(now)
        fresh = (p for p in self._parcels if not p.is_in_flight and p.base_sequence == UNSENT)
        return None if parcel is None else next(fresh, parcel)


class ManyInFlightToAStranger(PartitionLine):
    def identify(self, identity: Identity) -> None:
        super().identify(identity)
        self._is_established = True


class LostAnswersAreRefusals(PartitionLine):
    def _refused(self, parcel: Parcel, result: ProduceResult, now: float) -> list[Parcel]:
        return super()._refused(parcel, result._replace(outcome=Outcome.FAILED), now)


class OnlyTheLastTryCounts(PartitionLine):
    def _given_up(self, parcel: Parcel, failure: ProduceResult) -> list[Parcel]:
        decided = super()._given_up(parcel, failure)
        parcel.result = failure
        return decided


class OutOfSequenceMeansWritten(PartitionLine):
    def _out_of_sequence(self, parcel: Parcel, result: ProduceResult) -> list[Parcel]:
        if not parcel.may_be_written:
            return super()._out_of_sequence(parcel, result)
        self._parcels.remove(parcel)
        parcel.result = ProduceResult(Outcome.OK)
        return [parcel]


class KeepsItsIdentity(PartitionLine):
    def _end_identity(self) -> list[Parcel]:
        return []


class DoubtfulUnderANewIdentity(PartitionLine):
    def _end_identity(self) -> list[Parcel]:
        self._identity = None
        self._refused_for_good = None
        return []


class GivesNumbersBackTooSoon(PartitionLine):
    def _free_numbers_from(self, refused: Parcel) -> None:
        for parcel in self._parcels:
            if parcel.serial > refused.serial:
                parcel.may_be_written = False
        super()._free_numbers_from(refused)


class NeverGivesNumbersBack(PartitionLine):
    def _free_numbers_from(self, refused: Parcel) -> None:
        self._refused_for_good = None


class WaitsForLostAnswers(PartitionLine):
    def answered(self, parcel: Parcel, result: ProduceResult, now: float) -> list[Parcel]:
        return [] if result.outcome is Outcome.UNKNOWN else super().answered(parcel, result, now)


SABOTAGE = {
    NewNumberForEachTry: "written twice",
    OvertakesWhatIsRepeated: "written out of order",
    ManyInFlightToAStranger: "acknowledged, but not written",
    LostAnswersAreRefusals: "failed, but written",
    OnlyTheLastTryCounts: "failed, but written",
    OutOfSequenceMeansWritten: "acknowledged, but not written",
    KeepsItsIdentity: "acknowledged, but not written",
    DoubtfulUnderANewIdentity: "written twice",
    GivesNumbersBackTooSoon: "written twice",
    NeverGivesNumbersBack: "a new identity without any trouble",
    WaitsForLostAnswers: "batches that never get an outcome",
}


@pytest.mark.parametrize(
    ("line_type", "untruth"), SABOTAGE.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_rule_is_found(line_type: type[PartitionLine], untruth: str) -> None:
    worlds = (
        World(seed, batches=40, trouble=trouble, line_type=line_type)
        for seed, trouble in product(SEEDS, TROUBLES)
    )
    assert any(untruth in untruths_of(world) for world in worlds), "it went unnoticed"


def untruths_of(world: World) -> list[str]:
    world.run()
    return world.untruths()
