"""Finds out what a target partition has: data, of whom, and whether transactions are open."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import error_for
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import EARLIEST, LATEST
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, iter_batches

_LOOK_EVERY_S: Final = 0.02
_log = logging.getLogger(__name__)


class Contents(NamedTuple):
    """Whether a log has records that are not aborted, and whether one producer wrote all."""

    holds_data: bool
    is_of_producer: bool


async def inspect_log(
    target: Client, tp: TopicPartition, span: tuple[int, int], producer: ProducerIdentity | None
) -> Contents:
    """Inspect the records between two offsets; stops at the first batch of another producer.

    Records of an open transaction may be committed, so they count as data of another producer. Its
    end is not awaited: after a loss of records its marker may never come.
    """
    position, end = span
    holds_data = False
    while position < end:
        before = position
        data, position = await target.with_retries(partial(_read, target, tp, position))
        if position == before:
            return Contents(holds_data=True, is_of_producer=False)
        holds_data = holds_data or bool(data)
        if any(not _is_written_by(batch, producer) for batch in data):
            return Contents(holds_data=True, is_of_producer=False)
    return Contents(holds_data, is_of_producer=True)


async def _read(target: Client, tp: TopicPartition, position: int) -> tuple[list[Batch], int]:
    """Fetch some data batches from a position; returns them and the next position."""
    part = (await target.fetch({tp: position}, isolation="read_committed"))[tp]
    if part.error_code != Code.NONE:
        raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
    aborted_filter = AbortedFilter(part.aborted)
    data, next_offset = [], position
    for batch in iter_batches(part.records):
        if aborted_filter.classify(batch) is BatchKind.DATA and batch.last_offset >= position:
            data.append(batch)
        next_offset = batch.next_offset
    return data, next_offset


def _is_written_by(batch: Batch, producer: ProducerIdentity | None) -> bool:
    return (
        producer is not None
        and producer.producer_id >= 0
        and (batch.producer_id, batch.producer_epoch) == (producer.producer_id, producer.epoch)
    )


async def find_mismatch(client: Client, tp: TopicPartition, position: int) -> str | None:
    """Describe how a log differs from what was committed below a position; None if it does not."""
    ends = await client.list_offsets({tp: LATEST}, isolation="read_committed")
    end = ends[tp].offset
    if end < position:
        return f"it had {position} offsets and ends at {end}: records are lost"
    first = (await client.list_offsets({tp: EARLIEST}))[tp].offset
    if first < position and await _is_aborted(client, tp, position - 1):
        return f"offset {position - 1} is in an aborted transaction now: records are lost"
    position = max(first, position)
    while position < end:
        found, position = await data_from(client, tp, position)
        if found is not None:
            return f"another producer has written to it, at offset {found}"
    return None


async def _is_aborted(client: Client, tp: TopicPartition, offset: int) -> bool:
    """Whether a committed offset is now in an aborted batch.

    This happens if the log lost the committed records and a later transaction was aborted.
    """

    async def attempt() -> bool:
        part = (await client.fetch({tp: offset}, isolation="read_committed"))[tp]
        if part.error_code == Code.OFFSET_OUT_OF_RANGE:
            return False  # deleted in the meantime
        if part.error_code != Code.NONE:
            raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
        aborted_filter = AbortedFilter(part.aborted)
        standings = (
            (batch, aborted_filter.classify(batch)) for batch in iter_batches(part.records)
        )
        return any(
            standing is BatchKind.ABORTED and batch.base_offset <= offset <= batch.last_offset
            for batch, standing in standings
        )

    return await client.with_retries(attempt)


async def data_from(
    client: Client, tp: TopicPartition, position: int, max_bytes: int | None = None
) -> tuple[int | None, int]:
    """Fetch once: the first offset of committed data in it, and the offset where it ends."""

    async def attempt() -> tuple[int | None, int]:
        fetched = await client.fetch(
            {tp: position}, partition_max_bytes=max_bytes, isolation="read_committed"
        )
        part = fetched[tp]
        if part.error_code != Code.NONE:
            raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
        aborted_filter, next_offset = AbortedFilter(part.aborted), position
        for batch in iter_batches(part.records):
            if aborted_filter.classify(batch) is BatchKind.DATA and batch.base_offset >= position:
                return batch.base_offset, batch.next_offset
            next_offset = batch.next_offset
        return None, next_offset

    return await client.with_retries(attempt)


async def find_settled_ends(
    client: Client, partitions: Iterable[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, int]:
    """Find where partitions end in which no transaction is open, of those that answer."""
    asked = dict.fromkeys(partitions, LATEST)
    stable = await client.list_offsets_or_errors(
        asked, isolation="read_committed", timeout_s=timeout_s
    )
    ends = await client.list_offsets_or_errors(asked, timeout_s=timeout_s)
    return {
        tp: end.offset
        for tp, end in ends.offsets.items()
        if tp in stable.offsets and stable.offsets[tp].offset == end.offset
    }


async def await_visible(
    client: Client, ends: Mapping[TopicPartition, int], *, patience_s: float, timeout_s: float
) -> dict[TopicPartition, int]:
    """Wait until what was committed below `ends` is visible; returns those where it is not."""
    loop = asyncio.get_running_loop()
    deadline, left = loop.time() + patience_s, dict(ends)
    while True:
        left = await find_hidden(client, left, timeout_s=timeout_s)
        if not left or loop.time() > deadline:
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    for tp in left:
        _log.error(
            "%s waits: a committed transaction is not visible yet (check that the partition "
            "has a leader; if the marker is missing permanently, KAFKA-20734, mirror into a "
            "new topic)",
            tp,
        )
    return left


async def find_hidden(
    client: Client, ends: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, int]:
    """Find partitions that do not answer, or whose last stable offset is below `ends`."""
    listed = await client.list_offsets_or_errors(
        dict.fromkeys(ends, LATEST), isolation="read_committed", timeout_s=timeout_s
    )
    return {
        tp: end
        for tp, end in ends.items()
        if tp in listed.errors or listed.offsets[tp].offset < end
    }
