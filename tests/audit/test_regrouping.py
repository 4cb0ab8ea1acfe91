"""Runs with many streams: rows are regrouped, and answers are added up by tasks."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import strategies as st

from shoal.audit.audit import Sizes, audit, run_here
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.read.folder import open_ledger
from shoal.audit.tasks import Task
from shoal.audit.usage import DriverUsage
from shoal.model.errors import LedgerError
from support.audit.chaos import chaotic_runs
from support.audit.faults import faulty_runs
from support.audit.ledgers import History, clean_run
from support.sizes import size_cases, try_examples

EXAMPLES = size_cases("share", quick=0.3, long=2)
SIZES = st.sampled_from(
    [
        Sizes(shares=2),
        Sizes(5, 4, 2, shares=3, rows_per_file=7, reads_per_row=0, rows_read_here=0),
        Sizes(3, 3, 3, shares=4, rows_per_file=3, reads_per_row=1),
    ]
)
DIVIDED = Sizes(50, 40, 50, shares=4, rows_per_file=90, reads_per_row=0, rows_read_here=0)


def check_run(history: History, sizes: Sizes, rows_per_segment: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = history.write(Path(folder) / "run", rows_per_segment=rows_per_segment)
        whole = audit(open_ledger([run])).to_json()
        (scratch := Path(folder) / "scratch").mkdir()
        assert audit(open_ledger([run]), sizes=sizes, scratch=scratch).to_json() == whole


@pytest.mark.slow
@EXAMPLES
def test_the_result_is_that_of_the_whole(share: float) -> None:
    runs, rows = st.one_of(chaotic_runs(), faulty_runs()), st.sampled_from([2, 1000])
    try_examples(share, check_run, history=runs, sizes=SIZES, rows_per_segment=rows)


def test_the_driver_receives_no_more_from_more_tasks(tmp_path: Path) -> None:
    ledger = open_ledger([clean_run(producers=4, lanes=5, count=60).write(tmp_path / "run")])
    whole = audit(ledger).to_json()
    sums = []
    for number, shares in enumerate((1, 2, 16)):
        (scratch := tmp_path / str(number)).mkdir()
        usage = DriverUsage()
        sizes = Sizes(200, 90, 50, shares=shares, reads_per_row=0, rows_read_here=0)
        found = audit(ledger, usage.watch(run_here), sizes=sizes, scratch=scratch)
        assert found.to_json() == whole
        names = {k: n for k, n in usage.received.items() if k.name.endswith(("_FILE", "ROUPED"))}
        sums.append(usage.received.total() - sum(names.values()))
        assert PartKind.TALLY not in usage.received
    assert max(sums) < 1.2 * min(sums)


def test_answers_that_were_changed_are_refused(tmp_path: Path) -> None:
    ledger = open_ledger([clean_run(producers=4, lanes=5, count=60).write(tmp_path / "run")])

    def spoil(tasks: Sequence[Task], context: AuditContext) -> list[list[TaskPart]]:
        answers = run_here(tasks, context)
        for file in tmp_path.glob("answer-*"):
            file.write_bytes(file.read_bytes()[:-1])
        return answers

    with pytest.raises(LedgerError, match="is not what a task of this audit wrote; audit again"):
        audit(ledger, spoil, sizes=DIVIDED, scratch=tmp_path)


def test_copies_are_compared_within_the_streams_of_a_task(tmp_path: Path) -> None:
    """A changed key is found by its row in the log, also where a task has some of the streams."""
    history = clean_run(producers=3, lanes=3, count=20)
    changed = [row for _, row in history.rows["log"] if row["cluster"] == "target"][17]
    changed |= {"key_check": 99, "intact": False}  # a copy is compared if its checksum is wrong
    ledger = open_ledger([history.write(tmp_path / "run")])
    whole = audit(ledger).to_json()
    assert audit(ledger, sizes=Sizes(shares=4)).to_json() == whole
    assert audit(ledger, sizes=DIVIDED, scratch=tmp_path).to_json() == whole
    assert "altered: key" in audit(ledger).findings
