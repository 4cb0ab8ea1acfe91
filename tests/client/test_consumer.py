"""Reading by position: raw batches and records, errors that must be heard, what is visible."""

import asyncio
import uuid
from typing import Any

import pytest

from shoal.client.codes import Code
from shoal.client.consume.consumer import Consumer, RawConsumer
from shoal.client.errors import KafkaError, OffsetOutOfRange, TopicRecreated
from shoal.client.results import EARLIEST
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import CorruptBatch
from shoal.wire.fetch import FetchedPartition
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, decode_records, encode_batch
from support.client.fast import T0, T1, client_of
from support.client.scripted import (
    Asked,
    ScriptedCluster,
    Values,
    fetch_answer,
    hang_up,
    stay_silent,
)
from support.client.waiting import eventually


def fill(cluster: ScriptedCluster, tp: TopicPartition, batches: int, records: int = 3) -> None:
    for _ in range(batches):
        start = cluster.logs[tp].end
        values = [Record(i, 5, None, b"%d" % (start + i)) for i in range(records)]
        cluster.append(cluster.logs[tp].leader, tp, bytes(encode_batch(values)))


async def test_raw_items_are_batches_with_the_offset_of_their_last_record() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        fill(cluster, T0, batches=3)
        async with RawConsumer(client, {T0: 4}) as consumer:
            items = await consumer.poll()
            assert [(item.offset, item.value.base_offset) for item in items] == [(5, 4), (8, 6)]
            assert [item.position for item in items] == [4, 6]
            assert consumer.positions == {T0: 9}
            assert await consumer.poll(timeout_ms=60) == []


@pytest.mark.parametrize("codec", list(Codec))
async def test_the_first_batch_is_trimmed_where_the_position_is_inside_of_it(codec: int) -> None:
    """As KIP-712 demands: it is re-encoded without the records before the position."""
    async with ScriptedCluster() as cluster, client_of(cluster, fetch_raw_bytes=True) as client:
        stored = [Record(i, 5 + i, b"k", b"%d" % i, (("h", None),)) for i in range(6)]
        for some in (stored[:4], stored[4:]):
            encoded = encode_batch(
                some, codec=codec, producer_id=7, producer_epoch=1, base_sequence=some[0].offset
            )
            cluster.append(cluster.logs[T0].leader, T0, bytes(encoded))
        async with Consumer(client, {T0: 2}) as consumer:
            first, second = await consumer.poll_batches()
            first.value.check_crc()
            assert decode_records(first.value) == stored[2:4]
            assert decode_records(second.value) == stored[4:]
            assert (first.value.base_offset, first.position, first.offset) == (2, 2, 3)
            assert (first.value.codec, first.value.base_sequence) == (codec, 2)
            # After a seek it is again the first one; from a batch's own start nothing changes.
            consumer.seek(T0, 5)
            (last,) = await consumer.poll_batches()
            assert decode_records(last.value) == stored[5:]
            consumer.seek(T0, 4)
            (whole,) = await consumer.poll_batches()
            assert bytes(whole.value.records) == bytes(second.value.records)


async def test_records_begin_at_the_position() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        fill(cluster, T0, batches=3)
        async with Consumer(client, {T0: 4}) as consumer:
            records = await consumer.poll_records()
            assert [item.record.offset for item in records] == [4, 5, 6, 7, 8]
            assert [item.record.value for item in records] == [b"4", b"5", b"6", b"7", b"8"]
            consumer.seek(T0, 8)
            assert [item.record.offset for item in await consumer.poll_records()] == [8]
            assert consumer.positions == {T0: 9}


async def test_the_option_decides_which_poll_is_right() -> None:
    async with ScriptedCluster() as cluster:
        fill(cluster, T0, batches=1)
        async with (
            client_of(cluster, fetch_raw_bytes=True) as client,
            Consumer(client, {T0: 0}) as consumer,
        ):
            with pytest.raises(UsageError, match=r"fetch\.raw\.bytes is true"):
                await consumer.poll_records()
            assert [item.offset for item in await consumer.poll_batches()] == [2]
        async with client_of(cluster) as client, Consumer(client, {T0: 0}) as consumer:
            with pytest.raises(UsageError, match=r"fetch\.raw\.bytes is false"):
                await consumer.poll_batches()


async def test_positions_by_name_are_looked_up() -> None:
    def first_is_3(_: Asked) -> Values:
        part = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 3}
        return {"topics": [{"name": "t", "partitions": [part | {"leader_epoch": 0}]}]}

    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.handlers[ApiKey.LIST_OFFSETS] = first_is_3
        fill(cluster, T0, batches=2)
        async with RawConsumer(client, {T0: EARLIEST}) as consumer:
            assert [item.offset for item in await consumer.poll()] == [5]


async def test_a_position_outside_the_log_is_an_error_unless_told_otherwise() -> None:
    def first_is_0(_: Asked) -> Values:
        part = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 0}
        return {"topics": [{"name": "t", "partitions": [part | {"leader_epoch": 0}]}]}

    async with ScriptedCluster() as cluster:
        cluster.handlers[ApiKey.LIST_OFFSETS] = first_is_0
        fill(cluster, T0, batches=1)
        async with client_of(cluster) as client, RawConsumer(client, {T0: 99}) as consumer:
            with pytest.raises(OffsetOutOfRange, match="t-0 at offset 99"):
                await consumer.poll()
        async with (
            client_of(cluster, auto_offset_reset="earliest") as client,
            Consumer(client, {T0: 99}) as reset,
        ):
            assert [item.record.offset for item in await reset.poll_records()] == [0, 1, 2]


