"""Translates source offsets to target offsets, by the offset map that a mirror keeps on its target.

    async with Client({"bootstrap.servers": target}) as client:
        translator = Translator(client, name="default")
        await translator.refresh()
        translated = translator.translate(TopicPartition("orders", 0), 1234)

Rules:
- The result is exact (`shoal.mirror.offsets.offset_map`), also where source and target offsets
  differ, and None while the mirror has not copied that far. Translating writes nothing.
- Compare-and-append keeps offsets, so no map is needed.
- The map of a partition is limited, so the oldest offsets of a long log with many gaps may not be
  translated any longer. They are refused, never guessed.
- A map belongs to one generation of a topic. A recreated target topic has no map until its mirror
  starts to fill it. The same holds for a recreated source topic, if the source is known.
- Committed offsets of groups are read from the source's coordinator and committed at the target's.
  A group with members at the target is never changed. The commits carry no leader epoch, because
  the epochs of the source do not apply to the target.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.client.client import Client
from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.errors import ClientError
from shoal.client.groups.group_listing import list_groups
from shoal.client.groups.group_offsets import OffsetCommit, commit_offsets, fetch_committed_offsets
from shoal.client.results import EARLIEST
from shoal.mirror.copy.delivery.names import COMPARE_AND_APPEND
from shoal.mirror.mm2.patterns import Selection
from shoal.mirror.offsets.checkpoints import Checkpoint, CheckpointTopic
from shoal.mirror.offsets.offset_map import MAP_LIMIT_BYTES, OffsetMap
from shoal.mirror.routes import Route
from shoal.mirror.watch.copies import topic_id
from shoal.mirror.watch.generations import has_other_id
from shoal.model.errors import ConfigError, UsageError
from shoal.model.topics import TopicPartition

ANSWER_S: Final = 10.0
_DROPPED: Final = (
    f"the offset map keeps the newest {MAP_LIMIT_BYTES >> 20} MiB of each partition, and this "
    "offset is older; choose the position at the target by timestamp"
)
_GROUP_S: Final = 30.0
_GROUPS_AT_ONCE: Final = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """A source offset and its target offset, which is None while it is unknown."""

    source: TopicPartition
    source_offset: int
    target: TopicPartition
    target_offset: int | None
    why: str = ""  # the target offset is unknown; empty if it is just not copied yet


class Translator:
    """The offset maps of one mirror, as far as they are written to the target."""

    def __init__(
        self, target: Client, name: str = "default", *, source: Client | None = None
    ) -> None:
        self._target = target
        self._source = source
        self._name = name
        self._topic = CheckpointTopic(target, name)
        self._routes: dict[TopicPartition, Route] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._unavailable: dict[TopicPartition, str] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        """The source partitions that are mirrored."""
        return sorted(self._routes)

    async def refresh(self) -> None:
        """Read new checkpoints and map blocks from the target."""
        if not await self._topic.exists():
            raise UsageError(
                f"the target has no checkpoints of a mirror named {self._name}",
                remedy="give the --name of the mirror",
            )
        found = await self._topic.read()
        await self._target.metadata({tp.topic for tp in found}, refresh=True)
        if self._source is not None:
            names = {each.source_topic or tp.topic for tp, each in found.items()}
            await self._source.metadata(names, refresh=True)
        self._routes = {
            (source := TopicPartition(each.source_topic or tp.topic, tp.partition)): Route(
                source, tp
            )
            for tp, each in found.items()
            if self._target.cluster.partition(tp) is not None and self._is_present(tp, each)
        }
        asked = {route.target: EARLIEST for route in self._routes.values()}
        listed = await self._target.list_offsets_or_errors(asked, timeout_s=ANSWER_S)
        self._log_starts = {tp: each.offset for tp, each in listed.offsets.items()}
        self._unavailable = {tp: str(error) for tp, error in listed.errors.items()}
        for tp, reason in self._unavailable.items():
            _log.warning("cannot translate offsets of %s: %s", tp, reason)

    def _is_present(self, tp: TopicPartition, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint belongs to the topics that exist now on both sides."""
        if has_other_id(checkpoint.target_topic_id, topic_id(self._target, tp.topic)):
            return False
        if self._source is None:
            return True
        source = TopicPartition(checkpoint.source_topic or tp.topic, tp.partition)
        is_there = self._source.cluster.partition(source) is not None
        now = topic_id(self._source, source.topic)
        return is_there and not has_other_id(checkpoint.source_topic_id, now)

    def translate(self, source: TopicPartition, offset: int) -> TranslatedOffset:
        """Find the target offset of the first record at or above this source offset."""
        route = self._routes.get(source)
        if route is None:
            raise UsageError(
                f"{source} is not mirrored by the mirror named {self._name}",
                remedy="check the topic, or give the --name of its mirror",
            )
        if why := self._unavailable.get(route.target):
            # Its log start is unknown, so the record may have been deleted.
            return TranslatedOffset(source, offset, route.target, None, why)
        if not self._is_mapped(route.target, offset):
            return TranslatedOffset(source, offset, route.target, None, _DROPPED)
        return TranslatedOffset(
            source, offset, route.target, self._translate_offset(route.target, offset)
        )

    def _is_mapped(self, target: TopicPartition, offset: int) -> bool:
        """Whether the map has this offset: the oldest blocks of a large map are dropped."""
        checkpoint = self._topic.found[target]
        first = max(self._log_starts.get(target, 0), checkpoint.generation_target_offset)
        blocks = self._topic.blocks.get(target, {})
        is_needed = checkpoint.delivery != COMPARE_AND_APPEND
        return not is_needed or OffsetMap(blocks).knows(offset, first_target=first)

    def _translate_offset(self, target: TopicPartition, offset: int) -> int | None:
        """The offset at the target of a source offset; None if it is not copied yet."""
        checkpoint = self._topic.found[target]
        done, end = checkpoint.source_offset, checkpoint.target_offset
        if checkpoint.delivery == COMPARE_AND_APPEND:
            found = min(offset, end) if offset <= done else None
        else:
            offsets = OffsetMap(self._topic.blocks.get(target, {}))
            found = offsets.translate(offset, done=done, target_end=end)
        # Records below the log start are deleted; readers continue at the log start.
        return None if found is None else max(found, self._log_starts.get(target, 0))

    def log_start(self, target: TopicPartition) -> int:
        return self._log_starts.get(target, 0)

    async def trim(self) -> None:
        """Delete map blocks of records that the target has deleted."""
        void = {
            tp: dict.fromkeys(starts)
            for tp, blocks in self._topic.blocks.items()
            if (starts := OffsetMap(blocks).below(self._log_starts.get(tp, 0)))
        }
        await self._topic.write({}, void)


