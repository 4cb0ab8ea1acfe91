"""Names of findings and verdicts, as reports and `result.json` print them.

Reports use this order. A finding in `ALWAYS_VIOLATES` violates every run; the others depend on the
promises of the run.
"""

from enum import StrEnum


class Verdict(StrEnum):
    PROVEN = "proven"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


class Outcome(StrEnum):
    """What a producer knows about an attempt."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Finding(StrEnum):
    LOST_NEVER_STORED = "lost: never-stored"
    LOST_EXPIRED = "lost: expired"
    LOST_NOT_MIRRORED = "lost: not-mirrored"
    LOST_EXPIRED_AT_TARGET = "lost: expired at target"
    LOST_UNDELIVERED = "lost: undelivered"
    LOST_UNLOCATED = "lost: unlocated"
    PENDING = "pending"
    TAIL_LOSS = "tail loss"
    SUPERSEDED = "superseded"
    VANISHED = "vanished"
    DUPLICATE_SOURCE = "duplicate: source"
    DUPLICATE_TARGET = "duplicate: target"
    REORDERED = "reordered"
    REORDERED_SOURCE = "reordered: source"
    REORDERED_TARGET = "reordered: target"
    INCONSISTENT_OFFSET = "inconsistent offset"
    ABORTED_READ = "aborted read"
    REUSED_SEQUENCE = "reused sequence"
    UNCOMMITTED_READ = "uncommitted read"
    TORN_TRANSACTION = "torn transaction"
    UNEXPECTED = "unexpected"
    POLL_SKIP = "poll skip"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    CORRUPTED = "corrupted"
    ALTERED_KEY = "altered: key"
    ALTERED_HEADERS = "altered: headers"
    ALTERED_TIMESTAMP = "altered: timestamp"
    ALTERED_PARTITION = "altered: partition"
    UNREADABLE = "unreadable"
    BATCH_DIFFERS = "batch differs"


LOST = frozenset(finding for finding in Finding if finding.value.startswith("lost: "))

ALWAYS_VIOLATES = LOST | {
    Finding.VANISHED,
    Finding.CORRUPTED,
    Finding.UNREADABLE,
    Finding.UNEXPECTED,
    Finding.ABORTED_READ,
    Finding.REUSED_SEQUENCE,
    Finding.UNCOMMITTED_READ,
    Finding.TORN_TRANSACTION,
    Finding.INCONSISTENT_OFFSET,
    Finding.POLL_SKIP,
    Finding.NON_MONOTONIC_POLL,
}
