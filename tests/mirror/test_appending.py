"""One partition that is written by compare-and-append: offsets, lost answers, other writers."""

import pytest

from shoal.client.codes import Code
from shoal.client.produce.compare_and_append import AppendResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery, AppendingMirror
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import Outgoing, PartitionCopier
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import HEADER_SIZE, Batch
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, decode_records, encode_batch
from support.mirror.batches import record_set, records_of, stored_batch

ROOM = 1 << 20
LOST = AppendResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)


def _mirror(*, position: int = 0) -> AppendingMirror:
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    intake = Intake(TopicPartition("t", 0), keeps_offsets=True)
    return PartitionCopier(intake, AppendDelivery(mirror_epoch=4), position, backoff)


def _feed(mirror: AppendingMirror, *batches: bytearray) -> None:
    mirror.on_fetched(record_set(*batches), aborted=(), last_stable_offset=1000)


def _ok(unit: list[Outgoing]) -> AppendResult:
    return AppendResult(Outcome.OK, log_end=unit[-1].batch.next_offset)


def _ends_at(end: int) -> AppendResult:
    return AppendResult(Outcome.FAILED, Code.OFFSET_OUT_OF_RANGE, log_end=end)


def test_many_batches_go_in_one_request_at_their_own_offsets() -> None:
    stored = [stored_batch(n, 3, codec=Codec.ZSTD, producer_id=9) for n in (40, 43, 60)]
    mirror = _mirror(position=40)
    _feed(mirror, *stored)
    unit = mirror.delivery.next_unit(0.0, ROOM)
    assert [out.batch.base_offset for out in unit] == [40, 43, 60]
    assert [bytes(out.batch.records) for out in unit] == [bytes(s[HEADER_SIZE:]) for s in stored]
    assert {(out.batch.producer_id, out.batch.base_sequence) for out in unit} == {(-1, -1)}
    for out in unit:
        out.batch.check_crc()
    assert mirror.delivery.append_request(unit)[:2] == (0, 4)
    assert mirror.delivery.next_unit(0.0, ROOM) == []  # one request at a time
    mirror.delivery.on_append_result(unit, _ok(unit), now=0.0)
    assert (mirror.target_offset, mirror.done, mirror.queued_bytes) == (63, 63, 0)
    assert (mirror.counts.batches, mirror.counts.records) == (3, 9)


def test_gaps_of_compaction_stay_and_a_batch_is_cut_where_the_copy_begins() -> None:
    mirror = _mirror(position=12)
    kept = [record for record in records_of(20, 6) if record.offset in (20, 23)]
    gaps = encode_batch(kept, base_offset=20, keep_offsets=True, last_offset_delta=5)
    _feed(mirror, stored_batch(10, 5), gaps)
    first, second = mirror.delivery.next_unit(0.0, ROOM)
    assert [record.offset for record in decode_records(first.batch)] == [12, 13, 14]
    assert (first.batch.base_offset, first.batch.next_offset) == (12, 15)
    assert [record.offset for record in decode_records(second.batch)] == [20, 23]
    assert second.batch.next_offset == 26
    assert (mirror.counts.trimmed, mirror.counts.closed_gaps) == (1, 0)


def test_a_request_has_room_for_so_much_and_for_one_batch_always() -> None:
    mirror = _mirror()
    _feed(mirror, *(stored_batch(n, 1) for n in range(4)))
    unit = mirror.delivery.next_unit(0.0, 1)
    assert len(unit) == 1
    mirror.delivery.on_append_result(unit, _ok(unit), now=0.0)
    assert len(mirror.delivery.next_unit(0.0, unit[0].batch.size * 2)) == 2


@pytest.mark.parametrize("was_written", [True, False])
def test_after_a_lost_answer_the_end_tells_what_became_of_it(was_written: bool) -> None:
    mirror = _mirror()
    _feed(mirror, stored_batch(0, 2), stored_batch(2, 2))
    unit = mirror.delivery.next_unit(0.0, 1)
    mirror.delivery.on_append_result(unit, LOST, now=0.0)
    assert mirror.delivery.next_unit(0.0, ROOM) == []  # not at once
    again = mirror.delivery.next_unit(9.0, ROOM)
    assert mirror.delivery.append_request(again).expected_end == 0
    if was_written:
        mirror.delivery.on_append_result(again, _ends_at(2), now=9.0)
        again = mirror.delivery.next_unit(9.0, ROOM)
        assert [out.batch.base_offset for out in again] == [2]
    mirror.delivery.on_append_result(again, _ok(again), now=9.0)
    assert (mirror.parked, mirror.target_offset, mirror.counts.records) == (None, 4, 4)


@pytest.mark.parametrize("end", [1, 2, 50])
def test_an_end_that_is_not_ours_parks_the_partition(end: int) -> None:
    mirror = _mirror()
    _feed(mirror, stored_batch(0, 2), stored_batch(2, 2))
    mirror.delivery.on_append_result(mirror.delivery.next_unit(0.0, ROOM), _ends_at(end), now=0.0)
    assert (mirror.parked, mirror.delivery.next_unit(9.0, ROOM)) == (None, [])
    mirror.on_target_unchanged()  # it is the same topic
    assert "another producer writes to it" in str(mirror.parked)
    assert mirror.done == 0


