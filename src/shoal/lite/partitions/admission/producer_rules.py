"""Which batch of a producer may come next, by the producer state of the log. Pure.

- A batch with the same epoch, first and last sequence as one of the producer's last five is a
  duplicate: it is acknowledged with its original offset.
- Otherwise its first sequence must follow the last one written; sequences wrap from 2³¹-1 to 0.
- An older epoch is refused. A newer epoch starts at sequence 0.
- A producer that the partition does not know may start with any sequence.
- While its transaction is open, a producer may write nothing outside of it.
- A marker of an older coordinator epoch is refused, so that a replaced coordinator decides nothing.
"""

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.state.producer_state import ProducerState, ProducerStates, WrittenBatch
from shoal.wire.batch import SEQUENCE_MASK, sequence_after
from shoal.wire.records.records import ControlMarker


def check_sequence(header: BatchHeader, producers: ProducerStates) -> WrittenBatch | None:
    """Return the earlier copy of a duplicate, None if the batch may be written, else `ApiError`."""
    producer = producers.by_id.get(header.producer_id)
    if producer is None:
        return None
    if (
        header.producer_epoch == producer.epoch
        and producer.batches
        and header.base_sequence == (producer.batches[-1].last_sequence + 1) & SEQUENCE_MASK
        and producer.first_offset < 0
    ):
        return None  # nearly always
    duplicate = _find_duplicate(header, producer)
    if duplicate is None and producer.first_offset >= 0 and not header.is_transactional:
        raise ApiError(
            Code.INVALID_TXN_STATE,
            f"producer {header.producer_id} sent a non-transactional batch while its "
            "transaction is open",
        )
    return duplicate


def _find_duplicate(header: BatchHeader, producer: ProducerState) -> WrittenBatch | None:
    if header.producer_epoch != producer.epoch:
        _check_known_epoch(header, producer)
        if header.base_sequence != 0:
            raise _sequence_error(
                header, "the first batch of a new producer epoch must have sequence 0"
            )
        return None
    expected = sequence_after(producer.last_sequence, 1)
    if header.base_sequence == expected:
        return None
    duplicate = producer.find_duplicate(header)
    if duplicate is None:
        raise _sequence_error(header, f"expected {expected}")
    return duplicate


def check_epoch(header: BatchHeader, producers: ProducerStates) -> None:
    """Raise `ApiError` if the producer is known at a later epoch."""
    producer = producers.by_id.get(header.producer_id)
    if producer is not None:
        _check_known_epoch(header, producer)


def check_marker(
    header: BatchHeader, marker: ControlMarker, producers: ProducerStates, *, is_bumped: bool
) -> None:
    """Raise `ApiError` if a marker may not end a transaction.

    In the second protocol (KIP-890) a marker's epoch is above that of its transaction
    (`is_bumped`): a marker with an equal epoch was written before.
    """
    producer = producers.by_id.get(header.producer_id)
    if producer is None:
        return
    _check_known_epoch(header, producer, allows_equal=not is_bumped)
    coordinator_epoch = marker.coordinator_epoch or 0
    if coordinator_epoch < producer.coordinator_epoch:
        raise ApiError(
            Code.TRANSACTION_COORDINATOR_FENCED,
            f"a coordinator of epoch {producer.coordinator_epoch} has ended transactions of "
            f"producer {header.producer_id}; this marker has coordinator epoch "
            f"{coordinator_epoch}",
        )


def _check_known_epoch(
    header: BatchHeader, producer: ProducerState, *, allows_equal: bool = True
) -> None:
    epoch = header.producer_epoch
    if epoch < producer.epoch or (epoch == producer.epoch and not allows_equal):
        raise ApiError(
            Code.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {producer.epoch}, the batch has epoch "
            f"{epoch}",
        )


def _sequence_error(header: BatchHeader, expectation: str) -> ApiError:
    return ApiError(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id}, epoch {header.producer_epoch}: "
        f"sequence {header.base_sequence} is out of order, {expectation}",
    )
