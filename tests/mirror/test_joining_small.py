"""Small batches are joined in one pass; the target gets what it gets from the slow way."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery, IdempotentMirror
from shoal.mirror.copy.depth import DepthGauge
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier
from shoal.mirror.copy.rebatch import DeepRules, Rebatcher
from shoal.mirror.offsets.offset_map import MapWriter, OffsetMap
from shoal.model.topics import TopicPartition
from shoal.wire.batch import HEADER_SIZE, Batch, iter_batches
from shoal.wire.records.compression import Codec
from shoal.wire.records.joining import BatchJoiner
from shoal.wire.records.records import Record, decode_records, encode_batch
from support.mirror.batches import SequencedTarget

NOW_MS = 1_700_000_000_000
CONTROL = 1 << 4 | 1 << 5


class SlowIntake(Intake):
    """Looks at each batch by itself."""

    __slots__ = ()

    def joins(self, records: memoryview) -> bool:
        return False


def _mirror(kind: Callable[[TopicPartition], Intake], limit_bytes: int) -> IdempotentMirror:
    intake = kind(TopicPartition("t", 0))
    intake.rebatcher = Rebatcher(DeepRules(batch_size_bytes=limit_bytes), keeps_whole=True)
    intake.gauge = DepthGauge()
    intake.gauge.note(1, 100, 1)
    assert intake.depth == "deep"
    delivery = IdempotentDelivery(ProducerIdentity(77, 2), is_known_at_start=True)
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    return PartitionCopier(intake, delivery, 0, backoff, offsets=MapWriter(0))


def _stored(offset: int, *records: Record, codec: Codec, epoch: int, bits: int) -> bytearray:
    batch = encode_batch(
        [record._replace(offset=offset + number) for number, record in enumerate(records)],
        base_offset=offset,
        leader_epoch=epoch,
        keep_offsets=True,
        codec=codec,
    )
    if bits:
        view = Batch(memoryview(batch))
        view.edit(attributes=view.attributes | bits)
    return batch


RECORDS = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.one_of(
        st.integers(NOW_MS, NOW_MS + 20_000), st.sampled_from([-1, 0, NOW_MS - 5, 1 << 62])
    ),
    key=st.none() | st.binary(max_size=5),
    value=st.none() | st.binary(max_size=90) | st.binary(min_size=1900, max_size=2100),
    headers=st.sampled_from([(), (("h", b"v"),)]),
)
# (records, codec, attribute bits beside it, gap before, epoch begins)
BATCHES = st.lists(
    st.tuples(
        st.lists(RECORDS, min_size=1, max_size=1) | st.lists(RECORDS, min_size=1, max_size=12),
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP]),
        st.sampled_from([0, 0, 0, 0, 1 << 3, 1 << 4, 1 << 4, CONTROL]),
        st.sampled_from([0, 0, 0, 3]),
        st.sampled_from([0, 0, 0, 1]),
    ),
    max_size=25,
)


def _drain(mirror: IdempotentMirror, target: SequencedTarget) -> None:
    while (outgoing := mirror.next_batch(0.0)) is not None:
        mirror.mark_sent(outgoing)
        mirror.on_produce_result(outgoing, target.append(outgoing.batch), now=0.0)


@given(
    fetches=st.lists(BATCHES, min_size=1, max_size=3),
    limit_bytes=st.sampled_from([1, 120, 400, 16_384]),
    cut=st.integers(0, 80),
    damaged=st.none() | st.integers(0, 5000),
    aborted=st.sampled_from([(), (), ((5, 0),)]),
)
def test_both_ways_bring_the_same_records_to_the_same_offsets(
    fetches: list[list[tuple[list[Record], Codec, int, int, int]]],
    limit_bytes: int,
    cut: int,
    damaged: int | None,
    aborted: tuple[tuple[int, int], ...],
) -> None:
    mirrors = [_mirror(kind, limit_bytes) for kind in (Intake, SlowIntake)]
    targets = [SequencedTarget(), SequencedTarget()]
    offset, epoch = 0, 3
    for batches in fetches:
        stored = []
        for records, codec, bits, gap, later in batches:
            offset, epoch = offset + gap, epoch + later
            stored.append(_stored(offset, *records, codec=codec, epoch=epoch, bits=bits))
            offset += len(records)
        data = bytearray(b"".join(stored))
        if damaged is not None and damaged < len(data) and damaged % 60 > 20:
            data[damaged] ^= 4
        data = data[: max(0, len(data) - cut)]
        for mirror, target in zip(mirrors, targets, strict=True):
            mirror.on_fetched(
                memoryview(bytearray(data)), aborted=aborted, last_stable_offset=offset
            )
            _drain(mirror, target)
        fast, slow = mirrors
        assert (fast.parked is None) == (slow.parked is None)
        if fast.parked is None:
            assert (fast.position, fast.done) == (slow.position, slow.done)
        assert fast.epochs.below(1 << 60) == slow.epochs.below(1 << 60)
        assert fast.counts.records == slow.counts.records
        assert fast.counts.dropped_control == slow.counts.dropped_control
        offset = fast.position
    first, second = (
        [row for each in target.batches for row in _content(each)] for target in targets
    )
    assert first == second
    maps = [OffsetMap(mirror.offsets.blocks_to_save()) for mirror in mirrors if mirror.offsets]
    for source in range(mirrors[0].done + 1):
        found = {
            each.translate(source, done=mirrors[0].done, target_end=mirrors[0].target_offset)
            for each in maps
        }
        assert len(found) == 1


def _content(batch: bytes) -> list[tuple[object, ...]]:
    records = decode_records(Batch(memoryview(batch)))
    return [(each.timestamp, each.key, each.value, each.headers) for each in records]


def test_most_batches_of_one_record_are_joined_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tiny batch was taken the slow way")

    mirror, target = _mirror(Intake, 16_384), SequencedTarget()
    record = Record(0, NOW_MS, b"key", b"v" * 100)
    monkeypatch.setattr(Intake, "take", refuse)
    for first in (0, 1000):
        batches = (
            _stored(first + n, record, codec=Codec.NONE, epoch=3, bits=0) for n in range(1000)
        )
        data = memoryview(bytearray(b"".join(batches)))
        mirror.on_fetched(data, aborted=(), last_stable_offset=2000)
    assert mirror.position == 2000
    assert len(mirror.queue.batches) < 20
    _drain(mirror, target)
    assert (mirror.done, mirror.counts.records) == (2000, 2000)
    assert mirror.counts.rebatched == 2000
    assert all(len(batch) <= 16_384 + HEADER_SIZE for batch in target.batches)


def test_a_group_that_is_refused_leaves_nothing_behind_it_that_counts_as_copied() -> None:
    """The target's last record is another one: nothing from there on is at the target."""
    mirror = _mirror(Intake, 120)
    record = Record(0, NOW_MS, None, b"source")
    other = encode_batch([record._replace(value=b"another")])
    mirror.delivery.already_there, mirror.delivery.tail = 1, Batch(memoryview(other))
    batches = [_stored(n, record, codec=Codec.NONE, epoch=3, bits=0) for n in range(40)]
    mirror.on_fetched(memoryview(bytearray(b"".join(batches))), aborted=(), last_stable_offset=40)
    assert mirror.parked is not None
    assert (mirror.position, mirror.done) == (0, 0)


@given(noise=st.binary(max_size=300), at=st.integers(0, 400), position=st.integers(0, 5))
def test_noise_is_never_joined_unless_it_is_a_batch(noise: bytes, at: int, position: int) -> None:
    record = Record(0, NOW_MS, b"k", b"value")
    good = b"".join(_stored(5 + n, record, codec=Codec.NONE, epoch=3, bits=0) for n in range(4))
    data = good[:at] + noise + good[at + len(noise) :]
    joiner = BatchJoiner()
    run = joiner.add_small(data, 0, position, limit_bytes=1 << 20, has_aborted=False)
    if run.joined:
        joined = decode_records(joiner.build())
        assert len(joined) == run.joined == sum(count for _, count in run.spans)
        found = [
            each
            for batch in iter_batches(memoryview(data[: run.end]))
            for each in decode_records(batch)
        ]
        for batch in iter_batches(memoryview(data[: run.end])):
            batch.check_crc()
        assert [(r.timestamp, r.key, r.value) for r in joined] == [
            (r.timestamp, r.key, r.value) for r in found
        ]
        spans = [range(first, first + count) for first, count in run.spans]
        assert [r.offset for r in found] == [offset for span in spans for offset in span]
