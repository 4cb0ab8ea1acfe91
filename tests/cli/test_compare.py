"""`shoal compare` and `shoal sweep`, up to where runs would begin."""

import json
import re
import shutil
from pathlib import Path

import pytest

from shoal.cli.main import execute
from shoal.model.exit_codes import ExitCode
from shoal.model.findings import Verdict
from shoal.model.result import GroupResult, Latency, Metrics, Result

FILE = "[producer]\nmessages = 10\nidempotent = false\n"


def make_judged_run(folder: Path, mirror: str, p99_us: int) -> str:
    latency = Latency(10, 0, float(p99_us), p99_us, {"p50": p99_us // 2, "p99": p99_us})
    metrics = Metrics(attempts=10, ok=10, yield_=1.0, latency_us={"e2e_intended": latency})
    group = GroupResult(Verdict.PROVEN, "All is well.", metrics=metrics)
    result = Result(run=folder.name, worst_group="all", groups={"all": group}, promises={})
    folder.mkdir(parents=True)
    manifest = {"format": 1, "run": folder.name, "state": "finished", "started_us": 1}
    manifest["experiment"] = "x"
    manifest["mirror"] = {"kind": mirror}
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "result.json").write_text(json.dumps(result.to_json()))
    return folder.name


def test_runs_are_shown_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        make_judged_run(tmp_path / "one", "mm2", 9000),
        make_judged_run(tmp_path / "two", "shoal", 3000),
    ]
    assert execute(["compare", *names, "--runs-dir", str(tmp_path)]) == ExitCode.PROVEN
    shown = capsys.readouterr().out
    assert "kind mm2" in shown
    assert "noise unknown" in shown
    page = (tmp_path / "comparison.html").read_text()
    assert all(f'"runs":["{name}"]' in page for name in names)
    assert "kind shoal" in page
    arguments = ["compare", *names, "--runs-dir", str(tmp_path), "--output", "json"]
    assert execute(arguments) == ExitCode.PROVEN
    comparison = json.loads(capsys.readouterr().out)
    assert [column["runs"] for column in comparison["columns"]] == [["one"], ["two"]]


def test_a_run_that_was_not_judged_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = make_judged_run(tmp_path / "one", "mm2", 9000)
    (tmp_path / "one" / "result.json").unlink()
    other = make_judged_run(tmp_path / "two", "mm2", 9000)
    assert execute(["compare", name, other, "--runs-dir", str(tmp_path)]) == ExitCode.USAGE
    assert "is not judged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["one"], "cannot compare only one run"),
        (["one", "one"], "the same run"),
        (["one", "two", "./one"], "the same run"),
        (["one", "copy"], "the same run"),
    ],
)
def test_a_run_is_not_compared_with_itself(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    named: list[str],
    message: str,
) -> None:
    for name in ("one", "two"):
        make_judged_run(tmp_path / name, "mm2", 9000)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    assert execute(["compare", *named, "--runs-dir", "."]) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert not (tmp_path / "comparison.html").exists()


def test_two_runs_with_the_same_numbers_are_not_called_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [make_judged_run(tmp_path / name, name, 9000) for name in ("one", "two")]
    assert execute(["compare", *names, "--runs-dir", str(tmp_path), "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["judged"]["judgement"] for row in rows} == {"noise unknown"}


def test_a_sweep_shows_its_order_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "swept.toml"
    file.write_text(FILE)
    arguments = ["sweep", str(file), "--vary", "producer.acks=0,1,all", "--vary", "in_flight=1,5"]
    arguments += ["--repeat", "3", "--dry-run", "--runs-dir", str(tmp_path / "runs")]
    assert execute(arguments) == ExitCode.PROVEN
    lines = capsys.readouterr().out.split()
    assert len(lines) == len(set(lines)) == 18
    assert all(re.match("acks_(0|1|all)-in_flight_(1|5)-", line) for line in lines)
    assert execute([*arguments, "--seed", "1"]) == ExitCode.PROVEN
    other = capsys.readouterr().out.split()
    assert other != lines
    assert sorted(other) == sorted(lines)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("varied", "message"),
    [("acks=0,2", "acks"), ("producer.aks=0,1", "acks"), ("nothing", "is not key=value,value")],
)
def test_a_sweep_that_cannot_be_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], varied: str, message: str
) -> None:
    file = tmp_path / "swept.toml"
    file.write_text(FILE)
    code = execute(["sweep", str(file), "--vary", varied, "--runs-dir", str(tmp_path / "runs")])
    assert code in {ExitCode.USAGE, ExitCode.INVALID_CONFIG}
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
