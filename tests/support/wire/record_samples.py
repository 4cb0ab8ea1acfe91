"""Records that have gone wrong somewhere before, for every codec and every other client.

The same on every run, so that another process (librdkafka, a JVM) can be asked about them.
`SAMPLES` are names and records with offsets from 0; `encoded_samples` are the same as batches,
compressed in every way. Timestamps are ones that a producer may send.
"""

import random
from typing import NamedTuple

from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Header, Record, encode_batch

FIRST_TIMESTAMP = 1_700_000_000_000


class EncodedSample(NamedTuple):
    name: str
    codec: Codec
    records: tuple[Record, ...]
    batch: bytearray


def _records(
    *pairs: tuple[bytes | None, bytes | None], headers: tuple[Header, ...] = ()
) -> tuple[Record, ...]:
    return tuple(
        Record(offset, FIRST_TIMESTAMP + offset, key, value, headers)
        for offset, (key, value) in enumerate(pairs)
    )


def _make_mixed(count: int) -> tuple[Record, ...]:
    """Every size of varint, nulls and headers here and there, time going back and forth."""
    dice = random.Random(42)
    records = []
    for offset in range(count):
        key = None if dice.random() < 0.2 else dice.randbytes(dice.choice((0, 1, 63, 64, 200)))
        value = None if dice.random() < 0.1 else dice.randbytes(dice.choice((0, 7, 64, 1024)))
        headers = tuple(
            (f"h{number}", None if dice.random() < 0.2 else dice.randbytes(number))
            for number in range(dice.choice((0, 0, 1, 3)))
        )
        timestamp = FIRST_TIMESTAMP + dice.randrange(-1_000_000, 1_000_000)
        records.append(Record(offset, timestamp, key, value, headers))
    return tuple(records)


_ALL_BYTES = bytes(range(256))

SAMPLES: dict[str, tuple[Record, ...]] = {
    "plain": _records((b"key", b"value"), (b"other", b"thing")),
    "one": _records((b"k", b"v")),
    "null key": _records((None, b"value")),
    "null value": _records((b"key", None)),
    "null both": _records((None, None), (None, None)),
    "empty both": _records((b"", b""), (b"", b"")),
    "binary": _records((_ALL_BYTES, _ALL_BYTES * 5)),
    "unicode": _records(
        ("Schlüssel".encode(), "значение".encode()),
        ("鍵".encode(), "🐟🐟".encode()),
        headers=(("überschrift", "köpfe".encode()), ("頭", "🐟".encode())),
    ),
    "headers": _records(
        (b"k", b"v"),
        (None, b"w"),
        headers=(("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None), ("", b"no name")),
    ),
    "many headers": _records((b"k", b"v"), headers=tuple((f"h{n}", b"x" * n) for n in range(200))),
    "large and repetitive": _records((b"k", b"shoal " * 50_000), (b"l", b"\x00" * 200_000)),
    "large and random": _records((b"k", random.Random(7).randbytes(200_000))),
    "many small": _records(*((b"%d" % n, b"value %d" % n) for n in range(1_000))),
    "mixed": _make_mixed(300),
}


def encode_samples() -> list[EncodedSample]:
    """Every sample in every codec."""
    return [
        EncodedSample(name, codec, records, encode_batch(records, codec=codec))
        for name, records in SAMPLES.items()
        for codec in Codec
    ]
