"""Sources with messages of the formats 0 and 1: converted, announced, counted and declared."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from shoal.client.client import Client
from shoal.client.consume.consumer import RawConsumer
from shoal.client.produce.compare_and_append import AppendResult
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.transport.backoff import Backoff
from shoal.lite.cluster import LiteCluster
from shoal.mirror.copy.delivery.choice import _timestamps
from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier, PartitionMirror
from shoal.mirror.copy.rebatch import DeepRules, Rebatcher
from shoal.mirror.offsets.re_encoded import read_re_encoded
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, decode_records
from support.apache.clusters import PROPERTIES, short_lived_jvm
from support.client.topic_reader import read_topic
from support.formats.old import OLD_CODECS, as_read, message_set, old_records
from support.mirror.batches import SequencedTarget, record_set, stored_batch
from support.mirror.copies import config_of, fill, make_topic, mirror_all, verify_copies

PARTITION = TopicPartition("t", 0)
IDENTITY = ProducerIdentity(77, 2)


def _mirror(position: int = 0, **options: Any) -> PartitionMirror:
    intake = Intake(PARTITION, **options)
    return PartitionCopier(intake, IdempotentDelivery(IDENTITY), position, Backoff(1, 1))


def _feed(mirror: PartitionMirror, *sets: bytearray) -> bool:
    return mirror.on_fetched(record_set(*sets), aborted=(), last_stable_offset=1000)


def _collect_sent(mirror: PartitionMirror) -> list[Record]:
    """All records that go to a target which demands what Kafka demands."""
    target, records = SequencedTarget(), []
    while (outgoing := mirror.next_batch(1e9)) is not None:
        records += decode_records(outgoing.batch)
        mirror.mark_sent(outgoing)
        mirror.on_produce_result(outgoing, target.append(outgoing.batch), now=0.0)
    return records


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("is_deep", [False, True])
def test_old_formats_are_converted(magic: int, codec: Codec, is_deep: bool) -> None:
    declared: list[int] = []
    mirror = _mirror(rebatcher=Rebatcher(DeepRules()) if is_deep else None)
    mirror.declare = lambda _target, offset: declared.append(offset)
    assert _feed(mirror, message_set(magic, codec, old_records(0, 7)), stored_batch(7, 2))
    mirror.flush()
    sent = _collect_sent(mirror)
    expected = as_read(magic, old_records(0, 7))
    assert [one[1:] for one in sent[:7]] == [one[1:] for one in expected]
    assert (len(sent), mirror.parked, mirror.done) == (9, None, 9)
    assert (mirror.counts.converted, mirror.counts.damaged) == (1, 0)
    assert declared == [0]  # a start does not ask for this in deep mode


def test_a_copy_may_begin_inside_of_a_wrapper_and_close_its_gaps() -> None:
    kept = [record for record in old_records(0, 9) if record.offset != 6]
    mirror = _mirror(position=4)
    assert _feed(mirror, message_set(1, Codec.GZIP, kept))
    assert [one.value for one in _collect_sent(mirror)] == [one.value for one in kept[4:]]
    assert (mirror.position, mirror.counts.trimmed) == (9, 1)


def test_compare_and_append_keeps_the_offsets() -> None:
    intake = Intake(PARTITION, keeps_offsets=True)
    mirror = PartitionCopier(intake, AppendDelivery(), 0, Backoff(1, 1))
    kept = [record for record in old_records(0, 9) if record.offset != 6]
    assert _feed(mirror, message_set(0, Codec.SNAPPY, kept))
    unit = mirror.delivery.next_unit(0.0, 1 << 20)
    assert decode_records(unit[0].batch) == as_read(0, kept)
    mirror.delivery.on_append_result(unit, AppendResult(Outcome.OK), now=0.0)
    assert mirror.done == 9


def test_conversion_is_said_once_for_all_partitions_of_a_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    announced: set[str] = set()
    with caplog.at_level(logging.WARNING, logger="shoal.mirror"):
        for _ in range(3):
            mirror = _mirror(announced=announced)
            _feed(mirror, message_set(1, Codec.NONE, old_records(0, 7)))
    (said,) = caplog.messages
    assert said.startswith("topic t has messages of format 1")


def test_a_damaged_message_parks_the_partition_behind_the_good_ones() -> None:
    stored = message_set(1, Codec.GZIP, old_records(3, 3))
    stored[-1] ^= 1
    mirror = _mirror()
    assert not _feed(mirror, message_set(1, Codec.GZIP, old_records(0, 3)), stored)
    assert "the batch at source offset 3 is damaged" in str(mirror.parked)


def test_the_age_of_old_formats_is_known() -> None:
    newer, oldest = message_set(1, Codec.NONE, old_records(0, 2)), old_records(2, 1)
    records = record_set(newer, message_set(0, Codec.NONE, oldest), stored_batch(3, 2))
    first_ms = 1_500_000_000_000
    assert list(_timestamps(records)) == [first_ms, first_ms + 1, -1, 1_700_000_000_004]
    assert list(_timestamps(records[:-70])) == [first_ms, first_ms + 1, -1]


@pytest.mark.apache
@pytest.mark.slow
@pytest.mark.long
async def test_topics_of_an_old_apache_kafka_are_converted(
    target: LiteCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short_lived_jvm(monkeypatch)
    old = {"inter.broker.protocol.version": "2.8"}
    with ApacheCluster(version="2.8.1", properties=PROPERTIES | old) as source:
        bootstrap = source.bootstrap
        for version in ("0.9.0", "0.10.2"):
            for codec in OLD_CODECS:
                topic = f"old-{version}-{codec.name.lower()}"
                await make_topic(bootstrap, topic, message_format_version=version)
                # Neither format takes idempotent producers.
                settings: dict[str, Any] = {"compression_type": codec.name.lower()}
                settings |= {"enable_idempotence": False}
                await asyncio.to_thread(fill, bootstrap, topic, range(100), **settings)
                declared = tmp_path / topic
                options = {"name": topic, "re_encoded": declared}
                config = config_of(bootstrap, target.bootstrap, topic, **options)
                status = await mirror_all(config)
                assert (status.parked, status.counts.records) == ((), 100)
                assert status.counts.converted >= 1
                assert len(read_re_encoded(declared)) >= 1
                await _same(bootstrap, target.bootstrap, topic)
                await _readable(bootstrap, topic)


async def _same(source: str, target: str, topic: str) -> None:
    one = await asyncio.to_thread(read_topic, source, topic, partitions=1, count=100)
    other = await asyncio.to_thread(read_topic, target, topic, partitions=1, count=100)
    # Format 0 has no timestamps, which is another kind than -1 for librdkafka.
    has_times = "0.9.0" not in topic
    pairs = zip(one.partitions[0], other.partitions[0], strict=True)
    for original, copy in pairs:
        assert (copy.key, copy.value) == (original.key, original.value)
        assert not has_times or copy.timestamp == original.timestamp
    (report,) = await verify_copies(source, target, topic)
    assert (report.difference, report.not_yet, report.records) == (None, 0, 100)


async def _readable(bootstrap: str, topic: str) -> None:
    """The Python consumer reads them too."""
    tp = TopicPartition(topic, 0)
    async with (
        Client({"bootstrap.servers": bootstrap}) as client,
        RawConsumer(client, {tp: 37}) as consumer,
        asyncio.timeout(60),
    ):
        seen: list[int] = []
        while len(seen) < 63:
            for item in await consumer.poll():
                seen += [record.offset for record in decode_records(item.value)]
    assert seen == list(range(37, 100))
