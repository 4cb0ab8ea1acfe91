"""Looks out for what a source does behind a mirror's back: deletes, truncates, mirrors back.

Rules:
- A position below the source's first offset means that records were deleted before they were
  copied: they are lost. That is counted and told, and the copy goes on behind them, or it ends.
- A position above its end, or a leader whose log parts from what was fetched
  (`shoal.mirror.watch.divergence`), means that the source was truncated. What was fetched is
  compared, not what is acknowledged: the partition is let go and begun again, which drops what
  is not written, and continues where both logs part (`on_diverged`).
- A leader is asked whenever its epoch is another than when it was last asked, and nothing that
  was fetched meanwhile is taken.
- A topic that was itself copied from where it would now be copied to is a cycle: each record
  would come round again. The way that a topic came is part of its mirror's checkpoints.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from shoal.client.client import Client
from shoal.client.errors import ClientError, UnsupportedByBroker
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.offsets.checkpoints import PREFIX, CheckpointTopic
from shoal.mirror.routes import Route
from shoal.mirror.watch.leader_epochs import ReadSoFar, find_divergences, leader_epoch
from shoal.model.errors import ConfigError, SystemFailure
from shoal.model.topics import TopicPartition

_READ_WAYS_S: Final = 10.0
_KEEP_LONGER: Final = (
    "keep records longer at the source, or start the mirror with --on-loss report to go on "
    "without them"
)

_log = logging.getLogger(__name__)


class SourceWatch:
    """What a runner asks the source besides its records."""

    def __init__(self, source: Client, *, fails_on_loss: bool = False) -> None:
        self._source = source
        self._fails_on_loss = fails_on_loss
        self._can_tell_epochs = True
        # Called with a partition and the offset from which on its leader has other records.
        self.on_diverged: Callable[[PartitionMirror, int], None] = _park_diverged

    def is_due(self, mirror: PartitionMirror) -> bool:
        """Whether the leader must be asked before more is fetched."""
        epoch = leader_epoch(self._source, mirror.partition)
        if epoch < 0 or epoch == mirror.looked_epoch or not self._can_tell_epochs:
            return False
        if mirror.epochs.latest(mirror.position) < 0:
            mirror.looked_epoch = epoch  # nothing was copied yet
            return False
        return True

    async def look(self, mirrors: Iterable[PartitionMirror]) -> set[TopicPartition]:
        """Ask leaders whether they have what was read; returns those that must be asked again."""
        asked = {mirror.partition: mirror for mirror in mirrors}
        read = {
            tp: ReadSoFar(mirror.epochs.below(mirror.position), mirror.position)
            for tp, mirror in asked.items()
        }
        try:
            answers = await find_divergences(self._source, read)
        except UnsupportedByBroker:
            self._can_tell_epochs = False
            return set()
        for tp, epoch in answers.checked.items():
            mirror = asked[tp]
            if mirror.position != read[tp].position:
                continue  # it went back meanwhile, and is asked again
            if tp in answers.diverged:
                self.on_diverged(mirror, answers.diverged[tp])
            else:
                mirror.looked_epoch = epoch
        return asked.keys() - answers.checked.keys()

    async def find(self, mirror: PartitionMirror) -> None:
        """Find out why the source does not have the position of a mirror, and act on it."""
        tp = mirror.partition
        first = (await self._source.list_offsets({tp: EARLIEST}))[tp].offset
        end = (await self._source.list_offsets({tp: LATEST}))[tp].offset
        if mirror.position > end:
            await self._find_divergence(mirror, end)
        elif mirror.position < first:
            self._lose(mirror, first)

    async def _find_divergence(self, mirror: PartitionMirror, end: int) -> None:
        """The source ends below a position: by its epochs, or by its end if it has none."""
        tp = mirror.partition
        known = mirror.epochs.below(mirror.position)
        at = end
        if known and self._can_tell_epochs:
            read = {tp: ReadSoFar(known, mirror.position)}
            answers = await find_divergences(self._source, read)
            if tp in answers.errors:
                return  # asked again
            at = answers.diverged.get(tp, -1)
        elif end < mirror.done:
            at = -1
        if at >= 0:
            self.on_diverged(mirror, at)
            return
        mirror.park(
            f"the source was truncated: it ends at {end}, and {mirror.done} offsets were copied",
            "compare both with `shoal mirror verify`; mirror into a new topic",
        )

    def _lose(self, mirror: PartitionMirror, first: int) -> None:
        lost = mirror.lost_below(first)
        text = (
            f"{mirror.partition}: the source deleted the offsets from {first - lost} to "
            f"{first - 1} before they were copied"
        )
        if lost and self._fails_on_loss:
            raise SystemFailure(text, remedy=_KEEP_LONGER)
        mirror.lose(first)
        if lost:
            _log.error("LOST: %s", text)


def _park_diverged(mirror: PartitionMirror, offset: int) -> None:
    mirror.park(
        f"the source was truncated: of what was read up to {mirror.position} it has lost all "
        f"from {offset} on",
        "compare both with `shoal mirror verify`; mirror into a new topic",
    )


def place(cluster: str | None, topic: str) -> str:
    """How a topic of a cluster is named in the way that records came."""
    return f"{cluster}/{topic}"


async def ways_of(source: Client) -> dict[str, set[str]]:
    """For topics of the source that are copies: where they came from, as mirrors there tell."""
    ways: dict[str, set[str]] = {}
    cluster = await source.retrying(source.metadata)
    for name in cluster.topics:
        if not name.startswith(PREFIX) or name == PREFIX:
            continue
        if cluster.leader(TopicPartition(name, 0)) is None:
            _log.warning("cycles through %s cannot be found: it has no leader", name)
            continue
        try:
            # It must not hold back topics that have nothing to do with it.
            async with asyncio.timeout(_READ_WAYS_S):
                found = await CheckpointTopic(source, name.removeprefix(PREFIX)).read()
        except (ClientError, ConfigError, TimeoutError) as error:
            _log.warning("cycles through %s cannot be found: %r", name, error)
            continue
        for tp, one in found.items():
            came = place(one.source_cluster, one.source_topic or tp.topic)
            ways.setdefault(tp.topic, set()).update((came, *one.came_by))
    return ways


def check_cycles(
    routes: Iterable[Route], ways: dict[str, set[str]], target_cluster: str | None
) -> None:
    """Refuse to copy a topic to where its records came from."""
    for route in routes:
        goal = place(target_cluster, route.target.topic)
        if goal in ways.get(route.source.topic, ()):
            raise ConfigError(
                f"{route.source.topic} is a copy of the target's {route.target.topic}: "
                "mirroring it back would be a cycle, in which each record comes round again",
                remedy="give the copy another name (--replication-policy default, --rename), "
                "or leave the topic out",
            )
