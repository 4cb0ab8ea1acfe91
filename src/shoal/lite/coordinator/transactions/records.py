"""The records of `__transaction_state`, in Apache Kafka's own format.

    key      version 0: the transactional id
    value    version 0, or 1, which is flexible: producer id and epoch, time-out, state,
             partitions by topic (null in the state Empty), time of the last change, time of the
             beginning; in version 1, as tagged fields: 0 the producer id before, 1 the one after,
             2 the protocol of the client

A null value removes the id. Fields that later versions add at the end are ignored.
"""

from collections.abc import Callable, Iterable
from struct import Struct

from shoal.lite.coordinator.transactions.model import FIRST_PROTOCOL, Transaction, TxnState
from shoal.model.topics import TopicPartition
from shoal.wire.batch import NO_PRODUCER_ID
from shoal.wire.errors import Malformed
from shoal.wire.primitives import (
    INT16,
    INT32,
    INT64,
    NUMBER_WEIGHT,
    Cursor,
    put_count,
    put_string,
    put_varint,
)

_VERSION = Struct(">h")
_IDENTITY = Struct(">qhib")
_TIMES = Struct(">qq")
_KEY_VERSION = 0
_PREVIOUS_ID, _NEXT_ID, _PROTOCOL = 0, 1, 2
_TAGS: dict[int, Callable[[Cursor], int]] = {
    _PREVIOUS_ID: lambda cursor: cursor.unpack(INT64, "previous producer id")[0],
    _NEXT_ID: lambda cursor: cursor.unpack(INT64, "next producer id")[0],
    _PROTOCOL: lambda cursor: cursor.unpack(INT16, "protocol")[0],
}


def encode_key(transactional_id: str) -> bytes:
    output = bytearray(_VERSION.pack(_KEY_VERSION))
    put_string(output, transactional_id, flexible=False)
    return bytes(output)


def decode_key(data: bytes) -> str | None:
    """Return the transactional id; None for a key of an unknown version."""
    cursor = Cursor(memoryview(data), flexible=False)
    if cursor.unpack(_VERSION, "key version")[0] != _KEY_VERSION:
        return None
    return cursor.string("transactional id")


def encode_value(transaction: Transaction, version: int) -> bytes:
    output = bytearray(_VERSION.pack(version))
    output += _IDENTITY.pack(
        transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state
    )
    is_flexible = version >= 1
    if transaction.state is TxnState.EMPTY:
        put_count(output, -1, flexible=is_flexible)
    else:
        _put_partitions(output, transaction.partitions, is_flexible=is_flexible)
    output += _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    if is_flexible:
        _put_tags(output, transaction)
    return bytes(output)


def _put_partitions(
    output: bytearray, partitions: Iterable[TopicPartition], *, is_flexible: bool
) -> None:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    put_count(output, len(topics), flexible=is_flexible)
    for topic, indexes in topics.items():
        put_string(output, topic, flexible=is_flexible)
        put_count(output, len(indexes), flexible=is_flexible)
        for index in indexes:
            output += INT32.pack(index)
        if is_flexible:
            output.append(0)


def _put_tags(output: bytearray, transaction: Transaction) -> None:
    tags: list[tuple[int, bytes]] = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_PREVIOUS_ID, INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT_ID, INT64.pack(transaction.next_producer_id)))
    if transaction.protocol:
        tags.append((_PROTOCOL, INT16.pack(transaction.protocol)))
    put_varint(output, len(tags))
    for tag, data in tags:
        put_varint(output, tag)
        put_varint(output, len(data))
        output += data


def decode_value(transactional_id: str, data: bytes) -> Transaction:
    """Return the transaction; `Malformed` if the bytes are not a valid record."""
    version = _VERSION.unpack_from(data)[0]
    if version not in {0, 1}:
        raise Malformed(
            f"the record of transactional id {transactional_id!r} has version {version}; only 0 "
            "and 1 are known"
        )
    is_flexible = version >= 1
    cursor = Cursor(memoryview(data), flexible=is_flexible)
    cursor.unpack(_VERSION, "value version")
    producer_id, epoch, timeout_ms, state = cursor.unpack(_IDENTITY, "transaction")
    partitions: set[TopicPartition] = set()
    for _ in range(cursor.nullable_count("topics", least_size=2)):
        topic = cursor.string("topic")
        for _ in range(cursor.count("partitions", least_size=4, weight=NUMBER_WEIGHT)):
            index: int = cursor.unpack(INT32, "partition")[0]
            partitions.add(TopicPartition(topic, index))
        if is_flexible:
            cursor.tags("topic")
    updated_ms, started_ms = cursor.unpack(_TIMES, "times")
    tags = cursor.tags("transaction", _TAGS) if is_flexible else {}
    return Transaction(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        TxnState(state),
        updated_ms,
        frozenset(partitions),
        started_ms,
        tags.get(_PREVIOUS_ID, NO_PRODUCER_ID),
        tags.get(_NEXT_ID, NO_PRODUCER_ID),
        protocol=tags.get(_PROTOCOL, FIRST_PROTOCOL),
    )
