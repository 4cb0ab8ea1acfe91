"""Which fetched batches count: control batches never do, aborted ones from start to marker."""

from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.wire.batch import HEADER_SIZE, Batch
from shoal.wire.records.records import ControlType, Record, encode_batch, encode_control_batch


def of_producer(producer_id: int, offset: int, *, is_transactional: bool = True) -> Batch:
    encoded = encode_batch(
        [Record(i, 0, None, b"v") for i in range(2)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    return Batch(memoryview(encoded))


def marker(kind: ControlType, producer_id: int, offset: int) -> Batch:
    encoded = encode_control_batch(
        kind,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        timestamp=0,
        coordinator_epoch=0,
    )
    return Batch(memoryview(encoded))


def test_control_batches_are_never_data() -> None:
    assert AbortedFilter(()).classify(marker(ControlType.COMMIT, 1, 0)) is BatchKind.CONTROL


def test_aborted_transactions_are_void_up_to_their_marker() -> None:
    log = [
        of_producer(1, 0),  # aborted
        of_producer(2, 2),  # committed
        of_producer(1, 4, is_transactional=False),  # no transaction: it counts
        of_producer(1, 6),  # aborted
        marker(ControlType.ABORT, 1, 8),
        of_producer(1, 9),  # its next transaction, committed
        marker(ControlType.COMMIT, 1, 11),
        marker(ControlType.COMMIT, 2, 12),
        of_producer(1, 13),  # aborted again
        marker(ControlType.ABORT, 1, 15),
    ]
    aborted_filter = AbortedFilter([(1, 13), (1, 0)])
    found: dict[BatchKind, list[int]] = {standing: [] for standing in BatchKind}
    for batch in log:
        found[aborted_filter.classify(batch)].append(batch.base_offset)
    assert found == {
        BatchKind.DATA: [2, 4, 9],
        BatchKind.CONTROL: [8, 11, 12, 15],
        BatchKind.ABORTED: [0, 6, 13],
    }


def test_a_transaction_begins_where_a_batch_reaches_its_first_offset() -> None:
    # Compaction may have taken the first records of the batch away.
    assert AbortedFilter([(1, 1)]).classify(of_producer(1, 0)) is BatchKind.ABORTED


def test_a_transaction_begun_before_the_fetch_is_void_too() -> None:
    assert AbortedFilter([(1, 3)]).classify(of_producer(1, 100)) is BatchKind.ABORTED


def test_a_damaged_marker_still_ends_its_transaction() -> None:
    damaged = marker(ControlType.ABORT, 1, 2)
    damaged.view[HEADER_SIZE:] = bytes(len(damaged.records))
    aborted_filter = AbortedFilter([(1, 0)])
    judged = [
        aborted_filter.classify(batch) for batch in (of_producer(1, 0), damaged, of_producer(1, 3))
    ]
    assert judged == [BatchKind.ABORTED, BatchKind.CONTROL, BatchKind.DATA]
