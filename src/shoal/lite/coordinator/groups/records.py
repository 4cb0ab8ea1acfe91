"""The records of `__consumer_offsets`, byte for byte as Apache Kafka writes them.

Each key begins with a version that says what the record is about; each value with a version of
its own format. Kafka's tools and formatters can read these records, and this module can read
Kafka's records of all versions.

    key      0, 1 a committed offset: group, topic, partition     2 a group: its id
    offset   0 to 2 offset, metadata, times    3 leader epoch    4 topic id, flexible
    group    0 protocol, generation, leader, members    1 rebalance time-outs    2 since when
             3 instance ids    4 flexible

Groups are written in version 3, as Kafka does, and offsets in version 4, with the id of their
topic. Offsets that expire at a time of their own are written in version 1, the only one that has
it; they have no topic id, nor has what older versions of this project wrote (3).
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from shoal.wire.errors import Malformed
from shoal.wire.primitives import INT16, INT32, Cursor, put_count, put_string, put_tags

NO_LEADER_EPOCH = -1
_INT64 = Struct(">q")
_OFFSET_KEYS = (0, 1)
_GROUP_KEY = 2
_OFFSET_VERSION = 4
_OFFSET_VERSION_WITHOUT_ID = 3
_EXPIRING_VERSION = 1
_GROUP_VERSION = 3
_LAST_VERSION = 4
# The first version of a format that has a field.
_WITH_EXPIRY = 1
_WITH_REBALANCE_TIMEOUT = 1
_WITH_SINCE = 2
_WITH_EPOCH = 3
_WITH_INSTANCE = 3
_FLEXIBLE = 4
_TOPIC_ID = 0
_OFFSET_TAGS: dict[int, Callable[[Cursor], UUID]] = {
    _TOPIC_ID: lambda cursor: UUID(bytes=bytes(cursor.take(16, "topic id")))
}
_ZERO_ID = UUID(int=0)


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class CommittedOffset(NamedTuple):
    """The offset that a consumer committed for a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    # Set only by commits of old clients that contain a retention time.
    expire_ms: int | None = None
    # The id of the topic; None in formats without it.
    topic_id: UUID | None = None


class StoredMember(NamedTuple):
    """A member in the record of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """The record of a group, written when members got assignments or the last one left."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[StoredMember, ...]


# Writing


def encode_offset_key(key: OffsetKey) -> bytes:
    output = bytearray(INT16.pack(_OFFSET_KEYS[-1]))
    put_string(output, key.group, flexible=False)
    put_string(output, key.topic, flexible=False)
    output += INT32.pack(key.partition)
    return bytes(output)


def encode_group_key(group: str) -> bytes:
    output = bytearray(INT16.pack(_GROUP_KEY))
    put_string(output, group, flexible=False)
    return bytes(output)


def encode_offset(value: CommittedOffset) -> bytes:
    if value.expire_ms is not None:
        version = _EXPIRING_VERSION
    else:
        version = _OFFSET_VERSION_WITHOUT_ID if value.topic_id is None else _OFFSET_VERSION
    output = bytearray(INT16.pack(version))
    output += _INT64.pack(value.offset)
    if version >= _WITH_EPOCH:
        output += INT32.pack(value.leader_epoch)
    put_string(output, value.metadata, flexible=version >= _FLEXIBLE)
    output += _INT64.pack(value.commit_ms)
    if value.expire_ms is not None:
        output += _INT64.pack(value.expire_ms)
    if version >= _FLEXIBLE and value.topic_id is not None:
        put_tags(output, [(_TOPIC_ID, value.topic_id.bytes)])
    return bytes(output)


def encode_group(group: StoredGroup) -> bytes:
    output = bytearray(INT16.pack(_GROUP_VERSION))
    put_string(output, group.protocol_type, flexible=False)
    output += INT32.pack(group.generation)
    put_string(output, group.protocol, flexible=False)
    put_string(output, group.leader, flexible=False)
    output += _INT64.pack(group.since_ms)
    put_count(output, len(group.members), flexible=False)
    for member in group.members:
        put_string(output, member.member_id, flexible=False)
        put_string(output, member.instance_id, flexible=False)
        put_string(output, member.client_id, flexible=False)
        put_string(output, member.client_host, flexible=False)
        output += INT32.pack(member.rebalance_timeout_ms)
        output += INT32.pack(member.session_timeout_ms)
        for blob in (member.subscription, member.assignment):
            put_count(output, len(blob), flexible=False)
            output += blob
    return bytes(output)


# Reading


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode the key of a record; None if its version is unknown."""
    cursor = Cursor(memoryview(data), flexible=False)
    version = cursor.unpack(INT16, "key version")[0]
    if version in _OFFSET_KEYS:
        group, topic = cursor.string("group"), cursor.string("topic")
        return OffsetKey(group, topic, cursor.unpack(INT32, "partition")[0])
    if version == _GROUP_KEY:
        return GroupKey(cursor.string("group"))
    return None


def decode_offset(data: bytes) -> CommittedOffset:
    cursor, version = _begin(data, "offset")
    offset = cursor.unpack(_INT64, "offset")[0]
    epoch = cursor.unpack(INT32, "leader epoch")[0] if version >= _WITH_EPOCH else NO_LEADER_EPOCH
    metadata = cursor.string("metadata")
    commit_ms = cursor.unpack(_INT64, "commit time")[0]
    expire_ms = None
    if version == _WITH_EXPIRY:
        expire_ms = cursor.unpack(_INT64, "expiry time")[0]
        expire_ms = None if expire_ms < 0 else expire_ms
    tags = cursor.tags("offset", _OFFSET_TAGS) if version >= _FLEXIBLE else {}
    topic_id = tags.get(_TOPIC_ID, _ZERO_ID)
    return CommittedOffset(
        offset, epoch, metadata, commit_ms, expire_ms, None if topic_id == _ZERO_ID else topic_id
    )


def decode_group(data: bytes) -> StoredGroup:
    cursor, version = _begin(data, "group")
    protocol_type = cursor.string("protocol type")
    generation = cursor.unpack(INT32, "generation")[0]
    protocol = cursor.nullable_string("protocol")
    leader = cursor.nullable_string("leader")
    since_ms = cursor.unpack(_INT64, "since")[0] if version >= _WITH_SINCE else -1
    count = cursor.count("members", least_size=1)
    members = tuple(_decode_member(cursor, version) for _ in range(count))
    return StoredGroup(protocol_type, generation, protocol, leader, since_ms, members)


def _decode_member(cursor: Cursor, version: int) -> StoredMember:
    member_id = cursor.string("member id")
    instance_id = cursor.nullable_string("instance id") if version >= _WITH_INSTANCE else None
    client_id, client_host = cursor.string("client id"), cursor.string("client host")
    timeouts = [cursor.unpack(INT32, "time-out")[0]]
    if version >= _WITH_REBALANCE_TIMEOUT:
        timeouts.append(cursor.unpack(INT32, "time-out")[0])
    subscription, assignment = cursor.blob("subscription"), cursor.blob("assignment")
    if version >= _FLEXIBLE:
        cursor.tags("member")
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        timeouts[0],
        timeouts[-1],
        bytes(subscription or b""),
        bytes(assignment or b""),
    )


def _begin(data: bytes, what: str) -> tuple[Cursor, int]:
    version: int = Cursor(memoryview(data), flexible=False).unpack(INT16, f"{what} version")[0]
    if not 0 <= version <= _LAST_VERSION:
        raise Malformed(f"{what}: version {version} is unknown", position=0)
    return Cursor(memoryview(data), INT16.size, flexible=version >= _FLEXIBLE), version
