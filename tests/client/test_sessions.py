"""Sessions against scripted brokers: numbering, order, retries, outcomes, room, raw batches."""

import asyncio
from typing import Any

import pytest

from shoal.client.codes import Code
from shoal.client.errors import ClientClosed
from shoal.client.produce.producer import (
    IdempotentSession,
    PlainSession,
    Producer,
    RawProducer,
    TransactionalSession,
    session_for,
)
from shoal.client.produce.sessions import prepare_batch
from shoal.model.errors import ConfigError, UsageError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, Batch
from shoal.wire.produce import ProduceAnswer
from shoal.wire.records.records import (
    ControlType,
    Record,
    decode_records,
    encode_batch,
    encode_control_batch,
)
from support.client.fast import T0, T1, client_of
from support.client.scripted import (
    Asked,
    ScriptedCluster,
    hang_up,
    produce_answer,
    refuse_all,
    stay_silent,
)
from support.client.waiting import eventually
from support.wire.batches import raw_batch


def batch(text: str = "value", records: int = 2) -> bytearray:
    return encode_batch([Record(i, 5, None, text.encode()) for i in range(records)])


def texts(cluster: ScriptedCluster, tp: TopicPartition) -> list[str]:
    """The value of the first record of each stored batch."""
    stored = [Batch(memoryview(data)) for data in cluster.logs[tp].batches]
    return [(decode_records(one)[0].value or b"").decode() for one in stored]


async def test_batches_are_numbered_and_kept_in_order() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        async with IdempotentSession(client) as session:
            futures = [await session.send(T0, batch(str(i))) for i in range(50)]
            await session.flush()
        assert [future.result().offset for future in futures] == list(range(0, 100, 2))
        assert texts(cluster, T0) == [str(i) for i in range(50)]
        stored = [Batch(memoryview(data)) for data in cluster.logs[T0].batches]
        assert [one.base_sequence for one in stored] == list(range(0, 100, 2))
        assert {one.producer_id for one in stored} == {1001}


async def test_partitions_of_a_leader_share_requests() -> None:
    async with ScriptedCluster(partitions=8) as cluster, client_of(cluster) as client:
        async with IdempotentSession(client) as session:
            tps = [TopicPartition("t", number) for number in range(8)]
            results = await session.produce({tp: batch() for tp in tps})
        assert {result.outcome for result in results.values()} == {Outcome.OK}
        assert cluster.count(ApiKey.PRODUCE) == 1


async def test_a_lost_answer_is_asked_for_again_and_nothing_is_written_twice() -> None:
    def write_and_hang_up(asked: Asked) -> Any:
        cluster.handlers[ApiKey.PRODUCE](asked)
        return hang_up(asked)

    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        async with IdempotentSession(client) as session:
            await session.produce({T0: batch("first")})
            cluster.answer_once(ApiKey.PRODUCE, write_and_hang_up)
            futures = [await session.send(T0, batch(str(i))) for i in range(10)]
            await session.flush()
        assert {future.result().outcome for future in futures} == {Outcome.OK}
        assert texts(cluster, T0) == ["first", *(str(i) for i in range(10))]


async def test_a_leader_that_moves_is_followed() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        async with IdempotentSession(client) as session:
            await session.produce({T0: batch("first")})
            cluster.logs[T0].leader = 2
            cluster.logs[T0].epoch = 1
            results = [await session.send(T0, batch(str(i))) for i in range(7)]
            await session.flush()
        assert all(result.result().is_ok for result in results)
        assert texts(cluster, T0) == ["first", *(str(i) for i in range(7))]


async def test_a_dead_leader_is_waited_for() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        async with IdempotentSession(client) as session:
            await cluster.nodes[1].stop()
            future = await session.send(T1, batch("late"))
            other = await session.send(T0, batch("now"))
            assert (await other).is_ok
            assert not future.done()
            await cluster.nodes[1].start()
            assert (await future).is_ok
        assert texts(cluster, T1) == ["late"]


async def test_a_refusal_for_good_is_failed_and_the_next_batch_takes_its_number() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        async with IdempotentSession(client) as session:
            await session.produce({T0: batch("first")})
            cluster.answer_once(ApiKey.PRODUCE, refuse_all(Code.MESSAGE_TOO_LARGE))
            futures = [await session.send(T0, batch(text)) for text in ("big", "next", "last")]
            await session.flush()
        outcomes = [future.result().outcome for future in futures]
        assert outcomes == [Outcome.FAILED, Outcome.OK, Outcome.OK]
        assert texts(cluster, T0) == ["first", "next", "last"]


async def test_time_is_over_failed_if_it_never_left_and_unknown_otherwise() -> None:
    async with (
        ScriptedCluster() as cluster,
        client_of(cluster, delivery_timeout_ms=1500, request_timeout_ms=1000) as client,
        IdempotentSession(client) as session,
    ):
        await session.produce({T0: batch()})
        cluster.handlers[ApiKey.PRODUCE] = stay_silent
        unknown = await session.send(T0, batch())
        assert (await unknown).outcome is Outcome.UNKNOWN
        cluster.logs[T1].leader = -1
        client.invalidate_metadata()
        failed = await session.send(T1, batch())
        assert (await failed).outcome is Outcome.FAILED


