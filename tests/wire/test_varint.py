"""Varints as the record format has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.errors import Malformed, Truncated
from shoal.wire.records.varint import append_varint, read_varint, read_varlong


def encode(value: int) -> bytes:
    output = bytearray()
    append_varint(output, value)
    return bytes(output)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_known_encodings(value: int, expected: str) -> None:
    assert encode(value).hex() == expected
    assert read_varint(bytes.fromhex(expected), 0) == (value, len(expected) // 2)


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_every_int32_comes_back(value: int, before: bytes) -> None:
    data = before + encode(value) + b"behind"
    assert read_varint(data, len(before)) == (value, len(data) - len(b"behind"))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_every_int64_comes_back(value: int, before: bytes) -> None:
    data = before + encode(value) + b"behind"
    assert read_varlong(data, len(before)) == (value, len(data) - len(b"behind"))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9))
def test_cut_varints_say_where(value: int, kept: int) -> None:
    whole = encode(value)
    cut = b"!" + whole[: min(kept, len(whole) - 1)]
    with pytest.raises(Truncated) as caught:
        read_varlong(cut, 1)
    assert caught.value.position == 1


@pytest.mark.parametrize(
    "too_long",
    ["808080808000", "ffffffffff7f", "ffffffff1f", "8080808010", "80808080808080808080"],
)
def test_an_int32_ends_within_32_bits(too_long: str) -> None:
    with pytest.raises(Malformed):
        read_varint(bytes.fromhex(too_long), 0)


@pytest.mark.parametrize(
    "too_long",
    ["8080808080808080808000", "ffffffffffffffffff02", "ffffffffffffffffff7f"],
)
def test_an_int64_ends_within_64_bits(too_long: str) -> None:
    with pytest.raises(Malformed):
        read_varlong(bytes.fromhex(too_long), 0)
