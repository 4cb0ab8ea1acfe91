"""Compacted ledgers: the same rows and the same result, whenever compaction was interrupted."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from shoal.audit.audit import Sizes, audit, run_here
from shoal.audit.context import AuditContext
from shoal.audit.parts import TaskPart
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.regroup import STREAM_TABLES
from shoal.experiment.ledgers.compaction import compact_run, is_worth_compacting
from shoal.model.commit_chain import START, chain_line
from shoal.model.errors import LedgerError, UsageError
from shoal.model.run_folder import RunFolder
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.follow import follow_run
from shoal.workload.record.ledger import CommitLog, open_run
from support.audit.chaos import chaotic_runs
from support.audit.faults import faulty_runs
from support.audit.ledgers import History, busy_run, clean_run
from support.sizes import size_cases, try_examples

EXAMPLES = size_cases("share", quick=0.3, long=2)
DIVIDED = Sizes(5, 4, 2, shares=4, rows_per_file=7, reads_per_row=0, rows_read_here=0)


def compact(run: Path, **options: Any) -> int:
    return compact_run(run, sizes=DIVIDED, least_rows=2, rows_per_file=9, **options)


def judge(run: Path) -> dict[str, Any]:
    return audit(open_ledger([run])).to_json()


def list_files(run: Path) -> set[Path]:
    return {path for table in STREAM_TABLES for path in (run / "ledger" / table).glob("*")}


def list_kept(run: Path) -> set[Path]:
    """The files of segments that count."""
    folder = RunFolder.open(run)
    return {Path(each.path) for table in STREAM_TABLES for each in folder.segments(table)}


@pytest.mark.slow
@EXAMPLES
def test_a_compacted_run_is_judged_as_before(share: float) -> None:
    def check_run(history: History, rows_per_segment: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = history.write(Path(folder) / "run", rows_per_segment=rows_per_segment)
            before = judge(run)
            compact(run)
            assert judge(run) == before
            (scratch := Path(folder) / "scratch").mkdir()
            by_streams = Sizes(9, 9, 9, shares=4)
            assert audit(open_ledger([run]), sizes=by_streams, scratch=scratch).to_json() == before

    runs, rows = st.one_of(chaotic_runs(), faulty_runs()), st.sampled_from([2, 5, 1000])
    try_examples(share, check_run, history=runs, rows_per_segment=rows)


def test_all_tables_keep_their_rows_in_their_order(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=5)
    before = {table: open_run(run).read(table).to_pylist() for table in STREAM_TABLES}
    files = compact(run)
    after = {table: open_run(run).read(table).to_pylist() for table in STREAM_TABLES}
    for table in ("receipts", "log"):
        assert after[table] == before[table]
    for table in STREAM_TABLES:  # of the others, within each stream
        assert sorted(map(str, after[table])) == sorted(map(str, before[table]))
    assert list_files(run) == list_kept(run)
    commits = RunFolder.open(run).commits
    assert files == sum(line["kind"] == "compacted" for line in commits) > 5
    assert compact(run) == 0  # there is nothing left to do


def test_a_task_reads_the_row_groups_of_its_streams_only(tmp_path: Path) -> None:
    run = clean_run(producers=4, lanes=5, count=60).write(tmp_path / "run", rows_per_segment=200)
    assert is_worth_compacting(run, DIVIDED)
    compact_run(run, sizes=DIVIDED, least_rows=2)
    assert not is_worth_compacting(run, Sizes(1000, shares=4))
    for group in open_ledger([run]).tables["receipts"]:
        low, high = group.buckets
        assert high - low == 1024


class Killed(Exception):
    """Stands for the end of the process."""


class Killer:
    """Ends a compaction at its nth step: a task, a line of the commit log, a deleted file."""

    def __init__(self, step: int) -> None:
        self._left = step

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def run(self, tasks: Sequence[Any], context: AuditContext) -> list[list[TaskPart]]:
        answers = []
        for task in tasks:
            self.count()
            answers += run_here([task], context)
        return answers

    def watch(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        """Count the calls of a method."""
        method = getattr(owner, name)

        def call(*values: Any, **options: Any) -> Any:
            self.count()
            return method(*values, **options)

        patch.setattr(owner, name, call)

    def kill(self, run: Path) -> bool:
        """Compact until the step; whether there was one."""
        with pytest.MonkeyPatch.context() as patch:
            self.watch(patch, CommitLog, "append")
            self.watch(patch, Path, "unlink")
            try:
                compact_run(run, self.run, sizes=DIVIDED, least_rows=2)
            except Killed:
                return True
        return False


def test_a_kill_at_any_step_leaves_the_same_run(tmp_path: Path) -> None:
    origin = busy_run().write(tmp_path / "origin", rows_per_segment=40)
    before, step, was_killed = judge(origin), 0, True
    while was_killed:
        run = tmp_path / str(step)
        shutil.copytree(origin, run)
        was_killed = Killer(step).kill(run)
        assert judge(run) == before, step
        compact_run(run, sizes=DIVIDED, least_rows=2)  # continues where the first one ended
        assert judge(run) == before, step
        assert list_files(run) == list_kept(run), step
        step += 1
    assert step > 20


def test_a_run_that_is_being_written_is_refused(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=5)
    with CommitLog(run), pytest.raises(UsageError, match="another process is writing"):
        compact(run)


def test_a_run_of_few_streams_is_left_alone(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=5)
    log = (run / "commits.jsonl").read_bytes()
    assert compact_run(run) == 0
    assert (run / "commits.jsonl").read_bytes() == log


def test_a_follower_leaves_a_compacted_run_to_the_last_judgement(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=5)
    looks: list[float] = []

    def is_over(_wait_s: float) -> bool:
        looks.append(0)
        if len(looks) == 2:
            compact(run)
        return len(looks) > 5

    follow_run(run, is_over=is_over, report=lambda _event: None, notify=lambda _text: None)
    assert len(looks) == 2


def test_a_compacted_segment_with_other_rows_is_refused(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=5)
    compact(run)
    log = run / "commits.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    next(line for line in lines if line["kind"] == "compacted")["rows"] += 1
    # A log of its own, with its own checksums.
    text, mark = b"", START
    for line in lines:
        bare = {name: value for name, value in line.items() if name not in ("line", "check")}
        one, mark = chain_line(bare, mark)
        text += one
    log.write_bytes(text)
    plan = json.loads((run / "run.json").read_text()) | {"commit_log": mark.to_json()}
    (run / "run.json").write_text(json.dumps(plan))
    with pytest.raises(LedgerError, match="does not have as many rows as the segments"):
        open_ledger([run])


def test_workers_keep_their_clocks(tmp_path: Path) -> None:
    history = busy_run()
    history.one_clock = False
    history.commit("lease", worker="x", epoch=1, host="a")
    history.commit("clock", worker="x", epoch=1, low_us=-70, high_us=90)
    run = history.write(tmp_path / "run", rows_per_segment=5)
    before = judge(run)
    assert compact(run)
    assert judge(run) == before


def test_tables_are_those_of_before(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=5)
    folder = run / "tables" / "streams"
    result = audit_run([run], None).to_json()
    counts = sorted(map(str, pq.read_table(folder).to_pylist()))
    compact(run)
    assert audit_run([run], None, sizes=Sizes(99, 99, 99, shares=4)).to_json() == result
    assert sorted(map(str, pq.read_table(folder).to_pylist())) == counts
