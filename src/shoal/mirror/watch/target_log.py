"""Finds out whether a target partition has data, and whether the mirror wrote it."""

from functools import partial
from typing import NamedTuple

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import error_for
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, iter_batches


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
