"""The sentence that follows the verdict, for people. Pure.

Rules:
- Every number is exact: losses are counted "of N acknowledged messages" only if all of them were
  acknowledged.
- The sentence contains the number of superseded messages, with every verdict.
- Without a loss it has the 95 % upper bound on the loss rate, 3/n, with its condition, and then the
  bound per batch: Kafka loses batches. A bound from fewer than `FEWEST` samples is left out.
- With several groups the sentence names its group; if all sentences are equal, it counts them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal.model.findings import LOST, Finding, Verdict

Counts = Mapping[str, int]

FEWEST: Final = 60  # with fewer samples without a loss, 3/n is not useful

_DUPLICATES: Final = (Finding.DUPLICATE_SOURCE, Finding.DUPLICATE_TARGET)

# Singular and plural of a finding; all others are their name, with an s for the plural.
_PHRASES: Final = {
    Finding.VANISHED: ("message vanished", "messages vanished"),
    Finding.DUPLICATE_SOURCE: ("duplicate in the source", "duplicates in the source"),
    Finding.DUPLICATE_TARGET: ("duplicate in the target", "duplicates in the target"),
    Finding.REORDERED: ("message received out of order", "messages received out of order"),
    Finding.REORDERED_SOURCE: (
        "message out of order in the source",
        "messages out of order in the source",
    ),
    Finding.REORDERED_TARGET: (
        "message out of order in the target",
        "messages out of order in the target",
    ),
    Finding.UNEXPECTED: ("unexpected message", "unexpected messages"),
    Finding.CORRUPTED: ("corrupted message", "corrupted messages"),
    Finding.ALTERED_KEY: ("message with an altered key", "messages with altered keys"),
    Finding.ALTERED_HEADERS: ("message with altered headers", "messages with altered headers"),
    Finding.ALTERED_TIMESTAMP: (
        "message with an altered timestamp",
        "messages with altered timestamps",
    ),
    Finding.ALTERED_PARTITION: (
        "message in another partition",
        "messages in other partitions",
    ),
    Finding.UNREADABLE: ("unreadable record", "unreadable records"),
    Finding.BATCH_DIFFERS: ("batch that differs", "batches that differ"),
}


def upper_bound_95(samples: int | None) -> float | None:
    """Return the upper bound on a rate of which no case was seen; None if it is not useful."""
    return None if samples is None or samples < FEWEST else 3 / samples


def compose_sentence(
    verdict: Verdict,
    counts: Counts,
    promises: Mapping[str, Any],
    violating: frozenset[Finding],
    *,
    lost_workers: str = "",
) -> str:
    """Return what happened, as a clause without a capital letter and a full stop.

    `counts` are those of `verdict`, with `batches` (0 if unknown) and `acks_0` (1 if the producers
    ran with acks=0); `lost_workers` is a clause on those, or "".
    """
    describe: dict[Verdict, Callable[[], list[str]]] = {
        Verdict.PROVEN: lambda: _describe_proven(counts, promises),
        Verdict.VIOLATED: lambda: _describe_violated(counts, violating),
        Verdict.INCONCLUSIVE: lambda: _describe_inconclusive(counts),
    }
    clauses = describe[verdict]()
    if lost_workers:
        # Where nothing else is wrong, it is why the verdict is what it is.
        clauses.insert(0 if verdict is Verdict.INCONCLUSIVE else len(clauses), lost_workers)
    return "; ".join(clauses)


def finish_sentences(clauses: Mapping[str, str]) -> dict[str, str]:
    """Return the clauses as sentences, by group; with several groups, each names its group."""
    if len(clauses) == 1:
        return {group: _capital(clause) for group, clause in clauses.items()}
    if len(set(clauses.values())) == 1:
        clause = f"in each of {len(clauses)} groups, {next(iter(clauses.values()))}"
        return dict.fromkeys(clauses, _capital(clause))
    return {group: _capital(f"in group {group}, {text}") for group, text in clauses.items()}


def _capital(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


def _describe_proven(counts: Counts, promises: Mapping[str, Any]) -> list[str]:
    ok, delivered = counts["ok"], counts["ok"] - counts.get("superseded_ok", 0)
    order = ", in order" if promises.get("order", True) and delivered > 1 else ""
    if delivered == ok:
        text = f"{_all_of(ok)} delivered{order}"
    elif ok == 1:
        text = "the only acknowledged message was superseded by compaction"
    else:
        text = f"{delivered:,} of {ok:,} acknowledged messages {_was(delivered)} delivered{order}"
        text += f", and {ok - delivered:,} {_was(ok - delivered)} superseded by compaction"
    duplicates = max(counts.get(finding, 0) for finding in _DUPLICATES)
    text += f", with {_number(duplicates, 'duplicate')}" if duplicates else ""
    # All acknowledged messages are counted above, so the other superseded ones are unacknowledged.
    others = counts.get(Finding.SUPERSEDED, 0) - (ok - delivered)
    clauses = [text, *_describe_superseded(others, "unacknowledged message")]
    return clauses + _bounds(delivered, counts.get("batches", 0))


def _all_of(ok: int) -> str:
    if ok == 1:
        return "the only acknowledged message was"
    return f"all {ok:,} acknowledged messages were"


def _bounds(messages: int, batches: int) -> list[str]:
    bound = upper_bound_95(messages)
    if bound is None:
        return []
    text = f"with 95 % confidence the loss rate is below {bound:.2g}"
    text += " if messages were lost independently of each other"
    per_batch = upper_bound_95(batches)
    if per_batch is not None:
        text += f", and below {per_batch:.2g} if batches were ({batches:,} batches)"
    elif batches:
        few = "1 batch is" if batches == 1 else f"{batches:,} batches are"
        text += f"; {few} too few for a bound per batch"
    return [text]


def _describe_violated(counts: Counts, violating: frozenset[Finding]) -> list[str]:
    lost = {finding: counts.get(finding, 0) for finding in Finding if finding in LOST}
    total = sum(lost.values())
    clauses = []
    if total:
        causes = ", ".join(
            f"{count:,} {finding.value.removeprefix('lost: ')}"
            for finding, count in lost.items()
            if count
        )
        before, after = _share(total, counts.get("lost_ok", 0), counts.get("ok", 0), "lost")
        clauses.append(f"{before} ({causes}){after}")
    for finding in Finding:
        count = counts.get(finding, 0)
        if count and finding in violating - LOST:
            clauses.append(f"{count:,} {_phrase(finding, count)}")
    return (
        clauses
        + _describe_pending(counts)
        + _describe_superseded(counts.get(Finding.SUPERSEDED, 0), "message")
    )


def _describe_inconclusive(counts: Counts) -> list[str]:
    clauses = _describe_pending(counts)
    if not clauses and counts.get("unsent", 0) and counts.get("ok", 0):
        return _describe_delivered(counts)
    if not counts.get("ok", 0):
        clauses = [_nothing_acknowledged(counts), *clauses]
    return clauses + _describe_superseded(counts.get(Finding.SUPERSEDED, 0), "message")


def _describe_delivered(counts: Counts) -> list[str]:
    """Of a run whose load was not sent: what was sent is all right."""
    return _describe_proven({**counts, "batches": 0}, {"order": False})[:1]


def _nothing_acknowledged(counts: Counts) -> str:
    attempts = counts.get("attempts", 0)
    if not attempts:
        return "nothing was attempted, so nothing is proven"
    if counts.get("acks_0"):
        return "with acks=0 nothing is acknowledged, so nothing is proven"
    of = "the only attempt was not" if attempts == 1 else f"none of {attempts:,} attempts was"
    return f"{of} acknowledged, so nothing is proven"


def _describe_pending(counts: Counts) -> list[str]:
    total = counts.get(Finding.PENDING, 0)
    if not total:
        return []
    return ["".join(_share(total, counts.get("pending_ok", 0), counts.get("ok", 0), "pending"))]


def _share(total: int, of_ok: int, ok: int, what: str) -> tuple[str, str]:
    """Return how many messages, and how many of them were acknowledged.

    Returns two texts; the causes of a loss go between them.
    """
    verb = _was(total) if what == "lost" else _is(total)
    if total == of_ok:
        if ok == 1:
            return f"the only acknowledged message {verb} {what}", ""
        return f"{total:,} of {ok:,} acknowledged messages {verb} {what}", ""
    if not of_ok:
        return f"{_number(total, 'unacknowledged message')} {verb} {what}", ""
    return f"{total:,} messages {verb} {what}", f", {of_ok:,} of them among {ok:,} acknowledged"


def _describe_superseded(count: int, noun: str) -> list[str]:
    """Return a clause about messages that compaction removed, if any."""
    if not count:
        return []
    return [f"{_number(count, noun)} {_was(count)} superseded by compaction"]


def _phrase(finding: Finding, count: int) -> str:
    one, many = _PHRASES.get(finding, (finding.value, f"{finding.value}s"))
    return one if count == 1 else many


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
