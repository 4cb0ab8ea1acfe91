"""The judge against an independent one, on runs in which anything may have happened."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from shoal.audit.audit import Sizes, audit, run_here
from shoal.audit.context import AuditContext
from shoal.audit.parts import TaskPart
from shoal.audit.read.folder import open_ledger
from shoal.audit.tasks import Task
from shoal.model.findings import Verdict
from shoal.model.result import Result
from support.audit.bruteforce import Judge
from support.audit.chaos import chaotic_runs
from support.audit.faults import faulty_runs
from support.audit.ledgers import History
from support.sizes import size_cases, try_examples

pytestmark = pytest.mark.slow
# Of the examples of the profile.
EXAMPLES = size_cases("share", quick=0.5, long=2)

SIZES = st.sampled_from(
    [
        Sizes(),
        Sizes(rows_per_cell=1, rows_per_walk=1, offsets_per_cell=1),
        Sizes(5, 4, 3),
        Sizes(shares=2),
        Sizes(3, 4, 3, shares=3),
    ]
)


def judge_history(history: History, sizes: Sizes, **options: Any) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        run = history.write(Path(folder) / "run", **options)
        return audit(open_ledger([run]), sizes=sizes)


@EXAMPLES
def test_findings_and_metrics_are_those_of_the_brute_force_judge(share: float) -> None:
    def check_run(history: History, sizes: Sizes, rows_per_segment: int) -> None:
        check(history, judge_history(history, sizes, rows_per_segment=rows_per_segment))

    rows = st.sampled_from([2, 1000])
    try_examples(share, check_run, history=chaotic_runs(), sizes=SIZES, rows_per_segment=rows)


@EXAMPLES
def test_faulty_runs_are_judged_as_by_the_brute_force_judge(share: float) -> None:
    def check_run(history: History, sizes: Sizes) -> None:
        check(history, judge_history(history, sizes))

    try_examples(share, check_run, history=faulty_runs(), sizes=SIZES)


@EXAMPLES
def test_the_result_depends_neither_on_sizes_nor_on_order(share: float) -> None:
    runs, numbers = st.one_of(chaotic_runs(), faulty_runs()), st.integers(0, 1000)
    try_examples(share, check_order, history=runs, number=numbers)


def check_order(history: History, number: int) -> None:
    seed = Random(number)  # drawing each order would take most of the time

    def run_shuffled(tasks: Sequence[Task], context: AuditContext) -> list[list[TaskPart]]:
        places = list(range(len(tasks)))
        seed.shuffle(places)
        answers = {place: run_here([tasks[place]], context)[0] for place in places}
        for parts in answers.values():
            seed.shuffle(parts)
        return [answers[place] for place in range(len(tasks))]

    with tempfile.TemporaryDirectory() as folder:
        ledger = open_ledger([history.write(Path(folder) / "run")])
        whole = audit(ledger).to_json()
        sizes = Sizes(5, 4, 2, shares=seed.choice((0, 3)))
        assert audit(ledger, run_shuffled, sizes=sizes).to_json() == whole


def check(history: History, result: Result) -> None:
    for group, found in result.groups.items():
        expected = Judge(history, group)
        counts = {name: finding.count for name, finding in found.findings.items()}
        assert counts == expected.findings()
        metrics = found.metrics.to_json()
        wanted = expected.metrics()
        assert {name: metrics[name] for name in wanted} == wanted
        assert metrics["K"] <= metrics["F"] <= 2 * metrics["K"]
        stages = {stage.verdict for stage in found.stages.values()}
        assert (found.verdict is Verdict.PROVEN) == (stages == {Verdict.PROVEN})
        assert found.verdict is Verdict.VIOLATED or Verdict.VIOLATED not in stages
        assert metrics["ok"] == sum(metrics[n] for n in ("delivered_ok", "lost_ok", "pending_ok"))
