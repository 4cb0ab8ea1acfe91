"""Opens the logs of replicas: at once, or many of them in a thread.

    partition.metadata    Apache Kafka's file that ties a folder to a topic's id

Rules of this file:
- To open a log costs files that are made, and a disk that others use too may take long for each.
  So many logs are opened by a thread, a few at a time, and those who write and read others go on.
- A job touches nothing but its folder and its end mark. The event loop makes the job, and takes
  its log, or why there is none, when the thread is through; whether it is still wanted is the
  event loop's to know.
- One thread, one folder at a time: a log of the same name waits until the one before it is taken.
- A log that was found damaged is checked as a whole when it is opened again, if another replica
  has everything: it is cut at the damage, and what is missing is fetched.
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
from shoal.lite.storage.recovery.last_shutdown import Ended
from shoal.lite.storage.recovery.log_end_file import EndMark
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import record_failure, run_once

PARTITION_METADATA = "partition.metadata"
# So many logs are opened by one call of the thread.
_AT_ONCE = 16
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenJob:
    """A log to be opened. `run` may be called from any thread, once."""

    key: TopicPartition
    record: PartitionRecord
    folder: Path
    settings: LogSettings
    ended: Ended
    end_mark: EndMark
    # Whether this broker is to lead the partition.
    leads: bool
    # Whether another replica has everything that is committed.
    can_refetch: bool
    log: PartitionLog | None = None
    error: Exception | None = None

    def run(self) -> None:
        """Open it: then there is a `log`, or an `error`."""
        try:
            if topic_id_in(self.folder) not in {None, self.record.topic_id}:
                # Of a topic that was deleted while its log could not be opened.
                shutil.rmtree(self.folder)
            log = self._open()
            if self.leads and log.end_offset == 0:
                # The history of a new log is a file too; whoever takes the log finds it written.
                log.begin_epoch(self.record.leader_epoch)
            _write_partition_metadata(self.folder, self.record.topic_id)
        except Exception as error:  # noqa: BLE001 - the event loop judges it
            self.error = error
        else:
            self.log = log

    def _open(self) -> PartitionLog:
        """Open a log as it was left; one that is damaged as if nothing of it could be trusted."""
        if not is_marked_damaged(self.folder):
            try:
                return self._open_log(self.ended)
            except DAMAGE as error:
                _logger.warning("%s is damaged: %s", self.folder.name, error)
                mark_damaged(self.folder)
        if not self.can_refetch:
            # Where nobody else has everything, what lies behind the damage must stay.
            return self._open_log(self.ended)
        (self.folder / RECOVERY_POINT).unlink(missing_ok=True)
        log = self._open_log(Ended.UNKNOWN)
        clear_damage_mark(self.folder)
        return log

    def _open_log(self, ended: Ended) -> PartitionLog:
        return PartitionLog(self.folder, self.settings, ended=ended, end_mark=self.end_mark)


class LogOpener:
    """Logs that wait to be opened by a thread. Used in the event loop."""

    def __init__(
        self,
        begin: Callable[[TopicPartition], OpenJob | None],
        finish: Callable[[OpenJob], None],
        on_opened: Callable[[], None],
    ) -> None:
        """`begin` makes the job of a log whose turn it is, if it is still wanted; `finish` takes
        the log; `on_opened` is called after each few of them."""
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
        """Whether a thread works on the folder of a partition."""
        return key in self._underway

    def add(self, keys: Iterable[TopicPartition]) -> None:
        """Open logs, behind those that wait."""
        for key in keys:
            self._waiting.setdefault(key)
        if self._waiting and (self._task is None or self._task.done()):
            self._start()

    def _start(self) -> None:
        self._task = run_once("opening of logs", self._run(), on_failure=self._on_task_failed)

    def _on_task_failed(self, _: Exception) -> None:
        """What comes after a few logs has failed: those that wait still have their turn."""
        self._underway.clear()
        if self._waiting:
            self._start()

    async def _run(self) -> None:
        # Not within the call that added them: that one may have more to do first.
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
            except Exception as error:  # noqa: BLE001 - the other logs have their turn
                record_failure("opening of a log", error, f"{key} is left as it is")
                continue
            if job is not None:
                self._underway.add(key)
                jobs.append(job)
        return jobs

    async def stop(self) -> None:
        """Begin no more; returns when all that were begun are taken."""
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
    """The topic that a folder is tied to; None if that is not known."""
    with suppress(OSError, ValueError):
        text = (folder / PARTITION_METADATA).read_text()
        encoded = text.rpartition("topic_id: ")[2].strip()
        return UUID(bytes=base64.urlsafe_b64decode(encoded + "=="))
    return None


def kafka_uuid(value: UUID) -> str:
    """A UUID as Apache Kafka writes it."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
