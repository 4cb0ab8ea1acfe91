"""Before a transaction's first batch is written to a partition: is the partition part of it?

Rules of this file:
- The coordinator is asked once for all partitions of a request in which the transaction is not
  open yet. Those in which it is are written without asking.
- Up to Produce 11 the client has announced the partitions, and that is verified; from 12 on the
  broker adds them for the client (KIP-890).
- A coordinator that is still finishing the transaction before answers CONCURRENT_TRANSACTIONS.
  Where partitions are added it is asked again every `add.partitions.to.txn.retry.backoff.ms`,
  for `add.partitions.to.txn.retry.backoff.max.ms` in all: the client would wait longer, and send
  all records again. Only then the client hears of it.
- A producer that the partition knows at a later epoch is fenced at once.
- All transactional batches of a request are of one producer.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.coordinator.transactions.model import Identity
from shoal.lite.coordinator.transactions.service import Asked
from shoal.lite.partitions.guards import Guard
from shoal.lite.partitions.partition import Partition
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.model.topics import TopicPartition
from shoal.wire.produce import ProduceRequest

_FIRST_THAT_ADDS = 12
_FIRST_THAT_KNOWS_ABORTABLE = 11


@dataclass(slots=True)
class Joining:
    """The partitions that join, their guards, and in the end why some could not."""

    identity: Identity
    transactional_id: str
    asked: Asked
    guards: dict[TopicPartition, Guard] = field(default_factory=dict)
    codes: dict[TopicPartition, Code] = field(default_factory=dict)

    async def ask(self, core: BrokerCore) -> None:
        """Ask the coordinator, again and again while it finishes the transaction before."""
        clock = asyncio.get_running_loop().time
        backoff_s, patience_s = _retry_times_s(core) if self.asked is Asked.ADD else (0.0, 0.0)
        deadline_s = clock() + patience_s
        while self.guards:
            codes = await core.transactions.join(
                self.transactional_id, self.identity, list(self.guards), self.asked
            )
            if Code.CONCURRENT_TRANSACTIONS not in codes.values() or clock() >= deadline_s:
                self.codes |= codes
                return
            await asyncio.sleep(backoff_s)

    def guard_of(self, partition: TopicPartition) -> Guard | None:
        """The guard of a partition; `Refused` if it could not join."""
        code = self.codes.get(partition, Code.NONE)
        if code == Code.CONCURRENT_TRANSACTIONS and self.asked is not Asked.ADD:
            # Producers of the first protocol do not expect it here, and try this one again.
            code = Code.NOT_ENOUGH_REPLICAS
        if code == Code.INVALID_TXN_STATE:
            raise Refused(code, "Partition was not added to the transaction")
        if code != Code.NONE:
            raise Refused(code, "The partition could not be added to the transaction")
        return self.guards.get(partition)


def joining_of(core: BrokerCore, version: int, produce: ProduceRequest) -> Joining | None:
    """What must be asked before the request is written; `Refused` if it is of two producers."""
    headers = dict(_transactional(produce))
    identities = {
        Identity(header.producer_id, header.producer_epoch) for header in headers.values()
    }
    if not identities or produce.transactional_id is None:
        return None
    if len(identities) > 1:
        message = "Transactional records contained more than one producer ID"
        raise Refused(Code.INVALID_PRODUCER_ID_MAPPING, message)
    joining = Joining(identities.pop(), produce.transactional_id, _asked(version))
    for key, header in headers.items():
        partition = _led(core, key)
        if partition is None:
            continue
        producers = partition.log.producers
        if not producers.has_open_transaction(header.producer_id, header.producer_epoch):
            begins_at_zero = joining.asked is Asked.ADD
            try:
                joining.guards[key] = partition.guards.stand(
                    header, producers, begins_at_zero=begins_at_zero
                )
            except Refused as refused:
                joining.codes[key] = refused.code
    return joining if joining.guards or joining.codes else None


def _retry_times_s(core: BrokerCore) -> tuple[float, float]:
    """How long to wait before the coordinator is asked again, and for how long in all."""
    names = ("add.partitions.to.txn.retry.backoff.ms", "add.partitions.to.txn.retry.backoff.max.ms")
    backoff_s, patience_s = (core.layers.integer(name) / 1000 for name in names)
    return backoff_s, patience_s


def _transactional(produce: ProduceRequest) -> Iterator[tuple[TopicPartition, BatchHeader]]:
    for item in produce.partitions:
        if len(item.records) < HEADER_SIZE:
            continue
        header = unpack_header(item.records)
        if header.is_transactional and header.producer_id >= 0:
            yield TopicPartition(item.topic, item.partition), header


def _led(core: BrokerCore, key: TopicPartition) -> Partition | None:
    """The partition, if this broker leads it; if not, the writing says why."""
    try:
        partition = core.partition(*key)
        _ = partition.leader
    except Refused:
        return None
    return partition


def _asked(version: int) -> Asked:
    if version >= _FIRST_THAT_ADDS:
        return Asked.ADD
    return Asked.VERIFY_ABORTABLE if version >= _FIRST_THAT_KNOWS_ABORTABLE else Asked.VERIFY
