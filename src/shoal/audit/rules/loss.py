"""Finds why a message that should have arrived did not: the first cause that holds.

Rules, as in the definitions:
- A message is owed to a group if it is committed or in a log and was not delivered to it.
- Only a scanned log can show a message *absent*. A scan of the source decides every acknowledged
  message, drained or not. Any other offset at or above the end of a scan is absent only once the
  lane was drained: before that, the message may have been appended after the scan.
- A log that was not scanned counts as empty if another scan identifies the stage: a message absent
  from the source was never stored, or expired, even if the target was not scanned.
- A message whose deadline (given by the user) has passed is treated as if its lane was drained.
- A message is pending if it may still arrive: it is at or above the position of the reader that has
  to move it next (the mirror or the consumers), in a lane that was not drained. A position that was
  not recorded is inferred (`Knowledge`); the mirror's only if the run promises order. Without a
  scan and an offset, a message is passed once a later one of its stream was delivered, again only
  if order is promised.
- A message absent from the target counts as mirrored and expired there if the log start moved past
  its nearest lower neighbour; without such a neighbour, if the start moved at all. Where nothing
  shows whether a start above 0 moved, the message may have been below it: the loss is unlocated.
- An unknown offset is not below any log start.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.audit.arrays import NONE, Bools, Ints, ints
from shoal.audit.context import AuditContext, Knowledge, Stream
from shoal.audit.read.evidence import offset_of, offset_or_none, partition_of
from shoal.audit.stages import StageName
from shoal.model.findings import Finding

CAUSES = (
    Finding.LOST_NEVER_STORED,
    Finding.LOST_EXPIRED,
    Finding.LOST_NOT_MIRRORED,
    Finding.LOST_EXPIRED_AT_TARGET,
    Finding.LOST_UNDELIVERED,
    Finding.LOST_UNLOCATED,
    Finding.PENDING,
    Finding.SUPERSEDED,  # `supersession` finds these
)
NEVER_STORED, EXPIRED, NOT_MIRRORED, EXPIRED_AT_TARGET, UNDELIVERED, UNLOCATED = range(6)
PENDING, SUPERSEDED = 6, 7
# The stage that caused a loss; an unlocated loss has no stage.
STAGE_OF_CAUSE = {
    NEVER_STORED: StageName.SOURCE,
    EXPIRED: StageName.MIRROR,
    NOT_MIRRORED: StageName.MIRROR,
    EXPIRED_AT_TARGET: StageName.CONSUMERS,
    UNDELIVERED: StageName.CONSUMERS,
}


@dataclass(frozen=True)
class Missing:
    """Messages owed to a group and not delivered, ascending by slot. Unknown places are NONE."""

    streams: list[Stream]  # of the cell
    stream: Ints
    sequence: Ints
    in_source: Bools  # by scan
    in_target: Bools
    source_place: Ints  # of the last known copy, by any evidence
    read_place: Ints  # the same in the log that the group reads
    neighbour: Ints  # the target place of the nearest lower message of the stream
    overdue: Bools  # the user's deadline has passed
    acknowledged: Bools  # a scan of the source decides these


class _Facts:
    """Offsets and positions of each missing message, looked up once for each log."""

    def __init__(
        self, missing: Missing, group: str, context: AuditContext, knowledge: Knowledge
    ) -> None:
        self._missing, self._context, self._knowledge = missing, context, knowledge
        self._group = group
        drained = self._by_stream(lambda stream: context.is_drained(group, stream)) != 0
        self.drained = drained | missing.overdue
        self.source_offset = offset_or_none(missing.source_place)
        home = self._by_stream(lambda stream: context.partition_for("source", stream))
        self.source_partition = np.where(
            missing.source_place == NONE, home, partition_of(missing.source_place)
        )
        self.target_partition = self._by_stream(
            lambda stream: context.partition_for("target", stream)
        )
        self.read_offset = offset_or_none(missing.read_place)
        self.until = self._by_stream(
            lambda stream: knowledge.delivered_until.get((group, stream), NONE)
        )

    def _by_stream(self, look_up: Callable[[Stream], int]) -> Ints:
        table = ints([int(look_up(stream)) for stream in self._missing.streams])
        return table[self._missing.stream]

    def _by_log(self, partition: Ints, look_up: Callable[[str, int], int]) -> Ints:
        """Return `look_up` of the topic and partition of each message."""
        span = int(partition.max()) + 1
        packed, places = np.unique(self._missing.stream * span + partition, return_inverse=True)
        streams = self._missing.streams
        table = ints([int(look_up(streams[p // span].topic, p % span)) for p in packed.tolist()])
        return table[places]

    def scan_start(self, cluster: str, partition: Ints) -> Ints:
        scans = self._context.scans
        return self._by_log(partition, lambda t, p: scans.get((cluster, t, p), (NONE, NONE))[0])

    def scan_end(self, cluster: str, partition: Ints) -> Ints:
        scans = self._context.scans
        return self._by_log(partition, lambda t, p: scans.get((cluster, t, p), (NONE, NONE))[1])

    def mirror_position(self) -> Ints:
        recorded = self._context.mirror_positions
        reach = self._knowledge.mirror_reach if self._context.ordered else {}
        return self._by_log(
            self.source_partition, lambda t, p: recorded.get((t, p), reach.get((t, p), NONE))
        )

    def group_position(self) -> Ints:
        recorded, reach = self._context.group_positions, self._knowledge.group_reach
        partition = np.maximum(partition_of(self._missing.read_place), 0)

        def position(topic: str, partition: int) -> int:
            key = (self._group, topic, partition)
            return recorded.get(key, reach.get(key, NONE))

        return self._by_log(partition, position)

    def may_have_expired(self) -> Bools:
        """Whether the target may have held the message below its log start."""
        neighbour = self._missing.neighbour
        start = self.scan_start("target", np.maximum(partition_of(neighbour), 0))
        moved = (
            self._by_log(
                self.target_partition, lambda t, p: int(("target", t, p) in self._knowledge.moved)
            )
            != 0
        )
        below: Bools = np.where(neighbour == NONE, moved, offset_of(neighbour) < start)
        return below

    def is_start_unclear(self) -> Bools:
        """Whether the message may have been below a start of which nothing shows that it moved."""
        knowledge = self._knowledge
        known = knowledge.moved | knowledge.unmoved
        unknown = self._by_log(self.target_partition, lambda t, p: ("target", t, p) not in known)
        start = self.scan_start("target", self.target_partition)
        unclear: Bools = (self._missing.neighbour == NONE) & (start > 0) & (unknown != 0)
        return unclear


def is_undecided(missing: Missing, group: str, context: AuditContext) -> bool:
    """Whether judging these messages needs knowledge from other cells."""
    if not len(missing.stream):
        return False
    facts = _Facts(missing, group, context, Knowledge())
    if not facts.drained.all():
        return True
    if not context.has_mirror:
        return False
    # A mirror may put a lower message of the stream into any partition.
    moved = {
        topic
        for (cluster, topic, _), (start, _) in context.scans.items()
        if start > 0 and cluster == "target"
    }
    return any(
        missing.streams[number].topic in moved
        for number in np.unique(missing.stream[~missing.in_target]).tolist()
    )


def classify(missing: Missing, group: str, context: AuditContext, knowledge: Knowledge) -> Ints:
    """Return the cause of each missing message, as an index into CAUSES."""
    if not len(missing.stream):
        return ints()
    facts = _Facts(missing, group, context, knowledge)
    mirror_position = facts.mirror_position()
    passed_by_mirror = (facts.source_offset != NONE) & (facts.source_offset < mirror_position)
    passed_by_group = (facts.read_offset != NONE) & (facts.read_offset < facts.group_position())
    passed_by_order = (
        missing.sequence < facts.until if context.ordered else np.zeros_like(facts.drained)
    )
    scanned_source = facts.scan_end("source", facts.source_partition) != NONE
    scanned_target = facts.scan_end("target", facts.target_partition) != NONE
    covered = facts.source_offset < facts.scan_end("source", facts.source_partition)
    covered |= facts.drained | missing.acknowledged
    absent_from_source = ~missing.in_source & scanned_source & covered
    below_start = (facts.source_offset != NONE) & (
        facts.source_offset < facts.scan_start("source", facts.source_partition)
    )
    waits_for_mirror = (mirror_position != NONE) & (facts.source_offset >= mirror_position)
    # Without a scan of the target: whether the message counts as passed.
    passed_unscanned = np.select(
        [facts.drained, facts.read_offset != NONE, context.has_mirror & waits_for_mirror],
        [True, passed_by_group, False],
        passed_by_order,
    )
    without_target = np.where(passed_unscanned, UNLOCATED, PENDING)
    is_left = facts.drained | passed_by_mirror
    expired_at_target = facts.may_have_expired()
    if not context.has_mirror:
        return np.select(
            [missing.in_source, absent_from_source & below_start, absent_from_source],
            [_if(facts.drained | passed_by_group, UNDELIVERED), EXPIRED, NEVER_STORED],
            without_target,
        )
    not_mirrored = np.where(facts.is_start_unclear(), UNLOCATED, NOT_MIRRORED)
    unnamed = is_left | ((facts.source_offset == NONE) & passed_by_order)
    return np.select(
        [
            missing.in_target,
            missing.in_source & scanned_target,
            absent_from_source & ~below_start,
            absent_from_source,
            ~missing.in_source & scanned_target,
        ],
        [
            _if(facts.drained | passed_by_group, UNDELIVERED),
            _if(is_left, np.where(expired_at_target, EXPIRED_AT_TARGET, not_mirrored)),
            NEVER_STORED,
            EXPIRED,
            _if(unnamed, np.where(expired_at_target, EXPIRED_AT_TARGET, UNLOCATED)),
        ],
        without_target,
    )


def _if(lost: Bools, cause: Ints | int) -> Ints:
    return np.where(lost, cause, PENDING)
