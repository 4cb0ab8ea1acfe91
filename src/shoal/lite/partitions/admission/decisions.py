"""May this batch be written? The rules in their order; the first that applies decides. Pure.

A Produce request: `check_request`, `check_transactional_producers`
    acks is not 0, 1 or -1                            INVALID_REQUIRED_ACKS
    a transactional batch, no transactional id        TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    transactional batches of several producers        INVALID_PRODUCER_ID_MAPPING
Its batch for one partition: `check_internal_topic`, `admit_produced`, `follow_refusal`
    an internal topic, not written by an admin        INVALID_TOPIC_EXCEPTION
    not exactly one batch, or not of format 2         INVALID_RECORD
    a batch length below the length of a header       CORRUPT_MESSAGE
    an unknown codec, or zstd before version 7        UNSUPPORTED_COMPRESSION_TYPE
    the coordinator refused its transaction           the code of `verification_error`
    this replica does not lead                        NOT_LEADER_OR_FOLLOWER
    acks=all, and the ISR is too small                NOT_ENOUGH_REPLICAS
    a base offset other than 0                        INVALID_RECORD
    more than max.message.bytes                       MESSAGE_TOO_LARGE
    a wrong checksum                                  CORRUPT_MESSAGE
    record count and last offset delta disagree       INVALID_RECORD
    a control batch                                   INVALID_RECORD
    a producer id without a sequence                  INVALID_RECORD
    more than segment.bytes                           RECORD_LIST_TOO_LARGE
    LogAppendTime set by the client                   INVALID_TIMESTAMP
    timestamps too far in the future or in the past   INVALID_TIMESTAMP
  if the topic requires that records are read:
    too large when decompressed                       MESSAGE_TOO_LARGE
    records that cannot be read                       INVALID_RECORD
    a compacted topic, and a record without a key     INVALID_RECORD
    a record too far in the future or in the past     INVALID_TIMESTAMP
    recompressed, more than max.message.bytes         MESSAGE_TOO_LARGE
  an unknown producer, an earlier batch was refused   the code of that batch
The same batch after those before it: `admit_next`, `explain_sequence_error`
    its transaction is neither open nor verified      INVALID_TXN_STATE
    not the first of its verified transaction         OUT_OF_ORDER_SEQUENCE_NUMBER *
    the log is offline                                KAFKA_STORAGE_ERROR
    an older producer epoch                           INVALID_PRODUCER_EPOCH
    a newer producer epoch that does not start at 0   OUT_OF_ORDER_SEQUENCE_NUMBER *
    one of the last five batches of its producer      NONE: a duplicate, not written again
    not the next sequence                             OUT_OF_ORDER_SEQUENCE_NUMBER *
    not transactional while a transaction is open     INVALID_TXN_STATE
  * if an earlier batch was refused                   the code of that batch
  * if it is ahead, and the leader is new             NOT_LEADER_OR_FOLLOWER

A coordinator's batch: `admit_coordinator_batch`
    the ISR is too small                              NOT_ENOUGH_REPLICAS
    more than max.message.bytes                       MESSAGE_TOO_LARGE
    its transaction is neither open nor verified      INVALID_TXN_STATE
    the log is offline                                KAFKA_STORAGE_ERROR
    an older producer epoch                           INVALID_PRODUCER_EPOCH
A transaction marker: `admit_marker`
    the ISR is too small                              NOT_ENOUGH_REPLICAS
    the log is offline                                KAFKA_STORAGE_ERROR
    an older producer epoch                           INVALID_PRODUCER_EPOCH
    an equal one, in the second protocol              INVALID_PRODUCER_EPOCH
    an older coordinator epoch                        TRANSACTION_COORDINATOR_FENCED

A mirror's batches, all or none: `check_mirror_epoch`, `check_log_end`, `admit_unit`
    a lower mirror epoch                              PRODUCER_FENCED
    the ISR is too small                              NOT_ENOUGH_REPLICAS
    the log ends elsewhere                            OFFSET_OUT_OF_RANGE
  for each batch:
    incomplete, not of format 2, an unknown codec     INVALID_RECORD
    more than max.message.bytes                       MESSAGE_TOO_LARGE
    a wrong checksum                                  CORRUPT_MESSAGE
    an offset below the next one                      INVALID_RECORD
    more records than offsets                         INVALID_RECORD
    a producer id, a transaction or a marker          INVALID_RECORD
  the last offset is too far above the log end        INVALID_RECORD

The codes are Apache Kafka's. A refusal is an `ApiError`, and nothing was written. The caller writes
at once: an await after the decision would make it void. Batches that followers fetch are not
decided here: their leader has admitted them.
"""

