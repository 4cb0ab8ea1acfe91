"""Run folders, results and sweeps that an earlier version left are judged, shown and continued."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.cli.main import execute
from shoal.experiment.compare.sweep import SweepFolder, plan_sweep
from shoal.experiment.manifest import Manifest
from shoal.mirror.offsets.positions import read_positions
from shoal.mirror.offsets.re_encoded import read_re_encoded
from shoal.model.errors import LedgerError
from shoal.model.result import Result
from shoal.model.topics import TopicPartition
from support.formats.stored import STORED, unpack

RUN = "20261118-031847-kept"
SWEEP = "sweep-swept-e588ed65"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return unpack("run", tmp_path / "runs" / RUN)


def read(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text())
    return content


def test_a_stored_run_is_judged_as_it_was(run: Path) -> None:
    stored = Result.from_json(read(run / "result.json"))
    judged = audit(open_ledger([run]))
    assert (judged.run, judged.verdict, judged.findings) == (RUN, "proven", {})
    assert judged.groups.keys() == stored.groups.keys() == {"one", "two"}
    for name, group in judged.groups.items():
        before = stored.groups[name].metrics
        assert (group.metrics.ok, group.metrics.deliveries) == (200, 200)
        assert (before.ok, before.deliveries, before.batches) == (200, 200, 0)
        assert group.metrics.latency_us == before.latency_us
    assert judged.faults == stored.faults
    assert [fault["name"] for fault in judged.faults] == ["pause"]


def test_files_beside_the_ledgers_are_read(run: Path) -> None:
    clusters = Manifest.read(run).clusters
    assert clusters.keys() == {"source", "target"}
    assert list(clusters["source"].topics) == ["kept"]
    positions = read_positions(run / "mirror-positions.json")
    assert positions == {TopicPartition("kept", 0): 102, TopicPartition("kept", 1): 102}
    assert read_re_encoded(run / "mirror-re-encoded.jsonl") == set()


def test_the_command_line_shows_stored_runs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("sweep", tmp_path / "runs" / SWEEP)

    def said(*arguments: str) -> Any:
        assert execute([*arguments, "--runs-dir", str(run.parent), "--output", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert said("runs", "show", RUN)["verdict"] == "proven"
    listed = said("runs", "list")
    assert [each["run"] for each in listed if not each["sweep"]] == [RUN]
    folders = sorted(str(path.parent) for path in run.parent.glob(f"{SWEEP}/*/run.json"))
    assert len(folders) == 2
    compared = said("compare", *folders, "--page", str(tmp_path / "page.html"))
    assert len(compared["columns"]) == 2


def test_the_same_sweep_goes_on_in_its_stored_folder(tmp_path: Path) -> None:
    file = tmp_path / "swept.toml"
    text = (STORED / "README.md").read_text()
    file.write_text(text.partition("`swept.toml`:\n\n```toml\n")[2].partition("```")[0])
    sweep = plan_sweep(file, [], ["producer.acks=1,all"], repeats=1, seed=None)
    assert sweep.name == SWEEP
    with SweepFolder(unpack("sweep", tmp_path / SWEEP), sweep) as folder:
        assert folder.remaining_runs() == []
        assert (folder.result().done, folder.result().planned) == (2, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "has version 2; this version of shoal reads 1"),
        ({"format": None}, "has version None"),
    ],
)
def test_a_result_of_another_format_is_refused(
    run: Path, change: dict[str, object], reason: str
) -> None:
    with pytest.raises(LedgerError, match=reason) as error:
        Result.from_json(read(run / "result.json") | change)
    assert error.value.remedy == "audit the run again with this version: shoal audit RUN"


def test_a_result_with_more_or_less_than_its_format_is_refused(run: Path) -> None:
    content = (run / "result.json").read_text()
    for old, new, reason in (
        ('"lost_ok"', '"lost_anew"', "lacks the field 'lost_ok'"),
        ('"re_reads"', '"re_read"', "unknown field 're_read'"),
        ('"sent_per_s"', '"rate"', "lacks the field 'sent_per_s'"),
    ):
        with pytest.raises(LedgerError, match=reason):
            Result.from_json(json.loads(content.replace(old, new)))
