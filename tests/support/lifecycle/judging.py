"""The outcome of a cell, from what both clusters hold and what the mirror said; pure.

Rules:
- Both sides are what an independent client has read. What the source no longer has is judged by
  its fate, which the play knows because it made it so.
- The target must have what the source has, and what the source deleted after it was copied; each
  record once, in order and with its timestamp.
- Truncated records that are at the target, records of somebody else there, and records that were
  deleted before they were copied must be counted in the status.
- A topic that is parked or refused is judged by its reason and remedy. Duplicates and a wrong
  order are defects all the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from support.lifecycle.cells import Delivery, Outcome

_SHOWN: Final = 3


class Fate(StrEnum):
    """What became of a record that not both sides have."""

    RETIRED = "retired"  # the source deleted it after it was copied
    LOST = "lost"  # the source deleted it before it was copied
    TRUNCATED = "truncated"  # the source lost it, maybe after it was copied
    TRIMMED = "trimmed"  # the target deleted it at its start
    FOREIGN = "foreign"  # somebody else wrote it to the target


class Seen(NamedTuple):
    """A record as an independent client read it."""

    identity: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Said:
    """What a mirror says about one topic or partition."""

    lag: int | None = None  # None: it is not in the status, or there is no status
    parked: str = ""
    refused: str = ""
    remedy: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)  # of the whole mirror

    @property
    def is_loud(self) -> bool:
        return bool(self.parked or self.refused)


@dataclass(frozen=True, slots=True)
class Observed:
    """One partition at the end of a play; None where a topic does not exist."""

    source: Sequence[Seen] | None
    target: Sequence[Seen] | None
    fates: Mapping[str, Fate] = field(default_factory=dict)


class Verdict(NamedTuple):
    """An outcome, and what led to it."""

    outcome: Outcome
    detail: str = ""


def judge(
    observed: Observed,
    said: Said,
    delivery: Delivery,
    *,
    checks_times: bool = True,
    was_announced: bool = False,
) -> Verdict:
    """The outcome of one partition; `was_announced`: counts of an earlier start told it."""
    source, target = list(observed.source or ()), list(observed.target or ())
    there = [seen.identity for seen in target]
    twice = [each for each, count in Counter(there).items() if count > 1]
    if twice and delivery is not Delivery.AT_LEAST_ONCE:
        return Verdict(Outcome.DUPLICATED, _list("twice at the target", twice))
    if late := _describe_disorder(source, there):
        return Verdict(Outcome.DISORDERED, late)
    if said.is_loud:
        return _judge_reason(said)
    problem = _missing(observed, source, there)
    if problem:
        outcome = Outcome.STUCK if said.lag else Outcome.SILENT
        return Verdict(outcome, f"{problem}; lag {said.lag}")
    if checks_times and (differing := _describe_wrong_times(source, target)):
        return Verdict(Outcome.MISTIMED, differing)
    return _judge_counts(observed, there, said, was_announced=was_announced)


def _judge_reason(said: Said) -> Verdict:
    outcome = Outcome.PARKED if said.parked else Outcome.REFUSED
    reason = said.parked or said.refused
    if not said.remedy:
        return Verdict(Outcome.WRONG, f"{outcome} without a remedy: {reason}")
    return Verdict(outcome, reason)


def _missing(observed: Observed, source: list[Seen], there: list[str]) -> str:
    """What the target should have and does not, or has of somebody else."""
    fates = observed.fates
    retired = [each for each, fate in fates.items() if fate is Fate.RETIRED]
    needed = retired + [seen.identity for seen in source]
    present = set(there)
    missing = [x for x in needed if x not in present and fates.get(x) is not Fate.TRIMMED]
    if missing:
        return _list("missing at the target", missing)
    expected = {seen.identity for seen in source} | set(fates)
    unknown = [x for x in there if x not in expected]
    return _list("not of the source", unknown) if unknown else ""


def _judge_counts(
    observed: Observed, there: list[str], said: Said, *, was_announced: bool
) -> Verdict:
    """Whether all is counted that the target has too many or that was never copied."""
    present = set(there)
    fates = observed.fates
    has = {seen.identity for seen in observed.source or ()}
    truncated = [
        x for x, fate in fates.items() if fate is Fate.TRUNCATED and x in present and x not in has
    ]
    lost = [x for x, fate in fates.items() if fate is Fate.LOST and x not in present]
    foreign = [x for x, fate in fates.items() if fate is Fate.FOREIGN and x in present]
    if foreign and not was_announced and not said.counts.get("displaced"):
        return Verdict(Outcome.SILENT, _list("of somebody else", foreign))
    if truncated and not was_announced and not said.counts.get("truncated"):
        return Verdict(Outcome.SILENT, _list("truncated, still at the target", truncated))
    if lost and not was_announced and not said.counts.get("lost"):
        return Verdict(Outcome.SILENT, _list("lost before they were copied", lost))
    if truncated or lost or foreign:
        extra = len(truncated) + len(foreign)
        return Verdict(Outcome.ANNOUNCED, f"{extra} too many, {len(lost)} lost")
    return Verdict(Outcome.COPIED)


def _describe_disorder(source: list[Seen], there: list[str]) -> str:
    """Where the target has records of the source in another order; repetitions do not count."""
    order = {seen.identity: number for number, seen in enumerate(source)}
    firsts = dict.fromkeys(x for x in there if x in order)
    before = ""
    for identity in firsts:
        if before and order[identity] < order[before]:
            return f"{identity} comes behind {before}"
        before = identity
    return ""


def _describe_wrong_times(source: list[Seen], target: list[Seen]) -> str:
    times = dict(target)
    for seen in source:
        copied_ms = times.get(seen.identity, seen.timestamp_ms)
        if copied_ms != seen.timestamp_ms:
            return f"{seen.identity} is of {seen.timestamp_ms}, its copy of {copied_ms}"
    return ""


def _list(what: str, identities: Sequence[str]) -> str:
    shown = ", ".join(identities[:_SHOWN]) + (", …" if len(identities) > _SHOWN else "")
    return f"{len(identities)} {what}: {shown}"


_SEVERITY: Final = tuple(Outcome)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a topic is that of its worst partition: the last in the list of outcomes."""
    return max(verdicts, key=lambda verdict: _SEVERITY.index(verdict.outcome))
