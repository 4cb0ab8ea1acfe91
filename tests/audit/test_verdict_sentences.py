"""Every sentence that a verdict can print, word for word."""

from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import Sizes, audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.result.sentences import compose_sentence, finish_sentences
from shoal.audit.result.verdict import decide, select_violating_findings
from support.audit.ledgers import History, clean_run, put, receive, scan, send

IF_MESSAGES = "if messages were lost independently of each other"

PROVEN: list[tuple[dict[str, int], str]] = [
    ({"ok": 1}, "The only acknowledged message was delivered."),
    ({"ok": 2}, "All 2 acknowledged messages were delivered, in order."),
    ({"ok": 59, "batches": 59}, "All 59 acknowledged messages were delivered, in order."),
    (
        {"ok": 60, "batches": 60},
        (
            "All 60 acknowledged messages were delivered, in order; with 95 % confidence the loss "
            f"rate is below 0.05 {IF_MESSAGES}, and below 0.05 if batches were (60 batches)."
        ),
    ),
    (
        {"ok": 20_000, "batches": 400},
        (
            "All 20,000 acknowledged messages were delivered, in order; with 95 % confidence the "
            f"loss rate is below 0.00015 {IF_MESSAGES}, and below 0.0075 if batches were "
            "(400 batches)."
        ),
    ),
    (
        {"ok": 600, "batches": 12},
        (
            "All 600 acknowledged messages were delivered, in order; with 95 % confidence the loss "
            f"rate is below 0.005 {IF_MESSAGES}; 12 batches are too few for a bound per batch."
        ),
    ),
    (
        {"ok": 600, "batches": 1},
        (
            "All 600 acknowledged messages were delivered, in order; with 95 % confidence the loss "
            f"rate is below 0.005 {IF_MESSAGES}; 1 batch is too few for a bound per batch."
        ),
    ),
    (
        {"ok": 3, "duplicate: source": 1, "duplicate: target": 1},
        "All 3 acknowledged messages were delivered, in order, with 1 duplicate.",
    ),
    (
        {"ok": 3, "duplicate: target": 4},
        "All 3 acknowledged messages were delivered, in order, with 4 duplicates.",
    ),
    (
        {"ok": 5, "superseded_ok": 2, "superseded": 2},
        (
            "3 of 5 acknowledged messages were delivered, in order, and 2 were superseded by "
            "compaction."
        ),
    ),
    (
        {"ok": 2, "superseded_ok": 1, "superseded": 1},
        "1 of 2 acknowledged messages was delivered, and 1 was superseded by compaction.",
    ),
    (
        {"ok": 1, "superseded_ok": 1, "superseded": 1},
        "The only acknowledged message was superseded by compaction.",
    ),
    (
        {"ok": 1, "superseded": 1},
        (
            "The only acknowledged message was delivered; 1 unacknowledged message was "
            "superseded by compaction."
        ),
    ),
    (
        {"ok": 5, "superseded_ok": 2, "superseded": 5},
        (
            "3 of 5 acknowledged messages were delivered, in order, and 2 were superseded by "
            "compaction; 3 unacknowledged messages were superseded by compaction."
        ),
    ),
    (
        {"ok": 100, "superseded_ok": 50, "superseded": 50, "batches": 50},
        (
            "50 of 100 acknowledged messages were delivered, in order, and 50 were superseded by "
            "compaction."
        ),
    ),
]

