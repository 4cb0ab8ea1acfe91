"""Payloads: as compressible as they are meant to be, and whole messages all the same."""

from pathlib import Path

import numpy as np
import pytest

from shoal.model.errors import UsageError
from shoal.wire.batch import Batch
from shoal.wire.records.columns import encode_columns
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import decode_records
from shoal.workload.envelope import Envelope, decode_message
from shoal.workload.envelope_columns import MessageWriter
from shoal.workload.send.payload import parse_payload, payload_pool

COUNT, SIZE = 400, 1024


def batch_of(payload: str, codec: Codec) -> bytearray:
    writer = MessageWriter(Envelope("r", "p", "t", SIZE), 4, parse_payload(payload))
    numbers = np.arange(COUNT, dtype=np.int64)
    written = writer.write(numbers, numbers % 4, numbers // 4, sent_ns=10**18)
    stamps = np.zeros(COUNT, np.int64)
    return encode_columns(values=written.values, keys=written.keys, timestamps=stamps, codec=codec)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD, Codec.GZIP, Codec.SNAPPY])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0, 10.0])
def test_messages_compress_to_the_ratio(codec: Codec, ratio: float) -> None:
    batch = batch_of(f"compressible:{ratio}", codec)
    assert COUNT * SIZE / len(batch) == pytest.approx(ratio, rel=0.3)


def test_random_payloads_do_not_compress() -> None:
    assert len(batch_of("random", Codec.ZSTD)) > 0.93 * COUNT * SIZE


def test_a_file_is_sent_over_and_over(tmp_path: Path) -> None:
    file = tmp_path / "words"
    file.write_bytes(b"a line of words\n" * 5)
    batch = Batch(memoryview(batch_of(f"file:{file}", Codec.NONE)))
    for record in decode_records(batch):
        message = decode_message(record.key, record.value, record.headers)
        assert message is not None
        assert message.intact
        assert record.value is not None
        assert record.value.count(b"a line of words\n") >= 55


def test_the_pool_is_the_same_in_every_run() -> None:
    wish = parse_payload("compressible:3")
    assert (payload_pool(wish, 100) == payload_pool(wish, 100).copy()).all()


@pytest.mark.parametrize("text", ["", "rnd", "compressible", "compressible:0.5", "file:"])
def test_what_is_no_payload_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a valid payload"):
        parse_payload(text)


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        payload_pool(parse_payload(f"file:{tmp_path / 'missing'}"), 100)
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="is empty"):
        payload_pool(parse_payload(f"file:{tmp_path / 'empty'}"), 100)
