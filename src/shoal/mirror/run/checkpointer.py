"""Writes checkpoints while a mirror runs.

Rules:
- One write at a time, of the partitions that may have moved since the last (`note`): idle ones cost
  nothing. A failed write is not retried: the next checkpoint supersedes it.
- Writes are a second apart, and further if many partitions move, up to `MOST_EVERY_S`: a checkpoint
  costs the same for one new record as for thousands.
- At the end it writes once more, with a short timeout: an old checkpoint only makes the next start
  read more of the source.
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
MOST_EVERY_S: Final = 5.0
CHECKPOINTS_PER_S: Final = 50
LAST_WRITE_S: Final = 5.0

_log = logging.getLogger(__name__)


class Checkpointer:
    """Keeps the checkpoints of one running mirror up to date."""

    def __init__(self, topic: CheckpointTopic) -> None:
        self._topic = topic
        self._written: Checkpoints = {}
        # What the written checkpoints depend on, to skip partitions that have not moved.
        self._seen: dict[TopicPartition, tuple[object, ...]] = {}
        self._mirrors: dict[TopicPartition, PartitionMirror] = {}
        # Those whose state may differ from `_seen`.
        self._noted: dict[TopicPartition, PartitionMirror] = {}
        # A checkpoint of an earlier generation must not be written after the claim of a new one.
        self._writing = asyncio.Lock()

    async def claim(
        self,
        first: Mapping[TopicPartition, Checkpoint],
        blocks: Mapping[TopicPartition, NewBlocks] | None = None,
    ) -> None:
        """Write the first checkpoints of target partitions, before any record is written to them.

        `blocks` are the initial or changed blocks of their offset maps.
        """
        async with self._writing:
            await self._topic.create_if_missing()
            await self._topic.write(first, blocks)
            self._written.update(first)
            for tp in first:
                self._seen.pop(tp, None)

    def follow(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Write checkpoints of these partitions, which are claimed, from now on."""
        for mirror in mirrors:
            self._mirrors[mirror.target] = self._noted[mirror.target] = mirror

    def note(self, mirror: PartitionMirror) -> None:
        """The next periodic write considers this partition."""
        self._noted[mirror.target] = mirror

    async def release(
        self, mirrors: Iterable[PartitionMirror], *, must_write: bool = False
    ) -> None:
        """Write a last checkpoint of these partitions and stop tracking them.

        Another process may resume them then. With `must_write`, a failed write raises and the
        partitions stay tracked.
        """
        ended = [mirror for mirror in mirrors if mirror.target in self._mirrors]
        if not await self._write(ended) and must_write:
            raise ClientError(f"cannot write the checkpoints of {len(ended)} partitions")
        for mirror in ended:
            self._mirrors.pop(mirror.target, None)
            self._written.pop(mirror.target, None)
            self._seen.pop(mirror.target, None)

    def forget(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Stop tracking these partitions without a checkpoint: their target topic is gone."""
        for mirror in mirrors:
            self._mirrors.pop(mirror.target, None)
            self._written.pop(mirror.target, None)
            self._seen.pop(mirror.target, None)

    async def restore(self) -> set[TopicPartition]:
        """Write all checkpoints again, to a recreated checkpoint topic."""
        async with self._writing:
            checkpoints = {tp: self._written[tp] for tp in self._mirrors}
            blocks = {tp: dict(self._topic.blocks.get(tp, {})) for tp in checkpoints}
            await self._topic.write(checkpoints, blocks)
            return set(checkpoints)

    async def keep(self) -> None:
        """Write checkpoints periodically, until cancelled."""
        pause_s = EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = find_pause_s(await self.write_noted())

    async def write_noted(self) -> int:
        """Write the checkpoints of partitions that may have moved; returns how many these are.

        If that fails, they are noted again.
        """
        noted, self._noted = self._noted, {}
        is_written = False
        try:
            is_written = await self._write(noted.values())
        finally:
            if not is_written:
                self._noted = {**noted, **self._noted}
        return len(noted)

    async def end(self) -> None:
        """Write the last checkpoint of every partition; give up after `LAST_WRITE_S`."""
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                await self._write(list(self._mirrors.values()))
        except TimeoutError:
            _log.warning("could not write the last checkpoint within %.0f s", LAST_WRITE_S)

    async def _write(self, mirrors: Iterable[PartitionMirror]) -> bool:
        async with self._writing:
            return await self._write_moved(
                [each for each in mirrors if self._mirrors.get(each.target) is each]
            )

    async def _write_moved(self, mirrors: Iterable[PartitionMirror]) -> bool:
        moved: Checkpoints = {}
        maps: dict[TopicPartition, dict[int, bytes]] = {}
        followed = {mirror.target: mirror.offsets for mirror in mirrors if mirror.offsets}
        seen: dict[TopicPartition, tuple[object, ...]] = {}
        for mirror in mirrors:
            if mirror.suspicion is not None:
                self._noted[mirror.target] = mirror
                continue  # its last writes may be in a recreated topic
            lost = mirror.counts.lost
            state = (mirror.resume_point, mirror.epochs.newest, mirror.has_lost_target, lost)
            if self._seen.get(mirror.target) == state:
                continue
            seen[mirror.target] = state
            old = self._written[mirror.target]
            point, epochs = mirror.resume_point._asdict(), epochs_below(mirror, mirror.done)
            new = replace(old, **point, **epochs, lost=lost)
            if mirror.has_lost_target:
                new = replace(old, target_lost=True)
            if new != old:
                moved[mirror.target] = new
                if mirror.offsets is not None:
                    mirror.offsets.advance_to(mirror.done)
                    maps[mirror.target] = mirror.offsets.blocks_to_save()
        try:
            await self._topic.write(moved, self._topic.limit_maps(maps))
        except ClientError as error:
            _log.warning("could not write checkpoints; trying again in a second: %s", error)
            return False
        self._written.update(moved)
        self._seen.update(seen)
        for tp, blocks in maps.items():
            followed[tp].mark_saved(blocks)
        return True


def find_pause_s(written: int) -> float:
    """How long to wait after a write of so many checkpoints."""
    return min(max(EVERY_S, written / CHECKPOINTS_PER_S), MOST_EVERY_S)


def epochs_below(mirror: PartitionMirror, offset: int) -> dict[str, Any]:
    """The checkpoint fields with the leader epochs below an offset."""
    starts = tuple((each.epoch, each.offset) for each in mirror.epochs.below(offset))
    return {"source_epoch": mirror.epochs.latest(offset), "source_epochs": starts}