def test_a_mirror_that_was_taken_over_stops() -> None:
    mirror = _mirror()
    _feed(mirror, stored_batch(0, 2))
    fenced = AppendResult(Outcome.FAILED, Code.PRODUCER_FENCED)
    mirror.delivery.on_append_result(mirror.delivery.next_unit(0.0, ROOM), fenced, now=0.0)
    assert "a newer mirror with the same name has taken over" in str(mirror.parked)


def test_what_may_help_is_tried_again_and_what_may_not_parks() -> None:
    mirror = _mirror()
    _feed(mirror, stored_batch(0, 2))
    for code in (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS):
        mirror.delivery.on_append_result(
            mirror.delivery.next_unit(9.0, ROOM), AppendResult(Outcome.FAILED, code), now=0.0
        )
        assert mirror.parked is None
    too_large = AppendResult(Outcome.FAILED, Code.MESSAGE_TOO_LARGE)
    mirror.delivery.on_append_result(mirror.delivery.next_unit(9.0, ROOM), too_large, now=9.0)
    assert mirror.parked is None
    unit = mirror.delivery.next_unit(9.0, ROOM)
    assert [(out.batch.base_offset, out.batch.record_count) for out in unit] == [(0, 1), (1, 1)]
    mirror.delivery.on_append_result(unit, too_large, now=9.0)
    assert "refuses the record at" in str(mirror.waiting)
    assert (mirror.parked, mirror.delivery.next_unit(9.5, ROOM)) == (None, [])
    assert mirror.try_again(20.0)
    refused = AppendResult(Outcome.FAILED, Code.INVALID_RECORD)
    mirror.delivery.on_append_result(mirror.delivery.next_unit(20.0, ROOM), refused, now=20.0)
    assert "refuses the batches from 0 on" in str(mirror.parked)


def _take_over(tail: bytearray, *, end: int) -> AppendingMirror:
    mirror = _mirror(position=Batch(memoryview(tail)).base_offset)
    delivery = mirror.delivery
    delivery.tail, delivery.existing_until, delivery.agreed_end = Batch(memoryview(tail)), end, 2
    mirror.target_offset = end
    return mirror


def test_a_start_passes_over_what_the_target_has() -> None:
    mirror = _take_over(stored_batch(40, 3), end=43)
    assert mirror.resume_point[::2] == (
        40,
        2,
    )  # nothing is compared yet: the next start does it again
    _feed(mirror, stored_batch(40, 3, codec=Codec.ZSTD, producer_id=9), stored_batch(43, 2))
    unit = mirror.delivery.next_unit(0.0, ROOM)
    assert [out.batch.base_offset for out in unit] == [43]
    assert mirror.delivery.append_request(unit)[:2] == (43, 4)
    assert mirror.counts.already_there == 3
    mirror.delivery.on_append_result(unit, _ok(unit), now=0.0)
    assert mirror.resume_point[::2] == (45, 45)


def test_a_start_continues_inside_of_a_batch() -> None:
    mirror = _take_over(stored_batch(40, 3), end=43)
    _feed(mirror, stored_batch(40, 5))
    (out,) = mirror.delivery.next_unit(0.0, ROOM)
    assert [record.offset for record in decode_records(out.batch)] == [43, 44]
    assert (mirror.counts.already_there, out.is_re_encoded) == (3, True)


def test_what_compaction_took_from_the_source_is_not_compared() -> None:
    mirror = _take_over(stored_batch(40, 6), end=46)
    kept = [record for record in records_of(40, 6) if record.offset in (41, 44)]
    _feed(mirror, encode_batch(kept, base_offset=40, keep_offsets=True, last_offset_delta=5))
    _feed(mirror, stored_batch(46, 1))
    assert mirror.parked is None
    assert [out.batch.base_offset for out in mirror.delivery.next_unit(0.0, ROOM)] == [46]


def test_deleted_records_that_the_target_has_are_not_lost() -> None:
    mirror = _take_over(stored_batch(40, 3), end=43)
    mirror.skip_deleted(45)
    assert (mirror.counts.lost, mirror.resume_point[::2]) == (2, (45, 43))


def test_records_of_somebody_else_in_the_place_of_the_source_s_park() -> None:
    records = [Record(40 + index, 0, None, b"x") for index in range(3)]
    foreign = encode_batch(records, base_offset=40)
    mirror = _take_over(foreign, end=43)
    _feed(mirror, stored_batch(40, 1), stored_batch(43, 2))
    assert "record at offset 40 differs from the source's: another producer" in str(mirror.parked)
    assert mirror.delivery.next_unit(0.0, ROOM) == []
    assert mirror.resume_point[::2] == (40, 2)