async def test_a_slow_leader_holds_up_its_own_partitions_only() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        fill(cluster, T0, batches=1)
        healthy = cluster.handlers[ApiKey.FETCH]
        cluster.handlers[ApiKey.FETCH] = lambda asked: (
            stay_silent(asked) if asked.node_id == 2 else healthy(asked)
        )
        async with RawConsumer(client, {T0: 0, T1: 0}) as consumer:
            assert [item.offset for item in await consumer.poll()] == [2]
            fill(cluster, T0, batches=1)
            assert [item.offset for item in await consumer.poll()] == [5]


async def test_leaders_that_move_die_and_come_back_are_followed() -> None:
    async with (
        ScriptedCluster(brokers=2) as cluster,
        client_of(cluster) as client,
        RawConsumer(client, {T0: 0}) as consumer,
    ):
        fill(cluster, T0, batches=1)
        assert len(await consumer.poll()) == 1
        cluster.logs[T0].leader = 2
        cluster.logs[T0].epoch = 1
        fill(cluster, T0, batches=1)
        assert [item.offset for item in await consumer.poll()] == [5]
        await cluster.nodes[1].stop()
        assert await consumer.poll(timeout_ms=100) == []
        cluster.logs[T0].leader = -1
        assert await consumer.poll(timeout_ms=50) == []
        await cluster.nodes[1].start()
        cluster.logs[T0].leader = 2
        fill(cluster, T0, batches=1)
        assert [item.offset for item in await consumer.poll(3000)] == [8]


async def test_an_answer_from_before_a_seek_is_dropped() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        release = asyncio.Event()
        healthy = cluster.handlers[ApiKey.FETCH]

        async def slow(asked: Asked) -> Any:
            await release.wait()
            return healthy(asked)

        fill(cluster, T0, batches=3)
        cluster.answer_once(ApiKey.FETCH, slow)
        async with RawConsumer(client, {T0: 0}) as consumer:
            assert await consumer.poll(timeout_ms=30) == []
            consumer.seek(T0, 6)
            release.set()
            assert [item.offset for item in await consumer.poll()] == [8]
            with pytest.raises(UsageError, match="is not a partition of this consumer"):
                consumer.seek(T1, 0)


async def test_a_damaged_batch_is_raised_and_costs_no_others_batches() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        fill(cluster, T0, batches=1)
        fill(cluster, T1, batches=1)
        damaged = bytearray(cluster.logs[T1].batches[0])
        damaged[-1] ^= 1
        cluster.logs[T1].batches[0] = bytes(damaged)
        async with RawConsumer(client, {T0: 0, T1: 0}) as consumer:
            with pytest.raises(CorruptBatch):
                await consumer.poll()
            assert [(i.partition, i.offset) for i in await consumer.poll()] == [(0, 2)]
            assert consumer.positions[T1] == 0
    async with ScriptedCluster() as cluster, client_of(cluster, check_crcs=False) as client:
        fill(cluster, T0, batches=1)
        cluster.logs[T0].batches[0] = bytes(damaged)
        async with RawConsumer(client, {T0: 0}) as consumer:
            assert len(await consumer.poll()) == 1


async def test_a_topic_made_again_is_heard_of() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        fill(cluster, T0, batches=1)
        async with RawConsumer(client, {T0: 0}) as consumer:
            await consumer.poll()
            cluster.topic_id = uuid.UUID(int=99)
            client.invalidate_metadata()
            with pytest.raises(TopicRecreated, match="t was deleted and created again"):
                await consumer.poll(200)


async def test_errors_that_will_not_pass_are_raised() -> None:
    def forbidden(asked: Asked) -> Any:
        parts = [
            FetchedPartition(p.topic, p.topic_id, p.partition, Code.TOPIC_AUTHORIZATION_FAILED)
            for p in asked.body.partitions
        ]
        return fetch_answer(asked, parts)

    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.handlers[ApiKey.FETCH] = forbidden
        async with RawConsumer(client, {T0: 0}) as consumer:
            with pytest.raises(KafkaError, match=r"TOPIC_AUTHORIZATION_FAILED \(29\)"):
                await consumer.poll()


async def test_a_cut_connection_is_read_over() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        fill(cluster, T0, batches=1)
        cluster.answer_once(ApiKey.FETCH, hang_up, hang_up)
        async with RawConsumer(client, {T0: 0}) as consumer:
            assert [item.offset for item in await consumer.poll(2000)] == [2]


async def test_a_consumer_of_nothing_waits_and_returns() -> None:
    async with (
        ScriptedCluster() as cluster,
        client_of(cluster) as client,
        RawConsumer(client, {}) as consumer,
    ):
        assert await consumer.poll(timeout_ms=10) == []


async def test_a_cancelled_poll_loses_nothing() -> None:
    async with (
        ScriptedCluster() as cluster,
        client_of(cluster) as client,
        RawConsumer(client, {T0: 0}) as consumer,
    ):
        polling = asyncio.create_task(consumer.poll(5_000))
        await eventually(lambda: cluster.count(ApiKey.FETCH))
        polling.cancel()
        fill(cluster, T0, batches=2)
        offsets: list[int] = []
        while len(offsets) < 2:
            offsets += [item.offset for item in await consumer.poll()]
        assert offsets == [2, 5]