from collections.abc import Sized
from typing import Protocol

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import TopicConfig
from shoal.lite.partitions.admission.batch_rules import (
    apply_timestamps,
    batch_too_large,
    check_batch,
    header_of_only_batch,
    set_continued_bits,
    unpack_unit,
)
from shoal.lite.partitions.admission.guards import VerificationGuard, VerificationGuards
from shoal.lite.partitions.admission.producer_rules import (
    check_epoch,
    check_marker,
    check_sequence,
)
from shoal.lite.partitions.admission.record_rules import (
    InvalidRecords,
    needs_record_checks,
    validate_and_recompress,
)
from shoal.lite.partitions.admission.refusals import Refusals
from shoal.lite.replication.leader import ALL_ACKS, LeaderPartition
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.state.producer_state import ProducerStates, WrittenBatch
from shoal.lite.storage.state.replaying import marker_in
from shoal.model.topics import TopicPartition
from shoal.wire.batch import TRANSACTIONAL_BIT
from shoal.wire.produce import ProduceRequest

__all__ = ["InvalidRecords"]

_VALID_ACKS = frozenset({ALL_ACKS, 0, 1})
# The client id that may write to internal topics, as in Apache Kafka.
_ADMIN_CLIENT_ID = "__admin_client"
# Position of the lower byte of a batch's attributes, which has the transactional bit.
_FLAGS = 22


class TargetLog(Protocol):
    """What a decision reads of the log."""

    @property
    def offline_reason(self) -> str | None: ...
    @property
    def producers(self) -> ProducerStates: ...


class TargetPartition(Protocol):
    """What a decision reads of the partition."""

    @property
    def leader(self) -> LeaderPartition:
        """The leader's state machine; `ApiError` if this replica does not lead."""

    @property
    def log(self) -> TargetLog: ...
    @property
    def rules(self) -> TopicConfig: ...
    @property
    def guards(self) -> VerificationGuards: ...
    def has_new_leader(self) -> bool: ...


# Batches of producers


def check_request(request: ProduceRequest) -> None:
    """Raise `ApiError` if a Produce request as a whole is invalid."""
    if request.acks not in _VALID_ACKS:
        message = f"acks={request.acks} is not valid: use 0, 1 or -1 (all)"
        raise ApiError(Code.INVALID_REQUIRED_ACKS, message)
    if request.transactional_id is None:
        for item in request.partitions:
            if len(item.records) >= HEADER_SIZE and item.records[_FLAGS] & TRANSACTIONAL_BIT:
                raise ApiError(
                    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "the request has a transactional batch but no transactional id",
                )


def check_transactional_producers(identities: Sized) -> None:
    """Raise `ApiError` if the transactional batches of a request have several producers."""
    if len(identities) > 1:
        message = "Transactional records contained more than one producer ID"
        raise ApiError(Code.INVALID_PRODUCER_ID_MAPPING, message)


