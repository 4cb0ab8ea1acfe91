"""What a partition of the target holds, and who wrote it."""

from functools import partial
from typing import NamedTuple

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import Sieve, Standing
from shoal.client.errors import error_for
from shoal.client.produce.sequencing import Identity
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, iter_batches


class Contents(NamedTuple):
    """Records that are not aborted: whether there are any, and whether one producer wrote all."""

    holds_data: bool
    is_of_producer: bool


async def look_into(
    target: Client, tp: TopicPartition, span: tuple[int, int], producer: Identity | None
) -> Contents:
    """What is between two offsets; ends at the first batch that is not of the producer.

    What an open transaction holds back may become data, so it is taken for data of somebody
    else. Nobody waits for its end: after a loss of records its marker may never come.
    """
    position, end = span
    holds_data = False
    while position < end:
        before = position
        data, position = await target.retrying(partial(_read, target, tp, position))
        if position == before:
            return Contents(holds_data=True, is_of_producer=False)
        holds_data = holds_data or bool(data)
        if any(not _is_of(batch, producer) for batch in data):
            return Contents(holds_data=True, is_of_producer=False)
    return Contents(holds_data, is_of_producer=True)


async def _read(target: Client, tp: TopicPartition, position: int) -> tuple[list[Batch], int]:
    """Some batches of data from there on, and the position behind them."""
    part = (await target.fetch({tp: position}, isolation="read_committed"))[tp]
    if part.error_code != Code.NONE:
        raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
    sieve = Sieve(part.aborted)
    data, next_offset = [], position
    for batch in iter_batches(part.records):
        if sieve.judge(batch) is Standing.DATA and batch.last_offset >= position:
            data.append(batch)
        next_offset = batch.next_offset
    return data, next_offset


def _is_of(batch: Batch, producer: Identity | None) -> bool:
    return (
        producer is not None
        and producer.producer_id >= 0
        and (batch.producer_id, batch.producer_epoch) == (producer.producer_id, producer.epoch)
    )
