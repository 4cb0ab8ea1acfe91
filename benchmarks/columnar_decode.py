"""Claim: whole batches become columns with a 50th of the CPU of the one-at-a-time codec.

Both sides are ours: `decode_columns`, which finds keys, values and headers and leaves them
where they are, and `decode_records`, which makes a Python object of every record. Neither
checks CRCs. "Received" means that one record set is decoded again and again, so that it is in
the cache as it would be after a receive; "cold" means that 256 MiB of them take turns.

The claim is about records of 1 KiB that were just received. The other cases are there to be
known: cold memory, small records, small batches, and compression, where both sides spend most
of their time in the same decompressor.
"""

import random
import sys
from collections.abc import Callable, Iterator
from itertools import cycle

from benchmarks.harness import Case, Claim, Side, prove
from shoal.wire.batch import Batch, iter_batches
from shoal.wire.records.columns import decode_columns
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, decode_records, encode_batch

CLAIM = Claim(
    name="columnar_decode",
    sentence="Columnar decode of 1 KiB records takes at most a 50th of the CPU of the "
    "one-at-a-time codec.",
    bar=50,
    packages=("numba", "numpy", "cramjam"),
)
KIB = 1024
MIB = 1024 * 1024
# Just below what brokers and producers allow by default, and what Java's producer aims at.
LARGE_BATCH_BYTES = 1_000_000
SMALL_BATCH_BYTES = 16 * KIB
SET_BYTES = 8_000_000
COLD_BYTES = 256 * MIB
OURS_BYTES = 4 * 1024 * MIB
THEIRS_BYTES = 64 * MIB


def equal_records(count: int, size_bytes: int) -> list[Record]:
    """Records of one size with a short key, as a load generator makes them."""
    dice = random.Random(1)  # noqa: S311
    return [
        Record(
            offset=number,
            timestamp=1_700_000_000_000 + number // 3,
            key=b"key-%d" % number,
            value=dice.randbytes(size_bytes),
        )
        for number in range(count)
    ]


def make_varied_records(count: int, mean_bytes: int) -> list[Record]:
    """Records from half to one and a half times the mean; some have headers, some no key."""
    dice = random.Random(2)  # noqa: S311
    return [
        Record(
            offset=number,
            timestamp=1_700_000_000_000 + dice.randrange(10_000),
            key=None if number % 5 == 0 else b"key-%d" % number,
            value=dice.randbytes(dice.randint(mean_bytes // 2, mean_bytes * 3 // 2)),
            headers=(("trace", dice.randbytes(16)), ("kind", b"x")) if number % 3 == 0 else (),
        )
        for number in range(count)
    ]


def case(
    name: str,
    records: list[Record],
    *,
    cold: bool = False,
    codec: Codec = Codec.NONE,
    judged: bool = False,
) -> Case:
    """Batches of these records, as many as a fetch response brings, decoded in one call."""
    batch_bytes = len(encode_batch(records))
    batches_per_call = SET_BYTES // batch_bytes
    record_set = encode_batch(records, codec=codec) * batches_per_call
    set_count = max(1, COLD_BYTES // len(record_set)) if cold else 1
    sets = [list(iter_batches(memoryview(bytearray(record_set)))) for _ in range(set_count)]
    set_bytes = batches_per_call * batch_bytes
    _check_agreement(sets[0])

    def ours() -> int:
        return _repeat(sets, set_bytes, OURS_BYTES, decode_columns)

    def theirs() -> int:
        return _repeat(sets, set_bytes, THEIRS_BYTES, _decode_all)

    conditions = {
        "record_bytes": round(batch_bytes / len(records)),
        "records_per_batch": len(records),
        "batches_per_call": batches_per_call,
        "codec": codec.name,
        "memory": f"cold, {COLD_BYTES // MIB} MiB" if cold else "in cache, as received",
    }
    return Case(
        name,
        ours=Side("columns", ours),
        theirs=Side("one at a time", theirs),
        conditions=conditions,
        judged=judged,
    )


Decode = Callable[[list[Batch]], object]


def _repeat(sets: list[list[Batch]], set_bytes: int, enough_bytes: int, decode: Decode) -> int:
    handled_bytes = 0
    for batches in cycle(sets):
        decode(batches)
        handled_bytes += set_bytes
        if handled_bytes >= enough_bytes:
            return handled_bytes
    raise AssertionError("there is at least one set")


def _decode_all(batches: list[Batch]) -> None:
    for batch in batches:
        decode_records(batch)


def _check_agreement(batches: list[Batch]) -> None:
    columns = decode_columns(batches)
    expected = [record for batch in batches for record in decode_records(batch)]
    assert len(columns) == len(expected)
    assert all(columns.record(index) == record for index, record in enumerate(expected))


def cases() -> Iterator[Case]:
    count = LARGE_BATCH_BYTES // KIB
    yield case("1 KiB, received", equal_records(count, KIB), judged=True)
    yield case("about 1 KiB, received", make_varied_records(count, KIB), judged=True)
    yield case("1 KiB, cold", equal_records(count, KIB), cold=True)
    yield case("about 1 KiB, cold", make_varied_records(count, KIB), cold=True)
    yield case("1 KiB in small batches", equal_records(SMALL_BATCH_BYTES // KIB, KIB))
    yield case("100 B, received", equal_records(LARGE_BATCH_BYTES // 100, 100))
    yield case("about 1 KiB, lz4", make_varied_records(count, KIB), codec=Codec.LZ4)


if __name__ == "__main__":
    sys.exit(prove(CLAIM, cases()))
