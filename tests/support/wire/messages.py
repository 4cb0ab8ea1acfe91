"""Random Kafka messages of any class of kio, and kio's own codec as the oracle for ours."""

import dataclasses
import datetime as dt
import io
import random
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import WireError
from shoal.wire.messages import request_class, response_class, schema_versions

_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
OUTCOMES = {"read", "refused"}
_STRINGS = ["", "a", "topic-ü", "x" * 200]


def classes_of(api_key: ApiKey) -> list[type[Any]]:
    """Every request and response class of an API key, of every version."""
    lowest, highest = schema_versions(api_key)
    return [
        class_of(api_key, version)
        for version in range(lowest, highest + 1)
        for class_of in (request_class, response_class)
    ]


def random_message(message_type: type[Any], source: random.Random) -> Any:
    """An instance with arbitrary values in every field, nulls where they are allowed."""
    return message_type(
        **{
            field.name: _field_value(field, source)
            for field in dataclasses.fields(message_type)
            if not _is_left_out(field, source)
        }
    )


def kio_bytes(message: Any) -> bytes:
    """The body of a message as kio writes it."""
    with io.BytesIO() as buffer:
        entity_writer(type(message))(buffer, message)
        return buffer.getvalue()


def kio_message(message_type: type[Any], data: bytes) -> Any:
    """The message that kio reads, all bytes used."""
    message, size = entity_reader(message_type)(data, 0)
    assert size == len(data)
    return message


def _is_left_out(field: "dataclasses.Field[Any]", source: random.Random) -> bool:
    may_be_absent = "tag" in field.metadata and field.default is not dataclasses.MISSING
    return may_be_absent and source.random() < 0.5


def _field_value(field: "dataclasses.Field[Any]", source: random.Random) -> Any:
    annotation: Any = field.type
    if isinstance(annotation, types.UnionType):
        if source.random() < 0.3:
            return None
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is not tuple:
        return _one_value(annotation, field, source)
    item_type = typing.get_args(annotation)[0]
    return tuple(_one_value(item_type, field, source) for _ in range(source.choice([0, 1, 3])))


def _one_value(value_type: Any, field: "dataclasses.Field[Any]", source: random.Random) -> Any:
    if dataclasses.is_dataclass(value_type):
        return random_message(typing.cast("type[Any]", value_type), source)
    return _primitive(field.metadata["kafka_type"], source)


def _primitive(kafka_type: str, source: random.Random) -> Any:
    if kafka_type in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[kafka_type] - 1)
        return source.randint(-limit, limit - 1)
    makers: dict[str, Callable[[], Any]] = {
        "string": lambda: source.choice(_STRINGS),
        "bytes": lambda: source.randbytes(source.choice([0, 1, 5, 300])),
        "records": lambda: source.randbytes(source.choice([0, 1, 5, 300])),
        "bool": lambda: source.random() < 0.5,
        "uint16": lambda: source.randrange(1 << 16),
        "float64": lambda: source.uniform(-9, 9),
        "error_code": lambda: source.choice(list(ErrorCode)),
        "timedelta_i32": lambda: dt.timedelta(milliseconds=source.randint(-(2**31), 2**31 - 1)),
        "timedelta_i64": lambda: dt.timedelta(milliseconds=source.randint(-(2**40), 2**40)),
        "datetime_i64": lambda: dt.datetime.fromtimestamp(source.randrange(2**32), dt.UTC),
        "uuid": lambda: uuid.UUID(int=source.getrandbits(128)),
    }
    return makers[kafka_type]()


def read_or_error(decode: Callable[..., object], *args: object) -> str:
    """How bytes were taken: "read", or "refused" by a wire error; nothing else is expected."""
    try:
        decode(*args)
    except WireError:
        return "refused"
    return "read"
