"""Our record codecs and Kafka's Java classes read what the other wrote, in every compression."""

from uuid import UUID

import pytest
from py4j.java_gateway import JavaGateway

from shoal.lite.coordinator.groups.records import CommittedOffset, encode_offset
from shoal.wire.batch import Batch, iter_batches
from shoal.wire.records.columns import decode_columns
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import (
    ControlType,
    decode_control,
    decode_records,
    encode_batch,
    encode_control_batch,
)
from support.apache.java_gateway import JavaRecords
from support.wire.record_samples import SAMPLES

PRODUCER = (2**40 + 5, 3, 2**31 - 2)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", SAMPLES)
def test_java_reads_what_we_wrote(java_records: JavaRecords, name: str, codec: Codec) -> None:
    records = SAMPLES[name]
    assert java_records.decode(encode_batch(records, codec=codec)) == list(records)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", SAMPLES)
def test_we_read_what_java_wrote(java_records: JavaRecords, name: str, codec: Codec) -> None:
    records = SAMPLES[name]
    (batch,) = iter_batches(memoryview(java_records.encode(records, codec=codec)))
    batch.check_crc()
    assert decode_records(batch) == list(records)
    columns = decode_columns([batch])
    assert [columns.record(index) for index in range(len(columns))] == list(records)


@pytest.mark.parametrize("name", SAMPLES)
def test_without_compression_both_write_the_same_bytes(
    java_records: JavaRecords, name: str
) -> None:
    records = SAMPLES[name]
    assert bytes(encode_batch(records)) == java_records.encode(records, codec=Codec.NONE)


def as_text(batch: Batch, name: str) -> str:
    value = getattr(batch, name)
    return str(value).lower() if isinstance(value, bool) else str(int(value))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("is_ours", [True, False])
def test_java_sees_the_same_header_as_our_view(
    java_records: JavaRecords, codec: Codec, is_ours: bool
) -> None:
    records = SAMPLES["mixed"]
    if is_ours:
        encoded = encode_batch(
            records,
            codec=codec,
            base_offset=77,
            producer_id=PRODUCER[0],
            producer_epoch=PRODUCER[1],
            base_sequence=PRODUCER[2],
            is_transactional=True,
            leader_epoch=9,
        )
    else:
        moved = [record._replace(offset=record.offset + 77) for record in records]
        encoded = bytearray(
            java_records.encode(
                moved, codec=codec, base_offset=77, producer=PRODUCER, is_transactional=True
            )
        )
    batch = Batch(memoryview(encoded))
    said = java_records.describe(encoded)
    assert said == {name: as_text(batch, name) for name in said}
    assert (batch.last_offset, batch.record_count) == (77 + 299, 300)


def test_java_accepts_a_header_that_we_edited(java_records: JavaRecords) -> None:
    encoded = bytearray(java_records.encode(SAMPLES["mixed"], codec=Codec.ZSTD))
    batch = Batch(memoryview(encoded))
    batch.edit(base_offset=1000, producer_id=12, producer_epoch=1, base_sequence=5, leader_epoch=4)
    said = java_records.describe(encoded)
    assert said["producer_id"] == "12"
    assert [record.offset for record in java_records.decode(encoded)] == list(range(1000, 1300))


def test_compaction_gaps_are_kept_both_ways(java_records: JavaRecords) -> None:
    gappy = [record for record in SAMPLES["mixed"] if record.offset % 3 == 1]
    ours = encode_batch(gappy, keep_offsets=True, base_offset=0, codec=Codec.LZ4)
    assert java_records.decode(ours) == gappy
    (theirs,) = iter_batches(memoryview(java_records.encode(gappy, codec=Codec.LZ4)))
    assert decode_records(theirs) == gappy


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_transaction_markers_mean_the_same(java_records: JavaRecords, kind: ControlType) -> None:
    fields = {"offset": 41, "timestamp": 1_700_000_000_123, "producer_id": 7, "producer_epoch": 2}
    theirs = java_records.encode_marker(
        commit=kind is ControlType.COMMIT, coordinator_epoch=6, **fields
    )
    (batch,) = iter_batches(memoryview(theirs))
    batch.check_crc()
    (record,) = decode_records(batch)
    assert batch.is_control
    assert batch.is_transactional
    marker = decode_control(record)
    assert (marker.type, marker.coordinator_epoch) == (kind, 6)
    ours = encode_control_batch(
        kind,
        timestamp=fields["timestamp"],
        coordinator_epoch=6,
        base_offset=41,
        producer_id=7,
        producer_epoch=2,
    )
    assert java_records.decode_marker(ours) == f"{kind.name} 6"
    assert bytes(ours) == theirs


def test_kafka_reads_the_topic_id_of_a_committed_offset(java_gateway: JavaGateway) -> None:
    topic_id = UUID(int=1 << 64 | 7)
    value = encode_offset(CommittedOffset(5, 2, "m", 3, None, topic_id))
    kafka = java_gateway.jvm.org.apache.kafka
    buffer = kafka.common.protocol.ByteBufferAccessor(
        java_gateway.jvm.java.nio.ByteBuffer.wrap(value[2:])
    )
    read = kafka.coordinator.group.generated.OffsetCommitValue(buffer, value[1])
    assert (read.offset(), read.leaderEpoch(), read.metadata()) == (5, 2, "m")
    assert (read.commitTimestamp(), buffer.remaining()) == (3, 0)
    assert read.topicId().getMostSignificantBits() == 1
    assert read.topicId().getLeastSignificantBits() == 7
