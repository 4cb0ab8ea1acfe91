"""Variable-length integers of the record format: zigzag, seven bits a byte, lowest first.

A varint has 32 bits in at most 5 bytes, a varlong 64 bits in at most 10. Readers take a position,
and return the value and the next position. Bits beyond the type are an error: no encoder writes
them, and dropping them, as Java does, would decode a wrong value.
"""

from shoal.wire.errors import Malformed, Truncated

_VARINT_MAX_BYTES = 5
_VARLONG_MAX_BYTES = 10


def read_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The 32-bit value at `position`, and the position after it."""
    try:
        byte = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        second = data[position + 1]
        if second < 0x80:
            raw = byte & 0x7F | second << 7
            return (raw >> 1) ^ -(raw & 1), position + 2
    except IndexError:
        raise _truncation_error(position) from None
    return _read_long(data, position, _VARINT_MAX_BYTES, 32)


def read_varlong(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The 64-bit value at `position`, and the position after it."""
    try:
        byte = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        second = data[position + 1]
        if second < 0x80:
            raw = byte & 0x7F | second << 7
            return (raw >> 1) ^ -(raw & 1), position + 2
    except IndexError:
        raise _truncation_error(position) from None
    return _read_long(data, position, _VARLONG_MAX_BYTES, 64)


def append_varint(output: bytearray, value: int) -> None:
    """Append a value whose zigzag form fits into 64 bits."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    while raw > 0x7F:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
    output.append(raw)


def _read_long(
    data: bytes | bytearray | memoryview, position: int, max_bytes: int, bits: int
) -> tuple[int, int]:
    raw = 0
    end = len(data)
    for index in range(max_bytes):
        if position + index >= end:
            raise _truncation_error(position)
        byte = data[position + index]
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if raw >> bits:
                raise Malformed(f"a varint does not fit {bits} bits", position=position)
            return (raw >> 1) ^ -(raw & 1), position + index + 1
    raise Malformed(
        f"a varint of {bits} bits does not end within {max_bytes} bytes", position=position
    )


def _truncation_error(position: int) -> Truncated:
    return Truncated("the bytes end inside a varint", position=position)
