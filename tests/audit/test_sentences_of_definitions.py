"""Sentences of docs/reference/definitions.md, each shown by a small history.

A case is a sentence, the lines of a history, and the verdict and counts that follow from it. Both
judges must say the same. `mirror` histories have both logs; others have the source log only.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shoal.audit.audit import Sizes
from shoal.audit.self_test.plain_judge import PlainJudge
from support.audit.history_files import (
    DRAINED,
    Line,
    assign,
    counts,
    cut_up,
    judge_folder,
    log,
    position,
    receive,
    run,
    scan,
    send,
)


class Case(NamedTuple):
    sentence: str
    lines: Iterable[Any]  # nested as is easiest to read
    verdict: str
    found: dict[str, int]


UNCOMMITTED = run(isolation="read_uncommitted")
UNDRAINED = {"kind": "end", "drained": False}


def member(seq: int, outcome: str = "ok", fate: str | None = "committed", **fields: Any) -> Line:
    return send(seq, outcome, txn="x", fate=fate, **fields)


def store_message(cluster: str, *sequences: int) -> list[Line]:
    return log(cluster, *((seq, seq) for seq in sequences))


def ack_message(*sequences: int) -> list[Line]:
    return [send(seq, acked_us=1000 * seq + 300) for seq in sequences]


OUTCOMES = [
    Case(
        "committed, ok, also where its own answer was lost: then it is owed",
        [member(0), member(1, "unknown"), receive(0), DRAINED],
        "violated",
        {"lost: unlocated": 1, "tail loss": 1, "torn transaction": 1},
    ),
    Case(
        "the same, where nothing of the transaction was delivered",
        [send(0), receive(0), member(1, "unknown"), DRAINED],
        "violated",
        {"lost: unlocated": 1, "tail loss": 1},
    ),
    Case(
        "the same, delivered",
        [member(0, "unknown"), receive(0), DRAINED],
        "proven",
        {},
    ),
    Case(
        "aborted, failed",
        [send(0), receive(0), member(1, "ok", "aborted"), DRAINED],
        "proven",
        {},
    ),
    Case(
        "not known to have ended, unknown",
        [send(0), receive(0), member(1, "ok", "open"), DRAINED],
        "proven",
        {},
    ),
    Case(
        "an attempt that the client reported as failed stays failed in a committed transaction",
        [member(0), member(1, "failed"), receive(0), DRAINED],
        "proven",
        {},
    ),
    Case(
        "and if it is delivered, that is an aborted read",
        [member(0), member(1, "failed"), receive(0, 1), DRAINED],
        "violated",
        {"aborted read": 1},
    ),
    Case(
        "at any isolation level",
        [UNCOMMITTED, member(0), member(1, "failed"), receive(0, 1), DRAINED],
        "violated",
        {"aborted read": 1},
    ),
    Case(
        "also where the answer to the commit was lost and a delivery shows that it was committed",
        [
            [member(0, "ok", "open"), member(1, "failed", "open"), receive(0)],
            [send(2), receive(2), DRAINED],
        ],
        "proven",
        {},
    ),
    Case(
        "nobody is owed it there, also if it was received",
        [UNCOMMITTED, send(0), member(1, "failed", "open"), receive(0), DRAINED],
        "proven",
        {},
    ),
    Case(
        "and if it is delivered there, that is an aborted read",
        [send(0), member(1, "failed", "open"), receive(0, 1), DRAINED],
        "violated",
        {"aborted read": 1},
    ),
    Case(
        "the same, read-uncommitted",
        [UNCOMMITTED, send(0), member(1, "failed", "open"), receive(0, 1), DRAINED],
        "violated",
        {"aborted read": 1},
    ),
    Case(
        "in an aborted transaction too, if the attempt itself failed",
        [UNCOMMITTED, send(0), member(1, "failed", "aborted"), receive(0, 1), DRAINED],
        "violated",
        {"aborted read": 1},
    ),
    Case(
        "of an aborted transaction only for read-committed consumers",
        [UNCOMMITTED, send(0), member(1, "ok", "aborted"), receive(0, 1), DRAINED],
        "proven",
        {},
    ),
    Case(
        "the same, read-committed",
        [send(0), member(1, "ok", "aborted"), receive(0, 1), DRAINED],
        "violated",
        {"aborted read": 1},
    ),
    Case(
        "a failed attempt without a transaction, at any isolation level",
        [UNCOMMITTED, send(0), send(1, "failed"), receive(0, 1), DRAINED],
        "violated",
        {"aborted read": 1},
    ),
    Case(
        "an attempt is committed if any message of its transaction was delivered (read-committed)",
        [member(0, "ok", "open"), member(1, "unknown", "open"), receive(0), DRAINED],
        "violated",
        {"lost: unlocated": 1, "tail loss": 1, "torn transaction": 1},
    ),
    Case(
        "but not for read-uncommitted consumers",
        [
            [UNCOMMITTED, send(2), receive(2), member(0, "ok", "open"), receive(0, assignment=2)],
            [member(1, "unknown", "open"), DRAINED],
        ],
        "violated",
        {"reordered": 1},
    ),
    Case(
        "with acks=0 every attempt that left is unknown: nothing is proven",
        [run(acks="0"), send(0), receive(0), DRAINED],
        "inconclusive",
        {},
    ),
    Case(
        "an unknown attempt that was never delivered promises nothing",
        [send(0), send(1, "unknown"), receive(0), DRAINED],
        "proven",
        {},
    ),
]

EVIDENCE = [
    Case(
        "the offset of an unknown attempt is not evidence of two messages at one offset",
        [send(0), send(1, "unknown", offset=0), receive(0), DRAINED],
        "proven",
        {},
    ),
    Case(
        "if its answer arrived, it is",
        [send(0), send(1, "unknown", offset=0, acked_us=9), receive(0), DRAINED],
        "violated",
        {"inconsistent offset": 1},
    ),
    Case(
        "if the attempt was delivered, it is",
        [
            [run(delivery="exactly_once"), send(0), send(1, "unknown", offset=5), receive(0, 1)],
            [DRAINED],
        ],
        "violated",
        {"duplicate: source": 1},
    ),
    Case(
        "if a message of its transaction was delivered to read-committed consumers, it is",
        [member(0, "ok", "open"), member(1, "unknown", "open", offset=0), receive(0), DRAINED],
        "violated",
        {"inconsistent offset": 1, "lost: unlocated": 1, "tail loss": 1, "torn transaction": 1},
    ),
    Case(
        "to read-uncommitted ones, it is not",
        [
            [UNCOMMITTED, send(2), receive(2), member(1, "unknown", "open", offset=2)],
            [member(3, "ok", "open"), receive(3), DRAINED],
        ],
        "proven",
        {},
    ),
    Case(
        "it is not evidence for a poll skip",
        [send(0), send(1, "unknown", offset=1), send(2), receive(0, 2), DRAINED],
        "proven",
        {},
    ),
    Case(
        "if its answer arrived, it is evidence for a poll skip",
        [send(0), send(1, "unknown", offset=1, acked_us=9), send(2), receive(0, 2), DRAINED],
        "violated",
        {"poll skip": 1},
    ),
    Case(
        "it is not evidence for the order of the source",
        [send(0, offset=5), send(1, "unknown", offset=0), receive(0, offset=5), DRAINED],
        "proven",
        {},
    ),
    Case(
        "a failed send's offset never is",
        [send(0), send(1, "failed", offset=0, acked_us=9), receive(0), DRAINED],
        "proven",
        {},
    ),
    Case(
        "an acknowledged offset always is",
        [send(0), send(1, offset=0), receive(0), receive(1, offset=1), DRAINED],
        "violated",
        {"inconsistent offset": 1, "duplicate: source": 1, "poll skip": 0},
    ),
]

SOURCE_SCANS = [
    Case(
        "a scan of the source decides every acknowledged message, drained or not",
        [
            ack_message(0, 1),
            store_message("source", 0),
            scan("source", 0, 2),
            receive(0),
            UNDRAINED,
        ],
        "violated",
        {"lost: never-stored": 1, "tail loss": 1},
    ),
    Case(
        "an acknowledged offset at or above the scan's end is absent: an empty log",
        [ack_message(0), scan("source", 0, 0), UNDRAINED],
        "violated",
        {"lost: never-stored": 1, "tail loss": 1},
    ),
    Case(
        "the same behind a mirror",
        [run(mirror=True), ack_message(0), scan("source", 0, 0), UNDRAINED],
        "violated",
        {"lost: never-stored": 1, "tail loss": 1},
    ),
    Case(
        "a truncation of the source shows what was delivered to have vanished, drained or not",
        [
            ack_message(0, 1, 2),
            store_message("source", 0),
            scan("source", 0, 1),
            receive(0, 1, 2),
            UNDRAINED,
        ],
        "violated",
        {"vanished": 2},
    ),
    Case(
        "and what was mirrored",
        [
            [
                ack_message(0, 1, 2),
                store_message("source", 0),
                scan("source", 0, 1),
                receive(0, 1, 2),
            ],
            [store_message("target", 0, 1, 2), scan("target", 0, 3), UNDRAINED],
        ],
        "violated",
        {"vanished": 2},
    ),
    Case(
        "an unknown attempt at or above the scan's end may have come later",
        [
            [ack_message(0), send(1, "unknown"), store_message("source", 0), scan("source", 0, 1)],
            [receive(0, 1), UNDRAINED],
        ],
        "proven",
        {},
    ),
    Case(
        "unless the lane was drained",
        [
            [ack_message(0), send(1, "unknown"), store_message("source", 0), scan("source", 0, 1)],
            [receive(0, 1), DRAINED],
        ],
        "violated",
        {"vanished": 1},
    ),
    Case(
        "of the target, an offset at or above the end is not absent before the drain",
        [
            [ack_message(0, 1), store_message("source", 0, 1), scan("source", 0, 2), receive(0, 1)],
            [store_message("target", 0), scan("target", 0, 1), UNDRAINED],
        ],
        "proven",
        {},
    ),
    Case(
        "after it, it is",
        [
            [ack_message(0, 1), store_message("source", 0, 1), scan("source", 0, 2), receive(0, 1)],
            [store_message("target", 0), scan("target", 0, 1), DRAINED],
        ],
        "violated",
        {"vanished": 1},
    ),
    Case(
        "below the log start: expired",
        [
            ack_message(0, 1),
            store_message("source", 1),
            scan("source", 1, 2),
            receive(1),
            UNDRAINED,
        ],
        "violated",
        {"lost: expired": 1},
    ),
]

# What an unclean election leaves: 1 and 2 were acknowledged and truncated, 3 and 4 took offsets
# of theirs.
TRUNCATED = [*ack_message(0, 1, 2), send(3, offset=1, acked_us=9), send(4, offset=2, acked_us=9)]
REST = [*log("source", (0, 0), (3, 1), (4, 2)), scan("source", 0, 3)]

ORDER = [
    Case(
        "a message that a scan shows absent enters no reordered finding there",
        [TRUNCATED, REST, receive(0), receive(3, offset=1), receive(4, offset=2), DRAINED],
        "violated",
        {"lost: never-stored": 2, "inconsistent offset": 2},
    ),
    Case(
        "not even if the lane was not drained and its offset lies beyond the scan",
        [
            [
                ack_message(0),
                send(2, offset=9),
                send(3, offset=1),
                receive(0),
                receive(3, offset=1),
            ],
            [log("source", (0, 0), (3, 1)), scan("source", 0, 2), UNDRAINED],
        ],
        "violated",
        {"lost: never-stored": 1},
    ),
    Case(
        "in the target neither",
        [
            [
                ack_message(0, 1, 2),
                store_message("source", 0, 1, 2),
                scan("source", 0, 3),
                receive(0),
            ],
            [receive(1, offset=3, assignment=2), receive(2, offset=1, assignment=3), DRAINED],
            [log("target", (0, 0), (2, 1)), scan("target", 0, 4)],
        ],
        "violated",
        {"vanished": 1},
    ),
    Case(
        "what lies below the log start was in the log, in that order",
        [
            [
                send(0, offset=1),
                send(1, offset=0),
                send(2),
                log("source", (2, 2)),
                scan("source", 2, 3),
            ],
            [receive(1, offset=0), receive(0, offset=1), receive(2), DRAINED],
        ],
        "violated",
        {"reordered": 1, "reordered: source": 1},
    ),
    Case(
        "messages that were never attempted enter no order metric",
        [
            [ack_message(0, 1), receive(0), receive(90, offset=1), receive(1, offset=2), DRAINED],
            [send(1, offset=2, acked_us=1300)],
        ],
        "violated",
        {
            "unexpected": 1,
            "duplicate: source": 1,
            "inconsistent offset": 1,
            "reused sequence": 1,
        },
    ),
    Case(
        "nor in a log",
        [
            [
                ack_message(0),
                send(1, offset=2),
                log("source", (0, 0), (90, 1), (1, 2)),
                scan("source", 0, 3),
            ],
            [receive(0), receive(90, offset=1), receive(1, offset=2), DRAINED],
        ],
        "violated",
        {"unexpected": 1},
    ),
]

POLLS = [
    Case(
        "the first delivery lies below the assignment's start: non-monotonic poll",
        [ack_message(0, 1), assign(1), receive(0, 1), DRAINED],
        "violated",
        {"non-monotonic poll": 1},
    ),
    Case(
        "at the start: nothing",
        [ack_message(0, 1), assign(0), receive(0, 1), DRAINED],
        "proven",
        {},
    ),
    Case(
        "between the assignment's start and the first delivery there is a known message: poll skip",
        [ack_message(0, 1), receive(0), assign(0, assignment=2), receive(1, assignment=2), DRAINED],
        "violated",
        {"poll skip": 1},
    ),
    Case(
        "known: in the scan; without a scan, delivered to anyone or acknowledged there",
        [
            [
                ack_message(0, 2),
                assign(0, assignment=2),
                receive(0),
                receive(2, assignment=2),
                DRAINED,
            ],
            [store_message("source", 2), scan("source", 0, 3)],
        ],
        "violated",
        {"poll skip": 0, "vanished": 1},
    ),
    Case(
        "messages of aborted or open transactions are not",
        [ack_message(0, 2), member(1, "ok", "aborted"), receive(0, 2), DRAINED],
        "proven",
        {},
    ),
    Case(
        "the next offset is not higher: non-monotonic poll, also where it is read again",
        [ack_message(0, 1), receive(0, 0, 1), DRAINED],
        "violated",
        {"non-monotonic poll": 1},
    ),
]

BOTH = [*ack_message(0, 1, 2), *store_message("source", 0, 1, 2), scan("source", 0, 3)]
CAUSES = [
    Case(
        "pending while its last known copy is at or above the reader's position and not drained",
        [ack_message(0, 1), receive(0), UNDRAINED],
        "inconclusive",
        {"pending": 1},
    ),
    Case(
        "never-stored comes first: committed and in neither log",
        [
            [
                ack_message(0, 1, 2),
                store_message("source", 0, 2),
                store_message("target", 0, 2),
                scan("source", 0, 3),
            ],
            [scan("target", 0, 3), receive(0, 2), UNDRAINED],
        ],
        "violated",
        {"lost: never-stored": 1},
    ),
    Case(
        "expired: its offset lies below the log start",
        [
            [
                ack_message(0, 1, 2),
                store_message("source", 2),
                store_message("target", 2),
                scan("source", 1, 3),
            ],
            [scan("target", 0, 3), receive(2), DRAINED],
        ],
        "violated",
        {"lost: expired": 1, "lost: never-stored": 1},
    ),
    Case(
        "not-mirrored: below the mirror's position",
        [
            [
                BOTH,
                store_message("target", 0),
                scan("target", 0, 1),
                position("mirror", 2),
                receive(0),
            ],
            [UNDRAINED],
        ],
        "violated",
        {"lost: not-mirrored": 1, "pending": 1, "tail loss": 1},
    ),
    Case(
        "or its lane was drained",
        [BOTH, store_message("target", 0), scan("target", 0, 1), receive(0), DRAINED],
        "violated",
        {"lost: not-mirrored": 2, "tail loss": 2},
    ),
    Case(
        "a mirror position may be inferred from deliveries where the run promises order",
        [
            [
                run(mirror=True),
                ack_message(0, 1),
                store_message("source", 0, 1),
                scan("source", 0, 2),
                receive(1),
            ],
            [scan("target", 0, 0), UNDRAINED],
        ],
        "violated",
        {"lost: not-mirrored": 1},
    ),
    Case(
        "and only there",
        [
            [
                run(mirror=True, ordered=False),
                ack_message(0, 1),
                store_message("source", 0, 1),
                receive(1),
            ],
            [scan("source", 0, 2), scan("target", 0, 0), UNDRAINED],
        ],
        "inconclusive",
        {"pending": 1},
    ),
    Case(
        "expired at target: its start moved past the neighbours",
        [BOTH, store_message("target", 2), scan("target", 2, 3), receive(0, 2), DRAINED],
        "violated",
        {"lost: expired at target": 1},
    ),
    Case(
        "a start above 0 alone does not show that it moved: then the loss is unlocated",
        [BOTH, scan("target", 3, 3), DRAINED],
        "violated",
        {"lost: unlocated": 3, "tail loss": 3},
    ),
    Case(
        "so it is where later messages of the stream are above that start",
        [BOTH, store_message("target", 2), scan("target", 2, 3), receive(2), DRAINED],
        "violated",
        {"lost: unlocated": 2},
    ),
    Case(
        "where consumers began to read at that start, it has not moved: not-mirrored",
        [BOTH, store_message("target", 2), scan("target", 2, 3), assign(2), receive(2), DRAINED],
        "violated",
        {"lost: not-mirrored": 2},
    ),
    Case(
        "where consumers began to read below that start, it has moved: expired at target",
        [BOTH, store_message("target", 2), scan("target", 2, 3), assign(0), receive(2), DRAINED],
        "violated",
        {"lost: expired at target": 2},
    ),
    Case(
        "undelivered: in the log that the consumers read, below their position",
        [BOTH, receive(0, 2), UNDRAINED],
        "violated",
        {"lost: undelivered": 1, "poll skip": 1},
    ),
    Case(
        "unlocated: the scan that could name the stage is missing",
        [ack_message(0, 1), receive(0), DRAINED],
        "violated",
        {"lost: unlocated": 1, "tail loss": 1},
    ),
    Case(
        "superseded: absent while a later message with the same key is there",
        [
            [send(0, key="k"), send(1, key="k"), log("source", (1, 1)), receive(1), DRAINED],
            [scan("source", 0, 2, compacted=True)],
        ],
        "proven",
        {"superseded": 1},
    ),
    Case("an empty history proves nothing", [DRAINED], "inconclusive", {}),
]


def each(lines: Any) -> Iterator[Line]:
    if isinstance(lines, dict):
        yield lines
        return
    for line in lines:
        yield from each(line)


@pytest.mark.parametrize(
    "case",
    [*OUTCOMES, *EVIDENCE, *SOURCE_SCANS, *ORDER, *POLLS, *CAUSES],
    ids=lambda case: case.sentence,
)
def test_a_sentence_of_the_definitions(case: Case, tmp_path: Path) -> None:
    lines = list(each(case.lines))
    wanted = {name: count for name, count in case.found.items() if count}
    plain = PlainJudge(lines)
    by_plain = {name: count for name, (count, _) in plain.findings().items()}
    judged_result = judge_folder(tmp_path, lines)
    assert counts(judged_result) == wanted
    assert judged_result["verdict"] == case.verdict
    assert by_plain == wanted
    assert plain.verdict() == case.verdict
    in_pieces = cut_up(tmp_path, lines, Sizes(1, 1, 1))
    assert {name: found.count for name, found in in_pieces.findings.items()} == wanted
