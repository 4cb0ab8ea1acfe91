"""The building blocks of Kafka's messages: numbers, strings, blobs, arrays, tagged fields.

A version of a message is either flexible (KIP-482: lengths are unsigned varints of length + 1
with 0 for null, and every structure ends with tagged fields) or it is not (lengths are int16
for strings and int32 for the rest, with -1 for null). A `Cursor` knows which it reads.

Rules of this file:
- Every read checks that enough bytes are left; its error names what was being read.
- A count is refused if its items cannot fit in the bytes left. The items of one message are also
  limited, because two bytes on the wire can be two hundred in memory.
- Unknown tagged fields are skipped by their size: they come from newer peers.
- A message ends with its last field. Bytes after it are ignored, as in Apache Kafka's brokers and
  clients, because some peers send them: librdkafka's request for the metadata of all topics has
  three extra bytes, and the responses of its mock brokers have others.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import Any, NoReturn

from shoal.wire.errors import LimitExceeded, Malformed, Truncated, Unencodable

INT8 = Struct(">b")
INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")

# The maximum weight of the items of one message: a number in an array weighs 1, a structure 8.
# Enough for the metadata of half a million partitions, about 300 MB of objects.
ITEM_BUDGET = 8_000_000
NUMBER_WEIGHT = 1
STRUCTURE_WEIGHT = 8

_INT16_MAX = (1 << 15) - 1
_INT32_MAX = (1 << 31) - 1
_ONE_BYTE = 0x7F  # the largest varint of one byte
_VARINT_BITS = 35  # of which 32 may be used
_NOTHING: Mapping[int, Any] = MappingProxyType({})


class Cursor:
    """A position in the bytes of one message, which moves with every read."""

    __slots__ = ("budget", "end", "flexible", "position", "view")

    def __init__(self, view: memoryview, position: int = 0, *, flexible: bool) -> None:
        self.view = view
        self.position = position
        self.end = len(view)
        self.flexible = flexible
        self.budget = ITEM_BUDGET

    def unpack(self, layout: Struct, what: str) -> tuple[Any, ...]:
        """Read fields of fixed size, all at once."""
        position = self.position
        try:
            values = layout.unpack_from(self.view, position)
        except struct.error:
            self._raise_truncated(what, layout.size)
        self.position = position + layout.size
        return values

    def varint(self, what: str) -> int:
        """An unsigned varint of at most 32 bits."""
        position = self.position
        view = self.view
        value = shift = 0
        try:
            while shift < _VARINT_BITS:
                byte = view[position]
                position += 1
                if byte < 0x80:
                    self.position = position
                    value |= byte << shift
                    if value >> 32:
                        break
                    return value
                value |= (byte & 0x7F) << shift
                shift += 7
        except IndexError:
            self._raise_truncated(what, position + 1 - self.position)
        raise Malformed(f"{what}: a varint does not fit 32 bits", position=self.position)

    def string(self, what: str) -> str:
        """A string that may not be null."""
        value = self.nullable_string(what)
        if value is None:
            self.raise_null(what)
        return value

    def nullable_string(self, what: str) -> str | None:
        """A string, or None for null."""
        position = self.position
        if self.flexible and position < self.end and self.view[position] == 1:
            self.position = position + 1
            return ""
        length = self.varint(what) - 1 if self.flexible else self._length(INT16, what)
        if length < 0:
            return None
        position = self.position
        end = position + length
        if end > self.end:
            self._raise_truncated(what, length)
        self.position = end
        try:
            return str(self.view[position:end], "utf-8")
        except UnicodeDecodeError as error:
            message = f"{what}: not UTF-8 ({error.reason})"
            raise Malformed(message, position=position + error.start) from None

    def blob(self, what: str) -> memoryview | None:
        """Bytes as a view into the message, or None for null."""
        length = self.varint(what) - 1 if self.flexible else self._length(INT32, what)
        if length < 0:
            return None
        position = self.position
        end = position + length
        if end > self.end:
            self._raise_truncated(what, length)
        self.position = end
        return self.view[position:end]

    def take(self, size: int, what: str) -> memoryview:
        """The next `size` bytes, as a view."""
        position = self.position
        if size > self.end - position:
            self._raise_truncated(what, size)
        self.position = position + size
        return self.view[position : position + size]

    def count(self, what: str, *, least_size: int, weight: int = STRUCTURE_WEIGHT) -> int:
        """The number of items of an array, each of at least `least_size` bytes; not null."""
        position = self.position
        if self.flexible and position < self.end and 0 < (byte := self.view[position]) < 0x80:
            # The usual case: one byte, and a valid count.
            count = byte - 1
            if count * least_size < self.end - position and count * weight <= self.budget:
                self.position = position + 1
                self.budget -= count * weight
                return count
        count = self.nullable_count(what, least_size=least_size, weight=weight)
        if count < 0:
            self.raise_null(what)
        return count

    def nullable_count(self, what: str, *, least_size: int, weight: int = STRUCTURE_WEIGHT) -> int:
        """The number of items of an array; -1 for null."""
        position = self.position
        count = self.varint(what) - 1 if self.flexible else self._length(INT32, what)
        if count <= 0:
            return count
        if count * least_size > self.end - self.position:
            message = f"{what}: {count} items do not fit in {self.end - self.position} bytes"
            raise Truncated(message, position=position)
        self.budget -= count * weight
        if self.budget < 0:
            message = f"{what}: {count} items exceed the limit of one message"
            raise LimitExceeded(message, position=position)
        return count

    def tags(
        self, what: str, readers: Mapping[int, Callable[["Cursor"], Any]] = _NOTHING
    ) -> Mapping[int, Any]:
        """The tagged fields of a structure by tag; those without a reader are skipped."""
        position = self.position
        if position < self.end and self.view[position] == 0:  # nearly always
            self.position = position + 1
            return _NOTHING
        found = {}
        for _ in range(self.varint(what)):
            tag = self.varint(what)
            size = self.varint(what)
            reader = readers.get(tag)
            if reader is None:
                self.take(size, what)
            else:
                found[tag] = self._read_tag(reader, size, f"{what}, tag {tag}")
        return found

    def _read_tag(self, reader: Callable[["Cursor"], Any], size: int, what: str) -> Any:
        """Read a tagged field, which must take exactly `size` bytes."""
        outer_view, outer_end = self.view, self.end
        tag_end = self.position + size
        if tag_end > outer_end:
            self._raise_truncated(what, size)
        self.view, self.end = outer_view[:tag_end], tag_end
        value = reader(self)
        if self.position != tag_end:
            message = f"{what}: {tag_end - self.position} unread bytes"
            raise Malformed(message, position=self.position)
        self.view, self.end = outer_view, outer_end
        return value

    def _length(self, layout: Struct, what: str) -> int:
        length: int = self.unpack(layout, what)[0]
        if length < -1:
            message = f"{what}: invalid length {length}"
            raise Malformed(message, position=self.position - layout.size)
        return length

    def _raise_truncated(self, what: str, size: int) -> NoReturn:
        message = f"{what}: {size} bytes expected, {max(0, self.end - self.position)} left"
        raise Truncated(message, position=self.position)

    def raise_null(self, what: str) -> NoReturn:
        raise Malformed(f"{what}: must not be null", position=self.position)


def put_varint(output: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > _ONE_BYTE:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)


def put_string(output: bytearray, value: str | None, *, flexible: bool) -> None:
    """Append a string, or null."""
    if value is None:
        output += b"\x00" if flexible else b"\xff\xff"
        return
    data = value.encode()
    if flexible:
        put_varint(output, len(data) + 1)
    elif len(data) > _INT16_MAX:
        raise Unencodable(f"a string of {len(data)} bytes is too long: the limit is {_INT16_MAX}")
    else:
        output += INT16.pack(len(data))
    output += data


def put_count(output: bytearray, count: int, *, flexible: bool) -> None:
    """Append the number of items of an array, or of bytes; -1 is null."""
    if count > _INT32_MAX - 1:
        raise Unencodable(f"{count} items or bytes are too many: the limit is {_INT32_MAX - 1}")
    if flexible:
        put_varint(output, count + 1)
    else:
        output += INT32.pack(count)


def put_tags(output: bytearray, tagged: Sequence[tuple[int, bytes | bytearray]]) -> None:
    """Append the tagged fields that end a flexible structure, in ascending order."""
    if not tagged:
        output.append(0)
        return
    put_varint(output, len(tagged))
    for tag, data in tagged:
        if tag <= _ONE_BYTE and len(data) <= _ONE_BYTE:
            output += bytes((tag, len(data)))
        else:
            put_varint(output, tag)
            put_varint(output, len(data))
        output += data
