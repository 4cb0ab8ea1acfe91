"""CRC-32C and its combination, judged by computing from scratch."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.records import crc


def test_the_check_value_of_the_standard() -> None:
    assert crc.crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=100), st.binary(max_size=100), st.binary(max_size=20_000))
def test_a_new_prefix_needs_only_the_length_of_the_rest(
    old: bytes, new: bytes, tail: bytes
) -> None:
    combined = crc.replace_prefix_crc(crc.crc32c(old + tail), old, new, len(tail))
    assert combined == crc.crc32c(new + tail)


@pytest.mark.parametrize(
    "tail_bytes", [0, 1, 4095, 4096, 4097, 3 * 4096, 65_536, 1_048_576 + 77, 20 * 1_048_576 + 5]
)
def test_every_size_of_the_rest(tail_bytes: int) -> None:
    random_source = random.Random(tail_bytes)
    old, new, tail = (random_source.randbytes(size) for size in (40, 40, tail_bytes))
    combined = crc.replace_prefix_crc(crc.crc32c(old + tail), old, new, tail_bytes)
    assert combined == crc.crc32c(new + tail)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1))
def test_a_shift_is_linear(one: int, other: int, byte_count: int) -> None:
    shifted = crc.shift(one, byte_count) ^ crc.shift(other, byte_count)
    assert crc.shift(one ^ other, byte_count) == shifted


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**30), st.integers(0, 2**30))
def test_two_shifts_are_one(value: int, first: int, second: int) -> None:
    assert crc.shift(crc.shift(value, first), second) == crc.shift(value, first + second)


def test_the_tables_kept_are_limited() -> None:
    for blocks in range(1, 600):
        crc.shift(1, blocks * 4096)
    assert crc._tables.cache_info().currsize <= 512
