"""`shoal audit` on ledgers that are cut, empty, of another run or of another format."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.cli.main import execute
from shoal.model.exit_codes import ExitCode
from support.audit.history_files import DRAINED, receive, run, send
from support.audit.ledgers import clean_run, write_commits


def segment(folder: Path) -> Path:
    return next((folder / "ledger" / "receipts").iterdir())


def truncate_segment(folder: Path) -> str:
    path = segment(folder)
    path.write_bytes(path.read_bytes()[:100])
    return f"{path.name} cannot be read as a segment"


def empty_segment(folder: Path) -> str:
    segment(folder).write_bytes(b"")
    return "cannot be read as a segment"


def missing(folder: Path) -> str:
    segment(folder).unlink()
    return "cannot be read as a segment"


def shorten_segment(folder: Path) -> str:
    path = segment(folder)
    rows = pq.read_table(path)
    pq.write_table(rows.slice(1), path)
    return "39 rows; 40 were committed"


def of_other_columns(folder: Path) -> str:
    path = segment(folder)
    rows = pq.read_table(path)
    pq.write_table(rows.drop_columns("intact"), path)
    return "does not have the columns of table receipts"


def of_another_format(folder: Path) -> str:
    plan = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(plan | {"format": 99}))
    return "has ledger format 99; this version reads the formats 1 to 3"


def without_plan(folder: Path) -> str:
    (folder / "run.json").unlink()
    return "no run"


def tear_log(folder: Path) -> str:
    path = folder / "commits.jsonl"
    path.write_text("{not json}\n" + path.read_text())
    return "commits.jsonl: line 1 is not JSON"


def of_other_topics(folder: Path) -> str:
    plan = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(plan | {"topics": ["t"]}))
    return "run.json is malformed: topics"


def of_no_promise(folder: Path) -> str:
    plan = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(plan | {"promises": {"fidelity": 3}}))
    return "run.json is malformed: promises.fidelity"


def of_a_misspelt_promise(folder: Path) -> str:
    plan = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(plan | {"promises": {"delivery": "exactly-once"}}))
    return 'promises.delivery is "exactly-once"; it must be one of at_least_once, exactly_once'


def without_producer(folder: Path) -> str:
    path = folder / "commits.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line for line in lines if line["kind"] != "reserve" and line.get("table") != "attempts"]
    write_commits(folder, kept)
    return "none of these folders is of a producer"


BAD = [
    *(
        truncate_segment,
        empty_segment,
        missing,
        shorten_segment,
        of_other_columns,
        of_another_format,
    ),
    *(without_plan, tear_log, of_other_topics, of_no_promise, without_producer),
    of_a_misspelt_promise,
]


@pytest.mark.parametrize("spoil", BAD)
def test_a_bad_ledger_is_named_and_nothing_is_judged(
    spoil: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = clean_run().write(tmp_path / "run")
    reason = spoil(folder)
    code = execute(["audit", str(folder), "-o", "json"])
    printed = capsys.readouterr()
    assert code == ExitCode.USAGE
    assert printed.out == ""
    assert reason in printed.err.replace("\n", "")
    assert "Traceback" not in printed.err
    assert not (folder / "result.json").exists()


def test_folders_of_two_runs_are_not_judged_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [clean_run().write(tmp_path / name, run=name) for name in ("one", "two")]
    assert execute(["audit", *map(str, folders)]) == ExitCode.USAGE
    assert "different runs: one, two" in capsys.readouterr().err


def test_two_acknowledgements_of_one_attempt_are_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "twice.jsonl"
    twice = [send(0), {**send(0), "offset": 7}, {**send(0), "outcome": "unknown", "offset": None}]
    lines = [run(delivery="exactly_once"), *twice, *receive(0), DRAINED]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert execute(["audit", "--history", str(path), "-o", "json"]) == ExitCode.VIOLATED
    [result] = json.loads(capsys.readouterr().out)
    assert result["findings"] == {
        "duplicate: source": {"count": 1},
        "reused sequence": {"count": 1},
    }
    assert result["metrics"]["attempts"] == result["metrics"]["ok"] == 1
