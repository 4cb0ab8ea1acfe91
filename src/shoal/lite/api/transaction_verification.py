"""Verify with the coordinator that a partition is part of a transaction before the first write.

Rules of this file:
- The coordinator gets one request for all partitions of a Produce request in which the
  transaction is not open yet. Partitions in which it is open are written without a request.
- Up to Produce 11 the client has added the partitions itself, and the coordinator verifies that.
  From 12 on the broker adds them for the client (KIP-890).
- A coordinator that is still finishing the previous transaction answers CONCURRENT_TRANSACTIONS.
  When it adds partitions, the broker retries every `add.partitions.to.txn.retry.backoff.ms`, for
  at most `add.partitions.to.txn.retry.backoff.max.ms`: the client would wait longer and send all
  records again. After that time the client gets the error.
- A producer that the partition knows at a later epoch is fenced at once.
- All transactional batches of a request belong to one producer.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.coordinator.transactions.model import ProducerIdAndEpoch
from shoal.lite.coordinator.transactions.service import CoordinatorAction
from shoal.lite.partitions.admission.decisions import (
    check_transactional_producers,
    verification_error,
)
from shoal.lite.partitions.admission.guards import VerificationGuard
from shoal.lite.partitions.partition import Partition
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.model.topics import TopicPartition
from shoal.wire.produce import ProduceRequest

_FIRST_THAT_ADDS = 12
_FIRST_THAT_KNOWS_ABORTABLE = 11


@dataclass(slots=True)
class TransactionVerification:
    """The partitions to verify or add, their guards, and the error codes of those refused."""

    identity: ProducerIdAndEpoch
    transactional_id: str
    action: CoordinatorAction
    guards: dict[TopicPartition, VerificationGuard] = field(default_factory=dict)
    codes: dict[TopicPartition, Code] = field(default_factory=dict)

    async def verify_or_add(self, core: BrokerCore) -> None:
        """Ask the coordinator; retry while it finishes the previous transaction."""
        clock = asyncio.get_running_loop().time
        backoff_s, timeout_s = (
            _retry_times_s(core) if self.action is CoordinatorAction.ADD else (0.0, 0.0)
        )
        deadline_s = clock() + timeout_s
        while self.guards:
            codes = await core.transactions.verify_or_add(
                self.transactional_id, self.identity, list(self.guards), self.action
            )
            if Code.CONCURRENT_TRANSACTIONS not in codes.values() or clock() >= deadline_s:
                self.codes |= codes
                return
            await asyncio.sleep(backoff_s)

    def error_of(self, partition: TopicPartition) -> ApiError | None:
        """The error for a partition that the coordinator refused; None if it did not."""
        code = self.codes.get(partition, Code.NONE)
        return verification_error(code, adds=self.action is CoordinatorAction.ADD)


def verification_for(
    core: BrokerCore, version: int, produce: ProduceRequest
) -> TransactionVerification | None:
    """What to verify before the request is written; None if nothing.

    `ApiError` if the batches belong to two producers.
    """
    headers = dict(_iter_transactional(produce))
    identities = {
        ProducerIdAndEpoch(header.producer_id, header.producer_epoch) for header in headers.values()
    }
    if not identities or produce.transactional_id is None:
        return None
    check_transactional_producers(identities)
    verification = TransactionVerification(
        identities.pop(), produce.transactional_id, _coordinator_action(version)
    )
    for key, header in headers.items():
        partition = _find_led_partition(core, key)
        if partition is None:
            continue
        producers = partition.log.producers
        if not producers.has_open_transaction(header.producer_id, header.producer_epoch):
            begins_at_zero = verification.action is CoordinatorAction.ADD
            try:
                verification.guards[key] = partition.guards.begin_verification(
                    header, producers, begins_at_zero=begins_at_zero
                )
            except ApiError as error:
                verification.codes[key] = error.code
    return verification if verification.guards or verification.codes else None


def _retry_times_s(core: BrokerCore) -> tuple[float, float]:
    """The time between two retries, and the total time to retry for."""
    names = ("add.partitions.to.txn.retry.backoff.ms", "add.partitions.to.txn.retry.backoff.max.ms")
    backoff_s, timeout_s = (core.layers.integer(name) / 1000 for name in names)
    return backoff_s, timeout_s


def _iter_transactional(produce: ProduceRequest) -> Iterator[tuple[TopicPartition, BatchHeader]]:
    for item in produce.partitions:
        if len(item.records) < HEADER_SIZE:
            continue
        header = unpack_header(item.records)
        if header.is_transactional and header.producer_id >= 0:
            yield TopicPartition(item.topic, item.partition), header


def _find_led_partition(core: BrokerCore, key: TopicPartition) -> Partition | None:
    """The partition if this broker leads it; otherwise the append reports the error."""
    try:
        partition = core.partition(*key)
        _ = partition.leader
    except ApiError:
        return None
    return partition


def _coordinator_action(version: int) -> CoordinatorAction:
    if version >= _FIRST_THAT_ADDS:
        return CoordinatorAction.ADD
    return (
        CoordinatorAction.VERIFY_ABORTABLE
        if version >= _FIRST_THAT_KNOWS_ABORTABLE
        else CoordinatorAction.VERIFY
    )
