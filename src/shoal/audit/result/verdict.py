"""The verdict: findings compared with the promises. Pure.

`counts` are those of the whole run for one group: findings by name, and counts per stage
(`duplicate@mirror` and the like).
"""

from collections.abc import Mapping
from typing import Any

from shoal.model.findings import ALWAYS_VIOLATES, Finding, Verdict
from shoal.model.promises import EXACTLY_ONCE
from shoal.model.result import Stage

Counts = Mapping[str, int]

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


def broken_promises(promises: Mapping[str, Any]) -> frozenset[Finding]:
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
    if any(counts.get(finding, 0) for finding in broken_promises(promises)):
        return Verdict.VIOLATED
    if counts.get(Finding.PENDING, 0) or not counts.get("ok", 0):
        return Verdict.INCONCLUSIVE
    return Verdict.PROVEN


# What violates each stage: (the finding to report, the count that attributes it to the stage).
_AGAINST_SOURCE = (
    (Finding.LOST_NEVER_STORED, Finding.LOST_NEVER_STORED),
    (Finding.VANISHED, "vanished@source"),
    (Finding.DUPLICATE_SOURCE, Finding.DUPLICATE_SOURCE),
    (Finding.REORDERED_SOURCE, Finding.REORDERED_SOURCE),
    (Finding.INCONSISTENT_OFFSET, "inconsistent@source"),
    (Finding.ABORTED_READ, "aborted@source"),
    (Finding.REUSED_SEQUENCE, Finding.REUSED_SEQUENCE),
    (Finding.TORN_TRANSACTION, "torn@source"),
    (Finding.UNREADABLE, "unreadable@source"),
    (Finding.UNEXPECTED, "unexpected@source"),
    (Finding.CORRUPTED, "corrupted@source"),
)
_AGAINST_MIRROR = (
    (Finding.LOST_EXPIRED, Finding.LOST_EXPIRED),
    (Finding.LOST_NOT_MIRRORED, Finding.LOST_NOT_MIRRORED),
    (Finding.VANISHED, "vanished@target"),
    (Finding.DUPLICATE_TARGET, "duplicate@mirror"),
    (Finding.REORDERED_TARGET, "reordered@mirror"),
    (Finding.INCONSISTENT_OFFSET, "inconsistent@target"),
    (Finding.ABORTED_READ, "aborted@mirror"),
    (Finding.UNCOMMITTED_READ, "uncommitted@mirror"),
    (Finding.TORN_TRANSACTION, "torn@mirror"),
    (Finding.UNREADABLE, "unreadable@mirror"),
    (Finding.UNEXPECTED, "unexpected@mirror"),
    (Finding.CORRUPTED, "corrupted@mirror"),
    *((finding, finding) for finding in _FIDELITY),
)
_AGAINST_CONSUMERS = (
    (Finding.LOST_EXPIRED_AT_TARGET, Finding.LOST_EXPIRED_AT_TARGET),
    (Finding.LOST_UNDELIVERED, Finding.LOST_UNDELIVERED),
    (Finding.REORDERED, "reordered@consumers"),
    (Finding.ABORTED_READ, "aborted@consumers"),
    (Finding.UNCOMMITTED_READ, "uncommitted@consumers"),
    (Finding.TORN_TRANSACTION, "torn@consumers"),
    (Finding.UNREADABLE, "unreadable@consumers"),
    (Finding.POLL_SKIP, Finding.POLL_SKIP),
    (Finding.NON_MONOTONIC_POLL, Finding.NON_MONOTONIC_POLL),
    (Finding.CORRUPTED, "corrupted@consumers"),
)


def decide_stages(
    counts: Counts, promises: Mapping[str, Any], *, has_mirror: bool
) -> dict[str, Stage]:
    """Return the verdict on each stage of the run.

    A stage is inconclusive if a finding cannot be attributed to any stage, if a message is pending
    in it, or if nothing was acknowledged. Without a mirror, messages that expired did so between
    the log and the consumers.
    """
    violating = broken_promises(promises)
    against: dict[str, tuple[tuple[Finding, str], ...]] = {"producer_to_source": _AGAINST_SOURCE}
    pending = {"producer_to_source": 0}
    at_mirror = counts.get("pending@mirror", 0)
    if has_mirror:
        against["source_to_target"] = _AGAINST_MIRROR
        pending["source_to_target"] = at_mirror
        against["log_to_consumers"] = _AGAINST_CONSUMERS
    else:
        expired = (Finding.LOST_EXPIRED, Finding.LOST_EXPIRED)
        against["log_to_consumers"] = (expired, *_AGAINST_CONSUMERS)
    pending["log_to_consumers"] = counts.get(Finding.PENDING, 0) - at_mirror
    found = {
        stage: [f for f, count in pairs if f in violating and counts.get(count, 0) > 0]
        for stage, pairs in against.items()
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
        stages[stage] = Stage(verdict, tuple(finding.value for finding in findings))
    return stages
