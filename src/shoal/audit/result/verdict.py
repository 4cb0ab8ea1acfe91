"""The verdict: findings compared with the promises. Pure.

`counts` are those of the whole run for one group: findings by name, `StageCount`s, and `UNSENT`.
"""

from collections.abc import Mapping
from typing import Any, Final

from shoal.audit.stages import StageCount, StageName
from shoal.model.findings import ALWAYS_VIOLATES, Finding, Verdict
from shoal.model.promises import EXACTLY_ONCE
from shoal.model.result import Stage

Counts = Mapping[str, int]

# 1 if the loss of a worker left messages unsent that the run was asked for.
UNSENT: Final = "unsent"

DEFAULT_FIDELITY = ("key", "headers", "payload")

_ORDER = (Finding.REORDERED, Finding.REORDERED_SOURCE, Finding.REORDERED_TARGET)
_DUPLICATES = (Finding.DUPLICATE_SOURCE, Finding.DUPLICATE_TARGET)
_FIDELITY = {
    Finding.ALTERED_KEY: "key",
    Finding.ALTERED_HEADERS: "headers",
    Finding.ALTERED_TIMESTAMP: "timestamps",
    Finding.ALTERED_PARTITION: "partition",
    Finding.BATCH_DIFFERS: "bytes",
}


def fidelity_to_keep(promises: Mapping[str, Any]) -> frozenset[str]:
    """Return what copies must keep; to keep bytes implies key, headers, payload and timestamps."""
    kept = frozenset(promises.get("fidelity", DEFAULT_FIDELITY))
    return kept | {*DEFAULT_FIDELITY, "timestamps"} if "bytes" in kept else kept


def select_violating_findings(promises: Mapping[str, Any]) -> frozenset[Finding]:
    """The findings that violate a run with these promises."""
    violating = set(ALWAYS_VIOLATES)
    if promises.get("order", True):
        violating.update(_ORDER)
    if promises.get("delivery") == EXACTLY_ONCE:
        violating.update(_DUPLICATES)
    kept = fidelity_to_keep(promises)
    violating.update(finding for finding, part in _FIDELITY.items() if part in kept)
    return frozenset(violating)


def decide(counts: Counts, promises: Mapping[str, Any]) -> Verdict:
    if any(counts.get(finding, 0) for finding in select_violating_findings(promises)):
        return Verdict.VIOLATED
    if counts.get(Finding.PENDING, 0) or not counts.get("ok", 0) or counts.get(UNSENT, 0):
        return Verdict.INCONCLUSIVE
    return Verdict.PROVEN


# What violates each stage, in the order of reports: findings that one stage alone can cause, and
# counts of the cases that are attributed to the stage.
_Against = tuple[Finding | StageCount, ...]

_AGAINST_SOURCE: Final[_Against] = (
    Finding.LOST_NEVER_STORED,
    StageCount.VANISHED_SOURCE,
    Finding.DUPLICATE_SOURCE,
    Finding.REORDERED_SOURCE,
    StageCount.INCONSISTENT_SOURCE,
    StageCount.ABORTED_SOURCE,
    Finding.REUSED_SEQUENCE,
    StageCount.TORN_SOURCE,
    StageCount.UNREADABLE_SOURCE,
    StageCount.UNEXPECTED_SOURCE,
    StageCount.CORRUPTED_SOURCE,
)
_AGAINST_MIRROR: Final[_Against] = (
    Finding.LOST_EXPIRED,
    Finding.LOST_NOT_MIRRORED,
    StageCount.VANISHED_MIRROR,
    StageCount.DUPLICATE_MIRROR,
    StageCount.REORDERED_MIRROR,
    StageCount.INCONSISTENT_MIRROR,
    StageCount.ABORTED_MIRROR,
    StageCount.UNCOMMITTED_MIRROR,
    StageCount.TORN_MIRROR,
    StageCount.UNREADABLE_MIRROR,
    StageCount.UNEXPECTED_MIRROR,
    StageCount.CORRUPTED_MIRROR,
    *_FIDELITY,
)
_AGAINST_CONSUMERS: Final[_Against] = (
    Finding.LOST_EXPIRED_AT_TARGET,
    Finding.LOST_UNDELIVERED,
    StageCount.REORDERED_CONSUMERS,
    StageCount.ABORTED_CONSUMERS,
    StageCount.UNCOMMITTED_CONSUMERS,
    StageCount.TORN_CONSUMERS,
    StageCount.UNREADABLE_CONSUMERS,
    Finding.POLL_SKIP,
    Finding.NON_MONOTONIC_POLL,
    StageCount.CORRUPTED_CONSUMERS,
)


def decide_stages(
    counts: Counts, promises: Mapping[str, Any], *, has_mirror: bool
) -> dict[str, Stage]:
    """Return the verdict on each stage of the run.

    A stage is inconclusive if a finding cannot be attributed to any stage, if a message is pending
    in it, or if nothing was acknowledged; the first also if the load is unsent. Without a mirror,
    messages that expired did so between the log and the consumers.
    """
    violating = select_violating_findings(promises)
    against: dict[StageName, _Against] = {StageName.SOURCE: _AGAINST_SOURCE}
    pending = {StageName.SOURCE: counts.get(UNSENT, 0)}
    at_mirror = counts.get(StageCount.PENDING_MIRROR, 0)
    if has_mirror:
        against[StageName.MIRROR] = _AGAINST_MIRROR
        pending[StageName.MIRROR] = at_mirror
        against[StageName.CONSUMERS] = _AGAINST_CONSUMERS
    else:
        against[StageName.CONSUMERS] = (Finding.LOST_EXPIRED, *_AGAINST_CONSUMERS)
    pending[StageName.CONSUMERS] = counts.get(Finding.PENDING, 0) - at_mirror
    found = {
        stage: [
            finding
            for name in names
            for finding in (name.finding if isinstance(name, StageCount) else name,)
            if finding in violating and counts.get(name, 0) > 0
        ]
        for stage, names in against.items()
    }
    blamed = {finding for findings in found.values() for finding in findings}
    for family in (_ORDER, _DUPLICATES):  # a finding of one stage shows up again in the next
        blamed.update(family if blamed.intersection(family) else ())
    unclear = not counts.get("ok", 0) or any(counts.get(f, 0) for f in violating - blamed)
    stages = {}
    for stage, findings in found.items():
        open_ended = unclear or pending[stage] > 0
        otherwise = Verdict.INCONCLUSIVE if open_ended else Verdict.PROVEN
        verdict = Verdict.VIOLATED if findings else otherwise
        stages[stage.value] = Stage(verdict, tuple(finding.value for finding in findings))
    return stages
