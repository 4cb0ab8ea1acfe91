"""Parses the options of a write, which have the names of Spark's Kafka connector. Pure.

Rules:
- The option `topic` replaces the column of that name, as in the connector.
- Columns are checked here, before a task starts; columns of other names are not written.
- An atomic write chooses its transactional ids itself, and needs a name by which a later start of
  the same job finds what an earlier one left.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from shoal.model.errors import ConfigError
from shoal.pipeline.source.options import parse_flag, parse_properties, refuse_unknown

# Columns are batches already: larger ones cost brokers and readers less. Below the default of
# `max.message.bytes`.
DEFAULT_BATCH_BYTES: Final = 256 * 1024
# The most that a broker allows by default.
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000
NAME_LIMIT: Final = 200

_KNOWN: Final = ("topic", "includeheaders", "atomic", "name")
_IGNORED: Final = frozenset({"path", "checkpointlocation", "querystarttimems"})
_NOT_FOR_USERS: Final = ("key.serializer", "value.serializer", "transactional.id")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_BYTES: Final = (BinaryType, StringType)
_COLUMNS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": (_BYTES, "binary or string"),
    "value": (_BYTES, "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
}
_HEADERS: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class WriteQuery:
    """A parsed write."""

    properties: Mapping[str, str]
    topic: str | None = None
    # Of an atomic write; None means at least once.
    name: str | None = None


def parse_write(
    options: Mapping[str, str], schema: StructType, *, is_stream: bool = False
) -> WriteQuery:
    """Parse the options of a write of rows with these columns."""
    settings = {name.lower(): value for name, value in options.items()}
    refuse_unknown(settings, _KNOWN, ignored=_IGNORED)
    properties = parse_properties(settings, refused=_NOT_FOR_USERS)
    topic = settings.get("topic") or None
    _check_columns(schema, topic)
    is_atomic = parse_flag(settings, "atomic", default=False)
    if is_atomic and is_stream:
        raise ConfigError(
            "the option atomic is for tables only: a stream is written at least once",
            remedy="remove atomic, or write each micro-batch as a table, with foreachBatch",
        )
    defaults = {"batch.size": str(DEFAULT_BATCH_BYTES)}
    if is_atomic:
        defaults["transaction.timeout.ms"] = str(DEFAULT_TRANSACTION_TIMEOUT_MS)
    return WriteQuery(defaults | properties, topic, _parse_name(settings) if is_atomic else None)


def _parse_name(settings: Mapping[str, str]) -> str:
    name = settings.get("name", "")
    if not _NAME.fullmatch(name) or len(name) > NAME_LIMIT:
        raise ConfigError(
            f"an atomic write needs the option name, not {name!r:.40}",
            remedy=f"choose at most {NAME_LIMIT} letters, digits, '.', '_' and '-', the same at"
            " each start of the job",
        )
    return name


def _check_columns(schema: StructType, topic: str | None) -> None:
    columns: dict[str, Any] = {column.name.lower(): column.dataType for column in schema.fields}
    if "value" not in columns:
        raise ConfigError("the rows have no column value", remedy="name the bytes to write value")
    if topic is None and "topic" not in columns:
        raise ConfigError(
            "the rows have no column topic, and the option topic is not set",
            remedy='.option("topic", "orders")',
        )
    for name, (kinds, words) in _COLUMNS.items():
        if name in columns and not isinstance(columns[name], kinds):
            raise ConfigError(
                f"the column {name} is {columns[name].simpleString()}, not {words}",
                remedy=f"cast it: CAST({name} AS {words.split()[0]})",
            )
    if "headers" in columns and columns["headers"].simpleString() != _HEADERS:
        raise ConfigError(
            f"the column headers is {columns['headers'].simpleString()}, not {_HEADERS}",
            remedy="build it with array(struct(key, value)), or leave it out",
        )