VIOLATED: list[tuple[dict[str, int], str]] = [
    (
        {"ok": 1, "lost_ok": 1, "lost: never-stored": 1, "tail loss": 1},
        "The only acknowledged message was lost (1 never-stored).",
    ),
    (
        {"ok": 8000, "lost_ok": 1, "lost: not-mirrored": 1},
        "1 of 8,000 acknowledged messages was lost (1 not-mirrored).",
    ),
    (
        {"ok": 8000, "lost_ok": 3, "lost: expired": 1, "lost: expired at target": 2},
        "3 of 8,000 acknowledged messages were lost (1 expired, 2 expired at target).",
    ),
    (
        {"ok": 8000, "lost_ok": 2, "lost: undelivered": 3},
        "3 messages were lost (3 undelivered), 2 of them among 8,000 acknowledged.",
    ),
    (
        {"ok": 8000, "lost: unlocated": 1},
        "1 unacknowledged message was lost (1 unlocated).",
    ),
    (
        {"lost: undelivered": 2},
        "2 unacknowledged messages were lost (2 undelivered).",
    ),
    (
        {"ok": 9, "lost_ok": 1, "lost: expired": 1, "pending_ok": 2, "pending": 2, "superseded": 1},
        (
            "1 of 9 acknowledged messages was lost (1 expired); 2 of 9 acknowledged messages are "
            "pending; 1 message was superseded by compaction."
        ),
    ),
    ({"ok": 9, "vanished": 1, "corrupted": 2}, "1 message vanished; 2 corrupted messages."),
    ({"ok": 9, "vanished": 2, "corrupted": 1}, "2 messages vanished; 1 corrupted message."),
    (
        {"ok": 9, "reordered": 1, "reordered: source": 1, "reordered: target": 1},
        (
            "1 message received out of order; 1 message out of order in the source; "
            "1 message out of order in the target."
        ),
    ),
    (
        {"ok": 9, "reordered": 2, "reordered: source": 2, "reordered: target": 2},
        (
            "2 messages received out of order; 2 messages out of order in the source; "
            "2 messages out of order in the target."
        ),
    ),
    (
        {"ok": 9, "poll skip": 1, "non-monotonic poll": 2},
        "1 poll skip; 2 non-monotonic polls.",
    ),
    (
        {"ok": 9, "inconsistent offset": 2, "aborted read": 1, "uncommitted read": 2},
        "2 inconsistent offsets; 1 aborted read; 2 uncommitted reads.",
    ),
    (
        {"ok": 9, "torn transaction": 2, "unexpected": 1, "unreadable": 3},
        "2 torn transactions; 1 unexpected message; 3 unreadable records.",
    ),
    (
        {"ok": 9, "altered: key": 1, "altered: headers": 2},
        "1 message with an altered key; 2 messages with altered headers.",
    ),
]

PROMISED: list[tuple[dict[str, Any], dict[str, int], str]] = [
    (
        {"delivery": "exactly_once"},
        {"ok": 9, "duplicate: source": 1, "duplicate: target": 2},
        "1 duplicate in the source; 2 duplicates in the target.",
    ),
    (
        {"order": False},
        {"ok": 9, "reordered": 5},
        "All 9 acknowledged messages were delivered.",
    ),
    (
        {"fidelity": ["timestamps", "partition"]},
        {"ok": 9, "altered: timestamp": 2, "altered: partition": 1, "altered: key": 1},
        "2 messages with altered timestamps; 1 message in another partition.",
    ),
    ({"fidelity": ["bytes"]}, {"ok": 9, "batch differs": 1}, "1 batch that differs."),
    ({"fidelity": ["bytes"]}, {"ok": 9, "batch differs": 2}, "2 batches that differ."),
]

INCONCLUSIVE: list[tuple[dict[str, int], str]] = [
    ({}, "Nothing was attempted, so nothing is proven."),
    ({"attempts": 1}, "The only attempt was not acknowledged, so nothing is proven."),
    ({"attempts": 7}, "None of 7 attempts was acknowledged, so nothing is proven."),
    (
        {"attempts": 7, "acks_0": 1},
        "With acks=0 nothing is acknowledged, so nothing is proven.",
    ),
    (
        {"attempts": 7, "pending": 1},
        (
            "None of 7 attempts was acknowledged, so nothing is proven; "
            "1 unacknowledged message is pending."
        ),
    ),
    ({"ok": 1, "pending_ok": 1, "pending": 1}, "The only acknowledged message is pending."),
    ({"ok": 9, "pending_ok": 1, "pending": 1}, "1 of 9 acknowledged messages is pending."),
    ({"ok": 9, "pending_ok": 2, "pending": 2}, "2 of 9 acknowledged messages are pending."),
    (
        {"ok": 9, "pending_ok": 1, "pending": 3},
        "3 messages are pending, 1 of them among 9 acknowledged.",
    ),
    (
        {"ok": 9, "pending_ok": 1, "pending": 1, "superseded": 2, "superseded_ok": 2},
        "1 of 9 acknowledged messages is pending; 2 messages were superseded by compaction.",
    ),
]

