"""Batches on their way: nothing twice, nothing lost in silence, order kept, whatever fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.codes import Code, outcome_of
from shoal.client.produce.sequencing import Mode, PartitionQueue, PendingBatch, ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.model.findings import Outcome
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, encode_batch
from support.client.partition import TP, World

pytestmark = pytest.mark.slow

OK = ProduceResult(Outcome.OK)
LOST = ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)


def refuse(code: int) -> ProduceResult:
    return ProduceResult(outcome_of(code, acks=-1), code)


def make_line(mode: Mode = Mode.IDEMPOTENT) -> PartitionQueue:
    queue = PartitionQueue(
        TP, mode, max_in_flight=5, backoff=Backoff(100, 1000, chance=lambda: 0.5)
    )
    if mode is not Mode.PLAIN:
        queue.set_identity(ProducerIdentity(7, 1))
    return queue


def add(queue: PartitionQueue, records: int = 2, deadline: float = 60.0) -> PendingBatch:
    encoded = encode_batch([Record(i, 0, None, b"value") for i in range(records)])
    pending = PendingBatch(TP, Batch(memoryview(encoded)), deadline=deadline)
    queue.add(pending)
    return pending


def send_all(queue: PartitionQueue, now: float = 0.0) -> list[PendingBatch]:
    sent = []
    while (pending := queue.next_to_send(now)) is not None:
        queue.mark_sent(pending)
        sent.append(pending)
    return sent


def establish(queue: PartitionQueue) -> None:
    first = add(queue)
    assert send_all(queue) == [first]
    assert queue.on_result(first, OK, 0.0) == [first]


def test_sequences_follow_each_other_and_the_checksum_holds() -> None:
    queue = make_line()
    establish(queue)
    second, third = add(queue, records=3), add(queue)
    assert send_all(queue) == [second, third]
    assert [second.batch.base_sequence, third.batch.base_sequence] == [2, 5]
    assert (second.batch.producer_id, second.batch.producer_epoch) == (7, 1)
    second.batch.check_crc()


def test_sequences_wrap() -> None:
    queue = make_line()
    establish(queue)
    queue.next_sequence = (1 << 31) - 1
    last, first = add(queue), add(queue)
    send_all(queue)
    assert [last.batch.base_sequence, first.batch.base_sequence] == [(1 << 31) - 1, 1]


def test_one_in_flight_until_a_broker_knows_the_producer() -> None:
    queue = make_line()
    first, second = add(queue), add(queue)
    assert send_all(queue) == [first]
    queue.on_result(first, OK, 0.0)
    assert send_all(queue) == [second]


def test_no_batch_is_lost_or_overtaken_after_a_day_without_any() -> None:
    """A broker forgets a producer after producer.id.expiration.ms, and accepts any sequence."""
    queue, written = make_line(), []
    establish(queue)
    parcels = [add(queue, deadline=1e9) for _ in range(3)]
    last_sequence: int | None = None  # forgotten
    refusals = [Code.NOT_LEADER_OR_FOLLOWER]
    for now in range(86_400, 86_410):
        for pending in send_all(queue, now=now):
            batch = pending.batch
            if refusals:
                code = refusals.pop()
            elif last_sequence not in (None, batch.base_sequence - 1):
                code = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                code, last_sequence = Code.NONE, batch.last_sequence
                written.append(pending)
            queue.on_result(pending, refuse(code), now)
    assert written == parcels
    assert {pending.result.outcome for pending in parcels if pending.result} == {Outcome.OK}


def test_a_batch_in_doubt_after_a_long_outage_is_decided_by_those_behind_it() -> None:
    queue = make_line()
    establish(queue)
    first, second = add(queue, deadline=1e9), add(queue, deadline=1e9)
    send_all(queue)
    for pending in (first, second):
        queue.on_result(pending, LOST, 0.0)
    assert send_all(queue, now=86_400.0) == [first]
    out_of_sequence = refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert queue.on_result(first, out_of_sequence, 86_400.0) == []
    assert send_all(queue, now=86_401.0) == [first, second]  # the broker has not forgotten
    queue.on_result(first, out_of_sequence, 86_401.0)
    assert queue.on_result(second, OK, 86_401.0) == [first, second]


def test_five_in_flight_after_that() -> None:
    queue = make_line()
    establish(queue)
    parcels = [add(queue) for _ in range(7)]
    assert send_all(queue) == parcels[:5]


def test_a_lost_batch_is_repeated_byte_for_byte_and_those_behind_it_wait() -> None:
    queue = make_line()
    establish(queue)
    first, second = add(queue), add(queue)
    send_all(queue)
    before = bytes(first.batch.view)
    assert queue.on_result(first, LOST, 1.0) == []
    add(queue)
    assert queue.next_to_send(2.0) is None  # the second is still in flight
    assert queue.on_result(second, refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0) == []
    assert queue.next_to_send(1.05) is None  # backing off
    assert send_all(queue, now=2.0)[0] is first
    assert bytes(first.batch.view) == before


def test_a_refused_batch_gives_its_number_to_the_next() -> None:
    queue = make_line()
    establish(queue)
    first, second = add(queue), add(queue)
    send_all(queue)
    assert queue.on_result(first, refuse(Code.MESSAGE_TOO_LARGE), 0.0) == [first]
    assert first.result is not None
    assert first.result.outcome is Outcome.FAILED
    assert queue.on_result(second, refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 0.0) == []
    assert send_all(queue) == [second]
    assert second.batch.base_sequence == 2


def test_an_unknown_outcome_ends_the_identity_and_takes_the_doubtful_with_it() -> None:
    queue = make_line()
    establish(queue)
    first, second, third = add(queue, deadline=5.0), add(queue), add(queue)
    assert queue.next_to_send(0.0) is first
    send_all(queue)
    for pending in (first, second):
        queue.on_result(pending, LOST, 1.0)
    queue.on_result(third, refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0)
    decided = queue.expire(6.0)
    assert decided == [first, second]
    assert {pending.result.outcome for pending in decided if pending.result} == {Outcome.UNKNOWN}
    assert queue.needs_broker_state
    assert queue.next_to_send(6.0) is None
    queue.set_identity(ProducerIdentity(8, 0))
    assert send_all(queue, now=6.0) == [third]
    assert (third.batch.producer_id, third.batch.base_sequence) == (8, 0)


def test_out_of_sequence_at_the_head_is_sent_again_under_a_new_identity() -> None:
    queue = make_line()
    establish(queue)
    first = add(queue)
    send_all(queue)
    assert queue.on_result(first, refuse(Code.UNKNOWN_PRODUCER_ID), 0.0) == []
    assert queue.needs_broker_state
    queue.set_identity(ProducerIdentity(9, 0))
    assert send_all(queue) == [first]
    assert first.batch.base_sequence == 0


def test_out_of_sequence_after_a_lost_answer_is_unknown() -> None:
    queue = make_line()
    establish(queue)
    first = add(queue)
    send_all(queue)
    queue.on_result(first, LOST, 0.0)
    send_all(queue, now=1.0)
    assert queue.on_result(first, refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0) == [first]
    assert first.result is not None
    assert first.result.outcome is Outcome.UNKNOWN


def test_out_of_sequence_before_an_acknowledged_batch_is_written() -> None:
    """A broker that restarted remembers the last batch only."""
    queue = make_line()
    establish(queue)
    first, second, third = add(queue), add(queue), add(queue)
    send_all(queue)
    for pending in (first, second, third):
        queue.on_result(pending, LOST, 0.0)
    send_all(queue, now=1.0)
    for pending in (first, second):
        assert queue.on_result(pending, refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), 1.0) == []
    assert queue.on_result(third, OK, 1.0) == [first, second, third]
    assert [pending.result.outcome for pending in (first, second) if pending.result] == [
        Outcome.OK,
        Outcome.OK,
    ]
    assert queue.in_flight == 0


def test_doubts_outlast_another_lost_connection() -> None:
    queue = make_line()
    establish(queue)
    first, second = add(queue), add(queue)
    for now in (0.0, 1.0):
        send_all(queue, now=now)
        out_of_sequence = refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        queue.on_result(first, out_of_sequence if now else LOST, now)
        queue.on_result(second, LOST, now)
    assert first.result is None
    assert send_all(queue, now=2.0) == [first, second]
    assert queue.on_result(first, out_of_sequence, 2.0) == []
    assert queue.on_result(second, OK, 2.0) == [first, second]


def test_never_sent_is_failed_and_uses_no_number() -> None:
    queue = make_line()
    establish(queue)
    late, next_one = add(queue, deadline=1.0), add(queue)
    assert queue.expire(2.0) == [late]
    assert late.result is not None
    assert late.result.outcome is Outcome.FAILED
    assert send_all(queue, now=2.0) == [next_one]
    assert next_one.batch.base_sequence == 2


def test_a_refusal_after_a_lost_answer_stays_unknown() -> None:
    queue = make_line()
    establish(queue)
    first = add(queue)
    send_all(queue)
    queue.on_result(first, LOST, 0.0)
    send_all(queue, now=1.0)
    queue.on_result(first, refuse(Code.MESSAGE_TOO_LARGE), 1.0)
    assert first.result is not None
    assert first.result.outcome is Outcome.UNKNOWN


def test_abandoned_in_flight_is_unknown_and_later_answers_are_ignored() -> None:
    queue = make_line(Mode.TRANSACTIONAL)
    establish(queue)
    sent = add(queue)
    send_all(queue)
    queued = add(queue)
    queue.abandon(refuse(Code.INVALID_TXN_STATE))
    assert [pending.result.outcome for pending in (sent, queued) if pending.result] == [
        Outcome.UNKNOWN,
        Outcome.FAILED,
    ]
    assert queue.on_result(sent, OK, 1.0) == []
    assert queue.is_empty
    assert queue.in_flight == 0


def test_plain_batches_keep_their_header() -> None:
    queue = make_line(Mode.PLAIN)
    pending = add(queue)
    before = bytes(pending.batch.view)
    send_all(queue)
    queue.on_result(pending, LOST, 0.0)
    assert send_all(queue, now=1.0) == [pending]
    assert bytes(pending.batch.view) == before


def test_without_acks_a_sent_batch_is_unknown_and_done() -> None:
    queue = make_line(Mode.PLAIN)
    pending = add(queue)
    send_all(queue)
    assert queue.on_result(pending, ProduceResult(Outcome.UNKNOWN), 0.0) == [pending]
    assert pending.result is not None
    assert pending.result.outcome_unknown


@pytest.mark.parametrize("fault_rate", [0.0, 0.05, 0.2])
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_outcomes_are_true(fault_rate: float, seed: int) -> None:
    for number in range(seed, seed + 10):
        world = World(number, batches=40, fault_rate=fault_rate)
        world.run()
        assert world.untruths() == [], f"seed {number}"
