"""One partition of an internal topic that this broker leads, and the shard that lives on it.

Rules of this file:
- A shard is a reader of its own partition: whatever becomes committed is replayed, in order,
  whoever wrote it (the coordinator, or a transaction's marker), and nothing else is.
- It is active once it has replayed all that earlier leaders may have committed: the high
  watermark has passed the begin of the leader's epoch. Until then requests are refused with
  COORDINATOR_LOAD_IN_PROGRESS.
- An append that is refused, or not committed in time, may still be committed later; then it is
  replayed like any other. So refusals other than those before the write mean "unknown".
- With the leadership goes the shard: whoever waits is told NOT_COORDINATOR.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

from shoal.lite.base.codes import Code, Refused
from shoal.lite.partitions.guards import Guard
from shoal.lite.partitions.partition import Partition
from shoal.lite.replication.leader import ALL_ACKS, LeaderPartition
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.lite.storage.offline import LogOffline
from shoal.runtime.tasks import keep_running
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Batch
from shoal.wire.errors import WireError
from shoal.wire.records.records import Record, decode_records, encode_batch

_LOAD_BYTES = 256 * 1024
_logger = logging.getLogger(__name__)

# What a client of a coordinator is told when the partition refuses a write.
_TRANSLATED = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
}


class NotWritten(Refused):
    """Nothing was written, and nothing of it will show up later."""


class NewRecord(NamedTuple):
    """A record to write; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Shard(Protocol):
    """What the records of one partition make. All calls come in the event loop."""

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """A batch is committed, of data or of control (a transaction's marker)."""

    def start(self) -> None:
        """Everything before was replayed; requests may come from now on."""

    def stop(self) -> None:
        """Another broker coordinates from now on: let go of timers and of those who wait."""


ShardT = TypeVar("ShardT", bound=Shard)


