"""Shared by the messages that carry record sets: Produce, Fetch and CompareAndAppend.

They are lists of topics that contain lists of partitions; callers see one flat list of partitions.
Newer versions name a topic by its id, older ones by its name: the one that a version does not have
is None or "". Record sets are decoded as views, never as copies; they are encoded from views or
from anything else that has a length, which the sender turns into bytes.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from struct import Struct
from typing import Generic, NamedTuple, ParamSpec, Protocol, TypeVar
from uuid import UUID

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import Unencodable, UnsupportedVersion
from shoal.wire.framing import Part, PieceT
from shoal.wire.messages import put_request_header
from shoal.wire.primitives import Cursor, put_count, put_string, put_tags

NO_RECORDS = memoryview(b"")

_ZERO_ID = bytes(16)
# Counts below this take one byte in a flexible message.
_ONE_BYTE = 0x7F
_TOPIC_ID = Struct(">16s")
_INT32 = Struct(">i")
_LEADER = Struct(">ii")


class CurrentLeader(NamedTuple):
    """The leader of a partition, in the response of a node that is not the leader."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """The endpoint of a leader that a response names."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class HasTopic(Protocol):
    """Anything that belongs to a topic."""

    @property
    def topic(self) -> str: ...

    @property
    def topic_id(self) -> UUID | None: ...


HasTopicT = TypeVar("HasTopicT", bound=HasTopic)
PartitionT = TypeVar("PartitionT")
Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")


class Writer(Generic[PieceT]):
    """The parts of a message under construction: encoded bytes, and record sets as given."""

    __slots__ = ("_parts", "flexible", "output", "uses_ids")

    def __init__(self, header: bytearray, flexible: bool, uses_ids: bool) -> None:
        self.output = header
        self.flexible = flexible
        self.uses_ids = uses_ids
        self._parts: list[Part | PieceT] = []

    def string(self, value: str | None) -> None:
        put_string(self.output, value, flexible=self.flexible)

    def count(self, count: int) -> None:
        if self.flexible and count < _ONE_BYTE:
            self.output.append(count + 1)
        else:
            put_count(self.output, count, flexible=self.flexible)

    def records(self, *pieces: PieceT) -> None:
        """Write the length of a record set, and add the record set in the given pieces."""
        put_count(self.output, sum(map(len, pieces)), flexible=self.flexible)
        self._parts += (self.output, *pieces)
        self.output = bytearray()

    def partition_records(self, partition: int, piece: PieceT) -> None:
        """Write a partition that has only a record set, in one piece."""
        output, flexible = self.output, self.flexible
        output += _INT32.pack(partition)
        put_count(output, len(piece), flexible=flexible)
        self._parts += (output, piece)
        self.output = bytearray(flexible)  # a 0 for no tagged fields

    def topics(self, items: Iterable[HasTopicT], write_item: Callable[[HasTopicT], None]) -> None:
        """Write a list of topics, each with its items, in the order of first mention."""
        groups: dict[str | UUID | None, list[HasTopicT]] = {}
        members: list[HasTopicT] = []
        last_key: str | UUID | None = None
        for item in items:
            key = item.topic_id if self.uses_ids else item.topic
            if key is not last_key or not members:
                # Items of a topic are usually adjacent, and hashing an id costs a call.
                members = groups.setdefault(key, [])
                last_key = key
            members.append(item)
        self.count(len(groups))
        for members in groups.values():
            self._topic(members[0])
            self.count(len(members))
            for item in members:
                write_item(item)
            self.no_tags()

    def no_tags(self) -> None:
        """End a structure without tagged fields."""
        if self.flexible:
            self.output.append(0)

    def tags(self, tagged: Sequence[tuple[int, bytes | bytearray]]) -> None:
        """End a structure with tagged fields, in ascending order; flexible versions only."""
        put_tags(self.output, tagged)

    def finish(self) -> list[Part | PieceT]:
        """All parts, in order."""
        return [*self._parts, self.output] if self.output else self._parts

    def _topic(self, item: HasTopic) -> None:
        if not self.uses_ids:
            self.string(item.topic)
        elif item.topic_id is None:
            raise Unencodable(f"topic {item.topic!r} has no id, which this version requires")
        else:
            self.output += item.topic_id.bytes


