"""Both message formats: one at a time, as columns, damaged, foreign, and by a stranger's eye."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.errors import UsageError
from shoal.model.runs import run_hash
from shoal.workload import kernels
from shoal.workload.envelope import (
    LONGEST_PRODUCER,
    MAX_MESSAGES,
    Envelope,
    Headers,
    MessageKind,
    decode_message,
    encode_message,
    smallest_message,
    topic_hash,
)
from shoal.workload.envelope_columns import MessageReader, MessageWriter
from shoal.workload.send.keys import lane_keys
from support.experiment.workload_records import at, columns_of

if TYPE_CHECKING:
    from shoal.workload.envelope_columns import DecodedMessages, EncodedMessages

SENT_NS = 1_763_000_000_123_456_789
RUN, TOPIC, PRODUCER = "run-1", "orders", "p0"
OWN = 0xC0FFEE01  # an incarnation; 0 has blocks of version 1

producers = st.text("abcXYZ019._-", min_size=1, max_size=LONGEST_PRODUCER)


def envelope(
    size_bytes: int = 200, *, in_headers: bool = False, run: str = RUN, incarnation: int = OWN
) -> Envelope:
    return Envelope(run, PRODUCER, TOPIC, size_bytes, in_headers, incarnation)


def write(envelope: Envelope, numbers: list[int], lanes: int, **more: int) -> EncodedMessages:
    column = np.array(numbers, np.int64)
    writer = MessageWriter(envelope, lanes)
    kind = MessageKind(more.get("kind", 0))
    return writer.write(column, column % lanes, column // lanes, sent_ns=SENT_NS, kind=kind)


def headers_of(section: bytes) -> list[tuple[str, bytes | None]]:
    """Parse a header section in which every length fits one byte."""
    position = 1
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(section[0] // 2):
        name_length = section[position] // 2
        name = section[position + 1 : position + 1 + name_length].decode()
        position += 1 + name_length
        value_length = section[position] // 2
        headers.append((name, section[position + 1 : position + 1 + value_length]))
        position += 1 + value_length
    assert position == len(section)
    return headers


def strangers_view(key: bytes, value: bytes, headers: dict[str, bytes]) -> tuple[str, int, int]:
    """An independent reader of both formats: producer, number and sequence, checked."""
    if headers:
        producer, number, payload, before = headers["id"], headers["seq"], value, b""
        section = b"\x04\x04id" + bytes([2 * len(producer)]) + producer
        section += b"\x06seq" + bytes([2 * len(number)]) + number
    else:
        producer, number, sent, payload = value.split(b";", 3)
        before, section = b";".join([producer, number, sent, b""]), b"\x00"
    magic, version, kind, _run, _topic, lane, high, low, incarnation, checksum = struct.unpack(
        ">2sBBQIHHIII", payload[:32]
    )
    assert (magic, version, kind, incarnation) == (b"SL", 2, 0, OWN)
    sequence = high << 32 | low
    assert checksum == crc32c.crc32c(before + payload[:28] + key + section + payload[32:])
    assert int(number) % 7 == lane
    return producer.decode(), int(number), sequence


@pytest.mark.parametrize("in_headers", [False, True])
@given(
    numbers=st.lists(st.integers(0, MAX_MESSAGES - 1), min_size=1, max_size=40),
    producer=producers,
    extra=st.integers(0, 300),
    incarnation=st.sampled_from([0, 1, OWN, (1 << 32) - 1]),
)
def test_columns_equal_the_careful_codec(
    in_headers: bool, numbers: list[int], producer: str, extra: int, incarnation: int
) -> None:
    size = smallest_message(producer, in_headers=in_headers) + extra
    form = Envelope(RUN, producer, TOPIC, size, in_headers, incarnation)
    written = write(form, numbers, 7)
    for row, number in enumerate(numbers):
        value, key = at(written.values, row), at(written.keys, row)
        headers = headers_of(at(written.headers, row))
        message = decode_message(key, value, headers)
        assert message is not None
        assert message.intact
        assert (message.producer, message.number) == (producer, number)
        assert (message.lane, message.sequence) == (number % 7, number // 7)
        assert message.incarnation == incarnation
        assert message.sent_ns == (-1 if in_headers else SENT_NS)
        assert len(value) == size
        start = bytes([2 if incarnation else 1])
        filler = value[value.index(b"SL" + start) + 32 + (1 + len(producer)) * in_headers :]
        again = encode_message(
            form,
            number=number,
            lane=number % 7,
            sequence=number // 7,
            sent_ns=SENT_NS,
            key=key,
            filler=filler,
        )
        assert again == (value, headers)


@pytest.mark.parametrize("in_headers", [False, True])
def test_a_stranger_reads_both_formats(in_headers: bool) -> None:
    written = write(envelope(in_headers=in_headers), list(range(21)), 7)
    for row in range(21):
        headers = {name: value or b"" for name, value in headers_of(at(written.headers, row))}
        seen = strangers_view(at(written.keys, row), at(written.values, row), headers)
        assert seen == (PRODUCER, row, row // 7)


@pytest.mark.parametrize("in_headers", [False, True])
def test_reader_names_every_message(in_headers: bool) -> None:
    numbers = [0, 1, 2, 3, 700, MAX_MESSAGES - 1]
    written = write(envelope(in_headers=in_headers), numbers, 4)
    read = read_back(written)
    assert read.kind.tolist() == [MessageKind.MESSAGE] * 6
    assert read.lane.tolist() == [n % 4 for n in numbers]
    assert read.sequence.tolist() == [n // 4 for n in numbers]
    assert read.intact.all()
    assert read.sent_us.tolist() == [-1 if in_headers else SENT_NS // 1000] * 6
    assert read.producer.tolist() == [1] * 6
    assert read.topic.tolist() == [1] * 6


def read_back(written: EncodedMessages) -> DecodedMessages:
    rows = [
        (at(written.keys, row), at(written.values, row), headers_of(at(written.headers, row)))
        for row in range(len(written.values.start))
    ]
    return MessageReader(RUN, [TOPIC]).read(columns_of(rows))


def test_marker_is_told_from_message() -> None:
    read = read_back(write(envelope(), [5, 6], 2, kind=MessageKind.MARKER))
    assert read.kind.tolist() == [MessageKind.MARKER] * 2


@pytest.mark.parametrize("in_headers", [False, True])
@given(position=st.integers(0, 199), flip=st.integers(1, 255))
def test_no_flipped_byte_stays_unseen(in_headers: bool, position: int, flip: int) -> None:
    written = write(envelope(in_headers=in_headers), [9], 4)
    value = bytearray(at(written.values, 0))
    value[position] ^= flip
    headers = headers_of(at(written.headers, 0))
    read = MessageReader(RUN, [TOPIC]).read(
        columns_of([(at(written.keys, 0), bytes(value), headers)])
    )
    assert not read.intact[0]
    assert read.kind[0] != MessageKind.FOREIGN


@pytest.mark.parametrize("in_headers", [False, True])
def test_altered_key_and_headers_break_the_checksum_but_not_the_name(in_headers: bool) -> None:
    written = write(envelope(in_headers=in_headers), [9], 4)
    key, value, headers = (
        at(written.keys, 0),
        at(written.values, 0),
        headers_of(at(written.headers, 0)),
    )
    changed: list[tuple[bytes | None, bytes, Headers]] = [
        (None, value, headers),
        (key + b"x", value, headers),
        (key, value, [*headers, ("more", None)]),
    ]
    if in_headers:
        changed.append((key, value, []))
    reader = MessageReader(RUN, [TOPIC])
    read = reader.read(columns_of(changed))
    assert read.kind.tolist() == [MessageKind.MESSAGE] * len(changed)
    assert not read.intact.any()
    assert [reader.producers[i] for i in read.producer] == [PRODUCER] * len(changed)
    assert read.sequence.tolist() == [2] * len(changed)


def test_foreign_and_unreadable_are_told_apart() -> None:
    other = write(envelope(run="run-2"), [1], 4)
    ours = write(envelope(), [1], 4)
    key = lane_keys(4)[1]
    records: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"their-key", b"their value", []),
        (None, None, []),
        (None, b"", []),
        (b"", b"a;1;2;" + b"x" * 40, []),
        (at(other.keys, 0), at(other.values, 0), []),  # another run's, whole
        (key, b"their value", []),  # a key with the prefix, but no block
        (key, at(ours.values, 0)[:40], []),  # cut in its block
        (key, None, []),
        (at(other.keys, 0), at(other.values, 0)[:-1] + b"!", []),  # damaged: whose is it?
    ]
    read = MessageReader(RUN, [TOPIC]).read(columns_of(records))
    assert read.kind.tolist() == [MessageKind.FOREIGN] * 5 + [MessageKind.UNREADABLE] * 4
    assert (read.lane == -1).all()
    assert (read.sequence == -1).all()
    assert (read.producer == 0).all()


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=300)), max_size=20))
def test_reader_stands_any_bytes(records: list[tuple[bytes, bytes]]) -> None:
    starts = (
        b"",
        b"p;1;2;SL\x01\x00",
        b"SL\x01\x00",
        b"p;1;2;SL\x02\x00",
        b"SL\x02\x00",
        b"SL\x03\x00",
        b"p;1;",
        b";;;",
        b"p;99999999999999999999;1;",
    )
    rows: list[tuple[bytes | None, bytes | None, Headers]] = [
        (lane_keys(1)[0] + key, start + value, []) for key, value in records for start in starts
    ]
    read = MessageReader(RUN, [TOPIC]).read(columns_of(rows))
    assert not read.intact.any()
    assert set(read.kind.tolist()) <= {MessageKind.UNREADABLE, MessageKind.FOREIGN}


@given(
    st.lists(st.tuples(st.sampled_from(["a", "bb", "c-3"]), st.sampled_from(["t1", "t2", "t3"])))
)
def test_names_of_several_producers_and_topics(pairs: list[tuple[str, str]]) -> None:
    rows: list[tuple[bytes | None, bytes | None, Headers]] = []
    for producer, topic in pairs:
        written = write(Envelope(RUN, producer, topic, 150), [3], 2)
        rows.append((at(written.keys, 0), at(written.values, 0), []))
    reader = MessageReader(RUN, ["t1", "t2"])
    read = reader.read(columns_of(rows))
    named = [
        (reader.producers[p], reader.topics[t])
        for p, t in zip(read.producer, read.topic, strict=True)
    ]
    unknown = f"#{topic_hash('t3'):08x}"
    assert named == [(p, unknown if t == "t3" else t) for p, t in pairs]


# As the first version of the block was written, up to its filler of 0, 1, 2, …: 100 bytes in all.
VERSION_1 = [
    b"p-1;41;1700000000123456789;SL\1\0%s\0\0\0\1\0\0\0\0\0\0\0\x0a\x38\x12\x79\xd4",
    b"p-1;80;1700000000123456789;SL\1\1%s\0\0\0\2\0\0\0\0\0\0\0\x14\x36\xec\x7f\xa9",
    b"SL\1\0%s\0\0\0\1\0\0\0\0\0\0\0\x0a\x56\xea\x4a\x34\3p-1",
    b"SL\1\1%s\0\0\0\2\0\0\0\0\0\0\0\x14\x08\x00\x8c\xf4\3p-1",
]
RUN_AND_TOPIC = bytes.fromhex("26b88ecaac29b387 09a7c08a")


def test_blocks_of_version_1_are_read_as_incarnation_0() -> None:
    """One at a time and as columns, in both formats; they lie beside those of version 2."""
    key = b"shoal.7"
    headers: Headers = [("id", b"p-1"), ("seq", b"41")]
    records: list[tuple[bytes | None, bytes | None, Headers]] = [
        (key, value + bytes(range(100 - len(value))), headers if value[:2] == b"SL" else [])
        for value in (start % RUN_AND_TOPIC for start in VERSION_1)
    ]
    wanted = [(MessageKind.MESSAGE, "p-1", 0, 1, 10), (MessageKind.MARKER, "p-1", 0, 2, 20)] * 2
    for record, expected in zip(records, wanted, strict=True):
        message = decode_message(*record)
        assert message is not None
        named = (message.kind, message.producer, message.incarnation)
        assert (*named, message.lane, message.sequence) == expected
        assert message.intact
    same_id = write(Envelope(RUN, "p-1", TOPIC, 150, incarnation=OWN), [4], 3)
    records.append((at(same_id.keys, 0), at(same_id.values, 0), []))
    wanted.append((MessageKind.MESSAGE, "p-1", OWN, 1, 1))
    reader = MessageReader(RUN, [TOPIC])
    read = reader.read(columns_of(records))
    assert read.intact.all()
    found = zip(read.kind, read.producer, read.lane, read.sequence, strict=True)
    assert wanted == [
        (kind, reader.producers[p], reader.incarnations[p], lane, sequence)
        for kind, p, lane, sequence in found
    ]
    assert len(set(read.producer.tolist())) == 2


def test_random_filler_does_not_compress() -> None:
    import cramjam

    data = write(envelope(1024), list(range(900)), 1).values.data.tobytes()
    assert len(cramjam.zstd.compress(data)) > 0.85 * len(data)


@pytest.mark.parametrize("in_headers", [False, True])
def test_too_small_is_refused_with_the_minimum_named(in_headers: bool) -> None:
    least = smallest_message(PRODUCER, in_headers=in_headers)
    with pytest.raises(UsageError) as refusal:
        envelope(least - 1, in_headers=in_headers)
    assert str(least) in str(refusal.value.remedy)
    written = write(envelope(least, in_headers=in_headers), [0, MAX_MESSAGES - 1], 1)
    assert read_back(written).intact.all()


@pytest.mark.parametrize("producer", ["", "a;b", "ü", "x" * (LONGEST_PRODUCER + 1), "a b"])
def test_bad_producer_ids_are_refused(producer: str) -> None:
    with pytest.raises(UsageError):
        Envelope(RUN, producer, TOPIC, 1000)


def test_numbers_beyond_the_format_are_refused() -> None:
    with pytest.raises(UsageError):
        write(envelope(), [MAX_MESSAGES], 1)


@given(st.binary(max_size=200), st.integers(0, 20))
def test_both_checksums_are_crc32c(data: bytes, start: int) -> None:
    start = min(start, len(data))
    array = np.frombuffer(data or b"\0", np.uint8)
    for crc_run in (kernels.crc_run, kernels.crc_by_tables):
        inner = crc_run(np.uint32(0xFFFFFFFF), array, start, len(data))
        assert int(inner) ^ 0xFFFFFFFF == crc32c.crc32c(data[start:])


def test_hashes_are_stable() -> None:
    """They are part of the format: old runs must stay readable."""
    assert run_hash("run-1") == 0x26B88ECAAC29B387
    assert topic_hash("123456789") == 0xE3069283