async def test_after_an_unknown_outcome_numbering_begins_anew_under_another_id() -> None:
    async with ScriptedCluster() as cluster:
        async with (
            client_of(cluster, delivery_timeout_ms=1500, request_timeout_ms=1000) as client,
            IdempotentSession(client) as session,
        ):
            await session.produce({T0: batch("first")})
            cluster.answer_once(ApiKey.PRODUCE, stay_silent, stay_silent)
            assert (await session.produce({T0: batch("lost")}))[T0].outcome_unknown
            cluster.once[ApiKey.PRODUCE].clear()
            assert (await session.produce({T0: batch("next")}))[T0].is_ok
        stored = [Batch(memoryview(data)) for data in cluster.logs[T0].batches]
        assert [(one.producer_id, one.base_sequence) for one in stored] == [(1001, 0), (1002, 0)]


async def test_a_cluster_that_is_not_ready_is_asked_again_for_an_id() -> None:
    refusals = [
        {"error_code": code, "producer_id": -1, "producer_epoch": -1} for code in (14, 15, 16)
    ]
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.answer_once(ApiKey.INIT_PRODUCER_ID, *refusals)
        async with IdempotentSession(client) as session:
            assert (await session.produce({T0: batch()}))[T0].is_ok
        assert cluster.count(ApiKey.INIT_PRODUCER_ID) == 4


async def test_handing_over_waits_for_room() -> None:
    release = asyncio.Event()

    async def slow(asked: Asked) -> Any:
        await release.wait()
        return produce_answer(asked, [ProduceAnswer(*T0, 0, 0)])

    size = len(batch())
    async with ScriptedCluster() as cluster:
        cluster.handlers[ApiKey.PRODUCE] = slow
        async with (
            client_of(cluster, buffer_memory=3 * size) as client,
            IdempotentSession(client) as session,
        ):
            handed = [await session.send(T0, batch()) for _ in range(3)]
            fourth = asyncio.create_task(session.send(T0, batch()))
            cancelled = asyncio.create_task(session.send(T0, batch()))
            fifth = asyncio.create_task(session.send(T0, batch()))
            await asyncio.sleep(0.05)
            assert not fourth.done()
            cancelled.cancel()
            release.set()
            assert (await (await fourth)).is_ok
            assert (await (await fifth)).is_ok
            assert all(future.done() for future in handed)
            assert session._sender._bytes == 0


async def test_closing_gives_an_outcome_to_everything() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        session = IdempotentSession(client)
        await session.start()
        await session.produce({T0: batch()})
        cluster.handlers[ApiKey.PRODUCE] = stay_silent
        futures = [await session.send(T0, batch()) for _ in range(8)]
        before = cluster.count(ApiKey.PRODUCE)
        await eventually(lambda: cluster.count(ApiKey.PRODUCE) > before)
        await session.close()
        outcomes = [future.result().outcome for future in futures]
        assert outcomes == [Outcome.UNKNOWN] * 5 + [Outcome.FAILED] * 3
        late = await session.send(T0, batch())
        assert isinstance(late.result().error(T0), ClientClosed)


async def test_plain_batches_keep_what_the_caller_wrote_and_get_no_number() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster, acks=1) as client:
        session = session_for(client)
        assert isinstance(session, PlainSession)
        async with session:
            cluster.answer_once(ApiKey.PRODUCE, hang_up)
            assert (await session.produce({T0: batch("again")}))[T0].is_ok
        stored = Batch(memoryview(cluster.logs[T0].batches[0]))
        assert (stored.producer_id, stored.base_sequence) == (-1, -1)
        assert cluster.bodies(ApiKey.PRODUCE)[0].acks == 1


async def test_a_new_leader_waits_for_what_is_under_way_at_the_old_one() -> None:
    release = asyncio.Event()
    waiting: list[Asked] = []

    async def slow(asked: Asked) -> Any:
        waiting.append(asked)
        await release.wait()
        return cluster.handlers[ApiKey.PRODUCE](asked)

    async with (
        ScriptedCluster(brokers=2) as cluster,
        client_of(cluster, acks=1) as client,
        PlainSession(client) as session,
    ):
        cluster.answer_once(ApiKey.PRODUCE, slow)
        first = await session.send(T0, batch("first"))
        await eventually(lambda: waiting)
        cluster.logs[T0].leader = 2
        cluster.logs[T0].epoch = 1
        await client.metadata(["t"], refresh=True)
        second = await session.send(T0, batch("second"))
        await asyncio.sleep(0.05)
        assert not second.done()
        release.set()
        assert (await first).is_ok
        assert (await second).is_ok
        assert texts(cluster, T0) == ["first", "second"]


async def test_the_session_follows_the_configuration() -> None:
    async with ScriptedCluster() as cluster:
        async with client_of(cluster) as client:
            assert type(session_for(client)) is IdempotentSession
        async with client_of(cluster, transactional_id="t") as client:
            assert type(session_for(client)) is TransactionalSession


