"""What is fuzzed: each target reads bytes as one part of the wire does, from valid seeds on.

A target may end in a `WireError` or in nothing; any other exception is a finding. The record
targets also compare the two record codecs: where they disagree, that is a finding too.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from shoal.wire.api_keys import OWN_KEYS, ApiKey
from shoal.wire.batch import HEADER_SIZE, LENGTH_END, Batch, iter_batches
from shoal.wire.errors import WireError
from shoal.wire.fetch import (
    FETCH_VERSIONS,
    FetchedPartition,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_response,
)
from shoal.wire.framing import FrameDecoder, frame
from shoal.wire.messages import (
    decode_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
    schema_versions,
)
from shoal.wire.produce import (
    PRODUCE_VERSIONS,
    ProducePartition,
    decode_produce_request,
    decode_produce_response,
    encode_produce_request,
)
from shoal.wire.records.columns import decode_columns
from shoal.wire.records.compression import Codec, compress, decompress
from shoal.wire.records.records import (
    ControlType,
    Record,
    decode_control,
    decode_headers,
    decode_records,
    encode_batch,
    encode_control_batch,
    write_header,
)
from support.wire.compressed_framings import BOMBS, FRAMINGS, LIARS
from support.wire.messages import random_message
from support.wire.record_samples import SAMPLES

# What a decoder may expand its input to; the memory that a process may use is a multiple.
LIMIT_BYTES = 1024 * 1024
LARGEST_SEED_BYTES = 4096
SEEDS_PER_MESSAGE = 2


@dataclass(frozen=True)
class Target:
    """`decode` reads a mutated seed; `share` is how often it is chosen, relative to others."""

    name: str
    share: int
    seeds: list[bytes]
    decode: Callable[[bytearray, random.Random], None]


class CodecsDisagree(Exception):
    """One record codec accepts what the other refuses, or reads it otherwise."""


def make_targets() -> list[Target]:
    """All targets with their seeds; the same on every run."""
    requests, responses = _message_seeds()
    return [
        Target("record batch", 6, _batch_seeds(), _decode_record_set),
        Target("records section", 4, _section_seeds(), _decode_section),
        Target("compressed data", 3, _compress_seeds(), _decode_compressed),
        Target("request", 4, requests, _decode_request),
        Target("response", 3, responses, _decode_response),
        Target("frames", 1, _frame_seeds(requests), _decode_frames),
        Target("headers and markers", 1, _small_seeds(), _decode_small),
    ]


def _small_samples() -> list[tuple[Record, ...]]:
    samples = [records[:12] for name, records in SAMPLES.items() if "large" not in name]
    return [records for records in samples if len(encode_batch(records)) < LARGEST_SEED_BYTES]


def _batch_seeds() -> list[bytes]:
    seeds = [
        bytes(encode_batch(records, codec=codec, base_offset=7, producer_id=5))
        for records in _small_samples()
        for codec in Codec
    ]
    seeds.append(bytes(encode_control_batch(ControlType.ABORT, timestamp=1, coordinator_epoch=2)))
    seeds.append(seeds[0] + seeds[1] + seeds[2][:-5])
    return seeds


def _section_seeds() -> list[bytes]:
    """Records sections behind a byte for the codec and one for the number of records."""
    return [
        bytes((codec, len(records))) + bytes(encode_batch(records)[HEADER_SIZE:])
        for records in _small_samples()
        for codec in (Codec.NONE, Codec.SNAPPY, Codec.LZ4)
    ]


def _compress_seeds() -> list[bytes]:
    """Compressed data behind a byte for its codec."""
    text = b"shoals of fish " * 30 + random.Random(3).randbytes(200)
    seeds = [bytes((codec,)) + compress(codec, text) for codec in Codec if codec]
    seeds += [bytes((codec,)) + encode(text) for codec, encode in FRAMINGS.values()]
    seeds += [bytes((codec,)) + data for codec, data in LIARS.values()]
    bombs = [bytes((codec,)) + bomb(16 * LIMIT_BYTES) for codec, bomb in BOMBS.items()]
    return seeds + [bomb for bomb in bombs if len(bomb) <= LARGEST_SEED_BYTES]


def _message_seeds() -> tuple[list[bytes], list[bytes]]:
    """Every version of every message, with arbitrary contents; responses behind their key."""
    source = random.Random(11)
    requests, responses = [], []
    for api_key in sorted(set(ApiKey) - OWN_KEYS):
        lowest, highest = schema_versions(api_key)
        for version in range(lowest, highest + 1):
            for _ in range(SEEDS_PER_MESSAGE):
                request = random_message(request_class(api_key, version), source)
                requests.append(encode_request(request, correlation_id=1, client_id="fuzz"))
                response = random_message(response_class(api_key, version), source)
                key = bytes((api_key, version))
                responses.append(key + encode_response(response, correlation_id=1))
    requests += _produce_requests()
    responses += _fetch_responses()
    return (
        [seed for seed in requests if len(seed) <= LARGEST_SEED_BYTES],
        [seed for seed in responses if len(seed) <= LARGEST_SEED_BYTES],
    )


def _produce_requests() -> list[bytes]:
    """Of every version, with record sets that are some."""
    records = encode_batch(SAMPLES["plain"])
    topic_id = UUID(int=77)
    return [
        b"".join(
            encode_produce_request(
                version,
                correlation_id=1,
                client_id="fuzz",
                transactional_id="t",
                acks=-1,
                timeout_ms=1000,
                partitions=[
                    ProducePartition("topic", partition, records, topic_id) for partition in (0, 1)
                ],
            )
        )
        for version in PRODUCE_VERSIONS
    ]


def _fetch_responses() -> list[bytes]:
    """Of every version, with record sets that are some."""
    records = memoryview(encode_batch(SAMPLES["plain"]) * 2)
    topic_id = UUID(int=77)
    return [
        bytes((ApiKey.FETCH, version))
        + b"".join(
            encode_fetch_response(
                version,
                correlation_id=1,
                session_id=0,
                error_code=0,
                partitions=[
                    FetchedPartition("topic", topic_id, partition, records=records)
                    for partition in (0, 1)
                ],
            )
        )
        for version in FETCH_VERSIONS
    ]


def _frame_seeds(requests: list[bytes]) -> list[bytes]:
    chosen = sorted(requests, key=len)[:60]
    groups = [chosen[index : index + 3] for index in range(0, len(chosen), 3)]
    return [b"".join(b"".join(frame([request])) for request in group) for group in groups]


def _small_seeds() -> list[bytes]:
    sections = [
        encode_batch([Record(0, 0, None, None, records[0].headers)])[HEADER_SIZE + 6 :]
        for records in _small_samples()
        if records[0].headers
    ]
    return [bytes(section) for section in sections] + [bytes(4) + bytes(6), b"\x00\x00\x00\x01" * 3]


def _decode_record_set(data: bytearray, dice: random.Random) -> None:
    if len(data) > HEADER_SIZE and dice.random() < 0.8:
        # Otherwise most mutations would end at the batch length.
        data[8:12] = (len(data) - LENGTH_END).to_bytes(4, "big")
    for batch in iter_batches(memoryview(data)):
        _compare_codecs(batch)


def _decode_section(data: bytearray, dice: random.Random) -> None:
    """A section that is damaged first and compressed then, so that the damage is reached."""
    if len(data) < 2:
        return
    codec, count, section = data[0] & 3, data[1], bytes(data[2:])
    if dice.random() < 0.2:
        count = 1 + int(dice.random() * 3)
        section = b"".join(_odd_record(offset, dice) for offset in range(count))
    output = bytearray(HEADER_SIZE) + (section if codec == 0 else compress(codec, section))
    write_header(
        output,
        record_count=count,
        last_offset_delta=max(count - 1, 0),
        base_timestamp=dice.choice(_ODD_TIMESTAMPS),
        max_timestamp=0,
        codec=codec,
    )
    _compare_codecs(Batch(memoryview(output)))


_ODD_TIMESTAMPS = (0, -1, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63))
# Numbers at the edges of their types, and varints that are longer or larger than allowed.
_ODD_VARINTS = tuple(
    map(
        bytes.fromhex,
        (
            "01",
            "02",
            "8000",
            "feffffff0f",
            "ffffffff0f",
            "ffffffff1f",
            "ffffffff7f",
            "8080808010",
            "808080808000",
            "feffffffffffffffff01",
            "ffffffffffffffffff01",
            "ffffffffffffffffff02",
            "80808080808080808000",
            "8080808080808080808000",
        ),
    )
)


def _odd_record(offset: int, dice: random.Random) -> bytes:
    """A record of a true length, with one odd number, and now and then a byte too much."""
    numbers = [b"\x00", bytes((2 * offset,)), b"\x01", b"\x01", b"\x00"]
    numbers[int(dice.random() * len(numbers))] = dice.choice(_ODD_VARINTS)
    body = b"\x00" + b"".join(numbers)
    if dice.random() < 0.1:
        body += b"\x00"
    return bytes((2 * len(body),)) + body


def _compare_codecs(batch: Batch) -> None:
    refusal: WireError | None = None
    records: list[Record] = []
    try:
        records = decode_records(batch, limit_bytes=LIMIT_BYTES)
    except WireError as error:
        refusal = error
    try:
        columns = decode_columns([batch], limit_bytes=LIMIT_BYTES)
    except WireError as error:
        if refusal is None:
            raise CodecsDisagree(f"only the columns refuse: {error}") from error
        raise
    if refusal is not None:
        raise CodecsDisagree(f"only the careful codec refuses: {refusal}")
    if [record.offset for record in records] != columns.offset.tolist():
        raise CodecsDisagree("offsets")
    for index in (0, -1) if records else ():
        if records[index]._replace(attributes=0) != columns.record(index):
            raise CodecsDisagree(f"record {index}: {records[index]}")


def _decode_compressed(data: bytearray, _dice: random.Random) -> None:
    if not data:
        return
    output = decompress(data[0] & 7, memoryview(data)[1:], limit_bytes=LIMIT_BYTES)
    if data[0] & 7 and len(output) > LIMIT_BYTES:
        raise AssertionError(f"{len(output)} bytes are beyond the limit")


def _decode_request(data: bytearray, _dice: random.Random) -> None:
    api_key, version, _, _, position = decode_request_header(data)
    if api_key == ApiKey.PRODUCE:
        for produced in decode_produce_request(version, data, position).partitions:
            list(iter_batches(produced.records))
    elif api_key == ApiKey.FETCH:
        decode_fetch_request(version, data, position)
    else:
        decode_body(data, request_class(api_key, version), position)


def _decode_response(data: bytearray, _dice: random.Random) -> None:
    if len(data) < 2:
        return
    api_key, version, body = data[0], data[1], memoryview(data)[2:]
    if api_key == ApiKey.PRODUCE:
        decode_produce_response(version, body)
    elif api_key == ApiKey.FETCH:
        for fetched in decode_fetch_response(version, body).partitions:
            list(iter_batches(fetched.records))
    else:
        decode_response(body, response_class(api_key, version))


def _decode_frames(data: bytearray, dice: random.Random) -> None:
    """The stream in pieces of any size, as a socket delivers it."""
    decoder = FrameDecoder(limit_bytes=LIMIT_BYTES)
    position = 0
    while position < len(data):
        room = decoder.get_buffer()
        count = min(len(room), len(data) - position, 1 + int(dice.random() ** 3 * 500))
        room[:count] = data[position : position + count]
        position += count
        for found in decoder.feed(count):
            decode_request_header(found)


def _decode_small(data: bytearray, dice: random.Random) -> None:
    if dice.random() < 0.5:
        decode_headers(bytes(data))
    else:
        cut = int(dice.random() * (len(data) + 1))
        decode_control(Record(0, 0, bytes(data[:cut]), bytes(data[cut:])))
