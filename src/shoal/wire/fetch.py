"""Fetch (API key 1), both sides, versions 4 to 18.

Version 5 adds the log start offset, 7 sessions (KIP-227), 9 the leader epoch (KIP-320), 11 the
rack and the preferred replica (KIP-392), 12 is flexible and adds the diverging epoch (KIP-595), 13
names topics by id, 15 moves the replica id into a tagged field, 16 adds the endpoints of new
leaders, 17 and 18 add fields of the metadata quorum: the directory id of a voter (KIP-853), and the
high watermark that it knows (KIP-1166).

A fetched record set is a view into the frame. Its last batch may be incomplete, and its first may
begin before the requested offset.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Any, Generic, NamedTuple
from uuid import UUID

from shoal.wire.api_keys import ApiKey
from shoal.wire.framing import Part, PieceT
from shoal.wire.primitives import INT32, INT64, Cursor, put_string
from shoal.wire.record_messages import (
    NO_RECORDS,
    CurrentLeader,
    NodeEndpoint,
    Versions,
    Writer,
    current_leader_bytes,
    encoder,
    node_endpoints_bytes,
    read_current_leader,
    read_node_endpoints,
    read_topic_id,
    read_topics,
)

FETCH_VERSIONS = range(4, 19)
FIRST_VERSION_WITH_TOPIC_IDS = 13
_VERSIONS = Versions(
    ApiKey.FETCH,
    FETCH_VERSIONS,
    flexible_from=12,
    topic_ids_from=FIRST_VERSION_WITH_TOPIC_IDS,
)

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
NO_SESSION_ID = 0
NO_SESSION_EPOCH = -1
NO_REPLICA = -1
NO_EPOCH = -1
NO_OFFSET = -1

_LIMITS = Struct(">iiib")  # wait, least bytes, most bytes, isolation
_SESSION = Struct(">ii")
_REPLICA_STATE = Struct(">iq")
_PARTITION_FROM_4 = Struct(">iqi")
_PARTITION_FROM_5 = Struct(">iqqi")
_PARTITION_FROM_9 = Struct(">iiqqi")
_PARTITION_FROM_12 = Struct(">iiqiqi")
_RESPONSE_FROM_7 = Struct(">ihi")
_FETCHED_FROM_4 = Struct(">ihqq")
_FETCHED_FROM_5 = Struct(">ihqqq")
_FETCHED_FROM_12 = Struct(">ihqqqBi")  # with the count of aborted transactions, if that is 0
_ABORTED = Struct(">qq")
_EPOCH_END = Struct(">iq")
_SNAPSHOT = Struct(">qi")


class FetchPartition(NamedTuple):
    """What to read from one partition."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = NO_OFFSET
    # Only sent by members of the metadata quorum.
    replica_directory_id: UUID | None = None
    high_watermark: int | None = None


class ForgottenPartition(NamedTuple):
    """A partition to remove from a fetch session."""

    topic: str
    topic_id: UUID | None
    partition: int


