"""Compare-and-append: mirrors write at their source's offsets, all or nothing, and are fenced."""

import asyncio
import itertools
import random
from collections.abc import Iterator

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.consumer import RawConsumer
from shoal.client.produce.compare_and_append import AppendRequest, AppendResult
from shoal.client.results import EARLIEST, LATEST
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import BatchOptions, Record, decode_records, encode_batch

_names = itertools.count()
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def lite() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3) as running:
        yield running


def batch(offset: int, *values: str, **options: int) -> bytearray:
    given: BatchOptions = {"base_offset": offset}
    given.update(options)  # type: ignore[typeddict-item]
    return encode_batch(
        [Record(offset + i, NOW_MS, b"k", value.encode()) for i, value in enumerate(values)],
        **given,
    )


def client_of(cluster: LiteCluster) -> Client:
    return Client({"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": "5000"})


async def new_partition(client: Client) -> TopicPartition:
    name = f"mirrored-{next(_names)}"
    # The records are years old, and no test wants to see them expire.
    await client.admin.create_topics([NewTopic(name, 1, 3, {"retention.ms": "-1"})])
    return TopicPartition(name, 0)


async def append(
    client: Client, tp: TopicPartition, end: int, *batches: bytearray, epoch: int = 1
) -> AppendResult:
    return (await client.compare_and_append({tp: AppendRequest(end, epoch, batches)}))[tp]


async def read(client: Client, tp: TopicPartition) -> list[tuple[int, str]]:
    """Offsets and values up to the end."""
    end = (await client.list_offsets({tp: LATEST}))[tp].offset
    found: list[tuple[int, str]] = []
    async with RawConsumer(client, {tp: EARLIEST}) as consumer:
        while consumer.positions[tp] < end:
            for item in await consumer.poll(200):
                records = decode_records(item.value)
                found += [(record.offset, (record.value or b"").decode()) for record in records]
    return found


async def test_batches_lie_at_their_offsets_as_they_were(lite: LiteCluster) -> None:
    async with client_of(lite) as client:
        tp = await new_partition(client)
        first = await append(client, tp, 0, batch(5, "a", "b"), batch(7, "c"), batch(20, "d"))
        assert (first.is_ok, first.log_end) == (True, 21)
        assert await read(client, tp) == [(5, "a"), (6, "b"), (7, "c"), (20, "d")]
        alone = batch(30, "e")
        sent = bytes(alone)
        assert (await append(client, tp, 21, alone)).log_end == 31
        fetched = (await client.fetch({tp: 30}))[tp]
        assert bytes(fetched.records)[21:] == sent[21:]


async def test_nothing_is_written_where_the_log_ends_elsewhere(lite: LiteCluster) -> None:
    async with client_of(lite) as client:
        tp = await new_partition(client)
        assert (await append(client, tp, 0, batch(0, "a", "b"))).log_end == 2
        for expected in (0, 1, 3, -1):
            result = await append(client, tp, expected, batch(max(expected, 0), "x"))
            assert (result.is_mismatch, result.log_end) == (True, 2)
        assert await read(client, tp) == [(0, "a"), (1, "b")]


async def test_all_of_an_entry_or_nothing(lite: LiteCluster) -> None:
    async with client_of(lite) as client:
        tp, other = await new_partition(client), await new_partition(client)
        damaged = batch(1, "b")
        damaged[-1] ^= 1
        wrong: list[tuple[bytearray, Code]] = [
            (damaged, Code.CORRUPT_MESSAGE),
            (batch(0, "again"), Code.INVALID_RECORD),
            (batch(1, "b", producer_id=7, producer_epoch=0, base_sequence=0), Code.INVALID_RECORD),
            (batch(1, "b")[:-1], Code.INVALID_RECORD),
            (batch(1, "x" * 2_000_000), Code.MESSAGE_TOO_LARGE),
        ]
        for second, code in wrong:
            results = await client.compare_and_append(
                {
                    tp: AppendRequest(0, 1, [batch(0, "a"), second]),
                    other: AppendRequest(0, 1, [batch(0, "good")]),
                }
            )
            assert results[tp].error_code == code
            assert results[other].is_ok or results[other].is_mismatch
        assert (await client.list_offsets({tp: LATEST}))[tp].offset == 0
        assert await read(client, other) == [(0, "good")]


