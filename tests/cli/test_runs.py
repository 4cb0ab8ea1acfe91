"""Runs in a folder: listing, showing, removing, and folders that are not runs."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from shoal.cli.main import execute
from shoal.experiment.runs import driver_identity, find_run, find_run_id
from shoal.model.errors import UsageError
from shoal.model.exit_codes import ExitCode
from support.audit.ledgers import clean_run


def make_run(runs_dir: Path, name: str, *, started_us: int = 1_000_000, **manifest: object) -> Path:
    folder = runs_dir / name
    folder.mkdir(parents=True)
    content = {"format": 1, "run": name, "state": "finished", "started_us": started_us}
    (folder / "run.json").write_text(json.dumps(content | manifest))
    return folder


def list_output(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert execute(["runs", "list", "--runs-dir", str(runs_dir), "--output", "json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_runs_are_listed_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "older", started_us=1_000_000)
    newer = make_run(tmp_path, "newer", started_us=2_000_000)
    (newer / "result.json").write_text(
        json.dumps({"format": 1, "verdict": "proven", "sentence": "All there."})
    )
    (tmp_path / "not-a-run").mkdir()
    found = list_output(tmp_path, capsys)
    assert [run["run"] for run in found] == ["newer", "older"]
    assert [run["verdict"] for run in found] == ["proven", None]


def test_show_takes_the_newest_or_the_beginning_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "2026-a", started_us=1)
    make_run(tmp_path, "2027-b", started_us=2)
    assert execute(["runs", "show", "--runs-dir", str(tmp_path)]) == 0
    assert "2027-b" in capsys.readouterr().out
    assert execute(["runs", "show", "2026", "--runs-dir", str(tmp_path)]) == 0
    assert "2026-a" in capsys.readouterr().out
    assert execute(["runs", "show", "202", "--runs-dir", str(tmp_path)]) == ExitCode.USAGE


def test_a_run_whose_driver_died_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "dead", state="running", driver={"pid": os.getpid(), "start_mark": "other"})
    assert list_output(tmp_path, capsys)[0]["state"] == "interrupted"


def test_a_run_that_goes_on_is_not_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path, "live", state="running", driver=driver_identity())
    assert execute(["runs", "rm", "live", "--runs-dir", str(tmp_path)]) == ExitCode.USAGE
    assert "still running" in capsys.readouterr().err
    assert folder.exists()


def test_removing_one_run_leaves_the_others(tmp_path: Path) -> None:
    gone, kept = make_run(tmp_path, "gone"), make_run(tmp_path, "kept")
    assert execute(["runs", "rm", "gone", "--runs-dir", str(tmp_path)]) == 0
    assert not gone.exists()
    assert kept.exists()


def test_missed_thresholds_are_listed_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path, "slow")
    threshold = {
        "threshold": "latency_ms_p99<1",
        "metric": "latency_ms_p99",
        "met": False,
        "values": {"a": 14.0, "b": 0.5},
        "missed_by": ["a"],
    }
    result = {"format": 1, "verdict": "proven", "sentence": "All there.", "thresholds": [threshold]}
    (folder / "result.json").write_text(json.dumps(result))
    sentence = "latency_ms_p99<1: latency_ms_p99 is 14 in group a"
    assert list_output(tmp_path, capsys)[0]["thresholds_missed"] == [sentence]
    assert execute(["runs", "list", "--runs-dir", str(tmp_path)]) == 0
    assert "thresholds missed (1)" in capsys.readouterr().out
    assert execute(["runs", "show", "slow", "--runs-dir", str(tmp_path)]) == 0
    assert sentence in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nope", "folder ./nope does not exist"),
        ("{}/nope", "nope does not exist"),
        ("./empty", "folder ./empty has no run.json"),
        ("empty", "folder empty has no run.json"),
        ("file", "file is a file, not the folder of a run"),
        ("nope", "no run 'nope' in runs, and no folder"),
        ("broken", "cannot read runs/broken/run.json"),
        ("runs/broken", "cannot read runs/broken/run.json"),
        ("runs/listed", "runs/listed/run.json does not contain a JSON object"),
        ("runs/nameless", "runs/nameless/run.json is not a run's description"),
    ],
)
@pytest.mark.parametrize("command", [["audit"], ["runs", "show"], ["runs", "rm"]], ids=str)
def test_a_name_that_is_not_a_run_is_explained(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    command: list[str],
    name: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs"), "empty-2")  # begins like a folder that is not a run
    for folder, text in (("broken", "{"), ("listed", "[]"), ("nameless", "{}")):
        (make_run(Path("runs"), folder) / "run.json").write_text(text)
    Path("empty").mkdir()
    Path("file").write_text("")
    assert execute([*command, name.format(tmp_path)]) == ExitCode.USAGE
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_malformed_run_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (make_run(tmp_path, "broken") / "run.json").write_text("{")
    make_run(tmp_path, "whole")
    assert execute(["runs", "show", "who", "--runs-dir", str(tmp_path)]) == 0
    assert "whole" in capsys.readouterr().out


def test_folders_of_one_run_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("pa", "pb", "ca"):
        make_run(tmp_path, folder, run="R1")
    assert execute(["runs", "list", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    assert sorted(line.split()[:2] for line in shown) == [["R1", f] for f in ("ca", "pa", "pb")]
    assert execute(["runs", "rm", "R1", "--runs-dir", str(tmp_path)]) == ExitCode.USAGE
    assert "3 folders belong to run R1: ca, pa, pb" in capsys.readouterr().err
    assert execute(["runs", "rm", "pb", "--runs-dir", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca", "pa"]


UNREADABLE = {
    "empty": "",
    "cut": '{"format": 1, "verd',
    "a list": "[1]",
    "of another version": '{"format": 9, "verdict": "proven", "sentence": "All."}',
    "without verdict": '{"format": 1}',
    "with other thresholds": '{"format": 1, "verdict": "proven", "thresholds": [1]}',
    "with other workers": '{"format": 1, "verdict": "proven", "lost_workers": [1]}',
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_result_that_cannot_be_read_hides_nothing(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (make_run(tmp_path, "spoilt") / "result.json").write_text(UNREADABLE[what])
    judged = {"format": 1, "verdict": "proven", "sentence": "All there."}
    (make_run(tmp_path, "whole") / "result.json").write_text(json.dumps(judged))
    assert execute(["runs", "list", "--runs-dir", str(tmp_path)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows["spoilt"].rstrip().endswith("result unreadable")
    assert rows["whole"].rstrip().endswith("proven")
    found = {run["run"]: run for run in list_output(tmp_path, capsys)}
    assert found["spoilt"]["verdict"] is None
    assert "judge the run again: shoal audit" in str(found["spoilt"]["problem"])
    assert found["whole"]["problem"] is None
    assert execute(["runs", "show", "spoilt", "--runs-dir", str(tmp_path)]) == 0
    assert "judge the run again: shoal audit" in capsys.readouterr().out.replace("\n", " ")


def test_a_run_that_cannot_be_read_hides_no_other_in_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (make_run(tmp_path, "spoilt") / "run.json").write_text("")
    make_run(tmp_path, "whole")
    assert execute(["runs", "list", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["whole"]
    assert "not listed: cannot read" in shown.err


def test_lost_workers_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = {"format": 1, "verdict": "inconclusive", "sentence": "Producer-1 was lost."}
    lost = {"lost_workers": [{"worker": "producer-1"}]}
    (make_run(tmp_path, "cut") / "result.json").write_text(json.dumps(result | lost))
    assert execute(["runs", "list", "--runs-dir", str(tmp_path)]) == 0
    assert "inconclusive, lost producer-1" in capsys.readouterr().out


def test_a_description_may_have_nothing_but_its_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (make_run(tmp_path, "bare") / "run.json").write_text('{"format": 3}')
    assert [(run["run"], run["state"]) for run in list_output(tmp_path, capsys)] == [
        ("bare", "unknown")
    ]
    for text, why in (("{}", "it has no `format`"), ('{"started_us": "x"}', "`started_us` is 'x'")):
        (tmp_path / "bare" / "run.json").write_text(text)
        assert execute(["runs", "show", str(tmp_path / "bare")]) == ExitCode.USAGE
        shown = " ".join(capsys.readouterr().err.split())
        assert why in shown
        assert "what to do: give the folder of a run" in shown


def make_sweep(runs_dir: Path, name: str, runs: int = 2, **manifest: object) -> Path:
    """A sweep over acks that has so many of its four runs."""
    folder = runs_dir / name
    for number in range(runs):
        run = make_run(folder, f"acks_{number}-abc-1", started_us=5_000_000 + number, **manifest)
        (run / "result.json").write_text(
            json.dumps({"format": 1, "verdict": "proven", "sentence": "All."})
        )
    plan = {"format": 1, "file": "x.toml", "parameters": {"producer.acks": ["0", "1"]}}
    (folder / "sweep.json").write_text(json.dumps(plan | {"repeats": 2}))
    return folder


def print_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(["runs", *arguments]) == 0
    return capsys.readouterr().out


def test_a_sweep_is_listed_with_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, "alone", started_us=9_000_000)
    make_sweep(tmp_path, "sweep-x")
    where = ("--runs-dir", str(tmp_path))
    lines = print_of(capsys, "list", *where).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        *("alone", "sweep-x", "acks_1-abc-1", "acks_0-abc-1")
    ]
    assert "interrupted, 2 of 4" in lines[2]
    assert "2 proven" in lines[2]
    assert "sweep-x/acks_1-abc-1" in lines[3]
    monkeypatch.setattr("shoal.cli.runs.SHOWN_OF_SWEEP", 1)
    assert "1 more: shoal runs list sweep-x" in print_of(capsys, "list", *where)
    only = print_of(capsys, "list", "sweep-x", *where)
    assert "acks_0-abc-1" in only
    assert "alone" not in only
    listed = list_output(tmp_path, capsys)
    assert [(run["name"], run["sweep"]) for run in listed] == [
        ("alone", None),
        ("sweep-x/acks_1-abc-1", "sweep-x"),
        ("sweep-x/acks_0-abc-1", "sweep-x"),
    ]
    shown = print_of(capsys, "show", "sweep-x", *where)
    assert "producer.acks: 0, 1" in shown
    assert "2 of 4" in shown


@pytest.mark.parametrize("name", ["sweep-x/acks_0-abc-1", "sweep-x/acks_0", "sw/acks_0", "acks_0"])
def test_a_run_of_a_sweep_has_a_name_everywhere(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep(tmp_path, "sweep-x")
    assert find_run(tmp_path, name).name == "sweep-x/acks_0-abc-1"
    assert "sweep-x/acks_0-abc-1" in print_of(capsys, "show", name, "--runs-dir", str(tmp_path))


def test_the_same_run_of_two_sweeps_is_told_apart(tmp_path: Path) -> None:
    for name in ("sweep-x", "sweep-y"):
        make_sweep(tmp_path, name)
    with pytest.raises(UsageError, match="sweep-x/acks_0-abc-1, sweep-y/acks_0-abc-1"):
        find_run(tmp_path, "acks_0-abc-1")
    assert find_run_id(tmp_path, "sweep-y/acks_0-abc-1") == "acks_0-abc-1"
    assert find_run_id(tmp_path, "orders") == "orders"


@pytest.mark.parametrize("command", ["audit", "compare", "clean"])
def test_a_sweep_is_not_a_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep(tmp_path, "sweep-x")
    assert execute([command, "sweep-x", "--runs-dir", str(tmp_path)]) == ExitCode.USAGE
    assert "shoal runs list sweep-x" in capsys.readouterr().err


def test_a_sweep_between_two_runs_is_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_sweep(tmp_path, "sweep-x")
    where = ("--runs-dir", str(tmp_path))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "running, 2 of 4" in print_of(capsys, "show", "sweep-x", *where)
        assert execute(["runs", "rm", "sweep-x", *where]) == ExitCode.USAGE
    capsys.readouterr()
    assert "interrupted, 2 of 4" in print_of(capsys, "show", "sweep-x", *where)


def test_a_sweep_is_removed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = make_sweep(tmp_path, "sweep-x")
    live = make_sweep(tmp_path, "live", state="running", driver=driver_identity())
    where = ("--runs-dir", str(tmp_path))
    assert execute(["runs", "rm", "sweep-x", *where]) == 0
    assert not gone.exists()
    assert execute(["runs", "rm", "live", *where]) == ExitCode.USAGE
    assert "still running" in capsys.readouterr().err
    assert live.exists()


def test_a_message_that_no_ledger_has_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean_run(lanes=1, count=3).write(tmp_path / "runs" / "r1")
    words = ["runs", "message", "r1", "t", "p0", "0", "{}", "--runs-dir", str(tmp_path / "runs")]
    assert execute([word.format(1) for word in words]) == ExitCode.PROVEN
    assert execute([word.format(99) for word in words]) == ExitCode.USAGE
    shown = capsys.readouterr().err.replace("\n", " ")
    assert "No ledger of this run has message 99 of lane 0" in shown
    assert "shoal runs show r1" in shown