def check_internal_topic(topic: str, client_id: str | None) -> None:
    """Raise `ApiError` if the client may not write to an internal topic."""
    if client_id != _ADMIN_CLIENT_ID:
        raise ApiError(Code.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")


def verification_error(code: Code, *, adds: bool) -> ApiError | None:
    """Return the error for the coordinator's answer about a transaction, None if it agrees.

    `adds`: whether the coordinator was asked to add the partition, or only to verify it.
    """
    if code == Code.NONE:
        return None
    if code == Code.CONCURRENT_TRANSACTIONS and not adds:
        # Producers of the first protocol do not expect that code here; they retry this one.
        code = Code.NOT_ENOUGH_REPLICAS
    if code == Code.INVALID_TXN_STATE:
        return ApiError(code, "Partition was not added to the transaction")
    return ApiError(code, "The partition could not be added to the transaction")


def admit_produced(
    records: memoryview,
    partition: TargetPartition,
    *,
    version: int,
    acks: int,
    now_ms: int,
    refused: ApiError | None = None,
) -> tuple[memoryview, BatchHeader]:
    """Return a producer's batch as it is to be written, and its header.

    `refused` is the `verification_error` of its transaction. `records` may be changed in place.
    """
    header = header_of_only_batch(records, version)
    if refused is not None:
        raise refused
    partition.leader.check_acks(acks)
    rules = partition.rules
    check_batch(records, header, rules)
    header = apply_timestamps(records, header, rules, now_ms)
    if needs_record_checks(header, rules):
        return validate_and_recompress(records, header, rules, now_ms)
    return records, header


def follow_refusal(
    header: BatchHeader,
    partition: TargetPartition,
    refusals: Refusals,
    *,
    key: TopicPartition,
    now_ms: int,
) -> ApiError | None:
    """Return the error of an earlier batch of the producer that was refused lately, or None.

    Raise it if the log knows no batches of the producer: it would accept any first sequence.
    """
    earlier = refusals.find_earlier_refusal(key, header, now_ms)
    if earlier is not None and not partition.log.producers.knows_batches_of(header.producer_id):
        raise earlier
    return earlier


def admit_next(
    header: BatchHeader, partition: TargetPartition, guard: VerificationGuard | None
) -> WrittenBatch | None:
    """Return the earlier copy of a duplicate; None if a producer's batch is to be written.

    The first batch of a transaction needs the guard under which the coordinator was asked.
    """
    log = partition.log
    if header.attributes & TRANSACTIONAL_BIT:
        partition.guards.check(header, log.producers, guard)
    if log.offline_reason is not None:
        raise LogOffline(log.offline_reason)
    return check_sequence(header, log.producers) if header.producer_id >= 0 else None


def explain_sequence_error(
    error: ApiError, header: BatchHeader, partition: TargetPartition, earlier: ApiError | None
) -> ApiError:
    """Return the error for a batch that `admit_next` refused.

    A batch before it may still be on its way: `earlier` is the result of `follow_refusal`.
    """
    if error.code != Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return error
    if earlier is None and partition.has_new_leader() and partition.log.producers.is_ahead(header):
        # The previous leader refused the missing batches; the producer will send them again.
        return ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{error}; the partition has a new leader")
    return earlier or error


# Batches of brokers


def admit_coordinator_batch(
    view: memoryview,
    header: BatchHeader,
    partition: TargetPartition,
    guard: VerificationGuard | None,
) -> None:
    """Raise `ApiError` if a coordinator may not write this batch, for a producer or for itself.

    The offsets that it writes for a producer have no sequence numbers.
    """
    partition.leader.check_acks(ALL_ACKS)
    if len(view) > partition.rules.max_message_bytes:
        raise batch_too_large(view, partition.rules)
    log = partition.log
    if header.is_transactional:
        partition.guards.check(header, log.producers, guard)
    if log.offline_reason is not None:
        raise LogOffline(log.offline_reason)
    if header.producer_id >= 0:
        check_epoch(header, log.producers)


def admit_marker(
    view: memoryview, header: BatchHeader, partition: TargetPartition, *, is_bumped: bool
) -> None:
    """Raise `ApiError` if a marker may not end a transaction; `is_bumped`: see `check_marker`."""
    partition.leader.check_acks(ALL_ACKS)
    log = partition.log
    if log.offline_reason is not None:
        raise LogOffline(log.offline_reason)
    check_marker(header, marker_in(view), log.producers, is_bumped=is_bumped)


# Batches of mirrors


def check_mirror_epoch(epoch: int, known: int) -> None:
    """Raise `ApiError` if a mirror of a later epoch has taken over the partition."""
    if epoch < known or epoch < 0:
        message = f"a mirror of epoch {known} has taken over; this mirror has epoch {epoch}"
        raise ApiError(Code.PRODUCER_FENCED, message)


def check_mirror_takeover(epoch: int, known: int) -> None:
    """Raise `ApiError` if another mirror took over the partition at the same time."""
    if epoch != known:
        raise ApiError(Code.PRODUCER_FENCED, f"a mirror of epoch {known} has taken over")


def check_log_end(leader: LeaderPartition, end_offset: int, expected: int) -> ApiError | None:
    """Return the error if the log does not end where a mirror expects it; None if it does."""
    leader.check_acks(ALL_ACKS)
    if end_offset == expected:
        return None
    return ApiError(Code.OFFSET_OUT_OF_RANGE, f"the log ends at {end_offset}, not at {expected}")


def admit_unit(records: memoryview, log: PartitionLog, rules: TopicConfig) -> list[BatchHeader]:
    """Return the headers of a mirror's batches, marked as written together.

    `records` is changed in place.
    """
    headers = unpack_unit(records, log.end_offset, rules)
    last_offset = headers[-1].last_offset
    if not log.can_reach(last_offset):
        message = f"offset {last_offset} is too far above the log end {log.end_offset}"
        raise ApiError(Code.INVALID_RECORD, message)
    return set_continued_bits(records, headers)
