"""What the two hot messages, Produce and Fetch, have in common on the wire.

Both are lists of topics that hold lists of partitions; callers see one flat list of partitions.
Newer versions name a topic by its id, older ones by its name: the one that a version does not
carry is "" or None. Record sets come out as views, never as copies; they go in as views or as
anything else that has a length, for the sender to make bytes of.
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
# Counts below it are one byte of a flexible message.
_ONE_BYTE = 0x7F
_TOPIC_ID = Struct(">16s")
_INT32 = Struct(">i")
_LEADER = Struct(">ii")


class CurrentLeader(NamedTuple):
    """Who leads a partition, as said by a node that does not."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where a leader that an answer names can be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class OfTopic(Protocol):
    """Anything that belongs to a topic."""

    @property
    def topic(self) -> str: ...

    @property
    def topic_id(self) -> UUID | None: ...


OfTopicT = TypeVar("OfTopicT", bound=OfTopic)
PartitionT = TypeVar("PartitionT")
Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")


class Writer(Generic[PieceT]):
    """The parts of a message under construction: bytes of ours, and record sets as given."""

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
        """The length of a record set, and the record set in as many pieces as it was given."""
        put_count(self.output, sum(map(len, pieces)), flexible=self.flexible)
        self._parts += (self.output, *pieces)
        self.output = bytearray()

    def topics(self, items: Iterable[OfTopicT], write_item: Callable[[OfTopicT], None]) -> None:
        """A list of topics with, in each, a list of its items; in the order of first mention."""
        groups: dict[str | UUID | None, list[OfTopicT]] = {}
        members: list[OfTopicT] = []
        last_key: str | UUID | None = None
        for item in items:
            key = item.topic_id if self.uses_ids else item.topic
            if key is not last_key or not members:
                # Mostly they stand together, and an id's hash costs a call.
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
        """The end of a structure without tagged fields."""
        if self.flexible:
            self.output.append(0)

    def tags(self, tagged: Sequence[tuple[int, bytes | bytearray]]) -> None:
        """The end of a structure with tagged fields, in ascending order; flexible only."""
        put_tags(self.output, tagged)

    def finish(self) -> list[Part | PieceT]:
        """All parts, in order."""
        return [*self._parts, self.output] if self.output else self._parts

    def _topic(self, item: OfTopic) -> None:
        if not self.uses_ids:
            self.string(item.topic)
        elif item.topic_id is None:
            raise Unencodable(f"topic {item.topic!r} without the id that this version asks for")
        else:
            self.output += item.topic_id.bytes


class Versions(NamedTuple):
    """The versions of a message that we know, and from which on they are of what layout.

    Whatever reads or writes one is made here, and refuses a version whose layout we do not know.
    """

    api_key: ApiKey
    known: range
    flexible_from: int
    topic_ids_from: int

    def request_writer(
        self, version: int, *, correlation_id: int, client_id: str | None
    ) -> "Writer[PieceT]":
        """What writes the body of a request; its header is there."""
        if version not in self.known:
            raise self._unknown(version)
        header = put_request_header(
            self.api_key, version, correlation_id=correlation_id, client_id=client_id
        )
        return Writer(header, version >= self.flexible_from, version >= self.topic_ids_from)

    def response_writer(self, version: int, correlation_id: int) -> "Writer[PieceT]":
        """What writes the body of a response; its header is there."""
        if version not in self.known:
            raise self._unknown(version)
        header = bytearray(_INT32.pack(correlation_id))
        flexible = version >= self.flexible_from
        if flexible:
            header.append(0)
        return Writer(header, flexible, version >= self.topic_ids_from)

    def request_cursor(self, version: int, frame: Part, position: int) -> Cursor:
        """What reads a request whose body begins at `position`."""
        if version not in self.known:
            raise self._unknown(version)
        return Cursor(memoryview(frame), position, flexible=version >= self.flexible_from)

    def response_cursor(self, version: int, frame: Part) -> Cursor:
        """What reads the body of a response."""
        if version not in self.known:
            raise self._unknown(version)
        cursor = Cursor(memoryview(frame), flexible=version >= self.flexible_from)
        cursor.fixed(_INT32, "response header")
        if cursor.flexible:
            cursor.tags("response header")
        return cursor

    def _unknown(self, version: int) -> UnsupportedVersion:
        name = self.api_key.name.title().replace("_", "")
        return UnsupportedVersion(
            f"{name} {version} is not among the known versions {self.known[0]} to {self.known[-1]}"
        )


def read_topics(
    cursor: Cursor,
    read_item: Callable[[str, UUID | None], PartitionT],
    *,
    uses_ids: bool,
    least_item_size: int,
) -> list[PartitionT]:
    """The items of a list of topics, flat; `read_item` is told the topic."""
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
    """A topic's id, or None where the bytes say that there is none."""
    data: bytes = cursor.fixed(_TOPIC_ID, "topic id")[0]
    return None if data == _ZERO_ID else _topic_id(data)


@lru_cache(maxsize=4096)
def _topic_id(data: bytes) -> UUID:
    """Made once for each topic: it takes as long as the rest of a partition."""
    return UUID(bytes=data)


def read_current_leader(cursor: Cursor) -> CurrentLeader:
    """The value of the tagged field of that name."""
    leader = CurrentLeader(*cursor.fixed(_LEADER, "current leader"))
    cursor.tags("current leader")
    return leader


def current_leader_bytes(leader: CurrentLeader) -> bytes:
    """The value of the tagged field of that name."""
    return _LEADER.pack(*leader) + b"\x00"


def read_node_endpoints(cursor: Cursor) -> tuple[NodeEndpoint, ...]:
    """The value of the tagged field of that name."""
    endpoints = []
    for _ in range(cursor.count("node endpoints", least_size=11)):
        (node_id,) = cursor.fixed(_INT32, "node id")
        host = cursor.string("node's host")
        (port,) = cursor.fixed(_INT32, "node's port")
        endpoints.append(NodeEndpoint(node_id, host, port, cursor.nullable_string("node's rack")))
        cursor.tags("node endpoint")
    return tuple(endpoints)


def node_endpoints_bytes(endpoints: Sequence[NodeEndpoint]) -> bytearray:
    """The value of the tagged field of that name."""
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
    """Say in our own words that a number does not fit its field."""

    @wraps(encode)
    def encode_or_refuse(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        try:
            return encode(*args, **kwargs)
        except struct.error as error:
            raise Unencodable(f"a value does not fit its field: {error}") from error

    return encode_or_refuse
