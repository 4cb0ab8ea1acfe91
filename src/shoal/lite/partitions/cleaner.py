"""The log cleaner: compacts the logs of one broker, one after the other.

Rules of this file:
- Each replica compacts its own log, up to the last stable offset that it knows, as in Apache
  Kafka. So the replicas of a partition may differ in superseded records, never in current ones.
- A thread does the work; appends and reads continue meanwhile.
- When no log needs compaction, the cleaner waits for `log.cleaner.backoff.ms`.
- A damaged log goes offline. A log whose records cannot be read for another reason is left
  unchanged, and that is logged once; the other logs are compacted. After any other unexpected
  error the cleaner is restarted.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from shoal.lite.partitions.partition import Partition
from shoal.lite.storage.cleaning.cleaning import CleanJob
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.scan import DamagedLog
from shoal.lite.storage.segment import wall_ms
from shoal.model.errors import ShoalError
from shoal.runtime.tasks import keep_running, record_failure, run_awaited

_logger = logging.getLogger(__name__)


class LogCleaner:
    """Compacts the logs that need it."""

    def __init__(
        self, partitions: Mapping[Any, Partition], on_log_failed: Callable[[Partition], None]
    ) -> None:
        """`on_log_failed` is called with each partition whose log is offline."""
        self._partitions = partitions
        self._on_log_failed = on_log_failed
        self._backoff_s = 15.0
        self._has_news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._uncleanable: WeakSet[PartitionLog] = WeakSet()

    def configure(self, backoff_ms: int, *, is_enabled: bool) -> None:
        """Apply `log.cleaner.backoff.ms` and `log.cleaner.enable`."""
        if is_enabled and self._task is None:
            self._task = keep_running("log cleaner", self._run)
        if backoff_ms / 1000 != self._backoff_s:
            self._backoff_s = backoff_ms / 1000
            self._has_news.set()

    async def stop(self) -> None:
        """Wait for the running job, and start no other."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            was_busy = False
            for partition in list(self._partitions.values()):
                was_busy = await self._try_to_clean(partition) or was_busy
            if not was_busy:
                self._has_news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff_s):
                        await self._has_news.wait()

    async def _try_to_clean(self, partition: Partition) -> bool:
        """Compact one log if needed; an unexpected error affects only that log."""
        try:
            return await self._clean(partition)
        except Exception as error:  # noqa: BLE001 - the other logs must be compacted
            self._uncleanable.add(partition.log)
            record_failure("log compaction", error, f"{partition!r} is no longer compacted")
            return False

    async def _clean(self, partition: Partition) -> bool:
        """Compact one log if needed; return whether it was compacted."""
        log = partition.log
        if not log.settings.compacts or log.offline_reason is not None or log in self._uncleanable:
            return False
        try:
            job = log.due_cleaning(wall_ms(), stable_offset=partition.last_stable_offset)
        except LogOffline:
            self._report_if_offline(partition)
            return False
        if job is None:
            return False
        _logger.info("%r: compacting from %d to %d", partition, job.first_dirty, job.until)
        # A thread cannot be stopped: a stopping broker waits for this one log.
        work = run_awaited("log compaction", asyncio.to_thread(self._run_job, log, job))
        try:
            is_done = await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            job.discard()
            raise
        if is_done and partition in self._partitions.values():
            with suppress(LogOffline):
                log.on_cleaned(job)
        else:
            job.discard()
        self._report_if_offline(partition)
        return is_done

    def _report_if_offline(self, partition: Partition) -> None:
        if partition.log.offline_reason is not None:
            self._on_log_failed(partition)

    def _run_job(self, log: PartitionLog, job: CleanJob) -> bool:
        try:
            job.run()
        except FileNotFoundError:
            return False  # the partition was removed or truncated meanwhile
        except (OSError, DamagedLog) as error:
            log.go_offline("compacted", error)
            return False
        except ShoalError as error:
            self._uncleanable.add(log)
            _logger.warning("cannot compact %s: %s", log.folder.name, error)
            return False
        return True
