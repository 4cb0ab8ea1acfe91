"""Looks out for what a source does behind a mirror's back: deletes, truncates, mirrors back.

Rules:
- A position below the source's first offset means that records were deleted before they were
  copied: they are lost. That is counted and told, and the copy goes on behind them, or it ends.
- A position above its end, or a leader that ends the epoch of our last batch below what we
  copied, means that the source was truncated: the target has what the source no longer has.
- A leader is asked whenever its epoch is another than when it was last asked.
- A topic that was itself copied from where it would now be copied to is a cycle: each record
  would come round again. The way that a topic came is part of its mirror's checkpoints.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import ClientError, UnsupportedByBroker
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.checkpoints import PREFIX, CheckpointTopic
from shoal.mirror.core import PartitionMirror
from shoal.mirror.routes import Route
from shoal.model.errors import ConfigError, SystemFailure
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

# With field for the leader's epoch that the asker knows.
_FIRST_VERSION: Final = 2
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

    def is_due(self, mirror: PartitionMirror) -> bool:
        """Whether the leader must be asked before more is fetched."""
        epoch = self._leader_epoch(mirror.partition)
        if epoch < 0 or epoch == mirror.looked_epoch or not self._can_tell_epochs:
            return False
        if mirror.source_epoch < 0:
            mirror.looked_epoch = epoch  # nothing was copied yet
            return False
        return True

    def _leader_epoch(self, tp: TopicPartition) -> int:
        known = self._source.cluster.partition(tp)
        return -1 if known is None else known.leader_epoch

    async def look(self, node_id: int, mirrors: Iterable[PartitionMirror]) -> bool:
        """Ask a leader where the epochs of our last batches end in its log.

        Returns False if it did not tell of all, and must be asked again.
        """
        asked = {mirror.partition: mirror for mirror in mirrors}
        epochs = {tp: self._leader_epoch(tp) for tp in asked}
        topics: dict[str, list[dict[str, int]]] = {}
        for tp, mirror in asked.items():
            topics.setdefault(tp.topic, []).append(
                {
                    "partition": tp.partition,
                    "current_leader_epoch": epochs[tp],
                    "leader_epoch": mirror.source_epoch,
                }
            )
        values = {
            "replica_id": -1,
            "topics": [{"topic": name, "partitions": parts} for name, parts in topics.items()],
        }
        try:
            response = await self._source.call(
                ApiKey.OFFSET_FOR_LEADER_EPOCH, values, node_id=node_id, at_least=_FIRST_VERSION
            )
        except UnsupportedByBroker:
            self._can_tell_epochs = False
            return True
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic, int(part.partition))
                if part.error_code == Code.NONE and tp in asked:
                    asked[tp].looked_epoch = epochs[tp]
                    self._judge(asked.pop(tp), int(part.end_offset))
        return not asked

    def _judge(self, mirror: PartitionMirror, end: int) -> None:
        if 0 <= end < mirror.done:
            mirror.park(
                f"the source was truncated: of what was copied up to {mirror.done} it has lost "
                f"all from {end} on",
                "compare both with `shoal mirror verify`; mirror into a new topic",
            )

    async def find(self, mirror: PartitionMirror) -> None:
        """Find out why the source does not have the position of a mirror, and act on it."""
        tp = mirror.partition
        first = (await self._source.list_offsets({tp: EARLIEST}))[tp].offset
        end = (await self._source.list_offsets({tp: LATEST}))[tp].offset
        if mirror.position > end:
            self._judge(mirror, end)
        elif mirror.position < first:
            self._lose(mirror, first)

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
