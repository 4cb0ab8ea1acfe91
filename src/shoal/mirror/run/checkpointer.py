"""Writes checkpoints while a mirror runs.

Rules:
- One write at a time, of what has moved since the last. One that fails is not repeated: the
  next tells more.
- At the end it tries once more, for a short time only: an old checkpoint costs the next start a
  longer walk through the source, nothing else.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from shoal.client.errors import ClientError
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.offsets.checkpoints import Checkpoint, Checkpoints, CheckpointTopic, NewBlocks
from shoal.model.topics import TopicPartition

EVERY_S: Final = 1.0
LAST_WORD_S: Final = 5.0

_log = logging.getLogger(__name__)


class CheckpointKeeper:
    """The checkpoints of one running mirror."""

    def __init__(self, topic: CheckpointTopic) -> None:
        self._topic = topic
        self._written: Checkpoints = {}
        self._mirrors: dict[TopicPartition, PartitionMirror] = {}
        # A checkpoint of a former generation must not be written behind the claim of a new one.
        self._writing = asyncio.Lock()

    async def claim(
        self,
        first: Mapping[TopicPartition, Checkpoint],
        blocks: Mapping[TopicPartition, NewBlocks] | None = None,
    ) -> None:
        """Claim target partitions, before anything is written to them.

        `blocks` are those with which their offset maps begin or go on.
        """
        async with self._writing:
            await self._topic.make()
            await self._topic.write(first, blocks)
            self._written.update(first)

    def follow(self, mirrors: Iterable[PartitionMirror]) -> None:
        """From now on, of partitions that were claimed."""
        self._mirrors.update((mirror.target, mirror) for mirror in mirrors)

    async def let_go(self, mirrors: Iterable[PartitionMirror], *, surely: bool = False) -> None:
        """No longer of these, after a last checkpoint: another may go on with them.

        `surely` raises if that cannot be written, and they are kept.
        """
        ended = [mirror for mirror in mirrors if mirror.target in self._mirrors]
        if not await self._write(ended) and surely:
            raise ClientError(f"the checkpoints of {len(ended)} partitions cannot be written")
        for mirror in ended:
            self._mirrors.pop(mirror.target, None)
            self._written.pop(mirror.target, None)

    def forget(self, mirrors: Iterable[PartitionMirror]) -> None:
        """No longer of these, whose target topic is gone, and what was written to it."""
        for mirror in mirrors:
            self._mirrors.pop(mirror.target, None)
            self._written.pop(mirror.target, None)

    async def restore(self) -> set[TopicPartition]:
        """Write everything again, to a topic that was made again."""
        async with self._writing:
            checkpoints = {tp: self._written[tp] for tp in self._mirrors}
            blocks = {tp: dict(self._topic.blocks.get(tp, {})) for tp in checkpoints}
            await self._topic.write(checkpoints, blocks)
            return set(checkpoints)

    async def keep(self) -> None:
        """Write down now and then how far the mirrors are; until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self._write(list(self._mirrors.values()))

    async def end(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await self._write(list(self._mirrors.values()))
        except TimeoutError:
            _log.warning("the last checkpoint could not be written in time")

    async def _write(self, mirrors: Iterable[PartitionMirror]) -> bool:
        async with self._writing:
            return await self._write_moved(
                [each for each in mirrors if self._mirrors.get(each.target) is each]
            )

    async def _write_moved(self, mirrors: Iterable[PartitionMirror]) -> bool:
        moved: Checkpoints = {}
        maps: dict[TopicPartition, dict[int, bytes]] = {}
        followed = {mirror.target: mirror.offsets for mirror in mirrors if mirror.offsets}
        for mirror in mirrors:
            old = self._written[mirror.target]
            if mirror.suspicion is not None:
                continue  # whether what it wrote last counts is not known yet
            new = replace(old, **mirror.mark._asdict(), **epochs_below(mirror, mirror.done))
            if mirror.has_lost_target:
                new = replace(old, target_lost=True)
            if new != old:
                moved[mirror.target] = new
                if mirror.offsets is not None:
                    mirror.offsets.reach(mirror.done)
                    maps[mirror.target] = mirror.offsets.unsaved()
        try:
            await self._topic.write(moved, maps)
        except ClientError as error:
            _log.warning("the checkpoint could not be written: %s", error)
            return False
        self._written.update(moved)
        for tp, blocks in maps.items():
            followed[tp].saved(blocks)
        return True


def epochs_below(mirror: PartitionMirror, offset: int) -> dict[str, Any]:
    """The fields of a checkpoint that tell the leader epochs of what lies below an offset."""
    starts = tuple((each.epoch, each.offset) for each in mirror.epochs.below(offset))
    return {"source_epoch": mirror.epochs.latest(offset), "source_epochs": starts}
