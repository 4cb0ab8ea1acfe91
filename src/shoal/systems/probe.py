"""Asking a broker who is there, with the oldest request that every version answers.

Independent of our own client on purpose: it decides whether a system under test is up,
from synchronous code, at any time.
"""

import socket
import struct
from dataclasses import dataclass
from typing import Final

_METADATA_V1: Final = struct.pack(">hhih5si", 3, 1, 1, 5, b"shoal", 0)  # no topics wanted
_ANSWER_LIMIT_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one broker says about its cluster."""

    broker_ids: frozenset[int]
    controller_id: int


def ask_metadata(host: str, port: int, *, timeout_s: float = 2.0) -> ClusterView | None:
    """The cluster as the broker at this address sees it; None if it does not answer."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(_METADATA_V1)) + _METADATA_V1)
            size = struct.unpack(">i", _exactly(connection, 4))[0]
            if not 0 < size <= _ANSWER_LIMIT_BYTES:
                return None
            return _view(_exactly(connection, size))
    except (OSError, EOFError, struct.error):
        return None


def _exactly(connection: socket.socket, size: int) -> bytes:
    answer = bytearray()
    while len(answer) < size:
        chunk = connection.recv(size - len(answer))
        if not chunk:
            raise EOFError
        answer += chunk
    return bytes(answer)


def _view(answer: bytes) -> ClusterView:
    """Reads correlation id, brokers and controller; the rest is of no interest."""
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
