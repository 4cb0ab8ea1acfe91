"""The stages of a run, and the counts that attribute findings to them.

A `StageCount` is a (stage, finding) key. It equals its text, which is what travels between tasks
and what the table `streams` of an audit contains.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

from shoal.model.findings import Finding


class StageName(StrEnum):
    """The stages, by their names in `result.json`."""

    SOURCE = "producer_to_source"
    MIRROR = "source_to_target"
    CONSUMERS = "log_to_consumers"


# The stage that writes the logs of a cluster.
STAGE_OF_CLUSTER: Final = {"source": StageName.SOURCE, "target": StageName.MIRROR}


class StageCount(StrEnum):
    """How many cases of a finding are attributed to a stage."""

    stage: StageName
    finding: Finding

    def __new__(cls, text: str, stage: StageName, finding: Finding) -> Self:
        count = str.__new__(cls, text)
        count._value_ = text
        count.stage, count.finding = stage, finding
        return count

    PENDING_MIRROR = "pending@mirror", StageName.MIRROR, Finding.PENDING
    VANISHED_SOURCE = "vanished@source", StageName.SOURCE, Finding.VANISHED
    VANISHED_MIRROR = "vanished@target", StageName.MIRROR, Finding.VANISHED
    DUPLICATE_MIRROR = "duplicate@mirror", StageName.MIRROR, Finding.DUPLICATE_TARGET
    REORDERED_MIRROR = "reordered@mirror", StageName.MIRROR, Finding.REORDERED_TARGET
    REORDERED_CONSUMERS = "reordered@consumers", StageName.CONSUMERS, Finding.REORDERED
    INCONSISTENT_SOURCE = "inconsistent@source", StageName.SOURCE, Finding.INCONSISTENT_OFFSET
    INCONSISTENT_MIRROR = "inconsistent@target", StageName.MIRROR, Finding.INCONSISTENT_OFFSET
    ABORTED_SOURCE = "aborted@source", StageName.SOURCE, Finding.ABORTED_READ
    ABORTED_MIRROR = "aborted@mirror", StageName.MIRROR, Finding.ABORTED_READ
    ABORTED_CONSUMERS = "aborted@consumers", StageName.CONSUMERS, Finding.ABORTED_READ
    UNCOMMITTED_MIRROR = "uncommitted@mirror", StageName.MIRROR, Finding.UNCOMMITTED_READ
    UNCOMMITTED_CONSUMERS = "uncommitted@consumers", StageName.CONSUMERS, Finding.UNCOMMITTED_READ
    TORN_SOURCE = "torn@source", StageName.SOURCE, Finding.TORN_TRANSACTION
    TORN_MIRROR = "torn@mirror", StageName.MIRROR, Finding.TORN_TRANSACTION
    TORN_CONSUMERS = "torn@consumers", StageName.CONSUMERS, Finding.TORN_TRANSACTION
    UNREADABLE_SOURCE = "unreadable@source", StageName.SOURCE, Finding.UNREADABLE
    UNREADABLE_MIRROR = "unreadable@mirror", StageName.MIRROR, Finding.UNREADABLE
    UNREADABLE_CONSUMERS = "unreadable@consumers", StageName.CONSUMERS, Finding.UNREADABLE
    UNEXPECTED_SOURCE = "unexpected@source", StageName.SOURCE, Finding.UNEXPECTED
    UNEXPECTED_MIRROR = "unexpected@mirror", StageName.MIRROR, Finding.UNEXPECTED
    CORRUPTED_SOURCE = "corrupted@source", StageName.SOURCE, Finding.CORRUPTED
    CORRUPTED_MIRROR = "corrupted@mirror", StageName.MIRROR, Finding.CORRUPTED
    CORRUPTED_CONSUMERS = "corrupted@consumers", StageName.CONSUMERS, Finding.CORRUPTED


STAGE_COUNTS: Final[Mapping[tuple[StageName, Finding], StageCount]] = {
    (count.stage, count.finding): count for count in StageCount
}
# The same as texts, to recognise a name that was read back from a part.
STAGE_COUNT_NAMES: Final = frozenset(count.value for count in StageCount)
