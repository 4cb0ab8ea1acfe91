"""Compacts the logs of one broker, one after the other.

Rules of this file:
- Each replica compacts its own log, up to the last stable offset that it knows, as in Apache
  Kafka; so the logs of a partition may differ in what is gone, never in what counts.
- The work is done by a thread; those who write and read go on meanwhile.
- When there is nothing to do, `log.cleaner.backoff.ms` pass before the next look.
- A log that is damaged goes offline. One whose records cannot be read otherwise is left as it is,
  and that is said once; the others are compacted. After any other unexpected error the cleaner
  starts again.
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


class Cleaner:
    """Looks for logs that are worth the work."""

    def __init__(
        self, partitions: Mapping[Any, Partition], on_failed: Callable[[Partition], None]
    ) -> None:
        """`on_failed` is told of partitions whose log is offline."""
        self._partitions = partitions
        self._on_failed = on_failed
        self._backoff_s = 15.0
        self._has_news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._hopeless: WeakSet[PartitionLog] = WeakSet()

    def configure(self, backoff_ms: int, *, is_enabled: bool) -> None:
        """Follow `log.cleaner.backoff.ms` and `log.cleaner.enable`."""
        if is_enabled and self._task is None:
            self._task = keep_running("log cleaner", self._run)
        if backoff_ms / 1000 != self._backoff_s:
            self._backoff_s = backoff_ms / 1000
            self._has_news.set()

    async def stop(self) -> None:
        """Let the job that is under way end, and begin no other."""
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
        """Compact one log if it is due; an unexpected error costs only that log's compaction."""
        try:
            return await self._clean(partition)
        except Exception as error:  # noqa: BLE001 - the other logs must be compacted
            self._hopeless.add(partition.log)
            record_failure("log compaction", error, f"{partition!r} is not compacted any more")
            return False

    async def _clean(self, partition: Partition) -> bool:
        """Compact one log if it is due; whether it was."""
        log = partition.log
        if not log.settings.compacts or log.offline_reason is not None or log in self._hopeless:
            return False
        job = log.due_cleaning(wall_ms(), stable_offset=partition.last_stable_offset)
        if job is None:
            return False
        _logger.info("%r: compacting from %d to %d", partition, job.first_dirty, job.until)
        # A thread cannot be stopped: whoever stops the broker waits for this one log.
        work = run_awaited("log compaction", asyncio.to_thread(self._worked, log, job))
        try:
            is_done = await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            job.forget()
            raise
        if is_done and partition in self._partitions.values():
            with suppress(LogOffline):
                log.cleaned(job)
        else:
            job.forget()
        self._report(partition)
        return is_done

    def _report(self, partition: Partition) -> None:
        if partition.log.offline_reason is not None:
            self._on_failed(partition)

    def _worked(self, log: PartitionLog, job: CleanJob) -> bool:
        try:
            job.run()
        except FileNotFoundError:
            return False  # the partition was removed, or cut, meanwhile
        except (OSError, DamagedLog) as error:
            log.go_offline("compacted", error)
            return False
        except ShoalError as error:
            self._hopeless.add(log)
            _logger.warning("%s cannot be compacted: %s", log.folder.name, error)
            return False
        return True
