"""The port of a controller: brokers connect, follow the metadata, and ask for changes.

A broker is known by the word that all nodes of a cluster were told, and by its id; its latest
connection is the one that is used. Whoever sends what is not understood is cut off.
"""

import asyncio
import hmac
import logging
from typing import Any

from shoal.lite.codes import Code, Refused
from shoal.lite.controller.node import Answered, ControllerNode
from shoal.lite.controller.protocol import LINE_LIMIT_BYTES, decode_line, encode_line
from shoal.lite.controller.requests import Request
from shoal.lite.raft.messages import Message
from shoal.wire.errors import Malformed, WireError

# What a broker has not read of what it was sent; above this much it is cut off.
_UNSENT_LIMIT_BYTES = 64 * 1024 * 1024
_logger = logging.getLogger(__name__)


class ControllerServer:
    """Connects brokers with a `ControllerNode`, which is given after it was made."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._node: ControllerNode | None = None
        self._server: asyncio.Server | None = None
        self._brokers: dict[int, asyncio.StreamWriter] = {}

    async def start(self, host: str, node: ControllerNode) -> int:
        """Serve brokers; returns the port."""
        self._node = node
        self._server = await asyncio.start_server(self._on_broker, host, 0, limit=LINE_LIMIT_BYTES)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._brokers.values():
            writer.close()

    def send(self, to: int, message: Message) -> None:
        """Deliver a message of the quorum to a broker, if it is connected."""
        writer = self._brokers.get(to)
        if writer is not None:
            self._write(writer, raft=message)

    def _write(self, writer: asyncio.StreamWriter, **values: Any) -> None:
        if writer.transport.get_write_buffer_size() > _UNSENT_LIMIT_BYTES:
            writer.transport.abort()
        elif not writer.is_closing():
            writer.write(encode_line(**values))

    async def _on_broker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_id = None
        try:
            broker_id = self._recognised(await reader.readline())
            self._brokers[broker_id] = writer
            while line := await reader.readline():
                self._on_line(broker_id, writer, decode_line(line))
        except (WireError, ValueError, KeyError, TypeError, OSError) as error:
            _logger.info("connection of broker %s closed: %r", broker_id, error)
        finally:
            writer.close()
            if broker_id is not None and self._brokers.get(broker_id) is writer:
                del self._brokers[broker_id]

    def _recognised(self, line: bytes) -> int:
        hello = decode_line(line).get("hello")
        if not isinstance(hello, dict):
            raise Malformed("a broker must say who it is")
        token, broker_id = str(hello.get("token")), hello.get("node")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise Malformed("wrong token")
        if not isinstance(broker_id, int):
            raise Malformed(f"{broker_id!r} is no id")
        return broker_id

    def _on_line(self, broker_id: int, writer: asyncio.StreamWriter, line: dict[str, Any]) -> None:
        assert self._node is not None  # noqa: S101 - for the type checker
        if "raft" in line:
            self._node.receive(broker_id, line["raft"])
            return
        number, request = line["call"], line["request"]
        if not isinstance(request, Request):
            raise Malformed(f"a {type(request).__name__} cannot be asked")

        def on_done(future: "asyncio.Future[Answered[Any]]") -> None:
            self._reply(writer, number, future)

        self._node.submit(request).add_done_callback(on_done)

    def _reply(
        self, writer: asyncio.StreamWriter, number: int, future: "asyncio.Future[Answered[Any]]"
    ) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            answered = future.result()
            self._write(writer, reply=number, answer=answered.answer, end=answered.end_offset)
            return
        code = error.code if isinstance(error, Refused) else Code.UNKNOWN_SERVER_ERROR
        end_offset = getattr(error, "end_offset", 0)
        self._write(writer, reply=number, code=code, message=str(error), end=end_offset)
