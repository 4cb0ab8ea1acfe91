"""Records of topics for people: the live tail of a topic, and both sides of a mirror.

Rules:
- A tail reads what is committed. If more arrives in a round than it shows, it continues with the
  newest records and counts the others as skipped. It ends after `TAIL_LIMIT_S`.
- Of a key or value at most `SHOWN_BYTES` are shown: of two that differ, around the first
  difference.
- Only clusters without TLS and SASL can be read: the page knows addresses, and no passwords.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from shoal.client import LATEST, Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import error_for
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.errors import CorruptBatch
from shoal.wire.records.message_sets import read_batches
from shoal.wire.records.records import Record, decode_records

Json = dict[str, Any]
SHOWN_BYTES: Final = 600
BEFORE_BYTES: Final = 120
NEIGHBOURS: Final = 2
ROUND_S: Final = 1.0
ROUND_RECORDS: Final = 40
MOST_PARTITIONS: Final = 64
TAIL_LIMIT_S: Final = 600.0
ANSWER_S: Final = 10.0
_FETCH_BYTES: Final = 256 * 1024


async def follow_topic(bootstrap: str, topic: str) -> AsyncIterator[Json]:
    """What is appended to a topic, once a second: {records, skipped, partitions, left_out}."""
    async with Client({"bootstrap.servers": bootstrap}) as client:
        partitions = await _find_partitions(client, topic)
        followed = partitions[:MOST_PARTITIONS]
        ends = await _read_ends(client, followed)
        share = max(1, ROUND_RECORDS // max(1, len(ends)))
        positions = {tp: max(0, end - share) for tp, end in ends.items()}
        skipped, deadline = 0, time.monotonic() + TAIL_LIMIT_S
        while time.monotonic() < deadline:
            for tp, end in (await _read_ends(client, followed)).items():
                position = positions.setdefault(tp, max(0, end - share))
                if end - position > ROUND_RECORDS:
                    positions[tp] = end - ROUND_RECORDS
                    skipped += positions[tp] - position
            found = await _read_records(client, positions)
            shown = sorted(found, key=lambda each: each[1].timestamp)[-ROUND_RECORDS:]
            skipped += len(found) - len(shown)
            yield {
                "records": [{"partition": tp.partition, **show(one)} for tp, one in shown],
                "skipped": skipped,
                "partitions": len(followed),
                "left_out": len(partitions) - len(followed),
            }
            await asyncio.sleep(ROUND_S)


async def _find_partitions(client: Client, topic: str) -> list[TopicPartition]:
    cluster = await client.metadata([topic], refresh=True)
    if cluster.topics[topic].error == Code.UNKNOWN_TOPIC_OR_PARTITION:
        raise UsageError(f"the cluster has no topic {topic:.80}")
    return list(cluster.partitions_of(topic))


async def _read_ends(client: Client, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    listed = await client.list_offsets_or_errors(
        dict.fromkeys(partitions, LATEST), isolation="read_committed", timeout_s=ANSWER_S
    )
    return {tp: one.offset for tp, one in listed.offsets.items()}


async def _read_records(
    client: Client, positions: dict[TopicPartition, int]
) -> list[tuple[TopicPartition, Record]]:
    """The committed records behind these positions, which are moved behind them."""
    fetched = await client.fetch(
        positions, max_wait_ms=100, max_bytes=_FETCH_BYTES, isolation="read_committed"
    )
    found: list[tuple[TopicPartition, Record]] = []
    for tp, part in fetched.items():
        if part.error_code != Code.NONE:
            continue  # without a leader now, or truncated: asked again in the next round
        aborted_filter = AbortedFilter(part.aborted)
        position = positions[tp]
        for batch, _ in read_batches(part.records):
            kind = aborted_filter.classify(batch)
            if batch.last_offset < position:
                continue
            positions[tp] = batch.next_offset
            if kind is BatchKind.DATA and batch.record_count:
                found += [(tp, each) for each in decode_records(batch) if each.offset >= position]
    return found


async def compare_sides(
    source: str, target: str, route: tuple[TopicPartition, TopicPartition], at: tuple[int, int]
) -> Json:
    """The records of both sides at two offsets with their neighbours; -1 stands for none."""
    left, right = await asyncio.gather(
        _read_around(source, route[0], at[0]), _read_around(target, route[1], at[1])
    )
    of_source = next((each for each in left if each.offset == at[0]), None)
    of_target = next((each for each in right if each.offset == at[1]), None)
    return {
        "source": [show(each) for each in left],
        "target": [show(each) for each in right],
        "fields": compare_records(of_source, of_target),
    }


async def _read_around(bootstrap: str, tp: TopicPartition, offset: int) -> list[Record]:
    if offset < 0:
        return []
    async with asyncio.timeout(ANSWER_S), Client({"bootstrap.servers": bootstrap}) as client:
        position = max(0, offset - NEIGHBOURS)
        found: list[Record] = []
        last = offset + NEIGHBOURS
        for _ in range(8):
            part = (await client.fetch({tp: position}, max_wait_ms=100, max_bytes=_FETCH_BYTES))[tp]
            if part.error_code == Code.OFFSET_OUT_OF_RANGE and position < offset:
                position = offset
                continue
            if part.error_code != Code.NONE:
                raise error_for(
                    part.error_code, topic=tp.topic, partition=tp.partition, offset=position
                )
            for batch, _ in read_batches(part.records):
                position = batch.next_offset
                found += _decode(batch, offset)
            if position > last or not part.records:
                break
        return [one for one in found if offset - NEIGHBOURS <= one.offset <= last]


def _decode(batch: Any, offset: int) -> list[Record]:
    try:
        batch.check_crc()
        return [] if batch.is_control else list(decode_records(batch))
    except CorruptBatch as error:
        if batch.base_offset <= offset <= batch.last_offset:
            raise UsageError(
                f"the batch at offset {batch.base_offset} is damaged: {error}"
            ) from error
        return []


# How records are shown


def show(record: Record) -> Json:
    """A record for a page: texts are cut, bytes that are no text are shown as hex."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _show_bytes(record.key),
        "value": _show_bytes(record.value),
        "headers": [[key, _show_bytes(value)] for key, value in record.headers[:20]],
    }


