"""Record batches made by hand, field by field, with a checksum computed from scratch."""

import struct

from crc32c import crc32c


def raw_batch(payload: bytes = b"payload", **changes: int) -> bytearray:
    """One batch as stored by a broker; `changes` replace header fields or add a `length_error`."""
    header: dict[str, int] = {
        "base_offset": 100,
        "leader_epoch": 3,
        "magic": 2,
        "attributes": 0,
        "last_offset_delta": 9,
        "base_timestamp": 1_700_000_000_000,
        "max_timestamp": 1_700_000_000_900,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": 10,
        "length_error": 0,
    } | changes
    checked = struct.pack(
        ">hiqqqhii",
        header["attributes"],
        header["last_offset_delta"],
        header["base_timestamp"],
        header["max_timestamp"],
        header["producer_id"],
        header["producer_epoch"],
        header["base_sequence"],
        header["record_count"],
    )
    unchecked = struct.pack(
        ">qiibI",
        header["base_offset"],
        49 + len(payload) + header["length_error"],
        header["leader_epoch"],
        header["magic"],
        crc32c(checked + payload),
    )
    return bytearray(unchecked + checked + payload)
