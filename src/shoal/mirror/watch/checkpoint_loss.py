"""Notices that a running mirror's checkpoint topic was deleted, and writes it again from memory.

Rules:
- The topic is known by its id. It is looked at every few seconds, also while nothing is copied:
  a mirror that ended without its checkpoints would refuse its own copies at the next start.
- What this process copies is written again: checkpoints, and offset maps in full. The
  transactional lane writes its own in a transaction.
- What this mirror copied once and does not copy now is lost: it is named in the log. The loss
  itself is logged, and stays in the status as long as the process runs.
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

# Writes again what one part of the mirror knows; returns which target partitions those are.
Restore = Callable[[], Awaitable[set[TopicPartition]]]

_log = logging.getLogger(__name__)


class CheckpointLoss:
    """Watches over one mirror's checkpoint topic."""

    def __init__(self, topic: CheckpointTopic, restores: list[Restore]) -> None:
        self._topic = topic
        self._restores = restores
        self.notices: list[str] = []

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                if await self._topic.is_lost():
                    await self._restore()
            except ClientError as error:
                _log.warning("the checkpoint topic cannot be looked at or written: %s", error)

    async def _restore(self) -> None:
        name = self._topic.partition.topic
        known = set(self._topic.found)
        if not await self._topic.make() and not await self._topic.is_lost():
            return  # a broker that has just started did not know it yet
        _log.error("%s was deleted while the mirror runs: it is written again from memory", name)
        restored: set[TopicPartition] = set()
        for restore in self._restores:
            restored |= await restore()
        self._topic.mark_restored(restored)
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        notice = f"{name} was deleted; {len(restored)} checkpoints were written again at {at}"
        if lost := sorted(known - restored):
            notice += f"; lost for partitions that are not copied now: {', '.join(map(str, lost))}"
        _log.error("%s", notice)
        self.notices.append(notice)
