"""Watches a source for deleted records, truncation, and cycles of mirrors.

Rules:
- A position below the source's log start means that records were deleted before they were copied:
  they are lost. The loss is counted and reported, and the copy continues after them, or it fails
  (`on_loss`).
- A position above the log end, or a leader whose log diverges from what was fetched
  (`shoal.mirror.watch.divergence`), means that the source was truncated. All fetched records are
  compared, not only acknowledged ones. The partition is released and started again (`on_diverged`),
  which drops unwritten batches and continues where the two logs diverge.
- A leader is checked whenever its epoch differs from the last check; records fetched in the
  meantime are discarded.
- Copying a topic back to the topic from which its records came is a cycle: each record would be
  copied again and again. The checkpoints of a mirror contain the origins of its source topics.
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
    "increase retention at the source, or start the mirror with --on-loss report to continue "
    "without the lost records"
)

_log = logging.getLogger(__name__)


class SourceWatch:
    """The checks that a runner makes at the source besides fetching."""

    def __init__(self, source: Client, *, fails_on_loss: bool = False) -> None:
        self._source = source
        self._fails_on_loss = fails_on_loss
        self._can_tell_epochs = True
        # Called with a partition and the offset from which its leader has other records.
        self.on_diverged: Callable[[PartitionMirror, int], None] = _park_diverged

    def is_due(self, mirror: PartitionMirror) -> bool:
        """Whether the leader must be checked before more is fetched."""
        epoch = leader_epoch(self._source, mirror.partition)
        if epoch < 0 or epoch == mirror.checked_epoch or not self._can_tell_epochs:
            return False
        if mirror.epochs.latest(mirror.position) < 0:
            mirror.checked_epoch = epoch  # nothing was read yet
            return False
        return True

    async def check_leader_epochs(self, mirrors: Iterable[PartitionMirror]) -> set[TopicPartition]:
        """Check leaders for divergence; returns the partitions that must be checked again."""
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
                continue  # it was rewound in the meantime, and is checked again
            if tp in answers.diverged:
                self.on_diverged(mirror, answers.diverged[tp])
            else:
                mirror.checked_epoch = epoch
        return asked.keys() - answers.checked.keys()

    async def diagnose_position(self, mirror: PartitionMirror) -> None:
        """Find out why the source does not have the position of a partition, and handle it."""
        tp = mirror.partition
        first = (await self._source.list_offsets({tp: EARLIEST}))[tp].offset
        end = (await self._source.list_offsets({tp: LATEST}))[tp].offset
        if mirror.position > end:
            await self._find_divergence(mirror, end)
        elif mirror.position < first:
            self._on_records_deleted(mirror, first)

    async def _find_divergence(self, mirror: PartitionMirror, end: int) -> None:
        """Find the divergence of a source that ends below the position: by epochs, or its end."""
        tp = mirror.partition
        known = mirror.epochs.below(mirror.position)
        at = end
        if known and self._can_tell_epochs:
            read = {tp: ReadSoFar(known, mirror.position)}
            answers = await find_divergences(self._source, read)
            if tp in answers.errors:
                return  # checked again
            at = answers.diverged.get(tp, -1)
        elif end < mirror.done:
            at = -1
        if at >= 0:
            self.on_diverged(mirror, at)
            return
        mirror.park(
            f"the source was truncated: it ends at offset {end}, and is copied up to {mirror.done}",
            "compare both topics with `shoal mirror verify`; mirror into a new topic",
        )

    def _on_records_deleted(self, mirror: PartitionMirror, first: int) -> None:
        lost = mirror.count_lost_below(first)
        if lost:
            self.report_lost(mirror.partition, first, lost)
        mirror.skip_deleted(first)

    def report_lost(self, tp: TopicPartition, first: int, count: int) -> None:
        """Report that the last `count` offsets below the log start are lost, or raise."""
        text = (
            f"{tp}: the source deleted the offsets from {first - count} to {first - 1} before they "
            "were copied"
        )
        if self._fails_on_loss:
            raise SystemFailure(text, remedy=_KEEP_LONGER)
        _log.error("LOST: %s", text)


def _park_diverged(mirror: PartitionMirror, offset: int) -> None:
    mirror.park(
        f"the source was truncated: it lost the records from offset {offset} on, which were "
        f"fetched up to {mirror.position}",
        "compare both topics with `shoal mirror verify`; mirror into a new topic",
    )


def name_location(cluster: str | None, topic: str) -> str:
    """The name of a cluster's topic in the list of origins."""
    return f"{cluster}/{topic}"


async def find_origins(source: Client) -> dict[str, set[str]]:
    """For source topics that are copies: their origins, from the checkpoints of mirrors."""
    origins: dict[str, set[str]] = {}
    cluster = await source.with_retries(source.metadata)
    for name in cluster.topics:
        if not name.startswith(PREFIX) or name == PREFIX:
            continue
        if cluster.leader(TopicPartition(name, 0)) is None:
            _log.warning("cannot check for cycles through topic %s: it has no leader", name)
            continue
        try:
            # With a timeout: it must not block topics that are not related to it.
            async with asyncio.timeout(_READ_WAYS_S):
                found = await CheckpointTopic(source, name.removeprefix(PREFIX)).read()
        except (ClientError, ConfigError, TimeoutError) as error:
            _log.warning("cannot check for cycles through topic %s: %r", name, error)
            continue
        for tp, one in found.items():
            came = name_location(one.source_cluster, one.source_topic or tp.topic)
            origins.setdefault(tp.topic, set()).update((came, *one.came_by))
    return origins


def check_cycles(
    routes: Iterable[Route], origins: dict[str, set[str]], target_cluster: str | None
) -> None:
    """Raise if a topic would be copied to where its records came from."""
    for route in routes:
        goal = name_location(target_cluster, route.target.topic)
        if goal in origins.get(route.source.topic, ()):
            raise ConfigError(
                f"the source topic {route.source.topic} is a copy of the target topic "
                f"{route.target.topic}: mirroring it back would copy each record in a cycle",
                remedy="give the copy another name (--replication-policy default, --rename), "
                "or leave the topic out",
            )
