"""What a broker does to its logs by time alone, not because anyone asked.

Rules of this file:
- The leader decides what has expired; followers hear of its log's start with their next fetch.
- Disks that fail are told to the controller again and again until it has heard.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from shoal.lite.log.partition_log import LogOffline
from shoal.lite.log.segment import wall_ms
from shoal.lite.partition import Partition

_TICK_S = 1.0
_logger = logging.getLogger(__name__)


class Housekeeper:
    """Looks after the logs of one broker, one timer for all."""

    def __init__(
        self, partitions: Mapping[Any, Partition], on_failed: Callable[[Partition], None]
    ) -> None:
        """`on_failed` is told of partitions whose log is offline; maybe more than once."""
        self._partitions = partitions
        self._on_failed = on_failed
        self._timer: asyncio.TimerHandle | None = None
        self._retention_s = 300.0
        self._checked_s = 0.0

    def configure(self, retention_check_ms: int) -> None:
        """Follow `log.retention.check.interval.ms`."""
        self._retention_s = retention_check_ms / 1000
        if self._timer is not None:
            self.start()

    def start(self) -> None:
        """Look every so often from now on."""
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(_TICK_S, self._retention_s), self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now_s = asyncio.get_running_loop().time()
        is_due = now_s - self._checked_s >= self._retention_s
        if is_due:
            self._checked_s = now_s
        for partition in list(self._partitions.values()):
            try:
                if is_due:
                    self._expire(partition)
            except LogOffline as offline:
                _logger.warning("%r: %s", partition, offline)
            if partition.log.offline_reason is not None:
                self._on_failed(partition)
        self.start()

    def _expire(self, partition: Partition) -> None:
        leader = partition.replica.leader
        if leader is not None:
            partition.log.delete_expired(wall_ms(), high_watermark=leader.high_watermark)
