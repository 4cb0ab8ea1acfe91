"""A target that forgets the mirror's producer accepts any sequence: no batch may be left out."""

import pytest

from shoal.client.codes import Code
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery, IdempotentMirror
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from support.mirror.batches import SequencedTarget, record_set, stored_batch

DAY_S = 86_400.0
EXPIRATION_MS = 86_400_000
FIRST_TIMESTAMP_MS = 1_700_000_000_000  # of `records_of`
TOO_FEW = ProduceResult(Outcome.FAILED, Code.NOT_ENOUGH_REPLICAS)


def _mirror() -> IdempotentMirror:
    delivery = IdempotentDelivery(ProducerIdentity(77, 2), producer_expiration_ms=EXPIRATION_MS)
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    return PartitionCopier(Intake(TopicPartition("t", 0)), delivery, 0, backoff)


def _feed(mirror: IdempotentMirror, first: int, *, age_ms: int) -> None:
    """Two batches of two records, so old when they are fetched."""
    mirror.on_fetched(
        record_set(stored_batch(first, 2), stored_batch(first + 2, 2)),
        aborted=(),
        last_stable_offset=100,
        now_ms=FIRST_TIMESTAMP_MS + first + age_ms,
    )


def _send(
    mirror: IdempotentMirror, target: SequencedTarget, now: float, *, refuses_first: bool = False
) -> None:
    """Send all that is queued; the target refuses the first batch that it gets, if so told."""
    for step in range(20):
        sent = []
        while (outgoing := mirror.next_batch(now + step)) is not None:
            mirror.mark_sent(outgoing)
            sent.append(outgoing)
        for outgoing in sent:
            result = TOO_FEW if refuses_first else target.append(outgoing.batch)
            refuses_first = False
            mirror.on_produce_result(outgoing, result, now=now + step)
        if mirror.delivery.needs_last_sequence:
            mirror.delivery.on_last_sequence(target.last_sequence, now=now + step)


def _values(target: SequencedTarget) -> list[int]:
    return [int(value) for value in target.values]


@pytest.mark.parametrize(
    ("age_ms", "idle_s"),
    [
        (EXPIRATION_MS + 1000, 1.0),  # expired with the timestamps of its last batch
        (0, DAY_S),  # expired while nothing was copied
    ],
)
def test_no_batch_is_left_out_after_the_target_forgot_the_producer(
    age_ms: int, idle_s: float
) -> None:
    target, mirror = SequencedTarget(), _mirror()
    _feed(mirror, 0, age_ms=age_ms)
    _send(mirror, target, 0.0)
    target.forget_producer()
    _feed(mirror, 4, age_ms=0)
    _send(mirror, target, 20.0 + idle_s, refuses_first=True)
    assert (_values(target), mirror.done, mirror.parked) == (list(range(8)), 8, None)


def test_no_batch_is_left_out_after_a_long_outage_of_the_target() -> None:
    target, mirror = SequencedTarget(), _mirror()
    _feed(mirror, 0, age_ms=0)
    _send(mirror, target, 0.0)
    _feed(mirror, 4, age_ms=0)
    lost = ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)
    while (outgoing := mirror.next_batch(30.0)) is not None:
        mirror.mark_sent(outgoing)
        mirror.on_produce_result(outgoing, lost, now=30.0)
    target.forget_producer()
    _send(mirror, target, 30.0 + DAY_S, refuses_first=True)
    assert (_values(target), mirror.done, mirror.parked) == (list(range(8)), 8, None)


def test_a_target_that_answers_in_time_gets_batches_without_waiting() -> None:
    mirror = _mirror()
    _feed(mirror, 0, age_ms=0)
    _send(mirror, SequencedTarget(), 0.0)
    _feed(mirror, 4, age_ms=0)
    sent = []
    while (outgoing := mirror.next_batch(60.0)) is not None:
        mirror.mark_sent(outgoing)
        sent.append(outgoing)
    assert len(sent) == 2


def test_the_pieces_of_an_old_batch_go_alone_too() -> None:
    target, mirror = SequencedTarget(), _mirror()
    _feed(mirror, 0, age_ms=0)
    _send(mirror, target, 0.0)
    _feed(mirror, 4, age_ms=EXPIRATION_MS + 1000)
    whole = mirror.next_batch(30.0)
    assert whole is not None
    mirror.mark_sent(whole)
    too_large = ProduceResult(Outcome.FAILED, Code.MESSAGE_TOO_LARGE)
    mirror.on_produce_result(whole, too_large, now=30.0)
    target.forget_producer()
    _send(mirror, target, 40.0, refuses_first=True)
    assert (_values(target), mirror.done, mirror.parked) == (list(range(8)), 8, None)
