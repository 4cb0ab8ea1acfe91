"""Compression in every framing that clients write, and input that lies about its size."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.errors import LimitExceeded, UnsupportedCodec, WireError
from shoal.wire.records.compression import Codec, compress, decompress
from support.wire.compressed_framings import BOMBS, FRAMINGS, LIARS

MIB = 1024 * 1024
COMPRESSED = [codec for codec in Codec if codec != Codec.NONE]
CONTENTS = {
    "empty": b"",
    "one byte": b"x",
    "text": b"the quick brown fish " * 5_000,
    # Its ratio is beyond the first buffer's: the output has to grow.
    "zeros": bytes(5 * MIB),
    "random": random.Random(1).randbytes(300_000),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("codec", Codec)
def test_what_is_compressed_comes_back(codec: Codec, content: str) -> None:
    data = CONTENTS[content]
    compressed = compress(codec, memoryview(data))
    assert bytes(decompress(codec, compressed, limit_bytes=5 * MIB)) == data
    assert bytes(decompress(codec, memoryview(compressed), limit_bytes=5 * MIB)) == data


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_other_clients_framings(framing: str, content: str) -> None:
    codec, frame = FRAMINGS[framing]
    assert (
        bytes(decompress(codec, frame(CONTENTS[content]), limit_bytes=5 * MIB)) == CONTENTS[content]
    )


def test_lz4_is_written_as_java_reads_it() -> None:
    flags = compress(Codec.LZ4, CONTENTS["text"])[4]
    assert flags & 0b100000, "Java refuses linked blocks"
    assert not flags & 0b100, "Java computes content checksums in a way of its own"


@given(st.binary(max_size=2000), st.sampled_from(COMPRESSED), st.data())
def test_cut_or_changed_data_gives_a_wire_error_or_other_bytes(
    data: bytes, codec: Codec, choose: st.DataObject
) -> None:
    compressed = bytearray(compress(codec, data))
    position = choose.draw(st.integers(0, len(compressed) - 1))
    if choose.draw(st.booleans()):
        del compressed[position:]
    else:
        compressed[position] ^= choose.draw(st.integers(1, 255))
    try:
        output = decompress(codec, compressed, limit_bytes=MIB)
    except WireError:
        return
    assert len(output) <= MIB


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_limit_is_exact(codec: Codec) -> None:
    data = CONTENTS["text"]
    compressed = compress(codec, data)
    assert bytes(decompress(codec, compressed, limit_bytes=len(data))) == data
    with pytest.raises(LimitExceeded, match=str(len(data) - 1)):
        decompress(codec, compressed, limit_bytes=len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_stops_at_the_limit(codec: Codec) -> None:
    bomb = BOMBS[codec](256 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded):
            decompress(codec, bomb, limit_bytes=4 * MIB)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6 * MIB


@pytest.mark.parametrize("liar", LIARS)
def test_announced_sizes_are_not_believed(liar: str) -> None:
    codec, data = LIARS[liar]
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decompress(codec, data, limit_bytes=1 << 40)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MIB


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_codecs_that_kafka_does_not_define(codec: int) -> None:
    with pytest.raises(UnsupportedCodec, match=str(codec)):
        decompress(codec, b"anything", limit_bytes=100)
    with pytest.raises(UnsupportedCodec, match=str(codec)):
        compress(codec, b"anything")


def test_uncompressed_data_is_not_copied() -> None:
    data = memoryview(b"as it is")
    assert decompress(Codec.NONE, data, limit_bytes=0) is data
