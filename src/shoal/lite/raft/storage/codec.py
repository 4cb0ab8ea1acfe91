"""Entries and snapshots as bytes: record batches of Apache Kafka's format.

    log        one batch per entry; its leader epoch is the entry's epoch
    snapshot   header (control), voters (control), the records in batches, footer (control)

Entries of the quorum itself are control batches, with the records that Apache Kafka writes for
the same purpose, so that its tools can read these files: LeaderChangeMessage 0, VotersRecord 0,
SnapshotHeaderRecord 0, SnapshotFooterRecord 0. Batches carry no timestamp, so that all members
have the same bytes.

Rules of this file:
- Invalid bytes raise a `WireError`.
- A snapshot without its footer is truncated, and is rejected as a whole.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from shoal.lite.raft.model import EntryKind, RaftEntry, Voter, Voters
from shoal.wire.batch import NO_TIMESTAMP, Batch, iter_batches
from shoal.wire.errors import Malformed, Truncated
from shoal.wire.primitives import INT16, INT32, INT64, Cursor, put_count, put_string
from shoal.wire.records.records import ControlType, Record, decode_records, encode_batch

_CONTROL_KEY = struct.Struct(">hh")
_VOTER = struct.Struct(">i16s")
_PORT = struct.Struct(">H")
_NO_TAGS = b"\x00"
# How many records of a snapshot share a batch.
_SNAPSHOT_BATCH_RECORDS = 1000
# An entry with at least so many records is encoded once, not once for each node.
_LARGE_RECORDS = 100

_CONTROL_TYPES = {
    EntryKind.LEADER_CHANGE: ControlType.LEADER_CHANGE,
    EntryKind.VOTERS: ControlType.KRAFT_VOTERS,
}
_KINDS: dict[int, EntryKind] = {control: kind for kind, control in _CONTROL_TYPES.items()}


# Entries


class _EncodedEntryCache:
    """The batch of the last large entry: it is written once, and sent to every node."""

    def __init__(self) -> None:
        self.entry: RaftEntry | None = None
        self.base_offset = 0
        self.batch = b""


_last = _EncodedEntryCache()


def encode_entry(entry: RaftEntry, base_offset: int) -> bytes | bytearray:
    """The batch of an entry that begins at `base_offset`; callers must not modify it."""
    if entry.count < _LARGE_RECORDS:
        return _encode_uncached(entry, base_offset)
    if _last.entry is not entry or _last.base_offset != base_offset:
        _last.batch = bytes(_encode_uncached(entry, base_offset))
        _last.entry, _last.base_offset = entry, base_offset
    return _last.batch


def _encode_uncached(entry: RaftEntry, base_offset: int) -> bytearray:
    control = _CONTROL_TYPES.get(entry.kind)
    key = None if control is None else _CONTROL_KEY.pack(0, control)
    return encode_batch(
        [Record(0, NO_TIMESTAMP, key, value) for value in entry.records],
        base_offset=base_offset,
        leader_epoch=entry.epoch,
        is_control=control is not None,
    )


def encode_entries(entries: Sequence[RaftEntry], base_offset: int) -> bytearray:
    """The batches of consecutive entries."""
    output = bytearray()
    for entry in entries:
        output += encode_entry(entry, base_offset)
        base_offset += entry.count
    return output


def decode_entry(batch: Batch) -> RaftEntry:
    """The entry of a batch whose checksum has been checked."""
    records = decode_records(batch)
    values = tuple(record.value or b"" for record in records)
    if len(values) != batch.last_offset_delta + 1 or not values:
        raise Malformed(f"{batch!r} has gaps between its offsets")
    if not batch.is_control:
        return RaftEntry(batch.leader_epoch, values)
    kind = _KINDS.get(_control_type(records[0]))
    if kind is None or len(values) != 1:
        raise Malformed(f"{batch!r} is a control batch that does not belong in the metadata log")
    return RaftEntry(batch.leader_epoch, values, kind)


def decode_entries(data: memoryview) -> Iterator[tuple[int, RaftEntry]]:
    """Each whole batch: its first offset, and its entry."""
    for batch in iter_batches(data):
        batch.check_crc()
        yield batch.base_offset, decode_entry(batch)


def _control_type(record: Record) -> int:
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise Malformed(f"the control record at offset {record.offset} has no type")
    kind: int = _CONTROL_KEY.unpack_from(record.key)[1]
    return kind


# Control records of the quorum


def encode_leader_change(leader_id: int, voters: Voters, granting: Iterable[int]) -> bytes:
    """The first entry of a leader: who it is, and who voted for it."""
    # Version 0, without directories: Apache Kafka's tools read nothing newer.
    output = bytearray(INT16.pack(0) + INT32.pack(leader_id))
    for ids in (voters.ids, sorted(granting)):
        put_count(output, len(ids), flexible=True)
        for voter_id in ids:
            output += INT32.pack(voter_id) + _NO_TAGS
    return bytes(output + _NO_TAGS)


def encode_voters(voters: Voters) -> bytes:
    """A set of voters with their addresses."""
    output = bytearray(INT16.pack(0))
    put_count(output, len(voters), flexible=True)
    for voter in voters:
        output += _VOTER.pack(voter.id, voter.directory.bytes)
        put_count(output, 1, flexible=True)
        put_string(output, "CONTROLLER", flexible=True)
        put_string(output, voter.host, flexible=True)
        output += _PORT.pack(voter.port) + _NO_TAGS
        # The versions of the protocol that the voter speaks: 0 and 1, as Apache Kafka counts.
        output += INT16.pack(0) + INT16.pack(1) + _NO_TAGS + _NO_TAGS
    return bytes(output + _NO_TAGS)


def decode_voters(data: bytes) -> Voters:
    cursor = Cursor(memoryview(data), flexible=True)
    [version] = cursor.unpack(INT16, "version of a set of voters")
    if version != 0:
        raise Malformed(f"a VotersRecord has version {version}, this version of shoal knows 0")
    voters = [_decode_voter(cursor) for _ in range(cursor.count("voters", least_size=20))]
    cursor.tags("voters")
    decoded = Voters(voters)
    if not voters or len(decoded) != len(voters) or cursor.position != len(data):
        raise Malformed("a VotersRecord is empty, names a voter twice, or has extra bytes")
    return decoded


def _decode_voter(cursor: Cursor) -> Voter:
    voter_id, directory = cursor.unpack(_VOTER, "voter")
    host, port = "", 0
    for _ in range(cursor.count("endpoints", least_size=5)):
        cursor.string("listener")
        host = cursor.string("host")
        [port] = cursor.unpack(_PORT, "port")
        cursor.tags("endpoint")
    cursor.unpack(INT16, "least version")
    cursor.unpack(INT16, "greatest version")
    cursor.tags("versions")
    cursor.tags("voter")
    return Voter(voter_id, UUID(bytes=directory), host, port)


# Snapshots


class SnapshotContent(NamedTuple):
    """The content of a snapshot: the voters, and the records that make the state."""

    voters: Voters
    records: tuple[bytes, ...]


def encode_snapshot(voters: Voters, records: Sequence[bytes], epoch: int) -> bytes:
    """The bytes of a snapshot; `epoch` is that of the last entry it covers."""
    output = bytearray()
    offset = 0

    def add(kind: ControlType | None, values: Sequence[bytes]) -> None:
        nonlocal offset
        key = None if kind is None else _CONTROL_KEY.pack(0, kind)
        batch = [Record(0, NO_TIMESTAMP, key, value) for value in values]
        is_control = kind is not None
        output.extend(
            encode_batch(batch, base_offset=offset, leader_epoch=epoch, is_control=is_control)
        )
        offset += len(values)

    add(ControlType.SNAPSHOT_HEADER, [INT16.pack(0) + INT64.pack(NO_TIMESTAMP) + _NO_TAGS])
    add(ControlType.KRAFT_VOTERS, [encode_voters(voters)])
    for start in range(0, len(records), _SNAPSHOT_BATCH_RECORDS):
        add(None, records[start : start + _SNAPSHOT_BATCH_RECORDS])
    add(ControlType.SNAPSHOT_FOOTER, [INT16.pack(0) + _NO_TAGS])
    return bytes(output)


def decode_snapshot(data: bytes) -> SnapshotContent:
    voters: Voters | None = None
    records: list[bytes] = []
    last_type = -1
    size = 0
    for batch in iter_batches(memoryview(data)):
        batch.check_crc()
        decoded = decode_records(batch)
        last_type = _control_type(decoded[0]) if batch.is_control and decoded else -1
        if last_type == ControlType.KRAFT_VOTERS:
            voters = decode_voters(decoded[0].value or b"")
        elif not batch.is_control:
            records += [record.value or b"" for record in decoded]
        size += batch.size
    if last_type != ControlType.SNAPSHOT_FOOTER or size != len(data):
        raise Truncated("a snapshot lacks its footer", position=size)
    if voters is None:
        raise Malformed("a snapshot lacks its VotersRecord")
    return SnapshotContent(voters, tuple(records))