# Raw batches


def test_a_fetched_batch_is_made_fit_for_a_producer() -> None:
    fetched = Batch(memoryview(encode_batch([Record(700, 5, b"k", b"v")], producer_id=9)))
    fetched.edit(
        base_offset=700,
        leader_epoch=3,
        attributes=fetched.attributes | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | DELETE_HORIZON_BIT,
    )
    made = prepare_batch(T0, fetched, is_transactional=False)
    made.check_crc()
    assert (made.base_offset, made.attributes, made.producer_id) == (0, 0, -1)
    assert prepare_batch(T0, fetched, is_transactional=True).is_transactional


def test_read_only_memory_is_copied_and_left_alone() -> None:
    original = bytes(batch())
    made = prepare_batch(T0, original, is_transactional=True)
    assert made.is_transactional
    assert original == bytes(batch())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"rubbish", "t-0: 7 bytes are not a record batch"),
        (bytes(batch()) * 2, "t-0: expected one batch, got 2 and 0 more bytes"),
        (bytes(batch()) + b"tail", "got 1 and 4 more bytes"),
    ],
)
def test_what_is_not_one_batch_is_refused(given: bytes, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        prepare_batch(T0, given, is_transactional=False)
    assert message in str(refused.value)


def test_control_batches_and_gaps_are_refused() -> None:
    control = encode_control_batch(
        ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp=0, coordinator_epoch=0
    )
    with pytest.raises(UsageError, match="producers may not send control batches"):
        prepare_batch(T0, control, is_transactional=False)
    gaps = raw_batch(record_count=3, last_offset_delta=9)
    with pytest.raises(UsageError, match="has offset gaps"):
        prepare_batch(T0, gaps, is_transactional=False)


async def test_raw_and_record_producers_refuse_the_other_kind() -> None:
    async with ScriptedCluster() as cluster:
        async with client_of(cluster, send_raw_bytes=True) as client, Producer(client) as raw:
            with pytest.raises(UsageError, match=r"send\(\) takes records, but send.raw.bytes is"):
                await raw.send("t", b"value")
            assert (await (await raw.send_batch("t", 0, batch("raw")))).is_ok
        async with client_of(cluster) as client, Producer(client) as producer:
            with pytest.raises(UsageError, match=r"but send\.raw\.bytes is false"):
                await producer.send_batch("t", 0, batch())
        async with client_of(cluster) as client, RawProducer(client) as always_raw:
            assert (await (await always_raw.send("t", 0, batch("two")))).offset == 2
            await always_raw.flush()
        assert texts(cluster, T0) == ["raw", "two"]
        with pytest.raises(ConfigError, match=r"compression\.type=zstd cannot be applied"):
            client_of(cluster, send_raw_bytes=True, compression_type="zstd")


# Records


async def test_records_are_gathered_into_batches_and_keep_their_order() -> None:
    async with (
        ScriptedCluster() as cluster,
        client_of(cluster, batch_size=2_000, compression_type="gzip") as client,
        Producer(client) as producer,
    ):
        futures = [
            await producer.send("t", b"%d" % i, partition=0, headers=[("h", b"1")], timestamp_ms=i)
            for i in range(300)
        ]
        await producer.flush()
        stored = [Batch(memoryview(data)) for data in cluster.logs[T0].batches]
        records = [record for one in stored for record in decode_records(one)]
        assert [record.value for record in records] == [b"%d" % i for i in range(300)]
        assert [record.timestamp for record in records] == list(range(300))
        assert [future.result().offset for future in futures] == list(range(300))
        assert 1 < len(stored) < 20
        assert {one.codec for one in stored} == {1}


async def test_keys_choose_partitions_as_java_does_and_keyless_records_stick() -> None:
    async with (
        ScriptedCluster(partitions=16) as cluster,
        client_of(cluster, linger_ms=20) as client,
        Producer(client) as producer,
    ):
        for key in (b"21", b"foobar", b"a-little-bit-long-string"):
            await producer.send("t", b"v", key=key)
        for _ in range(20):
            await producer.send("t", b"none")
        await producer.flush()
        by_key: dict[bytes, int] = {}
        keyless = set()
        for tp, log in cluster.logs.items():
            for data in log.batches:
                for record in decode_records(Batch(memoryview(data))):
                    if record.key is None:
                        keyless.add(tp.partition)
                    else:
                        by_key[record.key] = tp.partition
        # Hashes as in Kafka's own UtilsTest.
        hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
        assert by_key == {key: (value & 0x7FFFFFFF) % 16 for key, value in hashes.items()}
        assert len(keyless) == 1


async def test_records_that_cannot_be_sent_get_an_outcome() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        producer = Producer(client)
        await producer.session.start()
        cluster.handlers[ApiKey.PRODUCE] = stay_silent
        sent = await producer.send("t", b"sent", partition=0)
        await eventually(lambda: cluster.count(ApiKey.PRODUCE))
        piled = await producer.send("t", b"piled", partition=1)
        await producer.close()
        assert (await sent).outcome is Outcome.UNKNOWN
        assert (await piled).outcome is Outcome.FAILED
