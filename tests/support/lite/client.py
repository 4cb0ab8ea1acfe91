"""A client that does exactly what a test says, over one plain socket.

No retries, no checks, no pool: what the broker sends back, or that it hangs up, is what the
test sees.
"""

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.fetch import (
    FetchPartition,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)
from shoal.wire.messages import (
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from shoal.wire.produce import (
    ProduceAnswer,
    ProducePartition,
    decode_produce_response,
    encode_produce_request,
)

PATIENCE_S = 60.0
TIMEOUT_MS = 5_000


class HungUp(Exception):
    """The broker closed the connection."""


class PlainClient:
    """One connection to one broker."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self._socket.sendall(data)

    def send_frame(self, *parts: bytes | bytearray | memoryview) -> None:
        data = b"".join(parts)
        self.send(struct.pack(">i", len(data)) + data)

    def receive_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._receive(4))
        return self._receive(length)

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                received = self._socket.recv(count - len(data))
            except ConnectionResetError:
                received = b""
            if not received:
                raise HungUp
            data += received
        return data

    def is_hung_up(self, within_s: float = PATIENCE_S) -> bool:
        """Whether the broker closes the connection, which it may do in its own time."""
        self._socket.settimeout(within_s)
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(PATIENCE_S)

    def request(self, key: ApiKey, version: int, /, **values: Any) -> Any:
        """Any request but Produce and Fetch, from plain values; the response."""
        self._correlation_id += 1
        message = build(request_class(key, version), values)
        self.send_frame(
            encode_request(message, correlation_id=self._correlation_id, client_id="test")
        )
        answer = self.receive_frame()
        correlation_id, response = decode_response(answer, response_class(key, version))
        assert correlation_id == self._correlation_id
        assert answer == encode_response(response, correlation_id=correlation_id), "to the byte"
        return response

    def produce(
        self,
        topic: str,
        *batches: bytes | bytearray,
        partition: int = 0,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> ProduceAnswer:
        """All batches for one partition, one after the other in one request."""
        wanted = ProducePartition(topic, partition, list(batches))
        self.send_produce([wanted], version=version, acks=acks, transactional_id=transactional_id)
        [answer] = decode_produce_response(version, self.receive_frame())
        return answer

    def send_produce(
        self,
        partitions: Sequence[ProducePartition],
        *,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> None:
        self._correlation_id += 1
        self.send_frame(
            *encode_produce_request(
                version,
                correlation_id=self._correlation_id,
                client_id="test",
                transactional_id=transactional_id,
                acks=acks,
                timeout_ms=1000,
                partitions=partitions,
            )
        )

    def fetch(
        self, *partitions: FetchPartition, version: int = 12, **limits: int | str
    ) -> FetchResponse:
        """`limits` are those of the request: max_wait_ms, min_bytes, max_bytes, isolation …"""
        self.send_fetch(*partitions, version=version, **limits)
        return decode_fetch_response(version, self.receive_frame())

    def send_fetch(
        self, *partitions: FetchPartition, version: int = 12, **limits: int | str
    ) -> None:
        self._correlation_id += 1
        defaults: dict[str, Any] = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 26,
            "isolation": 0,
        }
        self.send_frame(
            encode_fetch_request(
                version,
                correlation_id=self._correlation_id,
                client_id="test",
                partitions=partitions,
                **(defaults | limits),
            )
        )

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """Underscores in the names of settings stand for dots. Returns the topic's result."""
        response = self.request(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [
                        {"name": key.replace("_", "."), "value": value}
                        for key, value in configs.items()
                    ],
                }
            ],
            timeout=TIMEOUT_MS,
        )
        [result] = response.topics
        assert result.error_code == 0, result
        return result


def at(topic: str, offset: int, *, partition: int = 0, max_bytes: int = 1 << 20) -> FetchPartition:
    """Where to fetch."""
    return FetchPartition(topic, None, partition, offset, max_bytes)
