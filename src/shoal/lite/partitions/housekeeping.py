"""Periodic work on the logs of a broker: retention, producer expiry, flushing.

Rules of this file:
- The leader decides what has expired; followers learn its log start offset with their next fetch.
- A thread flushes the logs to disk, one after the other; appends and reads continue meanwhile.
- Expiry processes the logs in slices, and pauses after each log from which it deletes something:
  followers delete the same records and must keep up while thousands of logs expire at once.
- Failed logs are reported to the controller repeatedly, until it has confirmed the report.
- An unexpected error of one partition does not affect others; the timer continues after any error.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from shoal.lite.base.sliced_work import SLICE_S
from shoal.lite.partitions.partition import Partition
from shoal.lite.storage.flushing import FlushJob
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.segment import wall_ms
from shoal.runtime.tasks import RepeatingCall, call_every, log_only, record_failure, run_once

_TICK_S = 1.0
_LEAST_TICK_S = 0.01
# How often idle producers are expired.
_PRODUCERS_S = 600.0
# The pause of expiry after a log, as a multiple of the time that log took; and the limit.
_REST_RATIO = 3.0
_LONGEST_REST_S = 0.2
_logger = logging.getLogger(__name__)


class Housekeeper:
    """Runs the periodic work of all logs of one broker with one timer."""

    def __init__(
        self, partitions: Mapping[Any, Partition], on_log_failed: Callable[[Partition], None]
    ) -> None:
        """`on_log_failed` is called with partitions whose log is offline, possibly repeatedly."""
        self._partitions = partitions
        self._on_log_failed = on_log_failed
        self._timer: RepeatingCall | None = None
        self._retention_s = 300.0
        # The first check is a full interval away: old records that were just copied here can be
        # read first, or their retention be raised.
        self._checked_s = self._producers_checked_s = asyncio.get_running_loop().time()
        self._flushing: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None

    def configure(self, retention_check_ms: int) -> None:
        """Apply `log.retention.check.interval.ms`."""
        # The timer asks for its interval before each run. It is not restarted here: with frequent
        # metadata changes it would never fire.
        self._retention_s = retention_check_ms / 1000

    def start(self) -> None:
        """Start the timer."""
        self._timer = call_every("housekeeping", self._pause_s, self._tick)

    def _pause_s(self) -> float:
        pauses_ms = [partition.log.settings.flush_ms for partition in self._partitions.values()]
        pause_s = min([_TICK_S, self._retention_s, *(pause_ms / 1000 for pause_ms in pauses_ms)])
        return max(pause_s, _LEAST_TICK_S)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expiring is not None:
            self._expiring.cancel()
            await asyncio.wait([self._expiring])
        if self._flushing is not None:
            await self._flushing

    def _tick(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for partition in list(self._partitions.values()):
            if partition.log.offline_reason is not None:
                self._on_log_failed(partition)
        if self._expiring is None or self._expiring.done():
            self._begin_expiry(now_s)
        if self._flushing is None or self._flushing.done():
            self._begin_flush()

    # Expiry

    def _begin_expiry(self, now_s: float) -> None:
        checks_retention = now_s - self._checked_s >= self._retention_s
        if checks_retention:
            self._checked_s = now_s
        expires_producers = now_s - self._producers_checked_s >= _PRODUCERS_S
        if expires_producers:
            self._producers_checked_s = now_s
        if checks_retention or expires_producers:
            work = self._expire_all(
                checks_retention=checks_retention, expires_producers=expires_producers
            )
            # Logs that a failed run skipped are checked by the next run.
            self._expiring = run_once("expiry", work, on_failure=log_only)

    async def _expire_all(self, *, checks_retention: bool, expires_producers: bool) -> None:
        loop = asyncio.get_running_loop()
        slice_ends_s = loop.time() + SLICE_S
        for key in list(self._partitions):
            partition = self._partitions.get(key)
            if partition is None:
                continue
            try:
                if expires_producers:
                    partition.log.expire_producers(wall_ms())
                if checks_retention:
                    await self._expire(partition)
            except LogOffline as offline:
                _logger.warning("%r: %s", partition, offline)
            except Exception as error:  # noqa: BLE001 - the other partitions must be processed
                record_failure(
                    "housekeeping of a partition",
                    error,
                    f"{partition!r} is retried by the next run",
                )
            if loop.time() >= slice_ends_s:
                await asyncio.sleep(0)
                slice_ends_s = loop.time() + SLICE_S

    async def _expire(self, partition: Partition) -> None:
        leader, log = partition.replica.leader, partition.log
        if leader is None or log.offline_reason is not None:
            return
        job = log.due_expiry(wall_ms(), high_watermark=leader.high_watermark)
        if job is None:
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await asyncio.to_thread(job.run)
        except OSError as error:
            if not partition.is_removed:
                log.go_offline("shortened", error)
        else:
            # A replica that no longer leads follows the new leader's log start offset.
            if not partition.is_removed and partition.replica.leader is leader:
                log.on_expired(job)
        rest_s = min(_REST_RATIO * (loop.time() - began_s), _LONGEST_REST_S)
        await asyncio.sleep(rest_s)

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
                # A partition that was removed meanwhile needs no flush.
                if any(partition.log is log for partition in self._partitions.values()):
                    log.go_offline("flushed", error)
            else:
                with suppress(LogOffline):
                    log.on_flushed(job)
