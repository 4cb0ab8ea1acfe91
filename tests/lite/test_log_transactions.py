"""Transactions in a partition's log: what is open, what was aborted, and how both are found."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.wire.records.records import ControlType, Record, encode_batch, encode_control_batch
from support.lite.batches import NOW_MS, append, append_marker

COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT
SMALL = LogSettings(segment_bytes=300, producer_id_expiration_ms=1 << 60)
Open = Callable[[], PartitionLog]


def open_log(folder: Path, ended: LastShutdown = LastShutdown.CLEANLY) -> PartitionLog:
    return PartitionLog(folder, SMALL, last_shutdown=ended)


def data(producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1) -> bytearray:
    return encode_batch(
        [Record(0, NOW_MS, None, b"x")] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def write(log: PartitionLog, batch: bytearray) -> int:
    return append(log, batch).base_offset


def end(
    log: PartitionLog,
    producer_id: int,
    kind: ControlType,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    is_bumped: bool = False,
) -> int:
    batch = encode_control_batch(
        kind,
        timestamp=NOW_MS,
        coordinator_epoch=coordinator_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
    return append_marker(log, batch, is_bumped=is_bumped).base_offset


def find_aborted_spans(log: PartitionLog, offset: int = 0) -> set[tuple[int, int]]:
    records = log.read(offset, 1 << 30, upper_offset=log.end_offset)
    return set(log.find_aborted(offset, records, log.end_offset))


def unstable(log: PartitionLog, high_watermark: int | None = None) -> int:
    mark = log.end_offset if high_watermark is None else high_watermark
    return log.producers.first_unstable_offset(mark)


def refusal(call: Callable[[], object]) -> Code:
    with pytest.raises(ApiError) as refused:
        call()
    return refused.value.code


def test_the_first_open_transaction_bounds_what_is_stable(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert unstable(log) == 0
    write(log, data(1, 0))
    write(log, data(2, 0))
    assert unstable(log) == 0
    end(log, 1, COMMIT)
    assert unstable(log) == 1
    end(log, 2, ABORT)
    assert unstable(log) == log.end_offset == 4


def test_a_marker_counts_once_it_is_replicated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, data(1, 0))
    end(log, 1, COMMIT)
    assert unstable(log, 0) == 0
    assert unstable(log, 1) == 0
    assert unstable(log, 2) == 2


def test_a_marker_without_records_changes_nothing_to_read(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    end(log, 1, ABORT)
    assert unstable(log) == 1
    assert find_aborted_spans(log) == set()
    assert not list(tmp_path.glob("*.txnindex"))


def test_what_may_end_a_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, data(1, 0, epoch=3))
    assert refusal(lambda: end(log, 1, COMMIT, epoch=2)) is Code.INVALID_PRODUCER_EPOCH
    assert refusal(lambda: end(log, 1, COMMIT, epoch=3, is_bumped=True)) is (
        Code.INVALID_PRODUCER_EPOCH
    )
    end(log, 1, COMMIT, epoch=3, coordinator_epoch=5)
    write(log, data(1, 1, epoch=3))
    fenced = Code.TRANSACTION_COORDINATOR_FENCED
    assert refusal(lambda: end(log, 1, ABORT, epoch=3, coordinator_epoch=4)) is fenced
    assert unstable(log) == 2


def test_sequences_go_on_in_an_epoch_and_begin_anew_behind_a_bumped_marker(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    write(log, data(1, 0, count=2))
    end(log, 1, COMMIT)
    out_of_order = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(lambda: write(log, data(1, 0))) is out_of_order
    write(log, data(1, 2))
    end(log, 1, COMMIT, epoch=1, is_bumped=True)
    assert refusal(lambda: write(log, data(1, 3))) is Code.INVALID_PRODUCER_EPOCH
    assert refusal(lambda: write(log, data(1, 3, epoch=1))) is out_of_order
    write(log, data(1, 0, epoch=1))


def test_nothing_outside_of_an_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, data(1, 0))
    plain = encode_batch(
        [Record(0, NOW_MS, None, b"x")], producer_id=1, producer_epoch=0, base_sequence=1
    )
    assert refusal(lambda: write(log, plain)) is Code.INVALID_TXN_STATE


def test_a_producer_with_an_open_transaction_is_not_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, data(1, 0))
    log.producers.forget_older_than(NOW_MS + 1)
    assert len(log.producers) == 1
    end(log, 1, COMMIT)
    log.producers.forget_older_than(NOW_MS + 1)
    assert len(log.producers) == 0


def test_only_the_aborted_that_touch_what_was_read_are_named(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(0, 40, 2):
        write(log, data(1, sequence))
        end(log, 1, ABORT)
        write(log, data(1, sequence + 1))
        end(log, 1, COMMIT)
    assert len(find_aborted_spans(log)) <= 2  # a read ends with its segment
    first = log.read(0, 1, upper_offset=log.end_offset)
    assert log.find_aborted(0, first, log.end_offset) == [(1, 0)]
    later = log.read(2, 1, upper_offset=log.end_offset)
    assert log.find_aborted(2, later, log.end_offset) == []


# Each step: a producer, and whether it writes, commits or aborts; or a cut to some share.
STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["write", "write", "commit", "abort", "cut"])),
    max_size=25,
)


@given(steps=STEPS, ended=st.sampled_from(LastShutdown), share=st.floats(0, 1))
# A marker below a snapshot that is cut off by a second cut.
@example(
    steps=[(1, "write"), (1, "commit"), (2, "commit"), (1, "commit"), (1, "write")]
    + [(1, "cut")] * 2,
    ended=LastShutdown.CLEANLY,
    share=0.625,
)
def test_a_reopened_a_cut_and_a_replicated_log_know_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, str]],
    ended: LastShutdown,
    share: float,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = open_log(folder / "leader")
    sequences: dict[int, int] = {}
    for producer_id, what in steps:
        if what == "write":
            sequence = sequences.get(producer_id, 0)
            write(log, data(producer_id, sequence))
            sequences[producer_id] = sequence + 1
        elif what == "cut":
            log.truncate_to(round(log.end_offset * share))
            known = {key: state.last_sequence + 1 for key, state in log.producers.items()}
            sequences = known
        else:
            end(log, producer_id, COMMIT if what == "commit" else ABORT)
    assert _knowledge(log) == _knowledge(_replica_of(log, folder / "follower"))
    log.close()
    reopened = open_log(folder / "leader", ended)
    assert _knowledge(reopened) == _knowledge(_replica_of(reopened, folder / "other"))
    reopened.close()


def _replica_of(log: PartitionLog, folder: Path) -> PartitionLog:
    replica = open_log(folder)
    while replica.end_offset < log.end_offset:
        records = log.read(replica.end_offset, 100, upper_offset=log.end_offset)
        replica.append_fetched(memoryview(bytes(records)))
    return replica


def _knowledge(log: PartitionLog) -> object:
    aborted_anywhere = [
        log.find_aborted(offset, log.read(offset, 1, upper_offset=log.end_offset), log.end_offset)
        for offset in range(log.end_offset)
    ]
    producers = {
        key: (state.epoch, state.last_sequence, state.first_offset, state.coordinator_epoch)
        for key, state in log.producers.items()
    }
    return log.end_offset, unstable(log), producers, aborted_anywhere
