"""Produce and Fetch messages in kio's classes, made from the values of our hot codecs."""

import datetime as dt
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import request_class, response_class

ItemT = TypeVar("ItemT")

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(-1, 2**63 - 1)
PARTITIONS = st.integers(0, 2**31 - 1)
ERROR_CODES = st.sampled_from([code.value for code in ErrorCode])
TOPICS = st.sampled_from(["a", "orders", "ünïcode", "x" * 249])
RECORDS = st.sampled_from([b"", b"1", b"records" * 30, bytes(70_000)])
NAMES = st.none() | st.sampled_from(["", "name", "ü" * 100])
# Kafka's times are milliseconds; kio holds them as whole seconds at best, or null.
TIMES_MS = st.just(-1) | st.integers(0, 2**32).map(lambda seconds: seconds * 1000)


def topic_id_of(topic: str) -> UUID:
    """One id for each name, so that either may name a topic."""
    return UUID(int=1 + int.from_bytes(topic.encode()[:15], "big"))


def kio_classes(api_key: ApiKey, version: int, kind: str) -> Any:
    """The module that holds a message's class and those of its structures."""
    class_of = request_class if kind == "request" else response_class
    return sys.modules[class_of(api_key, version).__module__]


def group_by_topic(
    items: Iterable[ItemT], topic_of: Callable[[ItemT], str]
) -> list[tuple[str, list[ItemT]]]:
    """By topic, in the order in which topics are first mentioned."""
    groups: dict[str, list[ItemT]] = {}
    for item in items:
        groups.setdefault(topic_of(item), []).append(item)
    return list(groups.items())


def name_topic(name_field: str, topic: str, *, by_id: bool) -> dict[str, Any]:
    """How a structure of kio names a topic."""
    return {"topic_id": topic_id_of(topic)} if by_id else {name_field: topic}


def milliseconds(value_ms: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=value_ms)


def moment(value_ms: int) -> dt.datetime | None:
    return None if value_ms == -1 else dt.datetime.fromtimestamp(value_ms / 1000, dt.UTC)
