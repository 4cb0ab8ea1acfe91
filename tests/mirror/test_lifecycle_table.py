"""The table of the lifecycle matrix, its pairwise cover and its judge, without any cluster."""

from itertools import product
from pathlib import Path

import pytest

from support.lifecycle.cells import (
    EVENTS,
    GOOD,
    Cell,
    Delivery,
    Match,
    Outcome,
    Subject,
    When,
    all_cells,
    group_plays,
    list_allowed_outcomes,
    select_cells,
)
from support.lifecycle.events import SCRIPTS
from support.lifecycle.judging import Fate, Observed, Said, Seen, Verdict, judge
from support.lifecycle.keeping import describe_codes, keep_result, read_kept, read_replayed
from support.lifecycle.pairwise import cover_pairs, pairs_of
from support.lifecycle.planting import Planted, count_found
from support.lifecycle.plays import Result
from support.lifecycle.reporting import Section, format_section, outcome_table, write_report
from support.lifecycle.verifying import Compared, reconcile

ROOT = Path(__file__).parents[2]


def test_each_event_has_a_script_and_each_subject_events() -> None:
    assert list(SCRIPTS) == list(EVENTS)
    assert {event.subject for event in EVENTS.values()} == set(Subject)


def test_all_cells_are_valid_and_allow_only_good_outcomes() -> None:
    cells = all_cells()
    assert len(cells) == len(set(cells)) == len(EVENTS) * 3 * 2 * 4
    for cell in cells:
        assert list_allowed_outcomes(cell)
        assert list_allowed_outcomes(cell) <= GOOD


def test_stock_targets_have_no_compare_and_append() -> None:
    deliveries = {cell.delivery for cell in all_cells("apache")}
    assert deliveries == set(Delivery) - {Delivery.COMPARE_AND_APPEND}


def test_the_documents_state_the_outcomes() -> None:
    assert outcome_table() in (ROOT / "docs/reference/mirror-delivery.md").read_text()


def test_a_report_keeps_the_section_of_the_other_engine(tmp_path: Path) -> None:
    cell = all_cells()[0]
    path = tmp_path / "lifecycle.md"
    for engine, outcome in (("apache", "parked"), ("lite", "silent"), ("lite", "refused")):
        verdict = Verdict(Outcome(outcome), "because")
        result = Result(cell, verdict, verdict.outcome in list_allowed_outcomes(cell))
        write_report(path, Section(engine, [result], 2, "code", "conditions"))
    text = path.read_text()
    assert text.index("## Kafka Lite") < text.index("## Apache Kafka")
    assert text.count("**0 silent**") == text.count("1 of 2 cells") == 2
    assert "1 refused" in text
    assert "1 parked" in text


def test_a_report_states_how_many_planted_defects_were_found(tmp_path: Path) -> None:
    silent, copied = Verdict(Outcome.SILENT, "missing"), Verdict(Outcome.COPIED)
    by_match = {Match.NAME: copied, Match.PATTERN: silent}
    cells = [Cell("source-grown", When.RUNNING, match, Delivery.IDEMPOTENT) for match in Match]
    results = [Result(cell, by_match[cell.match], is_good=False) for cell in cells]
    assert count_found(results) == Planted(found=1, planted=1)
    assert count_found(results).is_good
    for wrong in (copied, silent):
        blind = count_found([Result(cell, wrong, is_good=False) for cell in cells])
        assert not blind.is_good
        assert len(blind.mistaken) == 1
    path = tmp_path / "lifecycle.md"
    write_report(path, Section("lite", results, 2, "code", "conditions", count_found(results)))
    assert "skip batches silently: 1 of 1 found." in path.read_text()