class Versions(NamedTuple):
    """The supported versions of a message, and the first versions of its layouts.

    All readers and writers are created here, and refuse a version that is not supported.
    """

    api_key: ApiKey
    known: range
    flexible_from: int
    topic_ids_from: int

    def request_writer(
        self, version: int, *, correlation_id: int, client_id: str | None
    ) -> "Writer[PieceT]":
        """A writer for the body of a request; its header is already written."""
        if version not in self.known:
            raise self._unknown(version)
        header = put_request_header(
            self.api_key, version, correlation_id=correlation_id, client_id=client_id
        )
        return Writer(header, version >= self.flexible_from, version >= self.topic_ids_from)

    def response_writer(self, version: int, correlation_id: int) -> "Writer[PieceT]":
        """A writer for the body of a response; its header is already written."""
        if version not in self.known:
            raise self._unknown(version)
        header = bytearray(_INT32.pack(correlation_id))
        flexible = version >= self.flexible_from
        if flexible:
            header.append(0)
        return Writer(header, flexible, version >= self.topic_ids_from)

    def request_cursor(self, version: int, frame: Part, position: int) -> Cursor:
        """A cursor for a request whose body begins at `position`."""
        if version not in self.known:
            raise self._unknown(version)
        return Cursor(memoryview(frame), position, flexible=version >= self.flexible_from)

    def response_cursor(self, version: int, frame: Part) -> Cursor:
        """A cursor for the body of a response."""
        if version not in self.known:
            raise self._unknown(version)
        cursor = Cursor(memoryview(frame), flexible=version >= self.flexible_from)
        cursor.unpack(_INT32, "response header")
        if cursor.flexible:
            cursor.tags("response header")
        return cursor

    def _unknown(self, version: int) -> UnsupportedVersion:
        name = self.api_key.name.title().replace("_", "")
        return UnsupportedVersion(
            f"{name} version {version} is not supported, only {self.known[0]} to {self.known[-1]}"
        )


def read_topics(
    cursor: Cursor,
    read_item: Callable[[str, UUID | None], PartitionT],
    *,
    uses_ids: bool,
    least_item_size: int,
) -> list[PartitionT]:
    """The items of a list of topics, flat; `read_item` gets the topic."""
    items: list[PartitionT] = []
    name, topic_id = "", None
    for _ in range(cursor.count("topics", least_size=3)):
        if uses_ids:
            topic_id = read_topic_id(cursor)
        else:
            name = cursor.string("topic name")
        for _ in range(cursor.count("partitions", least_size=least_item_size)):
            items.append(read_item(name, topic_id))  # noqa: PERF401 - reads as it goes
        if cursor.flexible:
            cursor.tags("topic")
    return items


def read_topic_id(cursor: Cursor) -> UUID | None:
    """A topic's id, or None for the zero id."""
    data: bytes = cursor.unpack(_TOPIC_ID, "topic id")[0]
    return None if data == _ZERO_ID else _topic_id(data)


@lru_cache(maxsize=4096)
def _topic_id(data: bytes) -> UUID:
    """Cached by topic: creating a UUID takes as long as the rest of a partition."""
    return UUID(bytes=data)


def read_current_leader(cursor: Cursor) -> CurrentLeader:
    """The value of the tagged field of this name."""
    leader = CurrentLeader(*cursor.unpack(_LEADER, "current leader"))
    cursor.tags("current leader")
    return leader


def current_leader_bytes(leader: CurrentLeader) -> bytes:
    """The value of the tagged field of this name."""
    return _LEADER.pack(*leader) + b"\x00"


def read_node_endpoints(cursor: Cursor) -> tuple[NodeEndpoint, ...]:
    """The value of the tagged field of this name."""
    endpoints = []
    for _ in range(cursor.count("node endpoints", least_size=11)):
        (node_id,) = cursor.unpack(_INT32, "node id")
        host = cursor.string("node's host")
        (port,) = cursor.unpack(_INT32, "node's port")
        endpoints.append(NodeEndpoint(node_id, host, port, cursor.nullable_string("node's rack")))
        cursor.tags("node endpoint")
    return tuple(endpoints)


def node_endpoints_bytes(endpoints: Sequence[NodeEndpoint]) -> bytearray:
    """The value of the tagged field of this name."""
    output = bytearray()
    put_count(output, len(endpoints), flexible=True)
    for endpoint in endpoints:
        output += _INT32.pack(endpoint.node_id)
        put_string(output, endpoint.host, flexible=True)
        output += _INT32.pack(endpoint.port)
        put_string(output, endpoint.rack, flexible=True)
        output.append(0)
    return output


def encoder(encode: Callable[Parameters, ResultT]) -> Callable[Parameters, ResultT]:
    """Raise `Unencodable` instead of `struct.error` for a value that does not fit its field."""

    @wraps(encode)
    def encode_checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        try:
            return encode(*args, **kwargs)
        except struct.error as error:
            raise Unencodable(f"a value does not fit its field: {error}") from error

    return encode_checked
