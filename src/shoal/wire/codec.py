"""Any Kafka message to bytes and back, driven by the message classes of kio.

kio describes every message as a dataclass whose fields carry their Kafka types. Here each
class is compiled once, when first used, into a list of steps; neighbouring fields of fixed
size become one `struct`.

Why not kio's own reader: six bytes from a peer (a compact array that announces 2^31 items) make it
abort the whole process; it refuses unknown tagged fields, which KIP-482 says to skip, and unknown
error codes; and its errors do not say where it failed. The tests use it as their oracle instead.

An error code that kio does not know is read as `unknown_server_error`, as Java does.
"""

import datetime as dt
import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from shoal.wire.building import Shape, shape_of
from shoal.wire.errors import Malformed, Unencodable
from shoal.wire.primitives import (
    NUMBER_WEIGHT,
    STRUCTURE_WEIGHT,
    Cursor,
    put_count,
    put_string,
    put_varint,
)

EntityT = TypeVar("EntityT")
ReadValue = Callable[[Cursor], Any]
WriteValue = Callable[[bytearray, Any], None]
ReadStep = Callable[[Cursor, dict[str, Any]], None]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)
_ZERO_UUID = bytes(16)
_ERROR_CODES = {int(code): code for code in ErrorCode}


@dataclass(frozen=True, slots=True)
class Format:
    """The wire format of one type."""

    read: ReadValue
    write: WriteValue
    least_size: int
    weight: int = STRUCTURE_WEIGHT
    read_many: Callable[[Cursor, int], tuple[Any, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of fixed size: its `struct` letter, and the conversions around it."""

    letter: str
    from_wire: Callable[[Any], Any] | None = None
    to_wire: Callable[[Any], Any] | None = None


_FORMATS: dict[type, Format] = {}


def decode(view: memoryview, entity_type: type[EntityT], position: int) -> EntityT:
    """The entity that begins at `position` of the view; bytes after it are ignored."""
    flexible: bool = entity_type.__flexible__  # type: ignore[attr-defined]
    cursor = Cursor(view, position, flexible=flexible)
    entity: EntityT = entity_format(entity_type).read(cursor)
    return entity


def put_entity(output: bytearray, entity: Any) -> None:
    """Append the bytes of a message body."""
    try:
        entity_format(type(entity)).write(output, entity)
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Unencodable(f"{type(entity).__name__} cannot be encoded: {error}") from error


def entity_format(entity_type: type) -> Format:
    """The format of a message, compiled when it is first used."""
    known = _FORMATS.get(entity_type)
    if known is None:
        known = _FORMATS[entity_type] = _entity_format(entity_type, entity_type.__name__)
    return known


def _entity_format(entity_type: Any, path: str) -> Format:
    flexible: bool = entity_type.__flexible__
    read_steps: list[ReadStep] = []
    write_steps: list[WriteValue] = []
    least_size = 1 if flexible else 0
    run: list[tuple[str, Fixed]] = []

    def end_run() -> None:
        nonlocal least_size
        if run:
            layout = struct.Struct(">" + "".join(fixed.letter for _, fixed in run))
            least_size += layout.size
            read_steps.append(_run_reader(layout, tuple(run), path))
            write_steps.append(_run_writer(layout, tuple(run)))
            run.clear()

    for field in fields(entity_type):
        if "tag" in field.metadata:
            continue
        shape = shape_of(field)
        fixed = _find_fixed(field, is_nullable=shape.is_nullable)
        if fixed is not None and not shape.is_array:
            run.append((field.name, fixed))
            continue
        end_run()
        form = _field_format(field, flexible=flexible, path=path)
        least_size += form.least_size
        read_steps.append(partial(_read_field, field.name, form.read))
        write_steps.append(partial(_write_field, attrgetter(field.name), form.write))
    end_run()
    if flexible:
        read_tags, write_tags = _tag_steps(entity_type, path)
        read_steps.append(read_tags)
        write_steps.append(write_tags)
    return Format(
        partial(_read_entity, entity_type, tuple(read_steps)),
        partial(_write_entity, tuple(write_steps)),
        least_size,
    )


def _read_entity(entity_type: type, steps: tuple[ReadStep, ...], cursor: Cursor) -> Any:
    values: dict[str, Any] = {}
    for step in steps:
        step(cursor, values)
    return entity_type(**values)


def _write_entity(steps: tuple[WriteValue, ...], output: bytearray, entity: Any) -> None:
    for step in steps:
        step(output, entity)


def _read_field(name: str, read: ReadValue, cursor: Cursor, values: dict[str, Any]) -> None:
    values[name] = read(cursor)


def _write_field(
    get: Callable[[Any], Any], write: WriteValue, output: bytearray, entity: Any
) -> None:
    write(output, get(entity))


def _run_reader(layout: struct.Struct, run: tuple[tuple[str, Fixed], ...], path: str) -> ReadStep:
    names = tuple(name for name, _ in run)
    converters = tuple((name, fixed.from_wire) for name, fixed in run if fixed.from_wire)
    what = f"{path}.{names[0]}"

    def read(cursor: Cursor, values: dict[str, Any]) -> None:
        values.update(zip(names, cursor.unpack(layout, what), strict=True))
        for name, convert in converters:
            try:
                values[name] = convert(values[name])
            except OverflowError:
                message = f"{path}.{name}: {values[name]} is out of range"
                raise Malformed(message, position=cursor.position - layout.size) from None

    return read


def _run_writer(layout: struct.Struct, run: tuple[tuple[str, Fixed], ...]) -> WriteValue:
    getters = tuple((attrgetter(name), fixed.to_wire) for name, fixed in run)

    def write(output: bytearray, entity: Any) -> None:
        output += layout.pack(
            *[convert(get(entity)) if convert else get(entity) for get, convert in getters]
        )

    return write


def _field_format(field: "Field[Any]", *, flexible: bool, path: str) -> Format:
    """The format of a field that is not tagged and not of fixed size."""
    shape = shape_of(field)
    what = f"{path}.{field.name}"
    if shape.is_array:
        item = _item_format(field, shape, flexible=flexible, what=what)
        return _array_format(item, what, flexible=flexible, is_nullable=shape.is_nullable)
    if shape.is_structure:
        entity = _entity_format(shape.item_type, what)
        return _nullable_entity_format(entity, what) if shape.is_nullable else entity
    return _text_format(field, what, flexible=flexible, is_nullable=shape.is_nullable)


def _item_format(field: "Field[Any]", shape: Shape, *, flexible: bool, what: str) -> Format:
    if shape.is_structure:
        return _entity_format(shape.item_type, what)
    fixed = _find_fixed(field, is_nullable=False)
    if fixed is None:
        return _text_format(field, what, flexible=flexible, is_nullable=False)
    layout = struct.Struct(">" + fixed.letter)
    from_wire, to_wire = fixed.from_wire, fixed.to_wire

    def read(cursor: Cursor) -> Any:
        value = cursor.unpack(layout, what)[0]
        return from_wire(value) if from_wire else value

    def read_many(cursor: Cursor, count: int) -> tuple[Any, ...]:
        items = chain.from_iterable(layout.iter_unpack(cursor.take(count * layout.size, what)))
        return tuple(map(from_wire, items)) if from_wire else tuple(items)

    def write(output: bytearray, value: Any) -> None:
        output += layout.pack(to_wire(value) if to_wire else value)

    return Format(read, write, layout.size, NUMBER_WEIGHT, read_many)


def _array_format(item: Format, what: str, *, flexible: bool, is_nullable: bool) -> Format:
    least_size = max(1, item.least_size)
    read_item, read_many, write_item = item.read, item.read_many, item.write

    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = cursor.nullable_count(what, least_size=least_size, weight=item.weight)
        if count == 0:
            return ()
        if count < 0:
            if not is_nullable:
                cursor.raise_null(what)
            return None
        if read_many is not None:
            return read_many(cursor, count)
        return tuple([read_item(cursor) for _ in range(count)])

    def write(output: bytearray, items: Any) -> None:
        if items is None:
            if not is_nullable:
                raise Unencodable(f"{what} must not be null")
            put_count(output, -1, flexible=flexible)
            return
        put_count(output, len(items), flexible=flexible)
        for value in items:
            write_item(output, value)

    return Format(read, write, 1 if flexible else 4)


def _nullable_entity_format(entity: Format, what: str) -> Format:
    """KIP-893: one byte before the structure, negative for null."""
    marker = struct.Struct(">b")

    def read(cursor: Cursor) -> Any:
        return None if cursor.unpack(marker, what)[0] < 0 else entity.read(cursor)

    def write(output: bytearray, value: Any) -> None:
        if value is None:
            output += b"\xff"
        else:
            output += b"\x01"
            entity.write(output, value)

    return Format(read, write, 1)


def _text_format(field: "Field[Any]", what: str, *, flexible: bool, is_nullable: bool) -> Format:
    if field.metadata["kafka_type"] == "string":
        return _string_format(what, flexible=flexible, is_nullable=is_nullable)
    return _bytes_format(what, flexible=flexible, is_nullable=is_nullable)


def _string_format(what: str, *, flexible: bool, is_nullable: bool) -> Format:
    def read(cursor: Cursor) -> str | None:
        return cursor.nullable_string(what) if is_nullable else cursor.string(what)

    def write(output: bytearray, value: str | None) -> None:
        if value is None and not is_nullable:
            raise Unencodable(f"{what} must not be null")
        put_string(output, value, flexible=flexible)

    return Format(read, write, 1 if flexible else 2)


def _bytes_format(what: str, *, flexible: bool, is_nullable: bool) -> Format:
    def read(cursor: Cursor) -> bytes | None:
        data = cursor.blob(what)
        if data is None and not is_nullable:
            cursor.raise_null(what)
        return None if data is None else bytes(data)

    def write(output: bytearray, value: bytes | None) -> None:
        if value is None:
            if not is_nullable:
                raise Unencodable(f"{what} must not be null")
            put_count(output, -1, flexible=flexible)
            return
        put_count(output, len(value), flexible=flexible)
        output += value

    return Format(read, write, 1 if flexible else 4)


def _tag_steps(entity_type: type, path: str) -> tuple[ReadStep, WriteValue]:
    """The steps that read and write the tagged fields of a flexible structure."""
    tagged = []
    defaults = {}
    for field in sorted(
        (field for field in fields(entity_type) if "tag" in field.metadata),
        key=lambda field: int(field.metadata["tag"]),
    ):
        default = _default(field)
        defaults[field.name] = default
        tagged.append((field.metadata["tag"], field.name, _tag_format(field, path), default))
    readers = {tag: form.read for tag, _, form, _ in tagged}
    names = {tag: name for tag, name, _, _ in tagged}
    what = f"{path}'s tagged fields"

    def read(cursor: Cursor, values: dict[str, Any]) -> None:
        values.update(defaults)
        for tag, value in cursor.tags(what, readers).items():
            values[names[tag]] = value

    def write(output: bytearray, entity: Any) -> None:
        written = bytearray()
        count = 0
        for tag, name, form, default in tagged:
            value = getattr(entity, name)
            if value == default:
                continue
            data = bytearray()
            form.write(data, value)
            put_varint(written, tag)
            put_varint(written, len(data))
            written += data
            count += 1
        put_varint(output, count)
        output += written

    return read, write


def _tag_format(field: "Field[Any]", path: str) -> Format:
    shape = shape_of(field)
    what = f"{path}.{field.name}"
    if shape.is_structure and not shape.is_array:
        return _entity_format(shape.item_type, what)  # null is a missing field
    fixed = _find_fixed(field, is_nullable=shape.is_nullable)
    if fixed is not None and not shape.is_array:
        return _item_format(field, shape, flexible=True, what=what)
    return _field_format(field, flexible=True, path=path)


def _default(field: "Field[Any]") -> Any:
    """The value of a missing tagged field."""
    if field.default is not MISSING:
        return field.default
    shape = shape_of(field)
    if shape.is_structure:
        return shape.item_type(**{inner.name: _default(inner) for inner in fields(shape.item_type)})
    return "" if field.metadata["kafka_type"] == "string" else 0


def _error_code(value: int) -> ErrorCode:
    return _ERROR_CODES.get(value, ErrorCode.unknown_server_error)


def _timedelta(value_ms: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=value_ms)


def _timedelta_ms(value: dt.timedelta) -> int:
    return value // _MILLISECOND


def _datetime(value_ms: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=value_ms)


def _datetime_ms(value: dt.datetime) -> int:
    return (value - _EPOCH) // _MILLISECOND


def _nullable_datetime(value_ms: int) -> dt.datetime | None:
    return None if value_ms == -1 else _datetime(value_ms)


def _nullable_datetime_ms(value: dt.datetime | None) -> int:
    return -1 if value is None else _datetime_ms(value)


def _uuid(value: bytes) -> UUID | None:
    return None if value == _ZERO_UUID else UUID(bytes=value)


def _uuid_bytes(value: UUID | None) -> bytes:
    return _ZERO_UUID if value is None else value.bytes


_FIXED = {
    "bool": Fixed("?"),
    "int8": Fixed("b"),
    "int16": Fixed("h"),
    "int32": Fixed("i"),
    "int64": Fixed("q"),
    "uint16": Fixed("H"),
    "float64": Fixed("d"),
    "error_code": Fixed("h", _error_code),
    "timedelta_i32": Fixed("i", _timedelta, _timedelta_ms),
    "timedelta_i64": Fixed("q", _timedelta, _timedelta_ms),
    "datetime_i64": Fixed("q", _datetime, _datetime_ms),
    "uuid": Fixed("16s", _uuid, _uuid_bytes),
}
_NULLABLE_DATETIME = Fixed("q", _nullable_datetime, _nullable_datetime_ms)


def _find_fixed(field: "Field[Any]", *, is_nullable: bool) -> Fixed | None:
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type == "datetime_i64" and is_nullable:
        return _NULLABLE_DATETIME
    return _FIXED.get(kafka_type)  # type: ignore[arg-type]
