"""One partition of an internal topic that this broker leads, with its shard.

Rules of this file:
- A shard reads its own partition: every committed batch is replayed, in order, whether the
  coordinator wrote it or it is a transaction marker. Nothing else changes the shard.
- It is active once it has replayed everything that earlier leaders may have committed: the high
  watermark has reached the start of the leader epoch. Until then requests fail with
  COORDINATOR_LOAD_IN_PROGRESS.
- An append that fails, or is not committed in time, may still be committed later; then it is
  replayed like any other. So an error after the write means that the outcome is unknown.
- The shard ends with the leadership: waiting requests fail with NOT_COORDINATOR.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.partitions.admission.guards import VerificationGuard
from shoal.lite.partitions.partition import Partition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.lite.storage.offline import LogOffline
from shoal.runtime.tasks import keep_running
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Batch
from shoal.wire.errors import WireError
from shoal.wire.records.records import Record, decode_records, encode_batch

_LOAD_BYTES = 256 * 1024
_logger = logging.getLogger(__name__)

# The error that a coordinator's client gets when an append to the partition fails.
_COORDINATOR_CODES = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
}


class NotWritten(ApiError):
    """Nothing was written, and nothing will be committed later."""


class NewRecord(NamedTuple):
    """A record to append; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Shard(Protocol):
    """The state that results from one partition's records. Called in the event loop only."""

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """Apply a committed batch, either data or a control batch (a transaction marker)."""

    def start(self) -> None:
        """Start to handle requests: all earlier records are replayed."""

    def stop(self) -> None:
        """Stop timers and fail waiting requests: this broker no longer coordinates."""


ShardT = TypeVar("ShardT", bound=Shard)


class LoadedShard(Generic[ShardT]):
    """A partition that this broker leads, with its shard; lives as long as the leadership."""

    def __init__(self, partition: Partition, role: LeaderPartition) -> None:
        """It has no shard until `load`; see `CoordinatorHost`."""
        self.index = partition.record.partition
        self.role = role
        self.is_active = False
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._shard: ShardT | None = None
        self._applied_offset = partition.log.start_offset
        self._is_closed = False
        self._is_catch_up_scheduled = False
        # Appends that are not replayed yet, by their end offset.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._progress = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The leader epoch, which is the coordinator epoch."""
        return self.role.leader_epoch

    @property
    def shard(self) -> ShardT:
        """The shard; `ApiError` while it is not active."""
        if self._is_closed:
            raise _not_coordinator()
        if self._shard is None or not self.is_active:
            message = f"the coordinator is loading {self._partition!r}"
            raise ApiError(Code.COORDINATOR_LOAD_IN_PROGRESS, message)
        return self._shard

    @property
    def shard_or_none(self) -> ShardT | None:
        """The shard, even while it is loading; None after the leadership has ended."""
        return None if self._is_closed else self._shard

    # Loading and closing

    def load(self, shard: ShardT) -> None:
        """Start to replay: first the existing records, then new ones."""
        self._shard = shard
        self._partition.readers.add(self)
        # After an error it resumes where it failed; until then clients get
        # COORDINATOR_LOAD_IN_PROGRESS.
        self._loading = keep_running("coordinator load", self._load)

    async def _load(self) -> None:
        began_s = self._loop.time()
        while not self._is_closed:
            self._progress.clear()
            if self._replay_some():
                await asyncio.sleep(0)
            elif self.role.has_reached_epoch_start:
                break
            else:
                await self._progress.wait()
        if self._is_closed or self._shard is None:
            return
        self.is_active = True
        elapsed_ms = (self._loop.time() - began_s) * 1000
        _logger.info("%r: loaded to %d in %d ms", self._partition, self._applied_offset, elapsed_ms)
        self._shard.start()
        self._catch_up_soon()

    def resign(self) -> None:
        """Stop the shard and fail all waiting appends: this broker no longer leads."""
        if self._is_closed:
            return
        self._is_closed = True
        self._partition.readers.discard(self)
        self._progress.set()
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(_not_coordinator())
        self._waiting.clear()
        if self._shard is not None:
            self._shard.stop()

    async def close(self) -> None:
        """Resign, and wait for the loading task."""
        self.resign()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])

    # Following the log; the first two make it a `PartitionWaiter`

    def on_data_available(self, size_bytes: int) -> None:
        self._catch_up_soon()

    def on_unavailable(self) -> None:
        # Whether the leadership ended is in the metadata, which the host applies.
        self._catch_up_soon()

    def _catch_up_soon(self) -> None:
        self._progress.set()
        if not self._is_catch_up_scheduled and self.is_active:
            self._is_catch_up_scheduled = True
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._is_catch_up_scheduled = False
        while not self._is_closed and self._replay_some():
            pass

    def _replay_some(self) -> bool:
        """Replay the next committed batches; return whether there were any."""
        if self._is_closed or self._shard is None:
            return False
        offset = max(self._applied_offset, self._partition.log.start_offset)
        try:
            data = memoryview(self._read(offset))
        except LogOffline as error:
            _logger.warning("cannot read %r: %s", self._partition, error)
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
            _logger.exception(
                "%r: cannot decode the batch at offset %d", self._partition, header.base_offset
            )
            return
        shard.replay(header, records)

    # Appending

    def append(
        self,
        records: Sequence[NewRecord],
        *,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        is_transactional: bool = False,
        guard: VerificationGuard | None = None,
    ) -> "asyncio.Future[None]":
        """Append one batch now; the future is done when it is committed and replayed.

        The future fails with the `ApiError` for the client: COORDINATOR_NOT_AVAILABLE if too few
        replicas are in sync or the wait times out, NOT_COORDINATOR if the leadership ends. This
        call raises `NotWritten` if it is certain that the batch was not and will not be written.
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
        except ApiError as error:
            mapped = to_coordinator_error(error)
            raise NotWritten(mapped.code, str(mapped)) from error
        return future

    def _write(
        self,
        view: memoryview,
        timeout_ms: int,
        future: "asyncio.Future[None]",
        guard: VerificationGuard | None,
    ) -> None:
        if self._is_closed or self._partition.replica.role is not self.role:
            raise _not_coordinator()

        def on_acked(code: Code) -> None:
            if code == Code.NONE:
                self._catch_up_soon()
            elif not future.done():
                error = ApiError(code, f"{self._partition!r}: {code.name}")
                future.set_exception(to_coordinator_error(error))

        header = unpack_header(view)
        appended = self._partition.append_as_coordinator(
            view, header, timeout_ms=timeout_ms, on_acked=on_acked, guard=guard
        )
        # Committed batches are replayed later, never within the append.
        end_offset = appended.base_offset + header.last_offset_delta + 1
        heappush(self._waiting, (end_offset, next(self._numbers), future))


def to_coordinator_error(error: ApiError) -> ApiError:
    """Return the error that a client of a coordinator gets for an error of the partition."""
    return ApiError(_COORDINATOR_CODES.get(error.code, error.code), str(error))


def _not_coordinator() -> ApiError:
    return ApiError(Code.NOT_COORDINATOR, "This is not the correct coordinator.")