def test_a_run_that_was_ended_can_be_continued(tmp_path: Path) -> None:
    first, second = all_cells()[:2]
    path = tmp_path / "results"
    assert read_kept(path) == {}
    failed = Result(first, Verdict(Outcome.SILENT, "missing …"), is_good=False)
    results = [Result(cell, Verdict(Outcome.COPIED), is_good=True) for cell in (second, first)]
    for result, code in zip([failed, *results], ("old", "old", "new"), strict=True):
        keep_result(path, result, code)
    kept = read_kept(path)
    assert [kept[cell].result for cell in (second, first)] == results
    assert describe_codes(kept.values()) == "new (1 cells), old (1 cells)"
    assert describe_codes([kept[first]]) == "new"
    # A report must not hide that a cell failed once.
    assert read_replayed(path) == [(failed, "old")]
    section = Section("lite", results, 2, "new", "conditions", replayed=[(failed, "old")])
    assert f"- {first}: silent: missing … (old)" in format_section(section)


def test_plays_have_all_cells_once() -> None:
    cells = all_cells()
    plays = list(group_plays(cells))
    assert len(plays) == len(EVENTS) * 3
    assert sorted(cell for _, some in plays for cell in some) == sorted(cells)


def test_filters_choose_cells_that_have_all_words() -> None:
    cells = all_cells()
    chosen = select_cells(cells, ["source-grown, stopped", "target-*,pattern,idempotent,running"])
    events = {cell.event for cell in chosen if cell.event != "source-grown"}
    assert events == {name for name in EVENTS if name.startswith("target-")}
    assert len(chosen) == 8 + len(events)
    assert select_cells(cells, []) == cells
    assert select_cells(cells, ["nothing"]) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_pairwise_cover_has_every_pair_with_few_rows(seed: int) -> None:
    cells = all_cells("apache")
    chosen = cover_pairs(cells, seed=seed)
    covered = {pair for cell in chosen for pair in pairs_of(cell)}
    assert covered == {pair for cell in cells for pair in pairs_of(cell)}
    assert set(chosen) <= set(cells)
    # Events and times, or events and deliveries, need so many at least.
    assert len(EVENTS) * 3 <= len(chosen) <= len(EVENTS) * 4


def test_a_pairwise_cover_keeps_to_the_rows_that_there_are() -> None:
    rows = [row for row in product("ab", "xy", "12") if row != ("a", "x", "1")]
    chosen = cover_pairs(rows)
    assert {pair for row in chosen for pair in pairs_of(row)} == {
        pair for row in rows for pair in pairs_of(row)
    }
    assert len(chosen) < len(rows)
    assert cover_pairs([]) == []


def read_seen(*identities: str) -> list[Seen]:
    return [Seen(identity, 1000) for identity in identities]


