"""A run folder that lost a part of itself is refused; one that a crash has left is judged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.model.errors import LedgerError
from shoal.model.findings import Verdict
from shoal.workload.record.ledger import CommitLog, close_run, open_run
from support.audit.ledgers import clean_run, receive, remove_chain, write_commits

Lines = list[str]
Change = Callable[[Lines], Lines]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A violated run: the messages of the second half of the ledger are lost."""
    history = clean_run(lanes=1, count=40)
    history.rows["receipts"] = history.rows["receipts"][:20]
    receive(history, "p0", 0, 19, offset=60)
    run = history.write(tmp_path / "run", rows_per_segment=4)
    worker = {"at_us": 0, "worker": "w", "epoch": 1}
    lease, ended = {"kind": "lease", **worker}, {"kind": "ended", **worker, "reason": "finished"}
    write_commits(run, [lease, *(run / "commits.jsonl").read_text().splitlines(), ended])
    assert audit(open_ledger([run])).verdict is Verdict.VIOLATED
    return run


def change_log(run: Path, change: Change) -> None:
    path = run / "commits.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def is_attempts(line: str) -> int:
    """The number of the segment of attempts that this line names; -1 for other lines."""
    row = json.loads(line)
    return int(row["number"]) if row.get("table") == "attempts" else -1


def without_segments(first: int, last: int) -> Change:
    return lambda lines: [line for line in lines if not first <= is_attempts(line) <= last]


def without(text: str) -> Change:
    return lambda lines: [line for line in lines if text not in line]


def with_other_rows(lines: Lines) -> Lines:
    return [line.replace('"reason":"finished"', '"reason":"finishes"') for line in lines]


def swapped(lines: Lines) -> Lines:
    return [lines[1], lines[0], *lines[2:]]


