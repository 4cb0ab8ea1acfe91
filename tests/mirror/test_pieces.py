"""Batches that cannot go as they are: too large, damaged, taken apart; pure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import CopyRules
from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery, IdempotentMirror
from shoal.mirror.copy.delivery.transactional import TransactionalDelivery
from shoal.mirror.copy.depth import DEEP
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier, PartitionMirror, ResumePoint
from shoal.mirror.copy.rebatch import DeepRules, Rebatcher
from shoal.mirror.handlers import BatchHandler, RecordColumns
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import decode_records
from support.mirror.batches import SequencedTarget, record_set, stored_batch

PARTITION = TopicPartition("t", 0)
IDENTITY = ProducerIdentity(77, 2)
ROOM = 1 << 20


def _mirror(
    position: int = 0,
    *,
    intake: Intake | None = None,
    target_offset: int = 0,
    retries_bad: bool = False,
    **options: Any,
) -> IdempotentMirror:
    return PartitionCopier(
        intake or Intake(PARTITION),
        IdempotentDelivery(IDENTITY, **options),
        position,
        Backoff(100, 1000, chance=lambda: 0.5),
        target_offset=target_offset,
        retries_bad=retries_bad,
    )


def _feed(mirror: PartitionMirror, *batches: bytearray) -> bool:
    return mirror.on_fetched(record_set(*batches), aborted=(), last_stable_offset=1000)


def _send(mirror: PartitionMirror, target: SequencedTarget, most: int = 1000) -> None:
    """Send and answer, so many batches at most."""
    now = 0.0
    while most and (outgoing := mirror.next_batch(now)) is not None:
        mirror.mark_sent(outgoing)
        mirror.on_produce_result(outgoing, target.append(outgoing.batch), now=now)
        now, most = now + 10, most - 1


def _values(target: SequencedTarget) -> list[int]:
    return [int(value) for value in target.values]


def test_a_batch_that_is_too_large_goes_in_pieces() -> None:
    target, mirror = SequencedTarget(limit_bytes=300), _mirror()
    _feed(mirror, stored_batch(0, 3), stored_batch(3, 20), stored_batch(23, 2))
    _send(mirror, target)
    assert _values(target) == list(range(25))
    assert (mirror.counts.split, mirror.counts.records) == (3, 25)
    assert (mirror.resume_point, mirror.queued_bytes) == (ResumePoint(25, 25, 25), 0)
    assert all(len(batch) <= 300 for batch in target.batches)
    # What is known to be too large is not tried again.
    tries = mirror.counts.resent
    _feed(mirror, stored_batch(25, 20))
    _send(mirror, target)
    assert (_values(target), mirror.counts.resent) == (list(range(45)), tries)


def test_one_record_that_is_too_large_waits() -> None:
    target, mirror = SequencedTarget(limit_bytes=70), _mirror()
    _feed(mirror, stored_batch(0, 1))
    _send(mirror, target)
    assert "refuses the record at source offset 0" in str(mirror.waiting)


@given(pieces=st.integers(0, 30), batches=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_mirror_that_was_killed_among_pieces_goes_on(pieces: int, batches: list[int]) -> None:
    stored, first = [], 0
    for count in batches:
        stored.append(stored_batch(first, count))
        first += count
    target, killed = SequencedTarget(limit_bytes=160), _mirror()
    _feed(killed, *stored)
    _send(killed, target, most=pieces)
    mark = killed.resume_point
    there = len(target.values) - mark.target_offset
    heir = _mirror(
        mark.source_offset,
        first_sequence=mark.sequence,
        target_offset=mark.target_offset,
        already_there=there,
        is_known_at_start=bool(target.values),
        tail=Batch(memoryview(bytearray(target.batches[-1]))) if there else None,
    )
    _feed(heir, *stored)
    _send(heir, target)
    assert (heir.parked, _values(target)) == (None, list(range(first)))
    assert heir.resume_point == ResumePoint(first, first, first)


def test_batches_that_were_cut_otherwise_are_the_same_records() -> None:
    target, mirror = SequencedTarget(), _mirror()
    _feed(mirror, stored_batch(0, 3), stored_batch(3, 3))
    _send(mirror, target)
    tail = Batch(memoryview(bytearray(target.batches[-1])))
    heir = _mirror(already_there=6, is_known_at_start=True, tail=tail)
    _feed(heir, stored_batch(0, 4), stored_batch(4, 5))
    _send(heir, target)
    assert (heir.parked, _values(target)) == (None, list(range(9)))


def test_what_was_never_sent_gives_its_sequences_back() -> None:
    target, mirror = SequencedTarget(), _mirror()
    _feed(mirror, stored_batch(0, 3), stored_batch(3, 3), stored_batch(6, 3))
    _send(mirror, target, most=1)
    mirror.forget_unsent()
    assert (mirror.resume_point, mirror.position) == (ResumePoint(3, 3, 3), 3)


def test_a_damaged_batch_is_read_again_if_so_told() -> None:
    target, mirror = SequencedTarget(), _mirror(retries_bad=True)
    damaged = stored_batch(3, 3)
    damaged[-1] ^= 1
    _feed(mirror, stored_batch(0, 3), damaged, stored_batch(6, 3))
    for _ in range(2):
        _send(mirror, target)
        assert (mirror.parked, mirror.position, mirror.done) == (None, 3, 3)
        _feed(mirror, damaged, stored_batch(6, 3))
    assert mirror.counts.damaged == 2
    _send(mirror, target)
    _feed(mirror, stored_batch(3, 3), stored_batch(6, 3))
    _send(mirror, target)
    assert _values(target) == list(range(9))


def test_a_damaged_header_is_read_again_if_so_told() -> None:
    mirror = _mirror(retries_bad=True)
    assert _feed(mirror, stored_batch(0, 3), bytearray(100)) is False
    assert (mirror.parked, mirror.position) == (None, 3)
    assert _feed(mirror, stored_batch(3, 3)) is True
    assert mirror.position == 6


@pytest.mark.parametrize("retries", [False, True])
def test_a_damaged_batch_is_kept_out_of_transactions(retries: bool) -> None:
    intake, backoff = Intake(PARTITION), Backoff(100, 1000)
    mirror = PartitionCopier(intake, TransactionalDelivery(), 0, backoff, retries_bad=retries)
    damaged = stored_batch(3, 3)
    damaged[-1] ^= 1
    _feed(mirror, stored_batch(0, 3), damaged, stored_batch(6, 3))
    assert [out.source_offset for out in mirror.delivery.take(ROOM)] == [0]
    assert (mirror.parked is None) is retries
    assert (mirror.position, mirror.delivery.next_position) == (3, 3)


def test_the_pieces_of_a_batch_go_in_one_transaction() -> None:
    intake, backoff = Intake(PARTITION), Backoff(100, 1000)
    mirror = PartitionCopier(intake, TransactionalDelivery(), 0, backoff, limit_bytes=160)
    _feed(mirror, stored_batch(0, 8), stored_batch(8, 2))
    taken = mirror.delivery.take(1)
    assert sum(out.batch.record_count for out in taken) == 8
    assert (len(taken), mirror.delivery.next_position) == (4, 8)


# Deep mode.


def _deep(size: int = 200, handler: BatchHandler | None = None) -> IdempotentMirror:
    rules = DeepRules(compression_type="zstd", batch_size_bytes=size, linger_ms=100)
    return _mirror(intake=Intake(PARTITION, handler, Rebatcher(rules)))


def test_records_are_packed_anew_and_nothing_waits_for_longer_than_told() -> None:
    target, mirror = SequencedTarget(), _deep()
    _feed(mirror, *(stored_batch(first, 2, codec=Codec.GZIP) for first in range(0, 20, 2)))
    _send(mirror, target)
    sizes = [Batch(memoryview(bytearray(each))).record_count for each in target.batches]
    assert (max(sizes), mirror.done) == (6, sum(sizes))
    assert {Batch(memoryview(bytearray(each))).codec for each in target.batches} == {Codec.ZSTD}
    rebatcher = mirror.intake.rebatcher
    assert rebatcher is not None
    assert rebatcher.is_filled
    assert (rebatcher.is_due(5.0), rebatcher.is_due(5.05), rebatcher.is_due(5.2)) == (
        False,
        False,
        True,
    )
    mirror.flush()
    _send(mirror, target)
    assert (_values(target), mirror.done) == (list(range(20)), 20)
    assert decode_records(Batch(memoryview(bytearray(target.batches[0]))))[0].headers


def _only_even(_partition: TopicPartition, batch: RecordColumns) -> RecordColumns:
    batch.values = [b"0" + (value or b"") for value in batch.values]
    return batch.select(offset % 2 == 0 for offset in batch.offsets)


def test_a_handler_changes_columns() -> None:
    target, mirror = SequencedTarget(), _deep(handler=_only_even)
    _feed(mirror, stored_batch(0, 10))
    mirror.flush()
    _send(mirror, target)
    assert (_values(target), mirror.done) == ([0, 2, 4, 6, 8], 10)


@given(sent=st.integers(0, 12), size=st.integers(1, 600))
def test_a_deep_mirror_that_was_killed_goes_on(sent: int, size: int) -> None:
    stored = [stored_batch(first, 7) for first in range(0, 42, 7)]
    target, killed = SequencedTarget(), _deep(size, handler=_only_even)
    _feed(killed, *stored)
    killed.flush()
    _send(killed, target, most=sent)
    mark = killed.resume_point
    there = len(target.values) - mark.target_offset
    heir = _deep(size, handler=_only_even)
    heir.position, heir.queue.next_sequence, heir.target_offset = mark
    heir.delivery.already_there, heir.queue.is_established = there, bool(target.values)
    if there:
        heir.delivery.tail = Batch(memoryview(bytearray(target.batches[-1])))
    _feed(heir, *stored)
    heir.flush()
    _send(heir, target)
    assert (heir.parked, _values(target)) == (None, list(range(0, 42, 2)))


def test_what_was_gathered_is_read_again_after_a_stop() -> None:
    mirror = _deep(10_000)
    _feed(mirror, stored_batch(0, 3), stored_batch(3, 3))
    assert (mirror.position, mirror.done) == (6, 0)
    mirror.forget_unsent()
    assert (mirror.position, mirror.done) == (0, 0)


def test_offsets_are_kept_where_the_target_takes_them() -> None:
    backoff, rules = Backoff(100, 1000), DeepRules(batch_size_bytes=100)
    intake = Intake(PARTITION, None, Rebatcher(rules, keeps_offsets=True), keeps_offsets=True)
    mirror = PartitionCopier(intake, AppendDelivery(), 40, backoff)
    _feed(mirror, stored_batch(40, 4), stored_batch(60, 3))
    mirror.flush()
    unit = mirror.delivery.next_unit(0.0, ROOM)
    offsets = [record.offset for out in unit for record in decode_records(out.batch)]
    assert offsets == [40, 41, 42, 43, 60, 61, 62]


def test_raw_on_one_side_only_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"send\.raw\.bytes is true and fetch") as caught:
        CopyRules(fetch_raw_bytes=False)
    assert caught.value.remedy
    with pytest.raises(ConfigError, match=r"fetch\.raw\.bytes is true and send"):
        CopyRules(send_raw_bytes=False, fetch_raw_bytes=True)
    assert CopyRules(fetch_raw_bytes=False, send_raw_bytes=False).depth_of("any") == DEEP


def test_a_batch_too_old_to_be_remembered_is_alone_in_flight() -> None:
    mirror = _mirror(is_known_at_start=True, producer_expiration_ms=1000)
    batches = [stored_batch(first, 2) for first in range(0, 12, 2)]
    # Of the times that `records_of` gives them, the first two are too old. The third is alone too:
    # the target may have forgotten the producer by the age of the second.
    now_ms = 1_700_000_000_000 + 1000 + 4
    mirror.on_fetched(record_set(*batches), aborted=(), last_stable_offset=12, now_ms=now_ms)
    target = SequencedTarget()
    in_flight = []
    for _ in range(4):
        while (outgoing := mirror.next_batch(0.0)) is not None:
            mirror.mark_sent(outgoing)
            in_flight.append(outgoing)
        if len(in_flight) > 1:
            break
        mirror.on_produce_result(in_flight[0], target.append(in_flight.pop().batch), now=0.0)
    assert [out.source_offset for out in in_flight] == [6, 8, 10]
    assert mirror.counts.unshielded == 2
