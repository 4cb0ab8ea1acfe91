"""Batches on their way: nothing twice, nothing lost in silence, order kept, whatever fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.codes import Code, outcome_of
from shoal.client.produce.sequencing import Identity, Mode, Parcel, PartitionLine
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.model.findings import Outcome
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, encode_batch
from support.client_partition import TP, World

OK = ProduceResult(Outcome.OK)
LOST = ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)


def refused(code: int) -> ProduceResult:
    return ProduceResult(outcome_of(code, acks=-1), code)


def make_line(mode: Mode = Mode.IDEMPOTENT) -> PartitionLine:
    line = PartitionLine(TP, mode, max_in_flight=5, backoff=Backoff(100, 1000, chance=lambda: 0.5))
    if mode is not Mode.PLAIN:
        line.identify(Identity(7, 1))
    return line


def add(line: PartitionLine, records: int = 2, deadline: float = 60.0) -> Parcel:
    encoded = encode_batch([Record(i, 0, None, b"value") for i in range(records)])
    parcel = Parcel(TP, Batch(memoryview(encoded)), deadline=deadline)
    line.add(parcel)
    return parcel


def send_all(line: PartitionLine, now: float = 0.0) -> list[Parcel]:
    sent = []
    while (parcel := line.sendable(now)) is not None:
        line.sent(parcel)
        sent.append(parcel)
    return sent


def established(line: PartitionLine) -> None:
    first = add(line)
    assert send_all(line) == [first]
    assert line.answered(first, OK, 0.0) == [first]


def test_sequences_follow_each_other_and_the_checksum_holds() -> None:
    line = make_line()
    established(line)
    second, third = add(line, records=3), add(line)
    assert send_all(line) == [second, third]
    assert [second.batch.base_sequence, third.batch.base_sequence] == [2, 5]
    assert (second.batch.producer_id, second.batch.producer_epoch) == (7, 1)
    second.batch.check_crc()


def test_sequences_wrap() -> None:
    line = make_line()
    established(line)
    line._next_sequence = (1 << 31) - 1
    last, first = add(line), add(line)
    send_all(line)
    assert [last.batch.base_sequence, first.batch.base_sequence] == [(1 << 31) - 1, 1]


def test_one_in_flight_until_a_broker_knows_the_producer() -> None:
    line = make_line()
    first, second = add(line), add(line)
    assert send_all(line) == [first]
    line.answered(first, OK, 0.0)
    assert send_all(line) == [second]


def test_five_in_flight_after_that() -> None:
    line = make_line()
    established(line)
    parcels = [add(line) for _ in range(7)]
    assert send_all(line) == parcels[:5]


def test_a_lost_batch_is_repeated_byte_for_byte_and_those_behind_it_wait() -> None:
    line = make_line()
    established(line)
    first, second = add(line), add(line)
    send_all(line)
    before = bytes(first.batch.view)
    assert line.answered(first, LOST, 1.0) == []
    add(line)
    assert line.sendable(2.0) is None  # the second is still in flight
    assert line.answered(second, refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0) == []
    assert line.sendable(1.05) is None  # backing off
    assert send_all(line, now=2.0)[0] is first
    assert bytes(first.batch.view) == before


def test_a_refused_batch_gives_its_number_to_the_next() -> None:
    line = make_line()
    established(line)
    first, second = add(line), add(line)
    send_all(line)
    assert line.answered(first, refused(Code.MESSAGE_TOO_LARGE), 0.0) == [first]
    assert first.result is not None
    assert first.result.outcome is Outcome.FAILED
    assert line.answered(second, refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 0.0) == []
    assert send_all(line) == [second]
    assert second.batch.base_sequence == 2


def test_an_unknown_outcome_ends_the_identity_and_takes_the_doubtful_with_it() -> None:
    line = make_line()
    established(line)
    first, second, third = add(line, deadline=5.0), add(line), add(line)
    assert line.sendable(0.0) is first
    send_all(line)
    for parcel in (first, second):
        line.answered(parcel, LOST, 1.0)
    line.answered(third, refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0)
    decided = line.expire(6.0)
    assert decided == [first, second]
    assert {parcel.result.outcome for parcel in decided if parcel.result} == {Outcome.UNKNOWN}
    assert line.needs_identity
    assert line.sendable(6.0) is None
    line.identify(Identity(8, 0))
    assert send_all(line, now=6.0) == [third]
    assert (third.batch.producer_id, third.batch.base_sequence) == (8, 0)


def test_out_of_sequence_at_the_head_is_sent_again_under_a_new_identity() -> None:
    line = make_line()
    established(line)
    first = add(line)
    send_all(line)
    assert line.answered(first, refused(Code.UNKNOWN_PRODUCER_ID), 0.0) == []
    assert line.needs_identity
    line.identify(Identity(9, 0))
    assert send_all(line) == [first]
    assert first.batch.base_sequence == 0


def test_out_of_sequence_after_a_lost_answer_is_unknown() -> None:
    line = make_line()
    established(line)
    first = add(line)
    send_all(line)
    line.answered(first, LOST, 0.0)
    send_all(line, now=1.0)
    assert line.answered(first, refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0) == [first]
    assert first.result is not None
    assert first.result.outcome is Outcome.UNKNOWN


def test_out_of_sequence_before_an_acknowledged_batch_is_written() -> None:
    """A broker that restarted remembers the last batch only."""
    line = make_line()
    established(line)
    first, second, third = add(line), add(line), add(line)
    send_all(line)
    for parcel in (first, second, third):
        line.answered(parcel, LOST, 0.0)
    send_all(line, now=1.0)
    for parcel in (first, second):
        assert line.answered(parcel, refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0) == []
    assert line.answered(third, OK, 1.0) == [first, second, third]
    assert [parcel.result.outcome for parcel in (first, second) if parcel.result] == [
        Outcome.OK,
        Outcome.OK,
    ]
    assert line.in_flight == 0


def test_doubts_outlast_another_lost_connection() -> None:
    line = make_line()
    established(line)
    first, second = add(line), add(line)
    for now in (0.0, 1.0):
        send_all(line, now=now)
        out_of_sequence = refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        line.answered(first, out_of_sequence if now else LOST, now)
        line.answered(second, LOST, now)
    assert first.result is None
    assert send_all(line, now=2.0) == [first, second]
    assert line.answered(first, out_of_sequence, 2.0) == []
    assert line.answered(second, OK, 2.0) == [first, second]


def test_never_sent_is_failed_and_uses_no_number() -> None:
    line = make_line()
    established(line)
    late, next_one = add(line, deadline=1.0), add(line)
    assert line.expire(2.0) == [late]
    assert late.result is not None
    assert late.result.outcome is Outcome.FAILED
    assert send_all(line, now=2.0) == [next_one]
    assert next_one.batch.base_sequence == 2


def test_a_refusal_after_a_lost_answer_stays_unknown() -> None:
    line = make_line()
    established(line)
    first = add(line)
    send_all(line)
    line.answered(first, LOST, 0.0)
    send_all(line, now=1.0)
    line.answered(first, refused(Code.MESSAGE_TOO_LARGE), 1.0)
    assert first.result is not None
    assert first.result.outcome is Outcome.UNKNOWN


def test_abandoned_in_flight_is_unknown_and_later_answers_are_ignored() -> None:
    line = make_line(Mode.TRANSACTIONAL)
    established(line)
    sent = add(line)
    send_all(line)
    queued = add(line)
    line.abandon(refused(Code.INVALID_TXN_STATE))
    assert [parcel.result.outcome for parcel in (sent, queued) if parcel.result] == [
        Outcome.UNKNOWN,
        Outcome.FAILED,
    ]
    assert line.answered(sent, OK, 1.0) == []
    assert line.is_empty
    assert line.in_flight == 0


def test_plain_batches_keep_their_header() -> None:
    line = make_line(Mode.PLAIN)
    parcel = add(line)
    before = bytes(parcel.batch.view)
    send_all(line)
    line.answered(parcel, LOST, 0.0)
    assert send_all(line, now=1.0) == [parcel]
    assert bytes(parcel.batch.view) == before


def test_without_acks_a_sent_batch_is_unknown_and_done() -> None:
    line = make_line(Mode.PLAIN)
    parcel = add(line)
    send_all(line)
    assert line.answered(parcel, ProduceResult(Outcome.UNKNOWN), 0.0) == [parcel]
    assert parcel.result is not None
    assert parcel.result.outcome_unknown


@pytest.mark.parametrize("trouble", [0.0, 0.05, 0.2])
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_outcomes_are_true(trouble: float, seed: int) -> None:
    for number in range(seed, seed + 10):
        world = World(number, batches=40, trouble=trouble)
        world.run()
        assert world.untruths() == [], f"seed {number}"
