"""Exact percentiles from runs that stay beside the tasks: few rounds, small questions."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.arrays import Ints
from shoal.audit.audit import Sizes, audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.times.latency import histogram
from shoal.audit.times.ranks import (
    PARTS,
    RESULT_SHARES,
    Rank,
    SampleSet,
    find_samples,
    list_ranks,
    statistics,
)
from shoal.audit.times.runs import (
    FileRun,
    KnownLatencies,
    Question,
    RankCount,
    count_ranks,
    find_places,
    join_runs,
    record_latencies,
)
from shoal.model.errors import LedgerError
from shoal.model.result import PERCENTILES, Latency
from support.audit.chaos import chaotic_runs
from support.audit.faults import faulty_runs
from support.audit.ledgers import History

SAMPLES = SampleSet("g", "e2e_actual")
ANY_US = st.one_of(st.integers(-1000, 10**8), st.sampled_from([-(2**63), 2**63 - 1, 0]))


def make_runs(parts: Sequence[Sequence[int]], scratch: str | None) -> KnownLatencies:
    known = KnownLatencies()
    for values in parts:
        rows = np.insert(histogram(np.array(values, dtype=np.int64)), 0, 0, axis=1)
        for part in record_latencies([(SAMPLES.group, SAMPLES.name, rows)], scratch):
            known.add(part)
    return known


def measure(known: KnownLatencies, undelivered: int) -> tuple[Latency, list[int]]:
    """The statistics, and how many edges each round sent for the rank with most."""
    summary = known.summary(*SAMPLES)
    sent: list[int] = []

    def count(questions: Sequence[Question]) -> list[Ints]:
        sent.append(max(len(question.edges) for question in questions))
        [part] = count_ranks(RankCount(tuple(known.runs), tuple(questions)))
        return find_places(questions, part.values)

    ranks = list_ranks(summary.size if summary else 0, undelivered, RESULT_SHARES)
    wanted = {Rank(SAMPLES, rank): summary for rank in ranks if summary}
    found = find_samples(wanted, count)
    result = statistics(summary, lambda rank: found[Rank(SAMPLES, rank)], undelivered=undelivered)
    return result, sent


@given(parts=st.lists(st.lists(ANY_US, min_size=1, max_size=60), min_size=1, max_size=5))
def test_joined_runs_are_their_sum(parts: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        apart = make_runs(parts, folder)
        whole = measure(apart, 0)
        path, rows = join_runs(apart.files(), folder)
        assert [*Path(folder).iterdir()] == [Path(path)]
        joined = KnownLatencies(apart.sections, [FileRun(path)], rows)
        assert measure(joined, 0) == whole
        assert rows == len({value for values in parts for value in values})


@given(
    parts=st.lists(st.lists(ANY_US, max_size=60), max_size=5),
    undelivered=st.integers(0, 50),
    on_disk=st.booleans(),
)
def test_percentiles_are_exact_by_nearest_rank(
    parts: list[list[int]], undelivered: int, on_disk: bool
) -> None:
    ordered = sorted(value for values in parts for value in values)
    with tempfile.TemporaryDirectory() as folder:
        known = make_runs(parts, folder if on_disk else None)
        found, sent = measure(known, undelivered)
    assert found.count == len(ordered)
    assert found.undelivered == undelivered
    # 64 bits take 8 rounds, of at most 257 edges with both bounds.
    assert len(sent) <= 8
    assert max(sent, default=0) <= PARTS - 1
    if not ordered:
        return
    for name, numerator, denominator in PERCENTILES:
        assert found.percentiles[name] == nearest(ordered, len(ordered), numerator, denominator)
        if undelivered:
            count = len(ordered) + undelivered
            expected = nearest(ordered, count, numerator, denominator)
            assert found.percentiles_owed[name] == expected
    assert found.max == ordered[-1]
    assert found.mean == sum(ordered) / len(ordered)
    assert found.negative == sum(v < 0 for v in ordered)


def nearest(ordered: list[int], count: int, numerator: int, denominator: int) -> int | None:
    """The smallest sample that enough of `count` do not exceed; the rest are infinite."""
    ranks = (n for n in range(1, len(ordered) + 1) if n * denominator >= numerator * count)
    first = next(ranks, None)
    return None if first is None else ordered[first - 1]


@given(history=st.one_of(chaotic_runs(), faulty_runs()))
@pytest.mark.slow
def test_a_scratch_folder_changes_no_result(history: History) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = open_ledger([history.write(Path(folder) / "run")])
        whole = json.dumps(audit(ledger).to_json())
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        sizes = Sizes(5, 4, 2, rows_read_here=0)
        assert json.dumps(audit(ledger, sizes=sizes, scratch=scratch).to_json()) == whole


def test_what_a_task_returns_does_not_grow_with_its_samples(tmp_path: Path) -> None:
    few, many = (
        record_latencies(
            [("g", "e2e_actual", np.insert(histogram(np.arange(count)), 0, 0, axis=1))],
            str(tmp_path),
        )
        for count in (10, 100_000)
    )
    assert [len(part.values) for part in few] == [len(part.values) for part in many]


def test_a_run_that_cannot_be_read_fails_the_audit(tmp_path: Path) -> None:
    known = make_runs([[1, 2, 3]], str(tmp_path))
    Path(known.files()[0]).write_bytes(b"PAR1")
    with pytest.raises(LedgerError, match="cannot be read"):
        measure(known, 0)
