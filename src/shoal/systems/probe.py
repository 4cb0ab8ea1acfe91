"""Asks a broker for its view of the cluster, with a Metadata version that every broker answers.

It does not use shoal's client on purpose: it decides whether a system under test is up, from
synchronous code, at any time.
"""

import socket
import struct
from dataclasses import dataclass
from typing import Final

_METADATA_V1: Final = struct.pack(">hhih5si", 3, 1, 1, 5, b"shoal", 0)  # of no topics
_ANSWER_LIMIT_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as one broker reports it."""

    broker_ids: frozenset[int]
    controller_id: int


def ask_metadata(host: str, port: int, *, timeout_s: float = 2.0) -> ClusterView | None:
    """The cluster as the broker at this address reports it; None if it does not answer."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(_METADATA_V1)) + _METADATA_V1)
            size = struct.unpack(">i", _receive_exactly(connection, 4))[0]
            if not 0 < size <= _ANSWER_LIMIT_BYTES:
                return None
            return _parse_view(_receive_exactly(connection, size))
    except (OSError, EOFError, struct.error):
        return None


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    answer = bytearray()
    while len(answer) < size:
        chunk = connection.recv(size - len(answer))
        if not chunk:
            raise EOFError
        answer += chunk
    return bytes(answer)


def _parse_view(answer: bytes) -> ClusterView:
    """Parse brokers and controller; the rest of the answer is ignored."""
    count = struct.unpack_from(">i", answer, 4)[0]
    position = 8
    ids = set()
    for _ in range(count):
        ids.add(struct.unpack_from(">i", answer, position)[0])
        host_length = struct.unpack_from(">h", answer, position + 4)[0]
        position += 4 + 2 + host_length + 4
        rack_length = struct.unpack_from(">h", answer, position)[0]
        position += 2 + max(0, rack_length)
    return ClusterView(frozenset(ids), struct.unpack_from(">i", answer, position)[0])
