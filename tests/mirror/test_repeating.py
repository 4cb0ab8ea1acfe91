"""One partition by at-least-once: whose records stand before a batch that is not where expected."""

import pytest

from shoal.client.codes import Code
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.at_least_once import AtLeastOnceDelivery
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier, PartitionMirror
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from support.mirror.batches import record_set, stored_batch

UNSURE = ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)
FAILED = ProduceResult(Outcome.FAILED, Code.THROTTLING_QUOTA_EXCEEDED)
OUT_OF_SEQUENCE = (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID)


def _mirror() -> PartitionMirror:
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    intake = Intake(TopicPartition("t", 0))
    return PartitionCopier(intake, AtLeastOnceDelivery(), 0, backoff, target_offset=100)


def _place(mirror: PartitionMirror, base: int, offset: int, *tries: ProduceResult) -> int:
    """Send a batch of ten until the target has it at an offset; what is counted as displaced."""
    mirror.on_fetched(record_set(stored_batch(base, 10)), aborted=(), last_stable_offset=1000)
    placed = ProduceResult(Outcome.OK, base_offset=offset)
    for now, result in enumerate((*tries, placed)):
        outgoing = mirror.next_batch(1000.0 * now)
        assert outgoing is not None
        mirror.mark_sent(outgoing)
        mirror.on_produce_result(outgoing, result, now=1000.0 * now)
    return mirror.counts.displaced


@pytest.mark.parametrize(
    ("tries", "offset", "displaced"),
    [
        ((), 100, 0),
        ((), 110, 1),
        ((FAILED,), 110, 1),  # it was surely not written
        ((UNSURE,), 110, 0),  # behind its own first copy
        ((UNSURE,), 111, 1),
        ((UNSURE,), 120, 1),
        ((UNSURE, UNSURE), 120, 0),
    ],
)
def test_what_is_before_a_batch_is_of_somebody_else_unless_it_may_be_a_copy_of_it(
    tries: tuple[ProduceResult, ...], offset: int, displaced: int
) -> None:
    assert _place(_mirror(), 0, offset, *tries) == displaced


@pytest.mark.parametrize("code", OUT_OF_SEQUENCE)
def test_out_of_sequence_without_sequences_stops_the_partition_with_the_reason(code: Code) -> None:
    """No broker answers so to a batch without a producer id: there is no sequence to ask for."""
    mirror = _mirror()
    mirror.on_fetched(record_set(stored_batch(0, 10)), aborted=(), last_stable_offset=1000)
    outgoing = mirror.next_batch(0.0)
    assert outgoing is not None
    mirror.mark_sent(outgoing)
    mirror.on_produce_result(outgoing, ProduceResult(Outcome.FAILED, code), now=0.0)
    assert code.name in str(mirror.parked)
    assert (mirror.queue.is_halted, mirror.done) == (False, 0)