GOLDEN: list[tuple[dict[str, Any], dict[str, int], str]] = [
    ({}, *row) for row in (*PROVEN, *VIOLATED, *INCONCLUSIVE)
] + PROMISED


@pytest.mark.parametrize(("promises", "counts", "wanted"), GOLDEN, ids=[row[2] for row in GOLDEN])
def test_a_sentence(promises: dict[str, Any], counts: dict[str, int], wanted: str) -> None:
    counts = {"attempts": counts.get("ok", 0), **counts}
    violating = select_violating_findings(promises)
    clause = compose_sentence(decide(counts, promises), counts, promises, violating)
    assert finish_sentences({"g": clause}) == {"g": wanted}


def test_every_finding_that_can_violate_has_a_singular_and_a_plural() -> None:
    promises = {"delivery": "exactly_once", "fidelity": ["bytes", "partition"]}
    for finding in select_violating_findings(promises):
        for count in (1, 2):
            counts = {"ok": 9, finding: count}
            clause = compose_sentence(
                decide(counts, promises), counts, promises, frozenset({finding})
            )
            assert ":" not in clause, clause  # no name of a finding that is not a phrase
            assert str(count) in clause


def test_several_groups_are_named_unless_all_sentences_are_equal() -> None:
    assert finish_sentences({"a": "all is well", "b": "1 message vanished"}) == {
        "a": "In group a, all is well.",
        "b": "In group b, 1 message vanished.",
    }
    clause = "In each of 2 groups, all is well."
    assert finish_sentences({"a": "all is well", "b": "all is well"}) == {"a": clause, "b": clause}


def test_the_sentence_of_a_run_is_that_of_its_worst_group(tmp_path: Path) -> None:
    history = clean_run()
    history.groups = ("g", "h")
    for _, row in list(history.rows["receipts"])[:-1]:
        history.rows["receipts"].append(("w", row | {"group": "h"}))
    for line in [line for line in history.commits if line["kind"] == "drained"]:
        history.commits.append(line | {"group": "h"})
    result = audit(open_ledger([history.write(tmp_path / "run")]))
    assert result.sentence == "In group h, 1 of 40 acknowledged messages was lost (1 undelivered)."
    assert result.groups["g"].sentence == (
        "In group g, all 40 acknowledged messages were delivered, in order."
    )


def batches_of(history: History, folder: Path, sizes: Sizes | None = None) -> int:
    return audit(open_ledger([history.write(folder)]), sizes=sizes).metrics.batches


@pytest.mark.parametrize("rows_per_cell", [1, 7, 50, 10_000])
def test_messages_that_were_sent_or_answered_together_are_one_batch(
    rows_per_cell: int, tmp_path: Path
) -> None:
    history = History(mirror=False, all_drained=True)
    for number in range(20):
        together = {"sent_us": number // 5 * 1000, "acked_us": 90_000 + number}
        if number >= 10:  # the other way round
            together = {"sent_us": number * 1000, "acked_us": 90_000 + number // 5}
        send(history, "p", 0, number, offset=number, intended_us=-1, **together)
        put(history, "source", "p", 0, number, offset=number)
        receive(history, "p", 0, number, offset=number)
    scan(history, "source", 0, end=20)
    assert batches_of(history, tmp_path / "run", Sizes(rows_per_cell=rows_per_cell)) == 4


def test_lanes_that_share_a_source_partition_share_batches(tmp_path: Path) -> None:
    history = clean_run(lanes=2, count=20, mirror=False, scans=False)
    assert batches_of(history, tmp_path / "apart") == 40
    history.partitions["t"] = 1
    assert batches_of(history, tmp_path / "shared") == 20


def test_bounds_are_metrics_where_they_say_something(tmp_path: Path) -> None:
    few = audit(open_ledger([clean_run(count=20).write(tmp_path / "few")])).metrics
    assert (few.loss_rate_bound_95, few.batch_loss_rate_bound_95, few.batches) == (None, None, 40)
    many = audit(open_ledger([clean_run(count=30).write(tmp_path / "many")])).metrics
    assert many.loss_rate_bound_95 == pytest.approx(3 / 60)
    assert many.batch_loss_rate_bound_95 == pytest.approx(3 / 60)