async def test_an_older_mirror_is_fenced_also_by_the_next_leader(lite: LiteCluster) -> None:
    async with client_of(lite) as client:
        tp = await new_partition(client)
        assert (await append(client, tp, 0, batch(0, "one"), epoch=1)).is_ok
        taken_over = await append(client, tp, -1, epoch=2)
        assert (taken_over.is_mismatch, taken_over.log_end) == (True, 1)
        assert (await append(client, tp, 1, batch(1, "zombie"), epoch=1)).is_fenced
        leader = await client.leader(tp)
        await asyncio.to_thread(lite.move_leader, tp.topic, 0, leader % 3 + 1)
        result = await _until_led(client, tp, 1, batch(1, "zombie"), epoch=1)
        assert result.is_fenced
        result = await _until_led(client, tp, 1, batch(1, "two"), epoch=2)
        # A leader that goes while it waits for followers leaves it unknown; the next try tells.
        assert result.is_ok or (result.is_mismatch and result.log_end == 2)
        assert await read(client, tp) == [(0, "one"), (1, "two")]


async def _until_led(
    client: Client, tp: TopicPartition, end: int, *batches: bytearray, epoch: int
) -> AppendResult:
    for _ in range(200):
        result = await append(client, tp, end, *batches, epoch=epoch)
        if result.is_ok or result.is_mismatch or result.is_fenced:
            return result
        await asyncio.sleep(0.05)
    return result


async def test_an_ordinary_producer_and_a_mirror_do_not_tread_on_each_other(
    lite: LiteCluster,
) -> None:
    async with client_of(lite) as client:
        tp = await new_partition(client)
        assert (await append(client, tp, 0, batch(3, "a"), batch(9, "b"))).log_end == 10
        produced = (await client.produce({tp: batch(0, "plain")}))[tp]
        assert (produced.is_ok, produced.base_offset) == (True, 10)
        result = await append(client, tp, 10, batch(10, "c"))
        assert (result.is_mismatch, result.log_end) == (True, 11)


async def test_kills_of_leaders_leave_no_hole_no_duplicate_and_no_half() -> None:
    source = _source(random.Random(5), units=400)
    with LiteCluster(brokers=3) as lite:
        ends, found = await _mirror_while_leaders_die(lite, source)
    assert ends <= {0, *(Batch(memoryview(unit[-1])).next_offset for unit in source)}
    assert found == [
        (record.offset, (record.value or b"").decode())
        for unit in source
        for one in unit
        for record in decode_records(Batch(memoryview(bytes(one))))
    ]


async def _mirror_while_leaders_die(
    lite: LiteCluster, source: list[list[bytearray]]
) -> tuple[set[int], list[tuple[int, str]]]:
    """Every end that the mirror saw, and what is there in the end."""
    async with client_of(lite) as client:
        tp = await new_partition(client)
        mirror = asyncio.create_task(_mirror(client, tp, source))
        for _ in range(3):
            await asyncio.sleep(0.4)
            leader = await client.leader(tp)
            await asyncio.to_thread(lite.kill, leader)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(lite.restart, leader)
        return await asyncio.wait_for(mirror, 60), await read(client, tp)


def _source(chance: random.Random, units: int) -> list[list[bytearray]]:
    """Units of batches, with gaps within and between."""
    offset, source = 0, []
    for _ in range(units):
        unit = []
        for _ in range(chance.randint(1, 8)):
            offset += chance.choice([0, 0, 0, 3])
            values = [f"{offset + i}" + "x" * 3000 for i in range(chance.randint(1, 4))]
            unit.append(batch(offset, *values))
            offset += len(values)
        source.append(unit)
    return source


async def _mirror(client: Client, tp: TopicPartition, source: list[list[bytearray]]) -> set[int]:
    """Copy the source, whatever happens on the way; every end that was seen."""
    seen: set[int] = set()
    end = 0
    while True:
        left = [unit for unit in source if Batch(memoryview(unit[-1])).next_offset > end]
        if not left:
            return seen
        # A repeated request now and then, and one out of turn.
        wishes = [(end, left[0]), (end, left[0]), (end, left[-1])]
        for expected, unit in random.Random(end).sample(wishes, 2):
            copies = [bytearray(one) for one in unit]
            if unit is left[-1] and unit is not left[0]:
                expected = Batch(memoryview(unit[0])).base_offset + 1_000_000  # noqa: PLW2901
            result = await append(client, tp, expected, *copies)
            if result.is_ok or result.is_mismatch:
                seen.add(result.log_end)
                end = result.log_end
            else:
                await asyncio.sleep(0.05)