CHANGES: dict[str, tuple[Change, str]] = {
    "lines in the middle": (without_segments(4, 7), "lines are missing or were moved"),
    "the last segments": (without_segments(4, 99), "lines are missing or were moved"),
    "the first line": (lambda lines: lines[1:], "line 1 says that it is line 2: lines are missing"),
    "the end": (lambda lines: lines[:9], "has 9 lines, and the run ended with line .*: its end"),
    "the last line": (lambda lines: lines[:-1], "its end is missing"),
    "all lines": (lambda _: [], "has 0 lines, and the run ended with line"),
    "half of the last line": (lambda ls: [*ls[:-1], ls[-1][:20]], "its end is missing"),
    "the end of a worker": (without('"ended"'), "its end is missing"),
    "a drained lane": (without('"drained"'), "lines are missing"),
    "a repeated line": (lambda lines: [lines[0], *lines], "line 2 says that it is line 1"),
    "the order": (swapped, "line 1 says that it is line 2"),
    "a changed line": (with_other_rows, "line .* does not have its checksum"),
    "a line without checksum": (
        lambda lines: [*lines, '{"kind":"drained"}\n'],
        "has no checksum, and the line before has",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_commit_log_that_was_changed_is_refused(what: str, run: Path) -> None:
    change, message = CHANGES[what]
    change_log(run, change)
    with pytest.raises(LedgerError, match=message) as raised:
        open_ledger([run])
    assert "copy the folder again" in str(raised.value.remedy)


OLDER: dict[str, tuple[Change, str]] = {
    "lines in the middle": (without_segments(4, 7), "up to number 9, and none with number 4"),
    "the last segments": (without_segments(4, 99), r"6 files .*w-1-\*\.parquet are not in"),
    "the end": (lambda lines: lines[:9], "no line for the end of worker w"),
    "the end of a worker": (without('"ended"'), "no line for the end of worker w"),
    "all lines": (lambda _: [], "files .* are not in commits.jsonl"),
}


@pytest.mark.parametrize("what", OLDER)
def test_a_folder_without_a_chain_must_not_contradict_itself(what: str, run: Path) -> None:
    change, message = OLDER[what]
    remove_chain(run, 2)
    set_format_of_segments(run, 2)
    assert audit(open_ledger([run])).verdict is Verdict.VIOLATED
    change_log(run, change)
    with pytest.raises(LedgerError, match=f"contradicts itself: .*{message}"):
        open_ledger([run])


def set_format_of_segments(run: Path, number: int) -> None:
    import pyarrow.parquet as pq

    for path in run.glob("ledger/*/*.parquet"):
        rows = pq.read_table(path)
        pq.write_table(rows.replace_schema_metadata({"shoal.format": str(number)}), path)


def test_manifests_count_no_more_than_there_is(run: Path) -> None:
    """The last segment of a copy without a chain, and its line, are gone."""
    remove_chain(run, 2)
    set_format_of_segments(run, 2)
    change_log(run, without_segments(9, 9))
    (run / "ledger/attempts/w-1-9.parquet").unlink()
    with pytest.raises(LedgerError, match=r"count 40 attempts, and its segments .* have 36 rows"):
        open_ledger([run])


@pytest.mark.parametrize("stated", [1, 2])
def test_the_format_of_a_folder_is_that_of_its_segments(stated: int, run: Path) -> None:
    remove_chain(run, stated)
    with pytest.raises(LedgerError, match=f"has ledger format 3, and run.json .* has {stated}"):
        open_ledger([run])


def test_a_finished_run_names_the_last_line_of_its_commit_log(run: Path) -> None:
    path = run / "run.json"
    plan = json.loads(path.read_text())
    mark = plan.pop("commit_log")
    path.write_text(json.dumps(plan))
    with pytest.raises(LedgerError, match="commit_log is missing"):
        open_ledger([run])
    for wrong in (7, {"lines": -1, "check": mark["check"]}, {"lines": 1, "check": 5}, {}):
        path.write_text(json.dumps({**plan, "commit_log": wrong}))
        with pytest.raises(LedgerError, match="commit_log"):
            open_ledger([run])
    path.write_text(json.dumps({**plan, "commit_log": {**mark, "check": "00000000"}}))
    with pytest.raises(LedgerError, match=r"is not the one that run\.json names"):
        open_ledger([run])


def test_a_killed_run_is_judged_as_far_as_it_went(run: Path) -> None:
    """No line names its last segments, the last line is cut, and nothing ended."""
    path = run / "run.json"
    plan = json.loads(path.read_text())
    del plan["commit_log"]
    path.write_text(json.dumps(plan | {"state": "running"}))
    change_log(run, lambda lines: [*lines[:-3], lines[-3][:30]])
    assert audit(open_ledger([run])).verdict is Verdict.VIOLATED


def test_lines_that_follow_the_end_are_read(run: Path) -> None:
    before = len(open_run(run).commits)
    with CommitLog(run) as log:
        log.append({"kind": "foreign", "worker": "w", "cluster": "source", "count": 3})
    assert len(open_run(run).commits) == before + 1
    assert open_ledger([run]).folders[0].commits[-1]["count"] == 3
    close_run(run, "finished")
    assert open_run(run).plan["commit_log"]["lines"] == before + 1
    change_log(run, lambda lines: lines[:-1])
    with pytest.raises(LedgerError, match="its end is missing"):
        open_run(run)


def segments_of(run: Path, table: str) -> list[Path]:
    return sorted((run / "ledger" / table).iterdir(), key=lambda path: int(path.stem.split("-")[2]))


@pytest.mark.parametrize("table", ["attempts", "receipts", "log"])
@pytest.mark.parametrize("what", ["swapped", "copied", "of another run"])
def test_a_segment_in_the_place_of_another_is_refused(
    what: str, table: str, run: Path, tmp_path: Path
) -> None:
    """All segments but the last have the same number of rows."""
    first, second = segments_of(run, table)[:2]
    content = first.read_bytes(), second.read_bytes()
    if what == "of another run":
        other = clean_run(lanes=1, count=44).write(tmp_path / "other", rows_per_segment=4)
        second.write_bytes(segments_of(other, table)[3].read_bytes())
    else:
        second.write_bytes(content[0])
        first.write_bytes(content[1] if what == "swapped" else content[0])
    with pytest.raises(LedgerError, match="is not the file that was committed under this name"):
        open_ledger([run])


def test_a_changed_footer_is_refused(run: Path) -> None:
    """Row groups are chosen by the statistics of the footer, which has no checksum of its own."""
    segment = segments_of(run, "receipts")[1]
    content = segment.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in range(begin, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 4
        segment.write_bytes(bytes(changed))
        with pytest.raises(LedgerError, match=segment.name):
            open_ledger([run])


def test_a_segment_of_an_earlier_version_names_no_footer(run: Path) -> None:
    log = (run / "commits.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in log]
    write_commits(run, [{n: v for n, v in line.items() if n != "footer"} for line in lines])
    assert audit(open_ledger([run])).verdict is Verdict.VIOLATED
