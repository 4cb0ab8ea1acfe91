"""A coordinator's state is what its partition's committed records say, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.coordinator import NewRecord
from shoal.lite.coordinator.topics import partition_of
from shoal.lite.storage.header import unpack_header
from shoal.wire.records.records import ControlType, Record, encode_batch, encode_control_batch
from support.client.waiting import eventually
from support.coordinator.parts import Ledger, Stage

A, B, C = (NewRecord(key, key.upper()) for key in (b"a", b"b", b"c"))
PATIENCE_MS = 5_000


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "three")
    yield stage
    stage.close()


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "alone", replicas=(1,))
    yield stage
    stage.close()


async def test_what_is_written_is_replayed_before_the_writer_continues(alone: Stage) -> None:
    loaded, ledger = alone.lead(), Ledger()
    loaded.load(ledger)
    await eventually(lambda: ledger.is_started)
    await loaded.append([A, B], timeout_ms=PATIENCE_MS)
    assert ledger.seen == [A, B]
    await loaded.append([NewRecord(b"a", None)], timeout_ms=PATIENCE_MS)
    assert ledger.seen[2:] == [(b"a", None)]
    await loaded.close()
    assert ledger.is_stopped


async def test_nothing_is_replayed_before_the_in_sync_replicas_have_it(stage: Stage) -> None:
    loaded, ledger = stage.lead(), Ledger()
    loaded.load(ledger)
    await eventually(lambda: ledger.is_started)
    write = loaded.append([A], timeout_ms=PATIENCE_MS)
    await asyncio.sleep(0.01)
    assert ledger.seen == []
    assert not write.done()
    stage.followers_fetch()
    await write
    assert ledger.seen == [A]
    await loaded.close()


async def test_a_write_that_times_out_fails_and_is_replayed_once_it_is_committed(
    stage: Stage,
) -> None:
    loaded, ledger = stage.lead(), Ledger()
    loaded.load(ledger)
    await eventually(lambda: ledger.is_started)
    with pytest.raises(ApiError) as raised:
        await loaded.append([A], timeout_ms=1)
    assert raised.value.code == Code.COORDINATOR_NOT_AVAILABLE
    assert ledger.seen == []
    stage.followers_fetch()
    await eventually(lambda: ledger.seen == [A])
    await loaded.close()


async def test_below_min_insync_nothing_is_written(stage: Stage) -> None:
    loaded = stage.lead()
    stage.assign(leader=1, in_sync=(1,))
    loaded.load(Ledger())
    await eventually(lambda: loaded.is_active)
    with pytest.raises(ApiError) as raised:
        await loaded.append([A], timeout_ms=PATIENCE_MS)
    assert raised.value.code == Code.COORDINATOR_NOT_AVAILABLE
    assert stage.log.end_offset == 0
    await loaded.close()


async def test_a_new_leader_is_active_once_all_that_was_before_is_committed(stage: Stage) -> None:
    old = stage.lead()
    old.load(Ledger())
    await eventually(lambda: old.is_active)
    write = old.append([A, B], timeout_ms=PATIENCE_MS)
    assert stage.log.end_offset == 2
    stage.assign(leader=2)
    with pytest.raises(ApiError) as raised:
        await write
    assert raised.value.code == Code.NOT_COORDINATOR
    await old.close()
    loaded, ledger = stage.lead(), Ledger()
    loaded.load(ledger)
    await asyncio.sleep(0.01)
    assert not ledger.is_started
    with pytest.raises(ApiError) as raised:
        _ = loaded.shard
    assert raised.value.code == Code.COORDINATOR_LOAD_IN_PROGRESS
    stage.followers_fetch()
    await eventually(lambda: ledger.is_started)
    assert ledger.seen == [A, B]
    assert loaded.shard is ledger
    await loaded.close()
    with pytest.raises(ApiError) as raised:
        _ = loaded.shard
    assert raised.value.code == Code.NOT_COORDINATOR


async def test_markers_are_replayed(alone: Stage) -> None:
    loaded, ledger = alone.lead(), Ledger()
    loaded.load(ledger)
    await eventually(lambda: ledger.is_started)
    record = Record(0, 1, b"a", b"A")
    about = encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=0)
    guard = alone.partition.guards.begin_verification(
        unpack_header(about), alone.partition.log.producers, begins_at_zero=False
    )
    await loaded.append(
        [A],
        timeout_ms=PATIENCE_MS,
        producer_id=7,
        producer_epoch=0,
        is_transactional=True,
        guard=guard,
    )
    marker = memoryview(
        encode_control_batch(
            ControlType.COMMIT, timestamp=1, coordinator_epoch=0, producer_id=7, producer_epoch=0
        )
    )
    alone.partition.append_as_coordinator(
        marker, unpack_header(marker), timeout_ms=1, on_acked=lambda _: None
    )
    await eventually(lambda: len(ledger.seen) == 2)
    assert ledger.seen == [A, "marker 1"]
    await loaded.close()


async def test_a_batch_above_the_limit_is_not_written(alone: Stage) -> None:
    loaded = alone.lead()
    loaded.load(Ledger())
    await eventually(lambda: loaded.is_active)
    with pytest.raises(ApiError) as raised:
        await loaded.append([NewRecord(b"a", bytes(2_000_000))], timeout_ms=PATIENCE_MS)
    assert raised.value.code == Code.UNKNOWN_SERVER_ERROR
    assert alone.log.end_offset == 0
    await loaded.append([A], timeout_ms=PATIENCE_MS)
    await loaded.close()


# Java's String.hashCode, computed by a JVM: abs(hash) % 50.
JAVA = {"": 0, "a": 47, "group": 47, "consumer-group-1": 20, "žluťoučký": 5, "🐟": 18}


@pytest.mark.parametrize("key", JAVA)
def test_keys_belong_to_the_partitions_that_kafka_gives_them(key: str) -> None:
    assert partition_of(key, 50) == JAVA[key]


def test_the_number_without_a_counterpart_counts_as_zero() -> None:
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE.
    assert partition_of("polygenelubricants", 50) == 0
