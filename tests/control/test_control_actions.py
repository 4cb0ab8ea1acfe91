"""What may be done to things by name, and what is refused."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.control.actions import Action, act, describe
from shoal.control.cluster_actions import find_number
from shoal.control.process import answer_request
from shoal.model.errors import ShoalError, UsageError
from shoal.model.serialised import to_plain
from shoal.runtime.processes import ProcessIdentity
from shoal.telemetry.events import EventWriter
from shoal.wire.api_keys import ApiKey
from support.web_runs import describe_run, write_json


@pytest.fixture(autouse=True)
def empty_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(
    "action",
    [
        ("cluster:t1", "pause", None),
        ("cluster:t1", "format", 1),
        ("run:r1/source", "down", None),
        ("cluster:", "kill", 1),
        ("mirror:m1", "kill", 1),
        ("run:r1", "kill", 1),
        ("run:r1/mirror", "cut", 1),
        ("../etc", "stop", None),
        ("", "", None),
    ],
)
def test_an_action_that_does_not_fit_its_thing_is_refused(
    action: tuple[str, str, int | None],
) -> None:
    with pytest.raises(UsageError):
        Action(*action)


@pytest.mark.parametrize(
    "action",
    [
        Action("cluster:t1", "cut", 1, 2, {"one_way": True}),
        Action("cluster:t1", "cut", 1, 2),
        Action("cluster:t1", "cut", 1),
    ],
)
def test_an_action_says_what_it_does(action: Action) -> None:
    arrow = (" → node 2" if action.settings else " ↔ node 2") if action.other else ""
    assert describe(action) == f"cut: node 1{arrow} of t1"


@pytest.mark.parametrize(
    ("action", "nodes", "settings", "said"),
    [
        ("cut", (1,), {"one_way": True}, "no direction"),
        ("kill", (1, 2), {}, "at most 1 nodes"),
        ("kill", (1,), {"one_way": True}, "no setting one_way"),
        ("heal", (), {"one_way": True}, "no direction"),
        ("slow", (1,), {"delay_ms": 1}, "needs two nodes"),
        ("slow", (1, 2), {"one_way": True}, "needs one of delay_ms, bytes_per_s"),
        ("slow", (1, 2), {"delay_ms": -1}, "no setting delay_ms"),
        ("slow", (1, 2), {"delay_ms": True}, "no setting delay_ms"),
        ("disk", (1,), {}, "needs one of reads"),
        ("disk", (1,), {"folder": "/"}, "no setting folder"),
        ("disk", (1,), {"delay_ms": float("inf")}, "no setting delay_ms"),
        ("disk", (1,), {"delay_ms": float("nan")}, "no setting delay_ms"),
        ("task", (1,), {"task": "x" * 10_000}, "no setting task"),
        ("request", (1,), {"times": 1}, "needs api"),
        ("move-leader", (1,), {"topic": "t"}, "needs partition"),
        ("add", (1,), {}, "at most 0 nodes"),
    ],
)
def test_an_incomplete_action_is_refused(
    action: str, nodes: tuple[int, ...], settings: dict[str, object], said: str
) -> None:
    node, other = (*nodes, None, None)[:2]
    with pytest.raises(UsageError, match=said):
        Action("cluster:t1", action, node, other, settings)


@pytest.mark.parametrize("word", ["teleport", "²", "9" * 5_000, "--1", ""])
def test_what_is_no_api_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not a known name"):
        find_number(ApiKey, word)


def test_settings_are_said_with_the_action() -> None:
    slow = Action("cluster:t1", "slow", 1, 2, {"delay_ms": 200, "one_way": True})
    assert describe(slow) == "slow: node 1 → node 2 of t1 (delay_ms 200)"
    assert describe(Action("cluster:t1", "down")) == "down: t1"


@pytest.mark.parametrize("thing", ["cluster:none", "run:none/source", "run:../x/source", "run:r"])
def test_a_thing_that_does_not_run_is_refused(thing: str, tmp_path: Path) -> None:
    action = Action(thing, "stop" if thing == "run:r" else "kill", 1)
    with pytest.raises(ShoalError) as refusal:
        act(action, tmp_path)
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("apache", "it is Apache Kafka"),
        ("external", "was not started by this run"),
        ("lite", "was"),
    ],
)
def test_clusters_that_others_own_are_refused_with_the_reason(
    engine: str, reason: str, tmp_path: Path
) -> None:
    writer = EventWriter(
        tmp_path / "r1" / "source", "cluster", "source", details={"engine": engine}
    )
    try:
        with pytest.raises(UsageError, match=reason) as refusal:
            act(Action("run:r1/source", "kill", 1), tmp_path)
    finally:
        writer.close()
    assert refusal.value.remedy


def test_a_run_is_interrupted_by_its_name(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as driver:
        identity = ProcessIdentity.of(driver.pid)
        assert identity is not None
        (tmp_path / "r1").mkdir()
        described = describe_run("r1", "running", 1) | {"driver": to_plain(identity)}
        write_json(tmp_path / "r1" / "run.json", described)
        assert act(Action("run:r1", "stop"), tmp_path) == {"done": "stop: r1"}
        assert driver.wait(60) in (-signal.SIGINT, 1)
    with pytest.raises(UsageError, match="not running"):
        act(Action("run:r1", "stop"), tmp_path)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"action": {"thing": "cluster:a", "action": "kill", "node": "1"}},
        {"action": {"thing": "cluster:a", "action": "kill", "node": True}},
        {"action": {"thing": "cluster:a", "action": "kill", "node": 1, "path": "/"}},
        {"action": {"thing": 1, "action": "kill"}},
        {"action": {"thing": "cluster:a", "action": "slow", "node": 1, "settings": 1}},
        {"sides": {"source": "a", "target": "b-0", "at": [0, 0]}, "thing": "mirror:m"},
        {"sides": {"source": "a-0", "target": "b-0", "at": [0, 0]}, "thing": "mirror:m"},
        {"tail": "t", "thing": "mirror:m"},
    ],
)
def test_a_request_of_the_page_that_is_not_valid_is_refused(
    request_: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ShoalError):
        answer_request({**request_, "runs_dir": str(tmp_path)})
