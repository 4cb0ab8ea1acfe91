"""Notices that a running mirror's checkpoint topic was deleted, and writes it again from memory.

Rules:
- The topic is identified by its id, which is checked every few seconds, even while nothing is
  copied: without its checkpoints the next start would refuse the mirror's own copies.
- Checkpoints and complete offset maps of all partitions that this process copies are written again.
  The transaction writers write theirs in a transaction.
- Checkpoints of partitions that are not copied now are lost: they are named in the log. The loss is
  logged, and stays in the status as long as the process runs.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from shoal.client.errors import ClientError
from shoal.mirror.offsets.checkpoints import CheckpointTopic
from shoal.model.topics import TopicPartition

LOOK_EVERY_S: Final = 2.0

# Writes the checkpoints of one part of the mirror again; returns their target partitions.
Restore = Callable[[], Awaitable[set[TopicPartition]]]

_log = logging.getLogger(__name__)


class CheckpointLoss:
    """Watches the checkpoint topic of one mirror."""

    def __init__(self, topic: CheckpointTopic, restores: list[Restore]) -> None:
        self._topic = topic
        self._restores = restores
        self.notices: list[str] = []

    async def watch(self) -> None:
        """Check the topic periodically, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if await self._topic.is_lost():
                    await self._restore()
            except ClientError as error:
                _log.warning("cannot read or restore the checkpoint topic, retrying: %s", error)

    async def _restore(self) -> None:
        name = self._topic.partition.topic
        known = set(self._topic.found)
        if not await self._topic.create_if_missing() and not await self._topic.is_lost():
            return  # a broker that has just started did not know the topic yet
        _log.error(
            "topic %s was deleted while the mirror runs: writing its checkpoints again from memory",
            name,
        )
        restored: set[TopicPartition] = set()
        for restore in self._restores:
            restored |= await restore()
        self._topic.mark_restored(restored)
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        notice = f"topic {name} was deleted; {len(restored)} checkpoints were written again at {at}"
        if lost := sorted(known - restored):
            notice += f"; lost for partitions that are not copied now: {', '.join(map(str, lost))}"
        _log.error("%s", notice)
        self.notices.append(notice)
