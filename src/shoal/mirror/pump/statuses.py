"""The status of a mirror's partitions, computed again only for those that have changed; pure.

Rules:
- A partition with a lag is computed each time, because the age of its records advances.
- An unchanged partition has the same `PartitionStatus` object as before: readers compare by that.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final

from shoal.mirror.copy.intake import Counts
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.status import MirrorStatus, PartitionStatus, partition_status, total
from shoal.model.errors import ShoalError
from shoal.model.topics import TopicPartition

WaitReason = Callable[[TopicPartition], str]
_NAMES: Final = tuple(each.name for each in fields(Counts))
_read_values: Final[Callable[[Counts], tuple[int, ...]]] = attrgetter(*_NAMES)
_NOTHING: Final = (0,) * len(_NAMES)


class Statuses:
    """The statuses of the partitions of one runner."""

    def __init__(self) -> None:
        self._mirrors: dict[TopicPartition, PartitionMirror] = {}
        self._known: dict[TopicPartition, PartitionStatus] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._changed: set[TopicPartition] = set()
        # The values of `Counts`, in the order of its fields.
        self._counted: dict[TopicPartition, tuple[int, ...]] = {}
        self._totals = list(_NOTHING)
        self._parked: dict[TopicPartition, ShoalError] = {}

    def add(self, mirror: PartitionMirror) -> None:
        self._mirrors[mirror.partition] = mirror
        self._counted[mirror.partition] = _NOTHING
        self._changed.add(mirror.partition)

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition; what it has copied still counts."""
        mirror = self._mirrors.pop(tp)
        # What a parked partition has counted is counted again by its next start; `truncated` and
        # `lost` are in its checkpoint.
        last = _read_values(replace(mirror.counts, truncated=0, lost=0))
        self._count(tp, _NOTHING if mirror.parked else last)
        self._changed.discard(tp)
        for known in (self._counted, self._known, self._positions, self._parked):
            known.pop(tp, None)

    def mark(self, tp: TopicPartition) -> None:
        """A partition may have changed."""
        self._changed.add(tp)

    def make(self, now_ms: int, wait_reason: WaitReason, *, is_paused: bool) -> MirrorStatus:
        """Return the status of now."""
        changing = set()
        for tp in self._changed:
            mirror = self._mirrors.get(tp)
            if mirror is None:
                continue
            self._count(tp, _read_values(mirror.counts))
            status = partition_status(mirror, now_ms, wait_reason(tp))
            self._known[tp] = status
            self._positions[tp] = status.position
            if mirror.parked is not None:
                self._parked[tp] = mirror.parked
            if status.lag:
                changing.add(tp)
        self._changed = changing
        partitions = tuple(self._known[tp] for tp in self._mirrors)
        return MirrorStatus(
            counts=Counts(*self._totals),
            positions=dict(self._positions),
            lag=total(each.lag for each in partitions),
            parked=tuple(self._parked.values()),
            partitions=partitions,
            paused=is_paused,
        )

    def _count(self, tp: TopicPartition, now: tuple[int, ...]) -> None:
        before = self._counted[tp]
        if now != before:
            changes = zip(self._totals, now, before, strict=True)
            self._totals = [whole + new - old for whole, new, old in changes]
            self._counted[tp] = now
