"""Reads both message formats with nothing of ours: an independent parser of thirty lines."""

import struct
from typing import Any


def parse(message: Any) -> dict[str, Any]:
    """Who sent a confluent-kafka message, and which one it is."""
    value = message.value()
    headers = dict(message.headers() or [])
    if "id" in headers:
        producer, number, payload = headers["id"].decode(), int(headers["seq"]), value
        sent_ms = message.timestamp()[1]
    else:
        name, digits, nanoseconds, payload = value.split(b";", 3)
        producer, number, sent_ms = name.decode(), int(digits), int(nanoseconds) // 1_000_000
    magic, version, kind, lane, high, low, incarnation = struct.unpack_from(">2sBB12xHHII", payload)
    assert (magic, version) == (b"SL", 2)
    return {
        "producer": producer,
        "number": number,
        "sent_ms": sent_ms,
        "kind": kind,
        "lane": lane,
        "sequence": high << 32 | low,
        "incarnation": incarnation,
        "size": len(value),
    }
