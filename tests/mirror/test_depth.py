"""How deep a partition is copied: what is joined, when that changes, who may take over; pure."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.codes import Code
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import CopyRules
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery, IdempotentMirror
from shoal.mirror.copy.delivery.transactional import TransactionalDelivery
from shoal.mirror.copy.depth import DEEP, DEPTHS, RAW, RAW_ABOVE_BYTES, DepthGauge
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import Outgoing, PartitionCopier, PartitionMirror
from shoal.mirror.copy.rebatch import DeepRules, Rebatcher
from shoal.mirror.offsets.offset_map import MapWriter, OffsetMap
from shoal.model.errors import ConfigError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import HEADER_SIZE, Batch
from shoal.wire.errors import WireError
from shoal.wire.records.compression import Codec
from shoal.wire.records.crc import crc32c
from shoal.wire.records.joining import BatchJoiner, read_source
from shoal.wire.records.records import Record, decode_records, encode_batch
from support.mirror.batches import SequencedTarget, record_set, records_of, stored_batch

PARTITION = TopicPartition("t", 0)
IDENTITY = ProducerIdentity(77, 2)
ROOM = 1 << 20


def _intake(depth: str, size: int = 400, **rules: Any) -> Intake:
    deep = DeepRules(batch_size_bytes=size, **rules)
    return Intake(
        PARTITION,
        rebatcher=None if depth == RAW else Rebatcher(deep, keeps_whole=depth != DEEP),
        gauge=DepthGauge() if depth not in (RAW, DEEP) else None,
    )


def _mirror(
    depth: str, size: int = 400, position: int = 0, target_offset: int = 0, **options: Any
) -> IdempotentMirror:
    delivery = IdempotentDelivery(IDENTITY, **options)
    backoff = Backoff(1, 1, chance=lambda: 0.5)
    mirror = PartitionCopier(
        _intake(depth, size), delivery, position, backoff, target_offset=target_offset
    )
    mirror.offsets = MapWriter(position)
    return mirror


def _feed(mirror: PartitionMirror, *batches: bytearray) -> bool:
    return mirror.on_fetched(record_set(*batches), aborted=(), last_stable_offset=1000)


def _step(mirror: IdempotentMirror, target: SequencedTarget, now: float, *, most: int = 5) -> None:
    """Send what may be in flight, and answer it in order."""
    sent: list[Outgoing] = []
    while len(sent) < most and (outgoing := mirror.next_batch(now)) is not None:
        mirror.mark_sent(outgoing)
        sent.append(outgoing)
    for outgoing in sent:
        mirror.on_produce_result(outgoing, target.append(outgoing.batch), now=now)
    if mirror.delivery.needs_last_sequence:
        mirror.delivery.on_last_sequence(target.last_sequence, now=now)


def _send(mirror: IdempotentMirror, target: SequencedTarget) -> None:
    for step in range(200):
        _step(mirror, target, float(step))


def _values(target: SequencedTarget) -> list[int]:
    return [int(value) for value in target.values]


def _batches(target: SequencedTarget) -> list[Batch]:
    return [Batch(memoryview(bytearray(each))) for each in target.batches]


# What is joined.


@pytest.mark.parametrize("codec", list(Codec))
def test_tiny_batches_are_joined_and_the_map_is_exact(codec: Codec) -> None:
    target, mirror = SequencedTarget(), _mirror("auto")
    stored = [stored_batch(first, 1, codec=codec) for first in (*range(10), *range(12, 20))]
    _feed(mirror, *stored)
    _send(mirror, target)
    assert _values(target) == [*range(10), *range(12, 20)]
    assert len(target.batches) < 9
    assert {batch.codec for batch in _batches(target)} == {codec}
    assert (mirror.intake.depth, mirror.counts.rebatched, mirror.done) == (DEEP, 18, 20)
    copied = [record for batch in _batches(target) for record in decode_records(batch)]
    sent = [record for batch in stored for record in decode_records(Batch(memoryview(batch)))]
    assert [each._replace(offset=0) for each in copied] == [
        each._replace(offset=0) for each in sent
    ]
    assert mirror.offsets is not None
    copy = OffsetMap(mirror.offsets.blocks_to_save())
    found = [copy.translate(offset, done=20, target_end=18) for offset in (0, 9, 10, 11, 12, 19)]
    assert found == [0, 9, 10, 10, 10, 17]


def test_ordinary_batches_go_unopened() -> None:
    target, mirror = SequencedTarget(), _mirror("auto")
    stored = [stored_batch(first, 30) for first in range(0, 120, 30)]
    _feed(mirror, *stored)
    _send(mirror, target)
    assert [each[HEADER_SIZE:] for each in target.batches] == [
        bytes(s[HEADER_SIZE:]) for s in stored
    ]
    assert (mirror.intake.depth, mirror.counts.rebatched) == (RAW, 0)


def test_a_tiny_batch_that_finds_no_others_goes_unopened() -> None:
    target, mirror = SequencedTarget(), _mirror("auto")
    declared: list[int] = []
    mirror.declare = lambda _target, offset: declared.append(offset)
    stored = [stored_batch(first, 1) for first in range(5)]
    for each in stored[:3]:
        _feed(mirror, each)
        _send(mirror, target)
    assert [each[HEADER_SIZE:] for each in target.batches] == [
        bytes(each[HEADER_SIZE:]) for each in stored[:3]
    ]
    assert declared == []
    _feed(mirror, *stored[3:])
    _send(mirror, target)
    assert (declared, mirror.counts.rebatched) == ([3], 2)


def test_a_large_batch_between_tiny_ones_goes_unopened_and_in_order() -> None:
    target, mirror = SequencedTarget(), _mirror("auto")
    large = encode_batch(
        records_of(4, 30, size=RAW_ABOVE_BYTES // 20), base_offset=4, keep_offsets=True
    )
    tiny = [stored_batch(first, 1) for first in (*range(4), *range(34, 38))]
    _feed(mirror, *tiny[:4], large, *tiny[4:])
    _send(mirror, target)
    assert (_values(target), mirror.done) == (list(range(38)), 38)
    assert bytes(large[HEADER_SIZE:]) in [each[HEADER_SIZE:] for each in target.batches]


def test_depth_follows_the_batches_with_hysteresis() -> None:
    gauge = DepthGauge()
    depths = []
    for size in (100, 1500, 1500, 3000, 1500, 900):
        gauge.note(64, 64 * size, 64)
        depths.append(gauge.is_deep)
    assert depths == [True, True, True, False, False, True]
    gauge.note(1, 100_000, 100)  # one batch alone changes little, unless it is huge
    assert gauge.is_deep is False


def test_damage_in_a_tiny_batch_is_found_before_it_is_joined() -> None:
    damaged = stored_batch(1, 1)
    damaged[-1] ^= 1
    mirror = _mirror("auto")
    assert _feed(mirror, stored_batch(0, 1), damaged, stored_batch(2, 1)) is False
    assert mirror.parked is not None
    assert "offset 1 is damaged" in str(mirror.parked)


@given(st.binary(max_size=120), st.integers(0, 3))
def test_records_that_cannot_be_read_are_refused(section: bytes, count: int) -> None:
    """With a valid CRC: what a hostile producer may send."""
    stored = stored_batch(0, max(1, count))[:HEADER_SIZE] + section
    stored[8:12] = (len(stored) - 12).to_bytes(4, "big")
    stored[57:61] = count.to_bytes(4, "big")
    stored[17:21] = crc32c(stored[21:]).to_bytes(4, "big")
    batch = Batch(memoryview(stored))
    try:
        parts = read_source(batch).parts
    except WireError:
        parts = []
        with pytest.raises(WireError):
            decode_records(batch)
    assert all(0 <= part.offset < 3 for part in parts)


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(-1, 1 << 60), st.binary(max_size=200), st.booleans()),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=12,
    )
)
def test_joined_records_are_those_of_the_source(
    batches: list[list[tuple[int, bytes, bool]]],
) -> None:
    joiner, expected, offset = BatchJoiner(), [], 0
    for batch in batches:
        records = [
            Record(offset + number, time_ms, value if is_keyed else None, value, (("h", value),))
            for number, (time_ms, value, is_keyed) in enumerate(batch)
        ]
        stored = encode_batch(records, base_offset=offset, keep_offsets=True)
        for part in read_source(Batch(memoryview(stored))).parts:
            joiner.add(part)
        offset += len(records)
        expected += records
    joined = joiner.build(Codec.ZSTD)
    joined.check_crc()
    assert decode_records(joined) == expected
    assert joined.max_timestamp == max(record.timestamp for record in expected)


def test_times_that_are_far_apart_do_not_share_a_batch() -> None:
    target, mirror = SequencedTarget(), _mirror("auto")
    stored = [
        encode_batch([Record(n, time_ms, None, b"%d" % n)], base_offset=n, keep_offsets=True)
        for n, time_ms in enumerate([-(1 << 62), (1 << 62), 5, 6])
    ]
    _feed(mirror, *stored)
    _send(mirror, target)
    assert (_values(target), mirror.parked) == ([0, 1, 2, 3], None)


# Who may take over.


def _heir(mirror: IdempotentMirror, target: SequencedTarget, depth: str, size: int) -> Any:
    """What a start would make of the checkpoint of a mirror and the state of the target."""
    point = mirror.resume_point
    there = len(target.values) - point.target_offset
    tail = Batch(memoryview(bytearray(target.batches[-1]))) if there else None
    return _mirror(
        depth,
        size,
        position=point.source_offset,
        target_offset=point.target_offset,
        first_sequence=point.sequence,
        already_there=there,
        tail=tail,
        is_known_at_start=target.last_sequence is not None,
    )


@pytest.mark.parametrize(("first", "second"), [(RAW, DEEP), (DEEP, RAW)])
@pytest.mark.parametrize("ahead", range(1, 8))
def test_the_rest_of_a_batch_is_sent_where_another_process_sent_its_beginning(
    first: str, second: str, ahead: int
) -> None:
    """Both have started; the other one then writes before this one sends its first batch."""
    stored = [stored_batch(at, 1) for at in range(24)]
    target = SequencedTarget()
    mirror, other = _mirror(first), _mirror(second)
    for each in (mirror, other):
        _feed(each, *(bytearray(batch) for batch in stored))
    _step(mirror, target, 0.0, most=1)  # established by its first batch
    other = _heir(mirror, target, second, 400)
    _feed(other, *(bytearray(batch) for batch in stored))
    for step in range(ahead):
        _step(other, target, float(step), most=1)
    there = len(target.values)
    _send(mirror, target)
    if mirror.resume_reason:
        assert "in other batches" in mirror.resume_reason
        mirror = _heir(mirror, target, first, 400)
        _feed(mirror, *stored[mirror.position :])
        _send(mirror, target)
    if mirror.parked is not None:
        assert there == len(stored)  # nothing was left to send
    assert _values(target) == list(range(24))


def test_a_batch_that_ends_where_another_one_ends_is_not_sent_forever() -> None:
    target = SequencedTarget()
    mirror = _mirror(RAW)
    stored = [stored_batch(at, 1) for at in range(6)]
    _feed(mirror, *(bytearray(each) for each in stored[:4]))
    _step(mirror, target, 0.0, most=1)
    joined = Batch(memoryview(encode_batch(records_of(1, 3))))
    joined.edit(base_offset=0, producer_id=77, producer_epoch=2, base_sequence=1)
    target.append(joined)
    _send(mirror, target)
    assert mirror.resume_reason
    assert (mirror.position, mirror.target_offset, mirror.queue.next_sequence) == (1, 1, 1)
    heir = _heir(mirror, target, RAW, 400)
    _feed(heir, *stored[1:])
    _send(heir, target)
    assert (_values(target), heir.parked) == (list(range(6)), None)


@given(seed=st.integers(0, 1 << 32))
def test_processes_of_any_depth_with_one_producer_write_each_record_once(seed: int) -> None:
    """Two at a time: they send, lose responses, are killed and start again at another depth."""
    chance = random.Random(seed)
    sizes = [chance.choice((1, 1, 1, 2, 7)) for _ in range(40)]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    stored = [stored_batch(at, size) for at, size in zip(starts, sizes, strict=True)]
    total = sum(sizes)
    target = SequencedTarget()
    checkpoint = _mirror(RAW)  # the last one that was written
    running = [checkpoint, _heir(checkpoint, target, DEEP, 300)]
    now = 0.0
    for _ in range(2000):
        now += 10.0
        slot = chance.randrange(2)
        mirror = running[slot]
        if chance.random() < 0.1 or mirror.parked or mirror.resume_reason or mirror.suspicion:
            depth, size = chance.choice(DEPTHS), chance.choice((1, 150, 300, 5000))
            running[slot] = mirror = _heir(checkpoint, target, depth, size)
        if chance.random() < 0.5:
            at = starts.index(mirror.position) if mirror.position in starts else len(starts)
            _feed(mirror, *map(bytearray, stored[at : at + chance.randint(1, 12)]))
        _act(mirror, target, now, chance)
        if chance.random() < 0.3 and mirror.resume_point.target_offset <= len(target.values):
            checkpoint = mirror
        if len(target.values) == total:
            break
    assert _values(target) == list(range(total))


def _act(
    mirror: IdempotentMirror, target: SequencedTarget, now: float, chance: random.Random
) -> None:
    """Send some batches, whose requests or responses may be lost."""
    sent: list[Outgoing] = []
    while len(sent) < 5 and (outgoing := mirror.next_batch(now)) is not None:
        mirror.mark_sent(outgoing)
        sent.append(outgoing)
    lost = ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)
    for outgoing in sent:
        luck = chance.random()
        result = lost if luck < 0.1 else target.append(outgoing.batch)
        mirror.on_produce_result(outgoing, lost if luck < 0.2 else result, now=now)
    if mirror.delivery.needs_last_sequence:
        mirror.delivery.on_last_sequence(target.last_sequence, now=now)


# Transactions, settings.


def test_a_transaction_does_not_cover_records_that_still_linger() -> None:
    intake = _intake(DEEP, size=10_000, linger_ms=100)
    mirror = PartitionCopier(intake, TransactionalDelivery(), 0, Backoff(100, 1000))
    _feed(mirror, stored_batch(0, 3))
    mirror.flush()
    (outgoing,) = mirror.delivery.take(ROOM)
    _feed(mirror, stored_batch(3, 3))
    mirror.delivery.on_written(outgoing, ProduceResult(Outcome.OK, base_offset=0))
    assert (mirror.position, mirror.delivery.next_position) == (6, 3)


@pytest.mark.parametrize(
    ("rules", "needs_bytes", "depth"),
    [
        ({}, False, "auto"),
        ({}, True, RAW),
        ({"use_raw_bytes": True}, False, RAW),
        ({"use_raw_bytes": False}, True, DEEP),
        ({"depth": "deep"}, True, DEEP),
        ({"depth": "raw"}, False, RAW),
        ({"fetch_raw_bytes": True}, False, RAW),
        ({"send_raw_bytes": True}, False, RAW),
        ({"depth": "raw", "use_raw_bytes": True}, False, RAW),
        ({"depth": "raw", "deep_topics": ("t",)}, False, DEEP),
    ],
)
def test_depth_follows_the_settings(rules: Any, needs_bytes: bool, depth: str) -> None:
    assert CopyRules(**rules).depth_of("t", needs_bytes=needs_bytes) == depth


@pytest.mark.parametrize(
    "rules", [{"depth": "deep", "use_raw_bytes": True}, {"depth": "raw", "use_raw_bytes": False}]
)
def test_settings_that_contradict_each_other_are_refused(rules: Any) -> None:
    with pytest.raises(ConfigError, match=r"use\.raw\.bytes demands") as caught:
        CopyRules(**rules)
    assert caught.value.remedy


def test_an_unknown_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match="'shallow' is not a valid depth"):
        CopyRules(depth="shallow")