class FetchRequest(NamedTuple):
    """A request as a broker decodes it."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[ForgottenPartition]
    rack_id: str = ""
    cluster_id: str | None = None
    replica_epoch: int = NO_EPOCH


class AbortedTransaction(NamedTuple):
    """The records of this producer from this offset to its abort marker are aborted."""

    producer_id: int
    first_offset: int


class EpochEnd(NamedTuple):
    """The largest epoch that leader and follower share, and its end offset on the leader."""

    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    """The snapshot to fetch instead of offsets that the log no longer has."""

    end_offset: int
    epoch: int


class PartitionAnswer(NamedTuple, Generic[PieceT]):
    """The answer of one partition; the records are of any type that has a length."""

    topic: str
    topic_id: UUID | None
    partition: int
    error_code: int = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    aborted: Sequence[AbortedTransaction] = ()
    preferred_read_replica: int = NO_REPLICA
    diverging_epoch: EpochEnd | None = None
    current_leader: CurrentLeader | None = None
    records: PieceT = NO_RECORDS  # type: ignore[assignment]  # nothing, of any kind
    snapshot_id: SnapshotId | None = None


class FetchedPartition(PartitionAnswer[memoryview]):
    """The answer as a client decodes it: the records are a view into the frame."""

    __slots__ = ()


class FetchResponse(NamedTuple):
    """A response as a client decodes it."""

    session_id: int
    error_code: int
    partitions: list[FetchedPartition]
    throttle_ms: int = 0
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@encoder
def encode_fetch_request(  # noqa: PLR0913 - as many as the message has fields
    version: int,
    *,
    correlation_id: int,
    client_id: str | None,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: int,
    partitions: Iterable[FetchPartition],
    session_id: int = NO_SESSION_ID,
    session_epoch: int = NO_SESSION_EPOCH,
    replica_id: int = NO_REPLICA,
    replica_epoch: int = NO_EPOCH,
    forgotten: Iterable[ForgottenPartition] = (),
    rack_id: str = "",
    cluster_id: str | None = None,
) -> bytes:
    """A request without its frame; fields that the version does not have are left out."""
    writer: Writer[Part] = _VERSIONS.request_writer(
        version, correlation_id=correlation_id, client_id=client_id
    )
    if version < 15:
        writer.output += INT32.pack(replica_id)
    writer.output += _LIMITS.pack(max_wait_ms, min_bytes, max_bytes, isolation)
    if version >= 7:
        writer.output += _SESSION.pack(session_id, session_epoch)

    def write_forgotten(item: ForgottenPartition) -> None:
        writer.output += INT32.pack(item.partition)

    writer.topics(partitions, partial(_write_partition, writer, version))
    if version >= 7:
        writer.topics(forgotten, write_forgotten)
    if version >= 11:
        writer.string(rack_id)
    if writer.flexible:
        tagged: list[tuple[int, bytes | bytearray]] = []
        if cluster_id is not None:
            tagged.append((0, _cluster_id_bytes(cluster_id)))
        if version >= 15 and (replica_id, replica_epoch) != (NO_REPLICA, NO_EPOCH):
            tagged.append((1, _REPLICA_STATE.pack(replica_id, replica_epoch) + b"\x00"))
        writer.tags(tagged)
    return bytes(writer.output)


def decode_fetch_request(version: int, frame: Part, position: int) -> FetchRequest:
    """The request whose body begins at `position` of the frame."""
    cursor = _VERSIONS.request_cursor(version, frame, position)
    replica = (NO_REPLICA, NO_EPOCH)
    if version < 15:
        replica = (cursor.unpack(INT32, "replica id")[0], NO_EPOCH)
    max_wait_ms, min_bytes, max_bytes, isolation = cursor.unpack(_LIMITS, "fetch limits")
    session_id, session_epoch = NO_SESSION_ID, NO_SESSION_EPOCH
    if version >= 7:
        session_id, session_epoch = cursor.unpack(_SESSION, "fetch session")
    uses_ids = version >= FIRST_VERSION_WITH_TOPIC_IDS

    def read_forgotten(topic: str, topic_id: UUID | None) -> ForgottenPartition:
        return ForgottenPartition(topic, topic_id, cursor.unpack(INT32, "partition")[0])

    read = partial(_read_partition, cursor, version)
    partitions = read_topics(cursor, read, uses_ids=uses_ids, least_item_size=16)
    forgotten: list[ForgottenPartition] = []
    if version >= 7:
        forgotten = read_topics(cursor, read_forgotten, uses_ids=uses_ids, least_item_size=4)
    rack_id = cursor.string("rack id") if version >= 11 else ""
    tagged = cursor.tags("Fetch request", _REQUEST_TAGS) if cursor.flexible else {}
    if version >= 15:
        replica = tagged.get(1, replica)
    return FetchRequest(
        replica_id=replica[0],
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        partitions=partitions,
        forgotten=forgotten,
        rack_id=rack_id,
        cluster_id=tagged.get(0),
        replica_epoch=replica[1],
    )


@encoder
def encode_fetch_response(
    version: int,
    *,
    correlation_id: int,
    session_id: int,
    error_code: int,
    partitions: Iterable[PartitionAnswer[PieceT]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Part | PieceT]:
    """The parts of a response without its frame; record sets are included as given."""
    writer: Writer[PieceT] = _VERSIONS.response_writer(version, correlation_id)
    if version >= 7:
        writer.output += _RESPONSE_FROM_7.pack(throttle_ms, error_code, session_id)
    else:
        writer.output += INT32.pack(throttle_ms)

    writer.topics(partitions, partial(_write_fetched, writer, version))
    if version >= 16 and node_endpoints:
        writer.tags([(0, node_endpoints_bytes(node_endpoints))])
    else:
        writer.no_tags()
    return writer.finish()


def decode_fetch_response(version: int, frame: Part) -> FetchResponse:
    """A response; its record sets are views into the frame."""
    cursor = _VERSIONS.response_cursor(version, frame)
    error_code, session_id = 0, NO_SESSION_ID
    if version >= 7:
        throttle_ms, error_code, session_id = cursor.unpack(_RESPONSE_FROM_7, "response")
    else:
        (throttle_ms,) = cursor.unpack(INT32, "throttle time")

    read: Callable[[str, UUID | None], FetchedPartition]
    if cursor.flexible:
        read = partial(_read_flexible_fetched, cursor)
    else:
        read = partial(_read_fetched, cursor, version)
    uses_ids = version >= FIRST_VERSION_WITH_TOPIC_IDS
    partitions = read_topics(cursor, read, uses_ids=uses_ids, least_item_size=30)
    tagged = cursor.tags("Fetch response", _RESPONSE_TAGS) if cursor.flexible else {}
    return FetchResponse(session_id, error_code, partitions, throttle_ms, tagged.get(0, ()))


def _cluster_id_bytes(cluster_id: str) -> bytearray:
    output = bytearray()
    put_string(output, cluster_id, flexible=True)
    return output


def _read_cluster_id(cursor: Cursor) -> str | None:
    return cursor.nullable_string("cluster id")


def _read_replica_state(cursor: Cursor) -> tuple[int, int]:
    replica_id, replica_epoch = cursor.unpack(_REPLICA_STATE, "replica state")
    cursor.tags("replica state")
    return replica_id, replica_epoch


_REQUEST_TAGS = {0: _read_cluster_id, 1: _read_replica_state}
_RESPONSE_TAGS = {0: read_node_endpoints}


def _write_partition(writer: Writer[Part], version: int, item: FetchPartition) -> None:
    if version >= 12:
        writer.output += _PARTITION_FROM_12.pack(
            item.partition,
            item.leader_epoch,
            item.offset,
            item.last_fetched_epoch,
            item.log_start_offset,
            item.max_bytes,
        )
        if version >= 17 and item[-2:] != (None, None):
            _write_partition_tags(writer, item, version)
        else:
            writer.output.append(0)
    elif version >= 9:
        writer.output += _PARTITION_FROM_9.pack(
            item.partition, item.leader_epoch, item.offset, item.log_start_offset, item.max_bytes
        )
    elif version >= 5:
        writer.output += _PARTITION_FROM_5.pack(
            item.partition, item.offset, item.log_start_offset, item.max_bytes
        )
    else:
        writer.output += _PARTITION_FROM_4.pack(item.partition, item.offset, item.max_bytes)


def _write_partition_tags(writer: Writer[Part], item: FetchPartition, version: int) -> None:
    tagged: list[tuple[int, bytes]] = []
    if item.replica_directory_id is not None:
        tagged.append((0, item.replica_directory_id.bytes))
    if version >= 18 and item.high_watermark is not None:
        tagged.append((1, INT64.pack(item.high_watermark)))
    writer.tags(tagged)


def _read_high_watermark(cursor: Cursor) -> int:
    high_watermark: int = cursor.unpack(INT64, "high watermark")[0]
    return high_watermark


_PARTITION_TAGS: Mapping[int, Callable[[Cursor], Any]] = {
    0: read_topic_id,
    1: _read_high_watermark,
}


def _read_partition(
    cursor: Cursor, version: int, topic: str, topic_id: UUID | None
) -> FetchPartition:
    leader_epoch, last_fetched_epoch, log_start_offset = NO_EPOCH, NO_EPOCH, NO_OFFSET
    tagged: Mapping[int, Any] = {}
    what = "partition to fetch"
    if version >= 12:
        fixed = cursor.unpack(_PARTITION_FROM_12, what)
        partition, leader_epoch, offset, last_fetched_epoch, log_start_offset, max_bytes = fixed
        tagged = cursor.tags(what, _PARTITION_TAGS) if version >= 17 else cursor.tags(what)
    elif version >= 9:
        fixed = cursor.unpack(_PARTITION_FROM_9, what)
        partition, leader_epoch, offset, log_start_offset, max_bytes = fixed
    elif version >= 5:
        partition, offset, log_start_offset, max_bytes = cursor.unpack(_PARTITION_FROM_5, what)
    else:
        partition, offset, max_bytes = cursor.unpack(_PARTITION_FROM_4, what)
    place = (topic, topic_id, partition, offset, max_bytes)
    state = (leader_epoch, last_fetched_epoch, log_start_offset)
    return FetchPartition(*place, *state, tagged.get(0), tagged.get(1))


def _write_fetched(writer: Writer[PieceT], version: int, item: PartitionAnswer[PieceT]) -> None:
    if writer.flexible and not item.aborted:
        # The usual case: the numbers up to `log_start_offset`, and no aborted transactions.
        writer.output += _FETCHED_FROM_12.pack(*item[2:7], 1, item.preferred_read_replica)
    else:
        _write_fetched_numbers(writer, version, item)
    writer.records(item.records)
    if item.diverging_epoch or item.current_leader or item.snapshot_id:
        _write_fetched_tags(writer, item)
    else:
        writer.no_tags()


def _write_fetched_numbers(
    writer: Writer[PieceT], version: int, item: PartitionAnswer[PieceT]
) -> None:
    writer.output += _FETCHED_FROM_4.pack(
        item.partition, item.error_code, item.high_watermark, item.last_stable_offset
    )
    if version >= 5:
        writer.output += INT64.pack(item.log_start_offset)
    writer.count(len(item.aborted))
    for transaction in item.aborted:
        writer.output += _ABORTED.pack(*transaction)
        writer.no_tags()
    if version >= 11:
        writer.output += INT32.pack(item.preferred_read_replica)


def _write_fetched_tags(writer: Writer[PieceT], item: PartitionAnswer[PieceT]) -> None:
    if not writer.flexible:
        return
    tagged: list[tuple[int, bytes]] = []
    if item.diverging_epoch is not None:
        tagged.append((0, _EPOCH_END.pack(*item.diverging_epoch) + b"\x00"))
    if item.current_leader is not None:
        tagged.append((1, current_leader_bytes(item.current_leader)))
    if item.snapshot_id is not None:
        tagged.append((2, _SNAPSHOT.pack(*item.snapshot_id) + b"\x00"))
    writer.tags(tagged)


def _read_fetched(
    cursor: Cursor, version: int, topic: str, topic_id: UUID | None
) -> FetchedPartition:
    """A partition in a version that is not flexible."""
    what = "fetched partition"
    log_start_offset, preferred_read_replica = NO_OFFSET, NO_REPLICA
    if version >= 5:
        fixed = cursor.unpack(_FETCHED_FROM_5, what)
        partition, error_code, high_watermark, last_stable_offset, log_start_offset = fixed
    else:
        fixed = cursor.unpack(_FETCHED_FROM_4, what)
        partition, error_code, high_watermark, last_stable_offset = fixed
    aborted = _read_aborted(cursor)
    if version >= 11:
        (preferred_read_replica,) = cursor.unpack(INT32, what)
    records = cursor.blob("records")
    return FetchedPartition(
        topic,
        topic_id,
        partition,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        preferred_read_replica,
        records=NO_RECORDS if records is None else records,
    )


def _read_flexible_fetched(cursor: Cursor, topic: str, topic_id: UUID | None) -> FetchedPartition:
    """A partition in a flexible version: optimised, because it is read most often.

    Usually there are no aborted transactions: their count is one byte, and the next field
    follows at once. Otherwise the cursor moves back to the count.
    """
    what = "fetched partition"
    (
        partition,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted_count,
        preferred_read_replica,
    ) = cursor.unpack(_FETCHED_FROM_12, what)
    aborted: tuple[AbortedTransaction, ...] = ()
    if aborted_count > 1:
        cursor.position -= _FETCHED_FROM_12.size - _FETCHED_FROM_5.size
        aborted = _read_aborted(cursor)
        (preferred_read_replica,) = cursor.unpack(INT32, what)
    records = cursor.blob("records")
    tagged = cursor.tags(what, _FETCHED_TAGS)
    return FetchedPartition(
        topic,
        topic_id,
        partition,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        preferred_read_replica,
        tagged.get(0),
        tagged.get(1),
        NO_RECORDS if records is None else records,
        tagged.get(2),
    )


def _read_aborted(cursor: Cursor) -> tuple[AbortedTransaction, ...]:
    transactions = []
    for _ in range(cursor.nullable_count("aborted transactions", least_size=_ABORTED.size)):
        transactions.append(AbortedTransaction(*cursor.unpack(_ABORTED, "aborted transaction")))
        if cursor.flexible:
            cursor.tags("aborted transaction")
    return tuple(transactions)


def _read_epoch_end(cursor: Cursor) -> EpochEnd:
    end = EpochEnd(*cursor.unpack(_EPOCH_END, "diverging epoch"))
    cursor.tags("diverging epoch")
    return end


def _read_snapshot_id(cursor: Cursor) -> SnapshotId:
    snapshot_id = SnapshotId(*cursor.unpack(_SNAPSHOT, "snapshot id"))
    cursor.tags("snapshot id")
    return snapshot_id


_FETCHED_TAGS: Mapping[int, Callable[[Cursor], Any]] = {
    0: _read_epoch_end,
    1: read_current_leader,
    2: _read_snapshot_id,
}