GREEN = Said(lag=0)
PARKED = Said(lag=3, parked="because", remedy="do this")
ALL = read_seen("a", "b", "c")
JUDGEMENTS = {
    "all is there": (Observed(ALL, ALL), GREEN, Outcome.COPIED),
    "a record is missing": (Observed(ALL, read_seen("a", "c")), GREEN, Outcome.SILENT),
    "a record is missing and not in the status": (
        Observed(ALL, read_seen("a", "c")),
        Said(),
        Outcome.SILENT,
    ),
    "a record is missing and shows as lag": (
        Observed(ALL, read_seen("a", "b")),
        Said(lag=1),
        Outcome.STUCK,
    ),
    "the target topic is missing": (Observed(ALL, None), GREEN, Outcome.SILENT),
    "a reason is given": (Observed(ALL, read_seen("a")), PARKED, Outcome.PARKED),
    "a reason without a remedy": (Observed(ALL, ALL), Said(parked="because"), Outcome.WRONG),
    "a refusal": (Observed(ALL, None), Said(refused="no", remedy="do"), Outcome.REFUSED),
    "twice": (Observed(ALL, read_seen("a", "b", "b", "c")), GREEN, Outcome.DUPLICATED),
    "twice and parked": (Observed(ALL, read_seen("a", "b", "b", "c")), PARKED, Outcome.DUPLICATED),
    "in another order": (Observed(ALL, read_seen("a", "c", "b")), GREEN, Outcome.DISORDERED),
    "at another time": (
        Observed(ALL, [*read_seen("a", "b"), Seen("c", 999)]),
        GREEN,
        Outcome.MISTIMED,
    ),
    "deleted after it was copied": (
        Observed(read_seen("c"), ALL, {"a": Fate.RETIRED, "b": Fate.RETIRED}),
        GREEN,
        Outcome.COPIED,
    ),
    "deleted after it was copied, and gone": (
        Observed(read_seen("c"), read_seen("c"), {"a": Fate.RETIRED}),
        GREEN,
        Outcome.SILENT,
    ),
    "lost and counted": (
        Observed(read_seen("c"), read_seen("c"), {"b": Fate.LOST}),
        Said(lag=0, counts={"lost": 1}),
        Outcome.ANNOUNCED,
    ),
    "lost and not counted": (
        Observed(read_seen("c"), read_seen("c"), {"b": Fate.LOST}),
        GREEN,
        Outcome.SILENT,
    ),
    "truncated and counted": (
        Observed(read_seen("a", "c"), ALL, {"b": Fate.TRUNCATED}),
        Said(lag=0, counts={"truncated": 1}),
        Outcome.ANNOUNCED,
    ),
    "truncated and not counted": (
        Observed(read_seen("a", "c"), ALL, {"b": Fate.TRUNCATED}),
        GREEN,
        Outcome.SILENT,
    ),
    "truncated before it was copied": (
        Observed(read_seen("a", "c"), read_seen("a", "c"), {"b": Fate.TRUNCATED}),
        GREEN,
        Outcome.COPIED,
    ),
    "deleted at the target": (
        Observed(ALL, read_seen("b", "c"), {"a": Fate.TRIMMED}),
        GREEN,
        Outcome.COPIED,
    ),
    "somebody else's": (
        Observed(ALL, [*ALL, *read_seen("x")], {"x": Fate.FOREIGN}),
        GREEN,
        Outcome.SILENT,
    ),
    "somebody else's, counted": (
        Observed(ALL, [*ALL, *read_seen("x")], {"x": Fate.FOREIGN}),
        Said(lag=0, counts={"displaced": 1}),
        Outcome.ANNOUNCED,
    ),
    "nobody knows whose": (Observed(ALL, [*ALL, *read_seen("y")]), GREEN, Outcome.SILENT),
}


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_the_judge_finds_the_outcome(name: str) -> None:
    observed, said, expected = JUDGEMENTS[name]
    assert judge(observed, said, Delivery.IDEMPOTENT).outcome is expected


def test_at_least_once_may_repeat() -> None:
    observed = Observed(ALL, read_seen("a", "b", "a", "b", "c"))
    assert judge(observed, GREEN, Delivery.AT_LEAST_ONCE).outcome is Outcome.COPIED


def test_judges_that_disagree_are_reported() -> None:
    copied = judge(Observed(ALL, ALL), GREEN, Delivery.IDEMPOTENT)
    assert reconcile(copied, Compared("", 0), has_repeats=False) == copied
    for compared in (Compared("the value differs", 0), Compared("", 3)):
        assert reconcile(copied, compared, has_repeats=False).outcome is Outcome.WRONG
        assert reconcile(copied, compared, has_repeats=True).outcome is Outcome.COPIED
    observed = Observed(read_seen("a", "c"), ALL, {"b": Fate.TRUNCATED})
    phantom = judge(observed, Said(lag=0, counts={"truncated": 1}), Delivery.IDEMPOTENT)
    assert reconcile(phantom, Compared("", 0), has_repeats=False).outcome is Outcome.WRONG
    assert reconcile(phantom, Compared("more", 0), has_repeats=False) == phantom


def test_a_cell_is_named_by_its_parts() -> None:
    cell = Cell("source-grown", When.BETWEEN, Match.NAME, Delivery.IDEMPOTENT)
    assert str(cell) == "source-grown / between refreshes / name / idempotent"