@dataclass(slots=True)
class GroupMove:
    """The result of moving one group's committed offsets."""

    group: str
    places: list[TranslatedOffset] = field(default_factory=list)
    is_active: bool = False  # at the target, so it was not changed
    committed: int = 0  # partitions


class GroupSync:
    """Translates committed offsets of groups from a source to a target."""

    def __init__(self, source: Client, target: Client, translator: Translator) -> None:
        self._source = source
        self._target = target
        self._translator = translator

    async def sync(self, selection: Selection) -> list[GroupMove]:
        """Move the offsets of all selected groups, forwards only."""
        await self._translator.refresh()
        await self._translator.trim()
        groups = await list_groups(self._source)
        chosen = [
            group.group_id
            for group in groups.values()
            if group.protocol_type in ("consumer", "") and selection.includes(group.group_id)
        ]
        limit = asyncio.Semaphore(_GROUPS_AT_ONCE)
        moves = await asyncio.gather(*(self._try_move(group, limit) for group in sorted(chosen)))
        return [move for move in moves if move is not None]

    async def _try_move(self, group: str, limit: asyncio.Semaphore) -> GroupMove | None:
        """Move one group; an unavailable coordinator must not delay other groups."""
        async with limit:
            try:
                async with asyncio.timeout(_GROUP_S):
                    return await self.move(group, forwards_only=True)
            except (ClientError, TimeoutError) as error:
                _log.warning("cannot sync the offsets of group %s: %r", group, error)
                return None

    async def places(self, group: str) -> list[TranslatedOffset]:
        """Translate the committed offsets of a group."""
        partitions = self._translator.partitions
        committed = await fetch_committed_offsets(
            _coordinator(self._source, group), group, partitions
        )
        return [self._translator.translate(tp, committed[tp].offset) for tp in sorted(committed)]

    async def move(self, group: str, *, forwards_only: bool = False) -> GroupMove:
        """Commit the translated offsets of a group at the target, unless it has members there."""
        move = GroupMove(group, await self.places(group))
        offsets = {
            place.target: place.target_offset
            for place in move.places
            if place.target_offset is not None
        }
        there = (await list_groups(self._target)).get(group)
        move.is_active = there is not None and there.is_active
        if move.is_active or not offsets:
            return move
        coordinator = _coordinator(self._target, group)
        wanted = await self._changes(coordinator, group, offsets, forwards_only=forwards_only)
        if wanted:
            await commit_offsets(coordinator, group, wanted)
            _log.info("group %s: committed %d offsets at the target", group, len(wanted))
        move.committed = len(wanted)
        return move

    async def _changes(
        self,
        coordinator: Coordinator,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        forwards_only: bool,
    ) -> dict[TopicPartition, OffsetCommit | int]:
        known = await fetch_committed_offsets(coordinator, group, offsets)
        return {
            tp: offset
            for tp, offset in offsets.items()
            if tp not in known
            or (known[tp].offset < offset if forwards_only else known[tp].offset != offset)
        }


def require_known(places: Iterable[TranslatedOffset]) -> list[TranslatedOffset]:
    """Return the translations if all are known; raise otherwise."""
    found = list(places)
    for place in found:
        if place.target_offset is None:
            raise ConfigError(
                f"{place.source} cannot be translated: {place.why}"
                if place.why
                else f"offset {place.source_offset} of {place.source} is not copied yet",
                remedy="wait until the mirror catches up, and try again",
            )
    return found


def _coordinator(client: Client, group: str) -> Coordinator:
    return Coordinator(client, CoordinatorType.GROUP, group)
