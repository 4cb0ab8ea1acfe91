"""One partition of the mirror: what it forwards, how it rewrites, what it does after failures."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.codes import Code
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery, IdempotentMirror
from shoal.mirror.copy.intake import Counts, Intake
from shoal.mirror.copy.partition import IN_FLIGHT_LIMIT, Outgoing, PartitionCopier
from shoal.mirror.handlers import BatchHandler, Handled
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import HEADER_SIZE, Batch
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import (
    ControlType,
    decode_records,
    encode_batch,
    encode_control_batch,
)
from support.mirror.batches import SequencedTarget, record_set, records_of, stored_batch

PARTITION = TopicPartition("t", 0)
IDENTITY = ProducerIdentity(77, 2)
OK = ProduceResult(Outcome.OK)


def _mirror(*, position: int = 0, handler: BatchHandler | None = None) -> IdempotentMirror:
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    intake = Intake(PARTITION, handler)
    return PartitionCopier(intake, IdempotentDelivery(IDENTITY), position, backoff)


def _feed(
    mirror: IdempotentMirror, *batches: bytearray, aborted: tuple[tuple[int, int], ...] = ()
) -> None:
    mirror.on_fetched(record_set(*batches), aborted=aborted, last_stable_offset=1000)


def _send_all(mirror: IdempotentMirror, *, now: float = 0.0) -> list[Outgoing]:
    """Send and acknowledge one by one."""
    sent = []
    while (outgoing := mirror.next_batch(now)) is not None:
        mirror.mark_sent(outgoing)
        sent.append(outgoing)
        mirror.on_produce_result(outgoing, OK, now=now)
    return sent


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_goes_unopened_under_a_new_header(codec: Codec) -> None:
    stored = stored_batch(40, 3, codec=codec, producer_id=5, producer_epoch=1, base_sequence=9)
    mirror = _mirror(position=40)
    _feed(mirror, stored)
    (outgoing,) = _send_all(mirror)
    batch = outgoing.batch
    batch.check_crc()
    assert bytes(batch.records) == bytes(stored[HEADER_SIZE:])
    assert (batch.base_offset, batch.leader_epoch, batch.codec) == (0, -1, codec)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 2, 0)
    original = Batch(memoryview(stored))
    assert batch.base_timestamp == original.base_timestamp
    assert batch.max_timestamp == original.max_timestamp
    assert (mirror.position, mirror.done) == (43, 43)
    assert mirror.counts == Counts(batches=1, records=3, bytes=len(stored))


def test_bits_that_belong_to_the_source_are_cleared() -> None:
    stored = stored_batch(0, 2, codec=Codec.GZIP)
    Batch(memoryview(stored)).edit(attributes=Codec.GZIP | 1 << 3 | 1 << 4 | 1 << 6)
    mirror = _mirror()
    _feed(mirror, stored)
    (outgoing,) = _send_all(mirror)
    assert outgoing.batch.attributes == Codec.GZIP
    outgoing.batch.check_crc()


def test_sequences_count_records_and_wrap() -> None:
    mirror = _mirror()
    mirror.queue.next_sequence = (1 << 31) - 3
    _feed(mirror, stored_batch(0, 2), stored_batch(2, 3), stored_batch(5, 1))
    assert [out.base_sequence for out in _send_all(mirror)] == [(1 << 31) - 3, (1 << 31) - 1, 2]


def test_a_cut_last_batch_is_fetched_again() -> None:
    mirror = _mirror()
    _feed(mirror, stored_batch(0, 2), stored_batch(2, 2)[:-1])
    assert mirror.position == 2


def test_a_batch_entered_in_the_middle_is_trimmed() -> None:
    mirror = _mirror(position=12)
    _feed(
        mirror,
        stored_batch(8, 2),
        stored_batch(10, 5, codec=Codec.ZSTD),
        stored_batch(15, 1),
    )
    first, second = _send_all(mirror)
    assert [record.value for record in decode_records(first.batch)] == [
        b"0000000012",
        b"0000000013",
        b"0000000014",
    ]
    assert first.batch.codec == Codec.ZSTD
    assert second.base_sequence == 3
    assert (mirror.counts.trimmed, mirror.counts.batches, mirror.done) == (1, 2, 16)


def test_compaction_gaps_are_closed_and_counted() -> None:
    kept = [record for record in records_of(0, 10) if record.offset in {2, 5}]
    stored = encode_batch(kept, base_offset=0, keep_offsets=True, last_offset_delta=9)
    mirror = _mirror()
    _feed(mirror, stored)
    (outgoing,) = _send_all(mirror)
    copied = decode_records(outgoing.batch)
    assert [(r.key, r.value, r.headers, r.timestamp) for r in copied] == [
        (r.key, r.value, r.headers, r.timestamp) for r in kept
    ]
    assert [record.offset for record in copied] == [0, 1]
    assert (mirror.counts.closed_gaps, mirror.position) == (1, 10)


def test_a_batch_that_compaction_emptied_is_passed_over() -> None:
    stored = stored_batch(0, 1)
    Batch(memoryview(stored))
    empty = bytearray(stored[:HEADER_SIZE])
    empty[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    mirror = _mirror()
    _feed(mirror, empty, stored_batch(1, 1))
    assert len(_send_all(mirror)) == 1
    assert (mirror.counts.dropped_empty, mirror.position) == (1, 2)


def _marker(kind: ControlType, offset: int, producer_id: int) -> bytearray:
    return encode_control_batch(
        kind, timestamp=1, coordinator_epoch=0, base_offset=offset, producer_id=producer_id
    )


def _transactional(offset: int, count: int, producer_id: int) -> bytearray:
    return stored_batch(offset, count, is_transactional=True, producer_id=producer_id)


def test_aborted_and_control_batches_stay_behind() -> None:
    mirror = _mirror()
    _feed(
        mirror,
        _transactional(0, 2, 1),  # aborted
        _transactional(2, 2, 2),  # committed
        stored_batch(4, 1, producer_id=1),  # not in a transaction
        _marker(ControlType.ABORT, 5, 1),
        _transactional(6, 1, 1),  # the next transaction of the same producer, committed
        _marker(ControlType.COMMIT, 7, 2),
        _marker(ControlType.COMMIT, 8, 1),
        aborted=((1, 0),),
    )
    sent = _send_all(mirror)
    values = [record.value for out in sent for record in decode_records(out.batch)]
    assert values == [f"{offset:010d}".encode() for offset in (2, 3, 4, 6)]
    assert not any(out.batch.is_transactional for out in sent)
    assert (mirror.counts.dropped_aborted, mirror.counts.dropped_control) == (1, 3)
    assert mirror.position == 9


def test_an_aborted_transaction_counts_from_a_batchs_last_offset() -> None:
    mirror = _mirror()
    _feed(mirror, _transactional(0, 4, 1), aborted=((1, 2),))
    assert _send_all(mirror) == []
    assert mirror.counts.dropped_aborted == 1


def test_handlers_pass_drop_and_change() -> None:
    def handler(partition: TopicPartition, batch: Batch) -> Handled:
        assert partition == PARTITION
        if batch.base_offset == 0:
            return None
        if batch.base_offset == 2:
            return bytes(encode_batch(records_of(90, 1)))
        return batch

    mirror = _mirror(handler=handler)
    _feed(mirror, stored_batch(0, 2), stored_batch(2, 2), stored_batch(4, 2))
    changed, passed = _send_all(mirror)
    assert decode_records(changed.batch)[0].value == b"0000000090"
    assert (changed.base_sequence, passed.base_sequence) == (0, 1)
    assert (mirror.counts.dropped_by_handler, mirror.counts.changed) == (1, 1)
    assert mirror.done == 6


def _failing(partition: TopicPartition, batch: Batch) -> Handled:
    raise KeyError(batch.base_offset)


def _leave_gap(partition: TopicPartition, batch: Batch) -> Handled:
    return encode_batch(records_of(0, 1), last_offset_delta=5, keep_offsets=True)


@pytest.mark.parametrize(("handler", "said"), [(_failing, "KeyError"), (_leave_gap, "gaps")])
def test_a_bad_handler_parks_its_partition_at_the_batch(handler: BatchHandler, said: str) -> None:
    mirror = _mirror(position=7, handler=handler)
    _feed(mirror, stored_batch(7, 2))
    assert said in str(mirror.parked)
    assert mirror.next_batch(0.0) is None
    assert mirror.done == 7


def test_bytes_that_are_no_batch_park_the_partition() -> None:
    mirror = _mirror()
    mirror.on_fetched(memoryview(bytearray(100)), aborted=(), last_stable_offset=10)
    assert "source offset 0 is damaged" in str(mirror.parked)


def test_one_batch_is_in_flight_until_the_first_is_acknowledged_then_five() -> None:
    mirror = _mirror()
    _feed(mirror, *(stored_batch(offset, 1) for offset in range(10)))
    first = mirror.next_batch(0.0)
    assert first is not None
    mirror.mark_sent(first)
    assert mirror.next_batch(0.0) is None
    mirror.on_produce_result(first, OK, now=0.0)
    for _ in range(IN_FLIGHT_LIMIT):
        outgoing = mirror.next_batch(0.0)
        assert outgoing is not None
        mirror.mark_sent(outgoing)
    assert mirror.next_batch(0.0) is None
    assert (mirror.queue.in_flight, mirror.done, mirror.lag) == (5, 1, 999)


def _send_two(mirror: IdempotentMirror) -> tuple[Outgoing, Outgoing]:
    """A first batch is acknowledged, two are in flight, one waits."""
    _feed(mirror, *(stored_batch(offset, 1) for offset in range(4)))
    outs = [mirror.next_batch(0.0)]
    assert outs[0] is not None
    mirror.mark_sent(outs[0])
    mirror.on_produce_result(outs[0], OK, now=0.0)
    pair = []
    for _ in range(2):
        outgoing = mirror.next_batch(0.0)
        assert outgoing is not None
        mirror.mark_sent(outgoing)
        pair.append(outgoing)
    return pair[0], pair[1]


def _result(code: Code) -> ProduceResult:
    return ProduceResult(Outcome.FAILED, code)


def test_after_a_failure_all_that_is_in_flight_comes_back_before_anything_is_sent_again() -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, _result(Code.NOT_LEADER_OR_FOLLOWER), now=0.0)
    assert mirror.next_batch(9.0) is None
    mirror.on_produce_result(third, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    assert mirror.next_batch(0.05) is None  # back-off
    before = bytes(second.batch.view)
    assert mirror.next_batch(9.0) is second
    mirror.mark_sent(second)
    assert bytes(second.batch.view) == before
    assert mirror.next_batch(9.0) is third
    assert mirror.counts.resent == 1
    assert not mirror.delivery.needs_last_sequence


@pytest.mark.parametrize(
    "code", [Code.INVALID_TIMESTAMP, Code.INVALID_RECORD, Code.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_refusal_for_good_parks_the_partition_with_the_brokers_word(code: Code) -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, _result(code), now=0.0)
    assert code.name in str(mirror.parked)
    mirror.on_produce_result(third, OK, now=0.0)
    assert mirror.done == 1
    assert mirror.next_batch(9.0) is None


def test_a_record_that_is_too_large_waits_until_the_target_takes_it() -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, _result(Code.MESSAGE_TOO_LARGE), now=0.0)
    mirror.on_produce_result(third, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    assert mirror.parked is None
    assert "MESSAGE_TOO_LARGE" in str(mirror.waiting)
    assert mirror.next_batch(0.1) is None
    assert not mirror.try_again(0.1)
    assert mirror.try_again(9.0)
    assert mirror.next_batch(9.0) is second
    mirror.mark_sent(second)
    mirror.on_produce_result(second, OK, now=9.0)
    assert mirror.waiting is None
    assert mirror.next_batch(9.0) is third


def test_what_looks_lost_is_parked_only_after_the_topic_id_was_compared() -> None:
    mirror = _mirror()
    mirror.suspect_target("the target no longer has it", "compare both")
    assert (mirror.can_send, mirror.parked) == (False, None)
    mirror.on_target_unchanged()
    assert "the target no longer has it" in str(mirror.parked)


def test_a_batch_below_what_was_acknowledged_raises_a_suspicion() -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, OK._replace(base_offset=0), now=0.0)
    assert (mirror.can_send, mirror.parked) == (False, None)
    mirror.on_produce_result(third, OK._replace(base_offset=second.batch.record_count), now=0.0)
    # All that the new topic holds is ours.
    assert mirror.own_end == second.batch.record_count + third.batch.record_count
    mirror.on_target_unchanged()  # it is the same topic
    assert "has lost records that it acknowledged" in str(mirror.parked)


def test_a_batch_damaged_at_the_source_is_found_by_the_target_and_named() -> None:
    mirror = _mirror()
    stored = stored_batch(0, 1)
    stored[-1] ^= 1
    _feed(mirror, stored)
    outgoing = mirror.next_batch(0.0)
    assert outgoing is not None
    mirror.mark_sent(outgoing)
    assert SequencedTarget().append(outgoing.batch).error_code == Code.CORRUPT_MESSAGE
    mirror.on_produce_result(outgoing, _result(Code.CORRUPT_MESSAGE), now=0.0)
    assert "source offset 0 is damaged" in str(mirror.parked)


def test_a_batch_damaged_on_the_way_is_sent_again() -> None:
    mirror = _mirror()
    _feed(mirror, stored_batch(0, 1))
    outgoing = mirror.next_batch(0.0)
    assert outgoing is not None
    mirror.mark_sent(outgoing)
    mirror.on_produce_result(outgoing, _result(Code.CORRUPT_MESSAGE), now=0.0)
    assert mirror.next_batch(9.0) is outgoing


def test_a_first_batch_out_of_sequence_is_asked_about() -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    asks = [mirror.delivery.needs_last_sequence]  # not while one is still in flight
    mirror.on_produce_result(third, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    asks.append(mirror.delivery.needs_last_sequence)
    assert asks == [False, True]
    assert mirror.next_batch(9.0) is None
    mirror.delivery.on_last_sequence(2, now=0.0)  # both are written; the last one proves it
    assert mirror.next_batch(9.0) is third
    assert mirror.done == 1
    mirror.mark_sent(third)
    mirror.on_produce_result(third, OK, now=9.0)
    assert mirror.done == 3


def test_a_target_that_lost_what_it_acknowledged_parks_the_partition() -> None:
    for last in (None, (1 << 31) - 2):
        mirror = _mirror()
        second, third = _send_two(mirror)
        mirror.on_produce_result(second, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
        mirror.on_produce_result(third, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
        mirror.delivery.on_last_sequence(last, now=0.0)
        assert mirror.parked is None
        mirror.on_target_unchanged()  # it is the same topic
        assert "no longer has" in str(mirror.parked)


def test_a_mirror_that_finds_another_ahead_of_it_sends_nothing_until_it_resumes() -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    mirror.on_produce_result(third, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    mirror.delivery.on_last_sequence(1000, now=0.0)
    assert (mirror.parked, mirror.is_overtaken, mirror.done) == (None, True, 1)
    assert "another mirror with the same name is ahead" in mirror.resume_reason
    assert mirror.next_batch(9.0) is None


def test_a_last_sequence_that_arrives_after_the_batches_were_dropped_changes_nothing() -> None:
    """The partition is released while the query is on its way."""
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    mirror.on_produce_result(third, _result(Code.OUT_OF_ORDER_SEQUENCE_NUMBER), now=0.0)
    assert mirror.delivery.needs_last_sequence
    mirror.forget_unsent()
    for last in (2, 1000, None):
        mirror.delivery.on_last_sequence(last, now=0.0)
    assert (mirror.parked, mirror.suspicion, mirror.done) == (None, None, 1)
    _feed(mirror, stored_batch(1, 1))
    assert [out.base_sequence for out in _send_all(mirror, now=9.0)] == [1]


def _resume(target: SequencedTarget, *, written: int) -> IdempotentMirror:
    tail = Batch(memoryview(bytearray(target.batches[-1])))
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    delivery = IdempotentDelivery(
        IDENTITY, already_there=written, is_known_at_start=True, tail=tail
    )
    return PartitionCopier(Intake(PARTITION), delivery, 0, backoff)


def test_a_mirror_that_goes_on_passes_over_what_is_there_and_keeps_the_sequences() -> None:
    target, first = SequencedTarget(), _mirror()
    batches = [stored_batch(offset, 3, codec=Codec.GZIP) for offset in range(0, 15, 3)]
    _feed(first, *batches[:3])
    for outgoing in _send_all(first):
        target.append(outgoing.batch)
    second = _resume(target, written=9)
    _feed(second, *batches)
    assert (second.done, second.resume_point.sequence, second.target_offset) == (9, 9, 9)
    for outgoing in _send_all(second):
        assert target.append(outgoing.batch).is_ok
    assert [int(value) for value in target.values] == list(range(15))
    assert (second.counts.already_there, second.counts.records) == (9, 6)
    assert (second.target_offset, second.resume_point.sequence) == (15, 15)


def test_a_source_that_has_changed_below_the_targets_end_parks_the_partition() -> None:
    target, first = SequencedTarget(), _mirror()
    _feed(first, stored_batch(0, 3))
    for outgoing in _send_all(first):
        target.append(outgoing.batch)
    second = _resume(target, written=3)
    _feed(second, stored_batch(20, 3))
    assert "the source has changed" in str(second.parked)
    assert second.next_batch(0.0) is None
    assert second.position == 0


def test_a_batch_at_another_offset_than_expected_is_counted() -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.on_produce_result(second, ProduceResult(Outcome.OK, base_offset=1), now=0.0)
    mirror.on_produce_result(third, ProduceResult(Outcome.OK, base_offset=7), now=0.0)
    assert mirror.counts.displaced == 1
    assert mirror.target_offset == 8


def test_what_was_never_sent_is_forgotten_at_the_end() -> None:
    mirror = _mirror()
    second, third = _send_two(mirror)
    mirror.forget_unsent()
    mirror.on_produce_result(second, OK, now=0.0)
    mirror.on_produce_result(third, OK, now=0.0)
    assert mirror.next_batch(0.0) is None
    assert (mirror.done, mirror.position, mirror.queued_bytes) == (3, 3, 0)


FATES = st.sampled_from(["ok", "refused", "answer lost", "request lost", "restart"])


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=25),
    fates=st.lists(FATES, max_size=60),
    fetched_at_once=st.integers(1, 8),
)
def test_whatever_fails_on_the_way_every_record_arrives_once_and_in_order(
    sizes: list[int], fates: list[str], fetched_at_once: int
) -> None:
    source: list[bytearray] = []
    offset = 0
    for size in sizes:
        source.append(stored_batch(offset, size))
        offset += size
    mirror, target, fate = _mirror(), SequencedTarget(), iter(fates)
    flying: deque[tuple[Outgoing, ProduceResult]] = deque()
    now = 0.0
    for _ in range(2000):
        if mirror.done == offset:
            break
        now += 1
        if source:
            _feed(mirror, *source[:fetched_at_once])
            del source[:fetched_at_once]
        while (outgoing := mirror.next_batch(now)) is not None:
            mirror.mark_sent(outgoing)
            flying.append((outgoing, _try(target, outgoing.batch, next(fate, "ok"))))
        for outgoing, result in flying:
            mirror.on_produce_result(outgoing, result, now=now)
        flying.clear()
        if mirror.delivery.needs_last_sequence:
            mirror.delivery.on_last_sequence(target.last_sequence, now=now)
    assert mirror.parked is None
    assert target.values == [f"{number:010d}".encode() for number in range(offset)]
    assert mirror.counts.records == offset
    assert mirror.queued_bytes == 0


def _try(target: SequencedTarget, batch: Batch, fate: str) -> ProduceResult:
    lost = ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)
    if fate == "refused":
        return _result(Code.NOT_LEADER_OR_FOLLOWER)
    if fate == "request lost":
        return lost
    result = target.append(batch)
    if fate == "restart":
        target.restart()
        return lost
    return lost if fate == "answer lost" else result
