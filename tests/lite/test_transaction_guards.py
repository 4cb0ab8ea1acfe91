"""Verification guards: the time between the coordinator's answer and the first batch."""

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.partitions.admission.guards import VerificationGuards
from shoal.lite.storage.header import BatchHeader, unpack_header
from shoal.lite.storage.state.producer_state import ProducerStates
from shoal.wire.records.records import Record, encode_batch

PRODUCER_ID = 7


def header(epoch: int, sequence: int = 0) -> BatchHeader:
    batch = encode_batch(
        [Record(0, 0, None, b"x")],
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    return unpack_header(memoryview(batch))


@pytest.mark.parametrize(
    ("guard_epoch", "marker_epoch", "is_bumped", "stays"),
    [
        # The second protocol: a marker has the epoch of the next transaction.
        (5, 5, True, True),
        (5, 6, True, False),
        (5, 7, True, False),
        # The first protocol: it has the epoch of its own transaction.
        (5, 4, False, True),
        (5, 5, False, False),
        # A marker that fences the producer is above both.
        (5, 6, False, False),
    ],
)
def test_a_marker_takes_away_the_guard_of_its_own_transaction(
    guard_epoch: int, marker_epoch: int, is_bumped: bool, stays: bool
) -> None:
    guards, producers = VerificationGuards(), ProducerStates()
    guard = guards.begin_verification(header(guard_epoch), producers, begins_at_zero=True)
    guards.drop(PRODUCER_ID, marker_epoch - is_bumped)
    if stays:
        guards.check(header(guard_epoch), producers, guard)
        return
    with pytest.raises(ApiError) as raised:
        guards.check(header(guard_epoch), producers, guard)
    assert raised.value.code == Code.INVALID_TXN_STATE


def test_a_zombie_does_not_take_away_the_guard_of_its_successor() -> None:
    guards, producers = VerificationGuards(), ProducerStates()
    newer = guards.begin_verification(header(6), producers, begins_at_zero=True)
    guards.begin_verification(header(5), producers, begins_at_zero=True)
    guards.check(header(6), producers, newer)


def test_a_producer_that_the_log_knows_at_a_later_epoch_is_fenced_at_once() -> None:
    guards, producers = VerificationGuards(), ProducerStates()
    producers.record(header(6), 0)
    with pytest.raises(ApiError) as raised:
        guards.begin_verification(header(5), producers, begins_at_zero=True)
    assert raised.value.code == Code.INVALID_PRODUCER_EPOCH
