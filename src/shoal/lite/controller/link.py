"""A broker's link to the controller: it follows the metadata log, and asks for changes.

Rules of this file:
- The broker is an observer of the quorum: it fetches the log and never votes. It keeps nothing
  on the disk, so it hears of every record after each start.
- An answer is handed out when the metadata here has what it rests on, so whoever asked for a
  topic finds it.
- A lost connection is made again, for as long as the broker lives. What was asked over it fails
  with NOT_CONTROLLER, which says nothing about whether it was done.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from shoal.lite.codes import Code, Refused
from shoal.lite.controller.protocol import LINE_LIMIT_BYTES, decode_line, encode_line
from shoal.lite.controller.records import Record, decode_record
from shoal.lite.controller.requests import Request
from shoal.lite.raft.actions import Action, Committed, LoadSnapshot, Send
from shoal.lite.raft.driver import drive
from shoal.lite.raft.memory import ForgetfulStorage
from shoal.lite.raft.model import EntryKind, ReplicaKey, StoredState, Voter, Voters
from shoal.lite.raft.node import RaftNode
from shoal.lite.spec import ControllerAddress
from shoal.wire.errors import WireError

A = TypeVar("A")
# A group of records that were committed; the flag says that the state begins anew with them.
OnRecords = Callable[[list[Record], bool], None]

_CONNECT_PATIENCE_S = 2.0
_RETRY_S = 0.05
_ANSWER_PATIENCE_S = 30.0
_logger = logging.getLogger(__name__)


class ControllerLink:
    """The broker's end. `start`, then `submit`; `on_records` is called in the event loop."""

    def __init__(self, address: ControllerAddress, key: ReplicaKey, on_records: OnRecords) -> None:
        """`key` is that of the broker, with the id of its folder."""
        self._address = address
        self._key = key
        self._on_records = on_records
        voters = Voters([Voter(address.node_id, UUID(address.directory))])
        random = Random()  # noqa: S311 - spreads requests, keeps no secrets
        self._raft = RaftNode(key, StoredState(voters), now_ms=_now_ms(), random=random)
        self._storage = ForgetfulStorage()
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = count(1)
        # Those who wait for the metadata here to reach an offset.
        self._behind: list[tuple[int, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._stay_connected())

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._lose_connection()

    async def submit(self, request: Request[A]) -> A:
        """The answer, when the metadata here has what it rests on; `Refused` if it cannot be."""
        if self._writer is None:
            raise _unreachable()
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        self._writer.write(encode_line(call=number, request=request))
        try:
            async with asyncio.timeout(_ANSWER_PATIENCE_S):
                reply = await future
                await self._reached(reply["end"])
        except TimeoutError:
            raise _unreachable() from None
        finally:
            self._calls.pop(number, None)
        if "code" in reply:
            raise Refused(reply["code"], reply["message"])
        answer: A = reply["answer"]
        return answer

    async def _reached(self, end_offset: int) -> None:
        if self._raft.high_watermark >= end_offset:
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._behind, (end_offset, next(self._numbers), future))
        await future

    # The connection

    async def _stay_connected(self) -> None:
        while True:
            try:
                await self._converse()
            except (WireError, ValueError, KeyError, OSError, TimeoutError) as error:
                _logger.warning("the controller cannot be reached: %r", error)
            self._lose_connection()
            await asyncio.sleep(_RETRY_S)

    async def _converse(self) -> None:
        address = self._address
        async with asyncio.timeout(_CONNECT_PATIENCE_S):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, limit=LINE_LIMIT_BYTES
            )
        self._writer = writer
        writer.write(encode_line(hello={"token": address.token, "node": self._key.id}))
        self._tick()
        while line := await reader.readline():
            self._on_line(decode_line(line))

    def _on_line(self, line: dict[str, Any]) -> None:
        if "raft" in line:
            self._raft.receive(_now_ms(), self._address.node_id, line["raft"])
            self._settle()
            return
        future = self._calls.get(line["reply"])
        if future is not None and not future.done():
            future.set_result(line)

    def _lose_connection(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for future in self._calls.values():
            if not future.done():
                future.set_exception(_unreachable())

    # The metadata

    def _tick(self) -> None:
        self._raft.tick(_now_ms())
        self._settle()

    def _settle(self) -> None:
        drive(self._raft, self._storage, self._perform, _now_ms())
        while self._behind and self._behind[0][0] <= self._raft.high_watermark:
            future = heapq.heappop(self._behind)[2]
            if not future.done():
                future.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._raft.next_deadline_ms()
        if deadline_ms is not None:
            delay_s = max(1, deadline_ms - _now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _perform(self, action: Action) -> None:
        match action:
            case Send(_, message):
                if self._writer is not None:
                    self._writer.write(encode_line(raft=message))
            case Committed(_, entries):
                data = [
                    record
                    for entry in entries
                    if entry.kind is EntryKind.DATA
                    for record in entry.records
                ]
                self._on_records([decode_record(record) for record in data], False)
            case LoadSnapshot(_, records):
                self._on_records([decode_record(record) for record in records], True)
            case _:
                _logger.error("the quorum refuses this broker as an observer: %s", action)


def _unreachable() -> Refused:
    return Refused(Code.NOT_CONTROLLER, "the controller cannot be reached")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