class Seat(Generic[ShardT]):
    """A partition that is led here; lives as long as the leadership does."""

    def __init__(self, partition: Partition, role: LeaderPartition) -> None:
        """Without a shard until `load`; see `CoordinatorHost`."""
        self.index = partition.record.partition
        self.role = role
        self.is_active = False
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._shard: ShardT | None = None
        self._applied_offset = partition.log.start_offset
        self._is_over = False
        self._is_due = False
        # Appends that are not replayed yet, by the offset behind them.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._on_progress = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The leader's epoch, which is the coordinator's."""
        return self.role.leader_epoch

    @property
    def shard(self) -> ShardT:
        """The shard, once it is active; else `Refused`."""
        if self._is_over:
            raise _not_coordinator()
        if self._shard is None or not self.is_active:
            message = f"{self._partition!r} is being loaded"
            raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, message)
        return self._shard

    @property
    def shard_or_none(self) -> ShardT | None:
        """The shard, also while it is being loaded."""
        return None if self._is_over else self._shard

    # Beginning and end

    def load(self, shard: ShardT) -> None:
        """Begin: replay what there is, and then what comes."""
        self._shard = shard
        self._partition.readers.add(self)
        # It resumes where it failed; clients hear that the coordinator is loading meanwhile.
        self._loading = keep_running("coordinator load", self._load)

    async def _load(self) -> None:
        began_s = self._loop.time()
        while not self._is_over:
            self._on_progress.clear()
            if self._replay_some():
                await asyncio.sleep(0)
            elif self.role.is_settled:
                break
            else:
                await self._on_progress.wait()
        if self._is_over or self._shard is None:
            return
        self.is_active = True
        elapsed_ms = (self._loop.time() - began_s) * 1000
        _logger.info("%r: loaded to %d in %d ms", self._partition, self._applied_offset, elapsed_ms)
        self._shard.start()
        self._catch_up_soon()

    def resign(self) -> None:
        """This broker leads no more."""
        if self._is_over:
            return
        self._is_over = True
        self._partition.readers.discard(self)
        self._on_progress.set()
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(_not_coordinator())
        self._waiting.clear()
        if self._shard is not None:
            self._shard.stop()

    async def close(self) -> None:
        """Resign, and wait for what runs here."""
        self.resign()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])

    # Following the log; these two make it a `Waiter` of the partition

    def on_more(self, size_bytes: int) -> None:
        self._catch_up_soon()

    def on_gone(self) -> None:
        # The metadata says what to make of it; the host follows that.
        self._catch_up_soon()

    def _catch_up_soon(self) -> None:
        self._on_progress.set()
        if not self._is_due and self.is_active:
            self._is_due = True
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._is_due = False
        while not self._is_over and self._replay_some():
            pass

    def _replay_some(self) -> bool:
        """Replay the next committed batches; whether there were any."""
        if self._is_over or self._shard is None:
            return False
        offset = max(self._applied_offset, self._partition.log.start_offset)
        try:
            data = memoryview(self._read(offset))
        except LogOffline as error:
            _logger.warning("%r cannot be read: %s", self._partition, error)
            return False
        while len(data) >= HEADER_SIZE:
            header = unpack_header(data)
            self._replay_batch(self._shard, header, data[: header.size])
            data = data[header.size :]
            self._applied_offset = header.last_offset + 1
        while self._waiting and self._waiting[0][0] <= self._applied_offset:
            future = heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        return self._applied_offset > offset

    def _read(self, offset: int) -> bytes:
        upper_offset = self._partition.high_watermark
        if offset >= upper_offset:
            return b""
        log = self._partition.log
        return log.content(log.read(offset, _LOAD_BYTES, upper_offset=upper_offset))

    def _replay_batch(self, shard: Shard, header: BatchHeader, data: memoryview) -> None:
        try:
            records = decode_records(Batch(data)) if header.record_count else []
        except WireError:
            _logger.exception("%r: %d cannot be read", self._partition, header.base_offset)
            return
        shard.replay(header, records)

    # Writing

    def append(
        self,
        records: Sequence[NewRecord],
        *,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        is_transactional: bool = False,
        guard: Guard | None = None,
    ) -> "asyncio.Future[None]":
        """Write one batch, now; what is returned is done when it is committed and replayed.

        `Refused` with what a client is to be told: COORDINATOR_NOT_AVAILABLE if too few replicas
        are in sync or the time is over, NOT_COORDINATOR if the leadership is; `NotWritten`, at
        once, if it is certain that the batch will never be there.
        """
        timestamp_ms = time.time_ns() // 1_000_000
        batch = encode_batch(
            [Record(0, timestamp_ms, record.key, record.value) for record in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=NO_SEQUENCE if producer_id == NO_PRODUCER_ID else 0,
            is_transactional=is_transactional,
        )
        future = self._loop.create_future()
        try:
            self._write(memoryview(batch), timeout_ms, future, guard)
        except Refused as refused:
            told = translated(refused)
            raise NotWritten(told.code, str(told)) from refused
        return future

    def _write(
        self,
        view: memoryview,
        timeout_ms: int,
        future: "asyncio.Future[None]",
        guard: Guard | None,
    ) -> None:
        if self._is_over or self._partition.replica.role is not self.role:
            raise _not_coordinator()
        self.role.check_acks(ALL_ACKS)
        most_bytes = self._partition.rules.max_message_bytes
        if len(view) > most_bytes:
            message = f"{len(view)} bytes; max.message.bytes is {most_bytes}"
            raise Refused(Code.MESSAGE_TOO_LARGE, message)

        def on_acked(code: Code) -> None:
            if code == Code.NONE:
                self._catch_up_soon()
            elif not future.done():
                refused = Refused(code, f"{self._partition!r}: {code.name}")
                future.set_exception(translated(refused))

        header = unpack_header(view)
        appended = self._partition.append_as_coordinator(
            view, header, timeout_ms=timeout_ms, on_acked=on_acked, guard=guard
        )
        # What is committed is replayed later, never within the append.
        end_offset = appended.base_offset + header.last_offset_delta + 1
        heappush(self._waiting, (end_offset, next(self._numbers), future))


def translated(refused: Refused) -> Refused:
    """What a client of a coordinator is told instead."""
    return Refused(_TRANSLATED.get(refused.code, refused.code), str(refused))


def _not_coordinator() -> Refused:
    return Refused(Code.NOT_COORDINATOR, "This is not the correct coordinator.")
