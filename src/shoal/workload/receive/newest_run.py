"""Finds the newest run among the messages that topics hold: for a consumer that names none."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from shoal.client.client import Client
from shoal.client.consume.consumer import RawBatch, RawConsumer, records_of
from shoal.client.results import LATEST
from shoal.model.runs import name_by_hash
from shoal.model.topics import TopicPartition
from shoal.wire.errors import WireError
from shoal.workload.envelope import decode_message

# The last record of a log may be a marker of a transaction, or of another program.
_LAST_OFFSETS: Final = 50
_TIMEOUT_S: Final = 5.0


class NewestRun(NamedTuple):
    """The run of the newest message, and when that was sent."""

    run: str
    sent_ms: int


async def find_newest_run(
    client: Client, starts: Mapping[TopicPartition, int], *, isolation: str
) -> NewestRun | None:
    """The run of the newest message at the ends of these logs; None if they have no messages."""
    listed = await client.list_offsets(dict.fromkeys(starts, LATEST), isolation=isolation)
    ends = {tp: each.offset for tp, each in listed.items() if each.offset > starts[tp]}
    tails = {tp: max(starts[tp], end - _LAST_OFFSETS) for tp, end in ends.items()}
    newest: NewestRun | None = None
    if not tails:
        return None
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    async with RawConsumer(client, tails, isolation=isolation) as reader:
        while _is_unread(reader.positions, ends) and asyncio.get_running_loop().time() < deadline:
            for batch in await reader.poll(100):
                newest = max(newest, _newest_of(batch), key=_find_sent_ms)
    return newest


def _newest_of(batch: RawBatch) -> NewestRun | None:
    try:
        records = [each.record for each in records_of([batch])]
    except WireError:
        return None  # damaged: the consumer will count its records as unreadable
    messages = [(each, decode_message(None, each.value, ())) for each in records]
    found = [NewestRun(name_by_hash(m.run), each.timestamp) for each, m in messages if m]
    return max(found, key=_find_sent_ms, default=None)


def _find_sent_ms(newest: NewestRun | None) -> int:
    return -1 if newest is None else newest.sent_ms


def _is_unread(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
    return any(positions[tp] < end for tp, end in ends.items())
