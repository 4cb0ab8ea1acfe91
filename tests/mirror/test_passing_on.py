"""Plain batches pass through a partition in one step; everything is as after the slow way."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery, IdempotentMirror
from shoal.mirror.copy.depth import DepthGauge
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier
from shoal.mirror.copy.rebatch import DeepRules, Rebatcher
from shoal.mirror.offsets.offset_map import MapWriter
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.compression import Codec
from support.mirror.batches import SequencedTarget, record_set, stored_batch


class SlowDelivery(IdempotentDelivery):
    """Looks at each batch by itself."""

    __slots__ = ()

    def pass_on(self, records: memoryview) -> int:
        return 0


def _mirror(
    kind: Callable[..., IdempotentDelivery], first_sequence: int, *, adapts: bool
) -> IdempotentMirror:
    delivery = kind(ProducerIdentity(77, 2), first_sequence=first_sequence, is_known_at_start=True)
    intake = Intake(TopicPartition("t", 0))
    if adapts:
        intake.rebatcher, intake.gauge = Rebatcher(DeepRules()), DepthGauge()
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    return PartitionCopier(intake, delivery, 0, backoff, offsets=MapWriter(0))


def _edited(batch: bytearray, bits: int) -> bytearray:
    if bits:
        view = Batch(memoryview(batch))
        view.edit(attributes=view.attributes | bits)
    return batch


def _state(mirror: IdempotentMirror) -> dict[str, Any]:
    queue, offsets = mirror.queue, mirror.offsets
    assert offsets is not None
    return {
        "queued": [
            (
                bytes(out.batch.view),
                out.base_sequence,
                out.source_offset,
                list(out.spans),
                (out.size, out.record_count, out.is_re_encoded, out.is_later_piece, out.is_old),
            )
            for out in queue.batches
        ],
        "next": (queue.next_sequence, mirror.position, mirror.queued_bytes, mirror.target_offset),
        "point": mirror.resume_point,
        "epochs": mirror.epochs.below(1 << 40),
        "counts": mirror.counts,
        "gauge": mirror.intake.gauge,
        "parked": str(mirror.parked),
        "map": offsets.blocks_to_save(),
    }


# (records, attribute bits beside the codec, gap before, codec)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 7, 40]),
        st.sampled_from([0, 0, 0, 0, 1 << 3, 1 << 4]),
        st.sampled_from([0, 0, 0, 2]),
        st.sampled_from([Codec.NONE, Codec.GZIP]),
    ),
    min_size=1,
    max_size=8,
)


@given(
    fetches=st.lists(BATCHES, min_size=1, max_size=3),
    first_sequence=st.sampled_from([0, (1 << 31) - 20]),
    adapts=st.booleans(),
    acknowledged=st.integers(0, 6),
    back=st.integers(0, 3),
)
def test_both_ways_lead_to_the_same_state(
    fetches: list[list[tuple[int, int, int, Codec]]],
    first_sequence: int,
    *,
    adapts: bool,
    acknowledged: int,
    back: int,
) -> None:
    mirrors = [
        _mirror(kind, first_sequence, adapts=adapts) for kind in (IdempotentDelivery, SlowDelivery)
    ]
    target = SequencedTarget()
    offset = 0
    for batches in fetches:
        stored = []
        for records, bits, gap, codec in batches:
            offset += gap
            stored.append(_edited(stored_batch(offset, records, codec=codec), bits))
            offset += records
        data = b"".join(stored)
        for mirror in mirrors:
            # A fetch may begin inside a batch, and end inside one.
            mirror.position = (
                max(0, mirror.position - back) if not mirror.queue.batches else (mirror.position)
            )
            mirror.on_fetched(
                memoryview(bytearray(data[: len(data) - back])),
                aborted=(),
                last_stable_offset=offset,
            )
        fast, slow = map(_state, mirrors)
        assert fast == slow
        for _ in range(acknowledged):
            sent = [mirror.next_batch(0.0) for mirror in mirrors]
            if sent[0] is None or sent[1] is None:
                assert sent == [None, None]
                break
            result = target.append(sent[0].batch)
            for mirror, out in zip(mirrors, sent, strict=True):
                assert out is not None
                mirror.mark_sent(out)
                mirror.on_produce_result(out, result, now=0.0)
        assert _state(mirrors[0]) == _state(mirrors[1])
        offset = mirrors[0].position


def test_plain_batches_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = _mirror(IdempotentDelivery, 0, adapts=True)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plain batch was taken the slow way")

    monkeypatch.setattr(Intake, "take", refuse)
    mirror.on_fetched(
        record_set(*(stored_batch(40 * number, 40) for number in range(5))),
        aborted=(),
        last_stable_offset=200,
    )
    assert len(mirror.queue.batches) == 5
    first = mirror.next_batch(0.0)
    assert first is not None
    mirror.mark_sent(first)
    mirror.on_produce_result(first, ProduceResult(Outcome.OK, base_offset=0), now=0.0)
    assert mirror.done == 40