def _show_bytes(value: bytes | None) -> Json | None:
    if value is None:
        return None
    data = bytes(value)
    part = data[:SHOWN_BYTES]
    return {"text": _pick_reader(data)(part), "size": len(data), "cut": len(part) < len(data)}


def _pick_reader(*values: bytes) -> Callable[[bytes], str]:
    """Text if all values are text; else hex."""
    if all(map(_is_text, values)):
        return lambda data: data.decode("utf-8", errors="replace")
    return lambda data: data.hex(" ")


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(each.isprintable() or each in "\r\n\t" for each in text)


def compare_records(left: Record | None, right: Record | None) -> list[Json]:
    """Each field of two records: before and after the part that differs, and that part."""
    found: list[Json] = []
    for name in ("key", "value", "headers", "timestamp"):
        pair = tuple(None if one is None else _field(one, name) for one in (left, right))
        is_equal = pair[0] == pair[1]
        if name == "headers" and left is not None and right is not None:
            is_equal = _list_headers(left) == _list_headers(right)
        found.append({"field": name, "is_equal": is_equal, **mark_difference(*pair)})
    return found


def _list_headers(record: Record) -> list[tuple[str, bytes | None]]:
    return [(key, None if value is None else bytes(value)) for key, value in record.headers]


def _field(record: Record, name: str) -> bytes | None:
    if name == "headers":
        return "\n".join(map(_show_header, _list_headers(record))).encode()
    if name == "timestamp":
        return str(record.timestamp).encode()
    value: bytes | None = getattr(record, name)
    return None if value is None else bytes(value)


def _show_header(header: tuple[str, bytes | None]) -> str:
    key, value = header
    if value is None:
        return f"{key} (no value)"
    return f"{key}={value.decode()}" if _is_text(value) else f"{key}={value!r}"


def mark_difference(left: bytes | None, right: bytes | None) -> Json:
    """Both values as [before, different, after], around the first difference; None: no value."""
    a, b = left or b"", right or b""
    head = _common_length(a, b)
    tail = _common_length(a[head:][::-1], b[head:][::-1])
    first = max(0, head - BEFORE_BYTES)
    parts = [
        [data[first:head], data[head : len(data) - tail], data[len(data) - tail :]]
        for data in (a, b)
    ]
    cut = [[piece[:SHOWN_BYTES] for piece in pieces] for pieces in parts]
    read = _pick_reader(a, b)
    sides = [[read(piece) for piece in pieces] for pieces in cut]
    return {
        "source": None if left is None else sides[0],
        "target": None if right is None else sides[1],
        "first": first,
        "sizes": [None if each is None else len(each) for each in (left, right)],
    }


def _common_length(a: bytes, b: bytes) -> int:
    """The length of the common beginning, found by halves: values may be large."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
