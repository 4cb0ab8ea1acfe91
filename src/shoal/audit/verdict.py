"""The verdict: what was found, held against what was promised. Pure.

`counts` are those of the whole run for one group: findings by name, and the further counts
that tell stages apart (`duplicate@mirror` and the like).
"""

from collections.abc import Callable, Mapping
from typing import Any

from shoal.model.findings import ALWAYS_VIOLATES, LOST, Finding, Verdict
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


def promised_fidelity(promises: Mapping[str, Any]) -> frozenset[str]:
    """What copies must keep; who keeps bytes keeps everything that is made of them."""
    kept = frozenset(promises.get("fidelity", DEFAULT_FIDELITY))
    return kept | {*DEFAULT_FIDELITY, "timestamps"} if "bytes" in kept else kept


def broken_promises(promises: Mapping[str, Any]) -> frozenset[Finding]:
    """The findings that violate a run with these promises."""
    violating = set(ALWAYS_VIOLATES)
    if promises.get("order", True):
        violating.update(_ORDER)
    if promises.get("delivery") == "exactly_once":
        violating.update(_DUPLICATES)
    kept = promised_fidelity(promises)
    violating.update(finding for finding, part in _FIDELITY.items() if part in kept)
    return frozenset(violating)


def decide(counts: Counts, promises: Mapping[str, Any]) -> Verdict:
    if any(counts.get(finding, 0) for finding in broken_promises(promises)):
        return Verdict.VIOLATED
    if counts.get(Finding.PENDING, 0) or not counts.get("ok", 0):
        return Verdict.INCONCLUSIVE
    return Verdict.PROVEN


# What speaks against each stage: (the finding to name, the count that holds it to the stage).
_AGAINST_SOURCE = (
    (Finding.LOST_NEVER_STORED, Finding.LOST_NEVER_STORED),
    (Finding.VANISHED, "vanished@source"),
    (Finding.DUPLICATE_SOURCE, Finding.DUPLICATE_SOURCE),
    (Finding.REORDERED_SOURCE, Finding.REORDERED_SOURCE),
    (Finding.INCONSISTENT_OFFSET, "inconsistent@source"),
    (Finding.ABORTED_READ, Finding.ABORTED_READ),
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
    (Finding.UNEXPECTED, "unexpected@mirror"),
    (Finding.CORRUPTED, "corrupted@mirror"),
    *((finding, finding) for finding in _FIDELITY),
)
_AGAINST_CONSUMERS = (
    (Finding.LOST_EXPIRED_AT_TARGET, Finding.LOST_EXPIRED_AT_TARGET),
    (Finding.LOST_UNDELIVERED, Finding.LOST_UNDELIVERED),
    (Finding.REORDERED, "reordered@consumers"),
    (Finding.UNCOMMITTED_READ, Finding.UNCOMMITTED_READ),
    (Finding.TORN_TRANSACTION, Finding.TORN_TRANSACTION),
    (Finding.POLL_SKIP, Finding.POLL_SKIP),
    (Finding.NON_MONOTONIC_POLL, Finding.NON_MONOTONIC_POLL),
    (Finding.CORRUPTED, "corrupted@consumers"),
)


def decide_stages(
    counts: Counts, promises: Mapping[str, Any], *, has_mirror: bool
) -> dict[str, Stage]:
    """The verdict on each stage that the run has.

    A stage is inconclusive if something was lost and nobody knows where, or is pending in it,
    or if nothing was acknowledged. Without a mirror what expired did so before consumers.
    """
    violating = broken_promises(promises)
    unclear = counts.get(Finding.LOST_UNLOCATED, 0) > 0 or not counts.get("ok", 0)
    at_mirror = counts.get("pending@mirror", 0)
    at_consumers = counts.get(Finding.PENDING, 0) - at_mirror

    def stage(against: tuple[tuple[Finding, str], ...], pending: int) -> Stage:
        found = [name for name, count in against if name in violating and counts.get(count, 0) > 0]
        if found:
            return Stage(Verdict.VIOLATED, tuple(name.value for name in found))
        open_ended = unclear or pending > 0
        return Stage(Verdict.INCONCLUSIVE if open_ended else Verdict.PROVEN)

    stages = {"producer_to_source": stage(_AGAINST_SOURCE, 0)}
    expired = (Finding.LOST_EXPIRED, Finding.LOST_EXPIRED)
    if has_mirror:
        stages["source_to_target"] = stage(_AGAINST_MIRROR, at_mirror)
        stages["log_to_consumers"] = stage(_AGAINST_CONSUMERS, at_consumers)
    else:
        stages["log_to_consumers"] = stage((expired, *_AGAINST_CONSUMERS), at_consumers)
    return stages


# ---------------------------------------------------------------- the sentence


def sentence(verdict: Verdict, counts: Counts, promises: Mapping[str, Any]) -> str:
    """What happened, in one sentence for people, to be read after the verdict."""
    speakers: dict[Verdict, Callable[[Counts, Mapping[str, Any]], str]] = {
        Verdict.PROVEN: _proven,
        Verdict.VIOLATED: _violated,
        Verdict.INCONCLUSIVE: _inconclusive,
    }
    told = speakers[verdict](counts, promises)
    return f"{told[0].upper()}{told[1:]}."


def _proven(counts: Counts, promises: Mapping[str, Any]) -> str:
    ok = counts["ok"]
    text = f"all {ok:,} acknowledged messages were delivered"
    if promises.get("order", True):
        text += ", in order"
    superseded = counts.get(Finding.SUPERSEDED, 0)
    if superseded:
        text = f"{ok - superseded:,} of {ok:,} acknowledged messages were delivered"
        text += f" and {superseded:,} superseded by compaction"
    duplicates = max(counts.get(finding, 0) for finding in _DUPLICATES)
    text += f", with {_number(duplicates, 'duplicate')}" if duplicates else ""
    bound = min(3 / ok, 1.0)
    return f"{text}; with 95 % confidence less than {bound:.2g} of all messages are lost"


def _violated(counts: Counts, promises: Mapping[str, Any]) -> str:
    clauses = []
    lost = {finding: counts.get(finding, 0) for finding in Finding if finding in LOST}
    total = sum(lost.values())
    if total:
        causes = ", ".join(
            f"{count:,} {finding.value.removeprefix('lost: ')}"
            for finding, count in lost.items()
            if count
        )
        base = counts.get("ok", 0)
        text = f"{_number(total, 'message')} lost ({causes})"
        clauses.append(f"{text}, with {base:,} acknowledged")
    clauses += [
        f"{counts.get(finding, 0):,} {finding.value}"
        for finding in Finding
        if finding in broken_promises(promises) - LOST and counts.get(finding, 0)
    ]
    return "; ".join(clauses)


def _inconclusive(counts: Counts, _promises: Mapping[str, Any]) -> str:
    pending = counts.get(Finding.PENDING, 0)
    if not counts.get("ok", 0):
        text = "nothing was acknowledged, so nothing is proven"
        return f"{text}; {_number(pending, 'message')} pending" if pending else text
    return f"{_number(pending, 'message')} pending, with {counts['ok']:,} acknowledged"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
