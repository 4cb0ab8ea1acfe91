"""Opens the logs of replicas: one immediately, or many in a thread.

    partition.metadata    Apache Kafka's file that ties a folder to a topic id

Rules of this file:
- Opening a log creates files, and a busy disk may take long for each. So a thread opens many logs,
  a few at a time, while appends to and reads from other logs continue.
- A job uses only its folder and its end mark. The event loop creates the job and collects its log
  or its error when the thread is done; the event loop decides whether the log is still needed.
- One thread opens one folder at a time: a log with the same name waits until the previous one is
  collected.
- A log that was found damaged is verified completely when it is opened again, if another replica
  has all committed records: it is truncated at the damage, and the missing records are fetched.
"""

import asyncio
import base64
import logging
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.storage.files import replace_file
from shoal.lite.storage.flushing import RECOVERY_POINT
from shoal.lite.storage.offline import DAMAGE, clear_damage_mark, is_marked_damaged, mark_damaged
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.log_end_file import LogEndMark
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import record_failure, run_once

PARTITION_METADATA = "partition.metadata"
# The number of logs that one call of the thread opens.
_AT_ONCE = 16
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenJob:
    """A log to open. `run` may be called once, from any thread."""

    key: TopicPartition
    record: PartitionRecord
    folder: Path
    settings: LogSettings
    ended: LastShutdown
    end_mark: LogEndMark
    # Whether this broker leads the partition.
    leads: bool
    # Whether another replica has all committed records.
    can_refetch: bool
    log: PartitionLog | None = None
    error: Exception | None = None

    def run(self) -> None:
        """Open the log; sets `log`, or `error` if it fails."""
        try:
            if topic_id_in(self.folder) not in {None, self.record.topic_id}:
                # The folder of a topic that was deleted while its log could not be opened.
                shutil.rmtree(self.folder)
            log = self._open()
            if self.leads and log.end_offset == 0:
                # The epoch history is a file too: write it in this thread, not in the event loop.
                log.begin_epoch(self.record.leader_epoch)
            _write_partition_metadata(self.folder, self.record.topic_id)
        except Exception as error:  # noqa: BLE001 - the event loop handles it
            self.error = error
        else:
            self.log = log

    def _open(self) -> PartitionLog:
        """Open a log in its last state; verify a damaged one from its start."""
        if not is_marked_damaged(self.folder):
            try:
                return self._open_log(self.ended)
            except DAMAGE as error:
                _logger.warning("%s is damaged: %s", self.folder.name, error)
                mark_damaged(self.folder)
        if not self.can_refetch:
            # No other replica has all committed records: keep those after the damage.
            return self._open_log(self.ended)
        (self.folder / RECOVERY_POINT).unlink(missing_ok=True)
        log = self._open_log(LastShutdown.UNKNOWN)
        clear_damage_mark(self.folder)
        return log

    def _open_log(self, ended: LastShutdown) -> PartitionLog:
        return PartitionLog(self.folder, self.settings, last_shutdown=ended, end_mark=self.end_mark)


class LogOpener:
    """A queue of logs that a thread opens. Used in the event loop."""

    def __init__(
        self,
        begin: Callable[[TopicPartition], OpenJob | None],
        finish: Callable[[OpenJob], None],
        on_opened: Callable[[], None],
    ) -> None:
        """`begin` creates the job of the next log, or None if it is no longer needed; `finish`
        takes the opened log; `on_opened` is called after each group of logs."""
        self._begin = begin
        self._finish = finish
        self._on_opened = on_opened
        self._waiting: dict[TopicPartition, None] = {}
        self._underway: set[TopicPartition] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._underway

    def is_underway(self, key: TopicPartition) -> bool:
        """Return whether the thread is using the folder of a partition."""
        return key in self._underway

    def add(self, keys: Iterable[TopicPartition]) -> None:
        """Add logs to the end of the queue."""
        for key in keys:
            self._waiting.setdefault(key)
        if self._waiting and (self._task is None or self._task.done()):
            self._start()

    def _start(self) -> None:
        self._task = run_once("opening of logs", self._run(), on_failure=self._on_task_failed)

    def _on_task_failed(self, _: Exception) -> None:
        """Continue with the queue after `finish` or `on_opened` failed."""
        self._underway.clear()
        if self._waiting:
            self._start()

    async def _run(self) -> None:
        # Not within the call that added them: the caller may have to finish its own work first.
        await asyncio.sleep(0)
        while self._waiting:
            jobs = self._next_jobs()
            if jobs:
                await asyncio.to_thread(_run_all, jobs)
            self._underway.clear()
            for job in jobs:
                self._finish(job)
            self._on_opened()

    def _next_jobs(self) -> list[OpenJob]:
        jobs: list[OpenJob] = []
        while self._waiting and len(jobs) < _AT_ONCE:
            key = next(iter(self._waiting))
            del self._waiting[key]
            try:
                job = self._begin(key)
            except Exception as error:  # noqa: BLE001 - the other logs must be opened
                record_failure("opening of a log", error, f"{key} is not opened")
                continue
            if job is not None:
                self._underway.add(key)
                jobs.append(job)
        return jobs

    async def stop(self) -> None:
        """Stop starting jobs; return when all started ones are finished."""
        self._waiting.clear()
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])


def _run_all(jobs: list[OpenJob]) -> None:
    for job in jobs:
        job.run()


def _write_partition_metadata(folder: Path, topic_id: UUID) -> None:
    path = folder / PARTITION_METADATA
    if not path.exists():
        content = f"version: 0\ntopic_id: {kafka_uuid(topic_id)}"
        replace_file(path, content.encode(), durable=False)


def topic_id_in(folder: Path) -> UUID | None:
    """Return the topic id of a folder; None if it is unknown."""
    with suppress(OSError, ValueError):
        text = (folder / PARTITION_METADATA).read_text()
        encoded = text.rpartition("topic_id: ")[2].strip()
        return UUID(bytes=base64.urlsafe_b64decode(encoded + "=="))
    return None


def kafka_uuid(value: UUID) -> str:
    """Format a UUID as Apache Kafka does."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
