"""The simulated broker of `test_delivery` detects a queue that breaks any rule.

Each queue here breaks one rule of `shoal.client.produce.sequencing`. Rules that only save time or
knowledge (to wait for all requests in flight after a failure, to learn from batches behind one in
doubt) are not included: the tests of single steps cover those.
"""

from itertools import product

import pytest

from shoal.client.produce.sequenced_queue import OUT_OF_SEQUENCE, Decision
from shoal.client.produce.sequencing import PartitionQueue, PendingBatch, ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.model.findings import Outcome
from shoal.wire.batch import NO_SEQUENCE
from support.client.partition import World

SEEDS = range(400)
FAULT_RATES = (0.0, 0.1, 0.2)


class NewSequenceForEachAttempt(PartitionQueue):
    def _on_error(
        self, pending: PendingBatch, result: ProduceResult, decision: Decision, now: float
    ) -> list[PendingBatch]:
        decided = super()._on_error(pending, result, decision, now)
        pending.base_sequence = NO_SEQUENCE
        return decided


class OvertakesRetries(PartitionQueue):
    def next_to_send(self, now: float) -> PendingBatch | None:
        pending = super().next_to_send(now)
        fresh = (p for p in self.batches if not p.is_in_flight and p.base_sequence == NO_SEQUENCE)
        return None if pending is None else next(fresh, pending)


class ManyInFlightWithoutBrokerState(PartitionQueue):
    def set_identity(self, identity: ProducerIdentity) -> None:
        super().set_identity(identity)
        self.is_established = True


class LostResponsesAreFailures(PartitionQueue):
    def on_answer(self, pending: PendingBatch, result: ProduceResult, now: float) -> Decision:
        if result.outcome is Outcome.UNKNOWN:
            result = result._replace(outcome=Outcome.FAILED)
        return super().on_answer(pending, result, now)


class OnlyTheLastAttemptCounts(PartitionQueue):
    def _give_up(self, pending: PendingBatch, failure: ProduceResult) -> list[PendingBatch]:
        decided = super()._give_up(pending, failure)
        pending.result = failure
        return decided


class OutOfSequenceMeansWritten(PartitionQueue):
    def _on_error(
        self, pending: PendingBatch, result: ProduceResult, decision: Decision, now: float
    ) -> list[PendingBatch]:
        if not pending.may_be_written or result.error_code not in OUT_OF_SEQUENCE:
            return super()._on_error(pending, result, decision, now)
        self.batches.remove(pending)
        pending.result = ProduceResult(Outcome.OK)
        return [pending]


class KeepsItsIdentity(PartitionQueue):
    def _end_identity(self) -> list[PendingBatch]:
        return []


class DoubtfulUnderANewIdentity(PartitionQueue):
    def _end_identity(self) -> list[PendingBatch]:
        self._identity = None
        self.is_halted = True
        self._rejected = None
        return []


class FreesSequencesTooSoon(PartitionQueue):
    def _free_sequences_from(self, refused: PendingBatch) -> None:
        for pending in self.batches:
            if pending.serial > refused.serial:
                pending.may_be_written = False
        super()._free_sequences_from(refused)


class NeverFreesSequences(PartitionQueue):
    def _free_sequences_from(self, refused: PendingBatch) -> None:
        self._rejected = None


class WaitsForLostResponses(PartitionQueue):
    def on_result(
        self, pending: PendingBatch, result: ProduceResult, now: float
    ) -> list[PendingBatch]:
        return [] if result.outcome is Outcome.UNKNOWN else super().on_result(pending, result, now)


SABOTAGE = {
    NewSequenceForEachAttempt: "written twice",
    OvertakesRetries: "written out of order",
    ManyInFlightWithoutBrokerState: "acknowledged, but not written",
    LostResponsesAreFailures: "failed, but written",
    OnlyTheLastAttemptCounts: "failed, but written",
    OutOfSequenceMeansWritten: "acknowledged, but not written",
    KeepsItsIdentity: "acknowledged, but not written",
    DoubtfulUnderANewIdentity: "written twice",
    FreesSequencesTooSoon: "written twice",
    NeverFreesSequences: "a new identity without any fault",
    WaitsForLostResponses: "batches that never get an outcome",
}


@pytest.mark.parametrize(
    ("queue_type", "untruth"), SABOTAGE.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_rule_is_found(queue_type: type[PartitionQueue], untruth: str) -> None:
    worlds = (
        World(seed, batches=40, fault_rate=fault_rate, queue_type=queue_type)
        for seed, fault_rate in product(SEEDS, FAULT_RATES)
    )
    assert any(untruth in untruths_of(world) for world in worlds), "it went unnoticed"


def untruths_of(world: World) -> list[str]:
    world.run()
    return world.untruths()
