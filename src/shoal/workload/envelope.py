"""The format of a message, for one message at a time; `envelope_columns` handles many.

There are two formats:

    in the body     value = PRODUCER;NUMBER;TIME; + payload            no headers
    in headers      value = payload, headers id = PRODUCER, seq = NUMBER

PRODUCER is the producer's id. NUMBER counts its messages to one topic from 0, in decimal
digits; number mod lanes is the lane, number div lanes the sequence in the stream. TIME is
when it was sent, in nanoseconds since the Unix epoch (with headers, the record's own
timestamp is used). The payload starts with the identity block, big-endian:

    byte  0  "SL", version (2)   3        byte 16  lane         2
          3  kind                1             18  sequence     6
          4  run                 8             24  incarnation  4
         12  topic               4             28  checksum     4
                                               32  filler

- kind: 0 message, 1 marker, 2 manifest. Markers and manifests are not messages: their
  NUMBER is the count of all messages before them, and their sequence the stream's count.
- run: BLAKE2b with a digest of 8 bytes over the run's id. topic: CRC-32C of the topic's name.
- incarnation: a random number of the producer's ledger, which distinguishes two producers with
  one id; never 0. A block of version 1 has no incarnation, and 4 bytes for the lane and 8 for the
  sequence; it is read as incarnation 0, and written only for that incarnation.
- checksum: CRC-32C over the value up to the checksum, the key, the header section as in a record
  of format 2 (starting with its count), and the value after the checksum. For a marker or
  manifest, over the value only: a mirror that changes keys or drops headers must be judged by its
  messages, and for that its lanes must be drained.
- With headers the filler starts with one byte for the length of PRODUCER, then PRODUCER: so
  messages can still be identified if a mirror drops their headers.

Every message of a producer has the same size, the texts in the body included.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from shoal.model.errors import UsageError
from shoal.model.runs import run_hash
from shoal.wire.records.crc import crc32c
from shoal.wire.records.records import append_headers

BLOCK_START = b"SL"
VERSION_AT = len(BLOCK_START)
BLOCK_SIZE = 32
VERSIONS = (1, 2)  # versions of the block that can be read
KIND_AT = 3
CHECKSUM_AT = 28
# Ten trillion messages of one producer to one topic: enough for 30 years at 10,000/s.
NUMBER_DIGITS = 13
MAX_MESSAGES = 10**NUMBER_DIGITS
TIME_DIGITS = 19
LONGEST_PRODUCER = 100
LARGEST_MESSAGE = 64 * 1024 * 1024

_IDENTITY = struct.Struct(">2sBBQI12s")
# Bytes of lane, sequence and incarnation, by version of the block: 12 in all.
_WIDTHS = {1: (4, 8, 0), 2: (2, 6, 4)}
_CHECKSUM = struct.Struct(">I")
_PRODUCER = re.compile(rf"[A-Za-z0-9._:/@-]{{1,{LONGEST_PRODUCER}}}")
_IN_BODY = re.compile(rb"([^;]{0,255});(\d{1,19});(\d{1,19});", re.DOTALL)

_BLOCK_STARTS = tuple(BLOCK_START + bytes([version]) for version in VERSIONS)

Headers = Sequence[tuple[str, bytes | None]]


class MessageKind(IntEnum):
    """The `kind` of the identity block; only readers use the last two."""

    MESSAGE = 0
    MARKER = 1
    MANIFEST = 2
    UNREADABLE = 3  # the key is that of a message, but the block cannot be read
    FOREIGN = 4  # of another run, or not a message of shoal


@dataclass(frozen=True)
class Envelope:
    """The fields that all messages of one producer to one topic share."""

    run: str
    producer: str
    topic: str
    size_bytes: int
    in_headers: bool = False
    incarnation: int = 0  # 0: blocks of version 1

    def __post_init__(self) -> None:
        if not _PRODUCER.fullmatch(self.producer):
            raise UsageError(
                f"{self.producer!r} is not a valid producer id",
                remedy=f"use 1 to {LONGEST_PRODUCER} letters, digits or . _ : / @ -",
            )
        least = smallest_message(self.producer, in_headers=self.in_headers)
        if not least <= self.size_bytes <= LARGEST_MESSAGE:
            raise UsageError(
                f"the message size of {self.size_bytes} bytes is out of range for producer"
                f" {self.producer!r}",
                remedy=f"use a size between {least} and {LARGEST_MESSAGE} bytes",
            )


class Message(NamedTuple):
    """One message, decoded."""

    kind: MessageKind
    run: int
    topic: int
    producer: str
    number: int
    lane: int
    sequence: int
    sent_ns: int
    intact: bool
    incarnation: int = 0


def smallest_message(producer: str, *, in_headers: bool) -> int:
    """The size in bytes of a message without filler, for the longest number."""
    if in_headers:
        return BLOCK_SIZE + 1 + len(producer)
    return len(producer) + 1 + NUMBER_DIGITS + 1 + TIME_DIGITS + 1 + BLOCK_SIZE


def topic_hash(topic: str) -> int:
    return crc32c(topic.encode())


def topic_code(number: int) -> str:
    """The name in ledgers of a topic of which only the hash is known."""
    return f"#{number:08x}"


def identity_block(
    envelope: Envelope, kind: MessageKind, lane: int = 0, sequence: int = 0
) -> bytes:
    """The block up to its checksum."""
    run, topic = run_hash(envelope.run), topic_hash(envelope.topic)
    version = 2 if envelope.incarnation else 1
    numbers = zip((lane, sequence, envelope.incarnation), _WIDTHS[version], strict=True)
    stream = b"".join(number.to_bytes(width, "big") for number, width in numbers)
    return _IDENTITY.pack(BLOCK_START, version, kind, run, topic, stream)


def _stream_of(version: int, stream: bytes) -> tuple[int, int, int]:
    """Lane, sequence and incarnation."""
    lane_width, sequence_width, _ = _WIDTHS[version]
    lane, rest = stream[:lane_width], stream[lane_width:]
    parts = (lane, rest[:sequence_width], rest[sequence_width:])
    lane_number, sequence, incarnation = (int.from_bytes(part, "big") for part in parts)
    return lane_number, sequence, incarnation


def encode_message(
    envelope: Envelope,
    *,
    kind: MessageKind = MessageKind.MESSAGE,
    number: int,
    lane: int,
    sequence: int,
    sent_ns: int,
    key: bytes,
    filler: bytes,
) -> tuple[bytes, list[tuple[str, bytes | None]]]:
    """Encode the value and headers of one message; `filler` must be long enough."""
    producer = envelope.producer.encode()
    headers: list[tuple[str, bytes | None]] = []
    if envelope.in_headers:
        before, tail = b"", bytes([len(producer)]) + producer
        headers = [("id", producer), ("seq", b"%d" % number)]
    else:
        before, tail = b"%s;%d;%d;" % (producer, number, sent_ns), b""
    before += identity_block(envelope, kind, lane, sequence)
    left = envelope.size_bytes - len(before) - 4 - len(tail)
    after = tail + filler[:left]
    checksum = _checksum(before, key, headers, after)
    return before + _CHECKSUM.pack(checksum) + after, headers


def decode_message(key: bytes | None, value: bytes | None, headers: Headers) -> Message | None:
    """Decode one record; None if it has no identity block."""
    value = value or b""
    found = None if value.startswith(_BLOCK_STARTS) else _IN_BODY.match(value)
    block_at = 0 if found is None else found.end()
    rest = value[block_at + BLOCK_SIZE :]
    if len(value) < block_at + BLOCK_SIZE:
        return None
    start, version, kind, run, topic, stream = _IDENTITY.unpack_from(value, block_at)
    if start != BLOCK_START or version not in VERSIONS or kind > MessageKind.MANIFEST:
        return None
    lane, sequence, incarnation = _stream_of(version, stream)
    if found is not None:
        producer, number, sent_ns = found[1], int(found[2]), int(found[3])
    elif rest and len(rest) > rest[0]:
        text = dict(headers).get("seq") or b""
        producer, sent_ns = rest[1 : 1 + rest[0]], -1
        number = int(text) if re.fullmatch(rb"\d{1,19}", text) else -1
    else:
        return None
    (stored,) = _CHECKSUM.unpack_from(value, block_at + CHECKSUM_AT)
    checksum = _checksum(value[: block_at + CHECKSUM_AT], key, headers, rest)
    return Message(
        kind=MessageKind(kind),
        run=run,
        topic=topic,
        producer=producer.decode("ascii", "replace"),
        number=number,
        lane=lane,
        sequence=sequence,
        sent_ns=sent_ns,
        intact=stored == checksum,
        incarnation=incarnation,
    )


def header_section(headers: Headers) -> bytes:
    """The headers as in a record of format 2, starting with their count."""
    section = bytearray()
    append_headers(section, headers)
    return bytes(section)


def _checksum(before: bytes, key: bytes | None, headers: Headers, after: bytes) -> int:
    is_message = before[KIND_AT - CHECKSUM_AT] == MessageKind.MESSAGE
    crc = crc32c(before)
    for part in (key or b"", header_section(headers)) if is_message else ():
        crc = crc32c(part, crc)
    return crc32c(after, crc)
