"""Values of `run.json` that an audit reads: each must be one that it knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.experiment.judge import read_planned_thresholds
from shoal.model.errors import LedgerError
from shoal.model.findings import Verdict
from shoal.model.run_folder import read_plan
from shoal.workload.record.ledger import open_run
from support.audit.ledgers import clean_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return clean_run(lanes=1, count=5).write(tmp_path / "run")


def change(folder: Path, /, **entries: Any) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


MALFORMED = [
    (
        {"promises": {"delivery": "exactly-once"}},
        "promises.delivery",
        "at_least_once, exactly_once",
    ),
    ({"promises": {"delivery": "EXACTLY_ONCE"}}, "promises.delivery", "exactly_once"),
    ({"promises": {"delivery": None}}, "promises.delivery", "exactly_once"),
    ({"promises": {"delivery": ["exactly_once"]}}, "promises.delivery", "exactly_once"),
    ({"promises": {"order": "maybe"}}, "promises.order", "true, false"),
    ({"promises": {"order": 0}}, "promises.order", "true, false"),
    ({"promises": {"order": None}}, "promises.order", "true, false"),
    ({"promises": {"fidelity": ["keys"]}}, "promises.fidelity", "key, headers, payload"),
    ({"promises": {"fidelity": "bytes"}}, "promises.fidelity", "a list of key"),
    ({"promises": {"fidelity": None}}, "promises.fidelity", "a list of key"),
    ({"promises": {"fidelity": [["key"]]}}, "promises.fidelity", "key, headers, payload"),
    ({"promises": {"deliver": "exactly_once"}}, "promises.deliver", "delivery, order, fidelity"),
    ({"promises": "exactly_once"}, "promises", "an object"),
    ({"promises": []}, "promises", "an object"),
    ({"acks": 2}, "acks", "all, -1, 0, 1"),
    ({"acks": "none"}, "acks", "all, -1, 0, 1"),
    ({"acks": False}, "acks", "all, -1, 0, 1"),
    ({"isolation": "read-uncommitted"}, "isolation", "read_committed, read_uncommitted"),
    ({"all_drained": "false"}, "all_drained", "true, false"),
    ({"one_clock": "no"}, "one_clock", "true, false"),
    ({"history": 1}, "history", "true, false"),
    ({"mirror": "none"}, "mirror", "an object"),
    ({"machine": "host-1"}, "machine", "an object"),
    ({"clusters": {"Target": {}}}, "clusters.Target", "source, target"),
    ({"clusters": {"target": "b"}}, "clusters.target", "an object"),
    ({"compacted": {"source": "orders"}}, "compacted.source", "a list of names"),
    ({"compacted": {"sink": ["orders"]}}, "compacted.sink", "source, target"),
    ({"topics": {"t": {"partitions": True}}}, "topics.t.partitions", "a whole number"),
    ({"topics": {"t": {"lanes": -1}}}, "topics.t.lanes", "a whole number"),
    ({"topics": {"t": {"lanes": 2.0}}}, "topics.t.lanes", "a whole number"),
    ({"topics": {"t": 4}}, "topics.t", "an object"),
    ({"topic_codes": {"#1": 7}}, "topic_codes.#1", "a name"),
    ({"groups": "g"}, "groups", "a list of names"),
    ({"groups": [{"name": 1}]}, "groups", "a list of names"),
    ({"started_us": "1"}, "started_us", "a whole number"),
    ({"started_us": True}, "started_us", "a whole number"),
    ({"warm_up_us": 1.5}, "warm_up_us", "a whole number"),
    ({"warm_up_us": -5}, "warm_up_us", "a whole number"),
    ({"measure_from_us": "0"}, "measure_from_us", "a whole number"),
    ({"thresholds": "lost<1"}, "thresholds", "a list of thresholds"),
    ({"thresholds": ["lots<1"]}, "thresholds", "is not the name of a metric"),
    ({"thresholds": [1]}, "thresholds", "a list of thresholds"),
    ({"run": 7}, "run", "a name"),
]


@pytest.mark.parametrize(("entries", "name", "allowed"), MALFORMED, ids=str)
def test_a_value_that_is_not_known_is_refused_with_the_allowed_ones(
    run: Path, entries: dict[str, Any], name: str, allowed: str
) -> None:
    change(run, **entries)
    with pytest.raises(LedgerError) as raised:
        open_ledger([run])
    message = str(raised.value)
    assert message.startswith(f"{run / 'run.json'} is malformed: {name} ")
    assert allowed in message


@pytest.mark.parametrize(
    "entries",
    [
        {"promises": {}},
        {"promises": None},
        {"promises": {"delivery": "exactly_once", "order": False, "fidelity": []}},
        {"promises": {"fidelity": ["key", "partition", "timestamps", "bytes"]}},
        {"acks": "all", "isolation": "read_uncommitted", "mirror": None, "machine": None},
        {"acks": "1", "groups": [{"name": "g"}], "thresholds": ["lost<1"]},
        {"acks": None, "isolation": None, "thresholds": None, "compacted": {"target": ["t"]}},
        {"measure_from_us": 0, "clusters": {"source": {"cluster_id": "c"}}},
        {"state": "finished", "role": "producer p", "experiment": "e", "variant": None},
    ],
    ids=str,
)
def test_a_value_that_is_known_or_missing_is_read(run: Path, entries: dict[str, Any]) -> None:
    change(run, **entries)
    assert open_ledger([run]).run == "r"


@pytest.mark.parametrize("name", ["promise", "Promises", "isolaton", "warm_up", "anything", ""])
def test_a_misspelt_name_is_refused_with_the_known_ones(run: Path, name: str) -> None:
    """An entry that nobody reads would leave the default in force without a word."""
    change(run, **{name: {"delivery": "exactly_once"}})
    with pytest.raises(LedgerError) as raised:
        open_ledger([run])
    message = str(raised.value)
    assert message.startswith(f"{run / 'run.json'} is malformed: {name} is unknown; ")
    assert "the known names are " in message
    for known in ("promises", "isolation", "warm_up_us", "measure_from_us", "state", "workload"):
        assert known in message
    assert raised.value.remedy


@pytest.mark.parametrize("entries", [{"promise": {}}, {"acks": 2}, {"promises": {"order": 0}}])
def test_every_reader_refuses_alike(run: Path, entries: dict[str, Any]) -> None:
    change(run, **entries)
    messages = []
    for read in (lambda: open_ledger([run]), lambda: open_run(run), lambda: read_plan(run)):
        with pytest.raises(LedgerError) as raised:
            read()
        messages.append((str(raised.value), raised.value.remedy))
    assert len(set(messages)) == 1


def test_the_same_entry_twice_is_refused(run: Path) -> None:
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text[:-1] + ', "promises": {}}')
    with pytest.raises(LedgerError, match=r"run.json is malformed: promises is present twice"):
        open_ledger([run])


def test_folders_with_different_promises_are_refused_in_either_order(
    run: Path, tmp_path: Path
) -> None:
    other = clean_run(lanes=1, count=5).write(tmp_path / "other")
    change(run, promises={"delivery": "at_least_once", "order": True})
    change(other, promises={"delivery": "exactly_once", "order": True})
    for folders in ([run, other], [other, run]):
        with pytest.raises(LedgerError, match="promise different things") as raised:
            open_ledger(folders)
        assert str(other / "run.json") in str(raised.value)
    change(other, promises={"order": True})  # the same promises: the rest are the defaults
    open_ledger([run, other])
    change(other, promises=None)  # a consumer's folder promises nothing
    assert audit(open_ledger([other, run])).verdict is not Verdict.INCONCLUSIVE


def test_the_thresholds_of_every_folder_are_held(run: Path, tmp_path: Path) -> None:
    other = clean_run(lanes=1, count=5).write(tmp_path / "other")
    change(other, thresholds=["lost<1", "yield>=1"])
    assert read_planned_thresholds([run, other]) == ["lost<1", "yield>=1"]
