"""What a broker does to its logs by time alone, not because anyone asked.

Rules of this file:
- The leader decides what has expired; followers hear of its log's start with their next fetch.
- What is forced to the disk is forced by a thread, one log after the other; those who write and
  read go on meanwhile.
- Disks that fail are told to the controller again and again until it has heard.
- An unexpected error of one partition holds back no other; the timer continues after any error.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from shoal.lite.log.flushing import FlushJob
from shoal.lite.log.offline import LogOffline
from shoal.lite.log.partition_log import PartitionLog
from shoal.lite.log.segment import wall_ms
from shoal.lite.partition import Partition
from shoal.runtime.tasks import RepeatingCall, call_every, log_only, record_failure, run_once

_TICK_S = 1.0
_LEAST_TICK_S = 0.01
# How often producers are looked at that have not written for long.
_PRODUCERS_S = 600.0
_logger = logging.getLogger(__name__)


class Housekeeper:
    """Looks after the logs of one broker, one timer for all."""

    def __init__(
        self, partitions: Mapping[Any, Partition], on_failed: Callable[[Partition], None]
    ) -> None:
        """`on_failed` is told of partitions whose log is offline; maybe more than once."""
        self._partitions = partitions
        self._on_failed = on_failed
        self._timer: RepeatingCall | None = None
        self._retention_s = 300.0
        # Nothing is deleted at once: whoever brings old records can read them, or keep them longer.
        self._checked_s = self._producers_checked_s = asyncio.get_running_loop().time()
        self._flushing: asyncio.Task[None] | None = None

    def configure(self, retention_check_ms: int) -> None:
        """Follow `log.retention.check.interval.ms`."""
        # The timer asks for its pause before each turn. It is not armed again here: with metadata
        # that changes often it would never fire.
        self._retention_s = retention_check_ms / 1000

    def start(self) -> None:
        """Look every so often from now on."""
        self._timer = call_every("housekeeping", self._pause_s, self._tick)

    def _pause_s(self) -> float:
        pauses_ms = [partition.log.settings.flush_ms for partition in self._partitions.values()]
        pause_s = min([_TICK_S, self._retention_s, *(pause_ms / 1000 for pause_ms in pauses_ms)])
        return max(pause_s, _LEAST_TICK_S)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await self._flushing

    def _tick(self) -> None:
        now_s = asyncio.get_running_loop().time()
        retains = now_s - self._checked_s >= self._retention_s
        if retains:
            self._checked_s = now_s
        forgets = now_s - self._producers_checked_s >= _PRODUCERS_S
        if forgets:
            self._producers_checked_s = now_s
        for partition in list(self._partitions.values()):
            try:
                if retains:
                    self._expire(partition)
                if forgets:
                    partition.log.expire_producers(wall_ms())
            except LogOffline as offline:
                _logger.warning("%r: %s", partition, offline)
            except Exception as error:  # noqa: BLE001 - the other partitions have their turn
                record_failure("housekeeping of a partition", error, f"{partition!r}: tried again")
            if partition.log.offline_reason is not None:
                self._on_failed(partition)
        if self._flushing is None or self._flushing.done():
            self._begin_flush()

    def _expire(self, partition: Partition) -> None:
        leader = partition.replica.leader
        if leader is not None:
            partition.log.delete_expired(wall_ms(), high_watermark=leader.high_watermark)

    def _begin_flush(self) -> None:
        now_ms = wall_ms()
        due = [
            (partition.log, job)
            for partition in self._partitions.values()
            if partition.log.offline_reason is None
            and (job := partition.log.due_flush(now_ms)) is not None
        ]
        if due:
            # `_flush` takes each log offline that it cannot flush.
            self._flushing = run_once("log flush", self._flush(due), on_failure=log_only)

    async def _flush(self, due: list[tuple[PartitionLog, FlushJob]]) -> None:
        for log, job in due:
            try:
                await asyncio.to_thread(job.run)
            except Exception as error:  # noqa: BLE001 - the other logs must be flushed
                if not isinstance(error, OSError):
                    record_failure("log flush", error, f"{log.folder.name} goes offline")
                # Of a partition that was removed meanwhile there is nothing to flush.
                if any(partition.log is log for partition in self._partitions.values()):
                    log.go_offline("flushed", error)
            else:
                with suppress(LogOffline):
                    log.flushed(job)
