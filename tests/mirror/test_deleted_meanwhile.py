"""A source that deletes records which a mirror has copied behind its last checkpoint.

Where markers take offsets too, the number of deleted offsets is not that of deleted records.
"""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery, IdempotentMirror
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier, ResumePoint
from shoal.mirror.copy.rebatch import DeepRules, Rebatcher
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, encode_batch
from support.mirror.batches import SequencedTarget, record_set, stored_batch

PARTITION = TopicPartition("t", 0)
IDENTITY = ProducerIdentity(77, 2)
PLACES = 30  # offsets of the source


def _source(sizes: Iterable[int], *, gap: int) -> list[tuple[int, bytearray]]:
    """Batches with so many records each and `gap` markers behind each, by the next offset."""
    batches, offset = [], 0
    for size in sizes:
        batches.append((offset + size, stored_batch(offset, size)))
        offset += size + gap
    return batches


def _same_batches(count: int, *, timestamp: int = 1) -> list[tuple[int, bytearray]]:
    """Records that differ in nothing, with a marker behind each."""
    return [
        (offset + 1, encode_batch([Record(offset, timestamp, None, b"ping")], base_offset=offset))
        for offset in range(0, 2 * count, 2)
    ]


def _mirror(there: int = 0, tail: Batch | None = None, *, deep: bool = False) -> IdempotentMirror:
    delivery = IdempotentDelivery(
        IDENTITY, already_there=there, is_known_at_start=bool(there), tail=tail
    )
    intake = Intake(PARTITION, rebatcher=Rebatcher(DeepRules()) if deep else None)
    return PartitionCopier(intake, delivery, 0, Backoff(100, 1000, chance=lambda: 0.5))


def _feed(mirror: IdempotentMirror, batches: list[tuple[int, bytearray]], *, most: int) -> None:
    """Some fetches of at most so many batches, until nothing is left to read."""
    end = batches[-1][0]
    for _ in range(100):
        left = [bytearray(data) for until, data in batches if until > mirror.position][:most]
        mirror.on_fetched(record_set(*left), aborted=(), last_stable_offset=end)
        if mirror.position >= end or mirror.parked is not None:
            return
    raise AssertionError("the source is not read to its end")


def _send(mirror: IdempotentMirror, target: SequencedTarget, *, most: int = 1000) -> None:
    for _ in range(most):
        out = mirror.next_batch(0.0)
        if out is None:
            return
        mirror.mark_sent(out)
        mirror.on_produce_result(out, target.append(out.batch), now=0.0)


def _resume_behind(
    batches: list[tuple[int, bytearray]], *, copied: int, deleted: int, deep: bool = False
) -> tuple[IdempotentMirror, SequencedTarget]:
    """A mirror that was killed after `copied` batches; the source now starts at `deleted`."""
    target, killed = SequencedTarget(), _mirror()
    _feed(killed, batches[:copied], most=100)
    _send(killed, target)
    there = len(target.values)
    tail = Batch(memoryview(bytearray(target.batches[-1])))
    heir = _mirror(there, tail, deep=deep)
    heir.skip_deleted(deleted)
    assert heir.resume_point == ResumePoint(0, 0, 0)  # while it is not known what is there
    return heir, target


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=8),
    gap=st.integers(0, 2),
    copied=st.integers(1, 7),
    deleted=st.integers(1, PLACES),
    most=st.integers(1, 9),
    deep=st.booleans(),
)
def test_every_record_that_is_left_is_copied_once(
    *, sizes: list[int], gap: int, copied: int, deleted: int, most: int, deep: bool
) -> None:
    source = _source(sizes, gap=gap)
    copied, deleted = min(copied, len(source) - 1), min(deleted, source[-1][0])
    heir, target = _resume_behind(source, copied=copied, deleted=deleted, deep=deep)
    before = [int(value) for value in target.values]
    _feed(heir, [each for each in source if each[0] > deleted] or source[-1:], most=most)
    _send(heir, target)
    records = [
        n for (end, _), size in zip(source, sizes, strict=True) for n in range(end - size, end)
    ]
    assert heir.parked is None
    assert [int(value) for value in target.values] == before + [
        number for number in records if number > before[-1] and number >= deleted
    ]
    assert heir.resume_point.sequence == heir.target_offset == len(target.values)
    assert not heir.counts.lost or deleted > before[-1]


@pytest.mark.parametrize(
    ("copied", "deleted", "lost"),
    [
        pytest.param(4, 6, 0, id="the target's last record is left"),
        pytest.param(2, 4, 0, id="all that was copied, and nothing else"),
        pytest.param(2, 7, 3, id="more than was copied"),
    ],
)
def test_what_was_deleted_before_it_was_copied_is_counted(
    copied: int, deleted: int, lost: int
) -> None:
    source, reported = _source([2] * 6, gap=0), []
    heir, _ = _resume_behind(source, copied=copied, deleted=deleted)
    heir.on_lost = lambda tp, first, count: reported.append((tp, first, count))
    _feed(heir, source, most=2)
    assert heir.counts.lost == lost
    assert reported == ([(PARTITION, deleted, lost)] if lost else [])


def test_records_that_differ_in_nothing_park_the_partition() -> None:
    source = _same_batches(8)
    heir, target = _resume_behind(source, copied=4, deleted=2)
    _feed(heir, source, most=3)
    assert "do not show which of them the target has" in str(heir.parked)
    assert heir.resume_point == ResumePoint(0, 0, 0)
    assert len(target.values) == 4


def test_records_that_differ_in_their_times_are_told_apart() -> None:
    source = [
        (offset + 1, encode_batch([Record(offset, offset, None, b"ping")], base_offset=offset))
        for offset in range(0, 16, 2)
    ]
    heir, target = _resume_behind(source, copied=4, deleted=2)
    _feed(heir, source, most=3)
    _send(heir, target)
    assert (heir.parked, len(target.values)) == (None, 8)


def test_a_second_deletion_begins_the_search_again() -> None:
    source = _source([1] * 10, gap=1)
    heir, target = _resume_behind(source, copied=6, deleted=2)
    heir.on_fetched(record_set(source[1][1]), aborted=(), last_stable_offset=100)
    heir.skip_deleted(8)
    _feed(heir, source, most=2)
    _send(heir, target)
    assert [int(value) for value in target.values] == list(range(0, 20, 2))
