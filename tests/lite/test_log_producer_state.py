"""Idempotent producers: which batch is new, which is a duplicate, which is refused."""

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.partitions.admission.producer_rules import check_sequence
from shoal.lite.storage.header import BatchHeader, unpack_header
from shoal.lite.storage.state.producer_state import ProducerStates
from support.lite.batches import batch_of

LAST_SEQUENCE = (1 << 31) - 1


def header(sequence: int, *, count: int = 1, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return unpack_header(batch_of(*[b"x"] * count, producer=(producer_id, epoch, sequence)))


def record_all(*headers: BatchHeader) -> ProducerStates:
    states = ProducerStates()
    offset = 0
    for one in headers:
        assert check_sequence(one, states) is None
        states.record(one, offset)
        offset += one.record_count
    return states


def refusal(states: ProducerStates, one: BatchHeader) -> Code:
    with pytest.raises(ApiError) as refused:
        check_sequence(one, states)
    return refused.value.code


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert check_sequence(header(63), ProducerStates()) is None


def test_the_next_sequence_is_expected() -> None:
    states = record_all(header(0, count=3), header(3, count=2))
    assert check_sequence(header(5), states) is None
    assert refusal(states, header(6)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, header(4)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_last_five_batches_are_known_again() -> None:
    states = record_all(*[header(sequence) for sequence in range(7)])
    for sequence in range(2, 7):
        duplicate = check_sequence(header(sequence), states)
        assert duplicate is not None
        assert duplicate.base_offset == sequence
    assert refusal(states, header(1)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_other_boundaries_are_no_duplicate() -> None:
    states = record_all(header(0, count=2), header(2, count=2))
    assert refusal(states, header(2, count=1)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap() -> None:
    states = record_all(header(LAST_SEQUENCE - 1, count=2))
    assert check_sequence(header(0), states) is None
    across = record_all(header(LAST_SEQUENCE - 2), header(LAST_SEQUENCE - 1, count=4))
    assert check_sequence(header(2), across) is None


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero() -> None:
    states = record_all(header(0, epoch=3))
    assert refusal(states, header(1, epoch=2)) is Code.INVALID_PRODUCER_EPOCH
    assert refusal(states, header(1, epoch=4)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    newer = header(0, epoch=4)
    assert check_sequence(newer, states) is None
    states.record(newer, 1)
    assert refusal(states, header(1, epoch=3)) is Code.INVALID_PRODUCER_EPOCH
    assert check_sequence(header(1, epoch=4), states) is None


def test_producers_are_forgotten_by_the_time_of_their_batches() -> None:
    states = record_all(header(0), header(0, producer_id=8))
    newest = header(0).max_timestamp
    states.forget_older_than(newest)
    assert len(states) == 2
    states.forget_older_than(newest + 1)
    assert len(states) == 0
