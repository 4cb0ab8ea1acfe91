"""Workers in real processes under the real supervisor."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.model.errors import SystemFailure, UsageError
from shoal.model.run_folder import read_commits
from shoal.workers import supervisor as supervisor_module
from shoal.workers.specs import Assignment, RestartPolicy, Role, WorkerSpec
from shoal.workers.supervision import WorkerPhase, WorkerTimeouts
from shoal.workers.supervisor import RunState, WorkerSupervisor
from shoal.workload.record.ledger import CommitLog, create_run, open_run
from support.experiment.workers_driver import busy, task_placement


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    create_run(tmp_path / "run", {"run": "r1", "state": "running"})
    return tmp_path / "run"


@contextlib.contextmanager
def _supervise(run_dir: Path, **options: Any) -> Iterator[WorkerSupervisor]:
    with WorkerSupervisor("r1", run_dir, task_placement(), **options) as supervisor:
        yield supervisor
    assert not any(worker.pid for worker in supervisor.state().workers.values())


def _spec(name: str, mode: str, **task: Any) -> WorkerSpec:
    return WorkerSpec(name, Role.PRODUCE, {"mode": mode, **task})


def _all_ended(state: RunState) -> bool:
    return state.all_in(WorkerPhase.ENDED)


def _kinds(run_dir: Path, worker: str) -> list[str]:
    return [line["kind"] for line in read_commits(run_dir) if line.get("worker") == worker]


def test_workers_run_record_and_finish(run_dir: Path) -> None:
    with _supervise(run_dir) as supervisor:
        supervisor.launch(_spec(f"w{n}", "attempts", count=50) for n in range(2))
        assert supervisor.wait(lambda state: state.all_in(WorkerPhase.RUNNING), 30)
        supervisor.start_at(time.time_ns() // 1000)
        assert supervisor.wait(_all_ended, 30)
        state = supervisor.state()
        assert [worker.reason for worker in state.workers.values()] == ["finished"] * 2
        assert state.find_failed() == []
    run = open_run(run_dir)
    for worker in ("w0", "w1"):
        kinds = [kind for kind in _kinds(run_dir, worker) if kind != "clock"]
        assert kinds[0] == "lease"
        assert kinds[-1] == "ended"
        assert kinds.count("reserve") == kinds.count("segment") == 5
    assert len(run.read("attempts")) == 100
    clocks = [line for line in run.commits if line["kind"] == "clock"]
    assert {line["worker"] for line in clocks} == {"w0", "w1"}
    for line in clocks:  # one machine has one clock
        assert line["low_us"] <= 0 <= line["high_us"]


def test_a_stop_is_cooperative_and_everything_recorded_counts(run_dir: Path) -> None:
    with _supervise(run_dir) as supervisor:
        supervisor.launch([_spec("w0", "attempts")])
        supervisor.start_at(0)
        assert supervisor.wait(busy, 30)
        supervisor.stop_workers()
        assert supervisor.wait(_all_ended, 10)
        assert supervisor.state().workers["w0"].reason == "stopped"
        sent = supervisor.state().workers["w0"].progress["sent"]
    assert len(open_run(run_dir).read("attempts")) == sent


def test_finishing_lets_the_work_come_to_its_own_end(run_dir: Path) -> None:
    with _supervise(run_dir) as supervisor:
        supervisor.launch([_spec("w0", "attempts")])
        supervisor.start_at(0)
        assert supervisor.wait(busy, 30)
        supervisor.finish()
        assert supervisor.wait(_all_ended, 10)
        assert supervisor.state().workers["w0"].reason == "finished"


def test_leaving_the_block_stops_all_even_before_they_have_begun(run_dir: Path) -> None:
    with _supervise(run_dir) as supervisor:
        supervisor.launch([_spec("w0", "attempts"), _spec("w1", "attempts")])
    assert supervisor.state().all_in(WorkerPhase.ENDED)


def test_a_killed_worker_is_lost_its_ledgers_stay_and_nobody_else_notices(run_dir: Path) -> None:
    with _supervise(run_dir) as supervisor:
        supervisor.launch(_spec(f"w{n}", "attempts") for n in range(2))
        supervisor.start_at(0)
        assert supervisor.wait(busy, 30)
        pid = supervisor.state().workers["w0"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert supervisor.wait(lambda state: state.workers["w0"].phase is WorkerPhase.ENDED, 10)
        killed, other = (supervisor.state().workers[name] for name in ("w0", "w1"))
        assert (killed.reason, killed.restarts) == ("lost", 0)
        assert "SIGKILL" in killed.error
        assert other.phase is WorkerPhase.RUNNING
        sent = other.progress["sent"]
        assert supervisor.wait(lambda state: state.workers["w1"].progress["sent"] > sent, 10)
    run = open_run(run_dir)
    assert _kinds(run_dir, "w0")[-1] == "ended"
    recorded = [line["rows"] for line in run.commits if line["kind"] == "segment"]
    assert len(run.read("attempts")) == sum(recorded)
    reserved = max(line["until"] for line in run.commits if line["kind"] == "reserve")
    sequences = run.read("attempts")["sequence"].to_pylist()
    assert max(sequences) < reserved


def test_a_worker_with_a_restart_policy_comes_back_under_a_new_epoch(run_dir: Path) -> None:
    policy = RestartPolicy(limit=1, delay_s=0.05)
    with _supervise(run_dir) as supervisor:
        supervisor.launch([WorkerSpec("m0", Role.PRODUCE, {"mode": "attempts"}, policy)])
        supervisor.start_at(0)
        assert supervisor.wait(busy, 30)
        supervisor.kill("m0")
        assert supervisor.wait(lambda s: s.workers["m0"].epoch == 2 and busy(s), 30)
        assert supervisor.state().workers["m0"].restarts == 1
    leases = [line["epoch"] for line in read_commits(run_dir) if line["kind"] == "lease"]
    assert leases == [1, 2]
    paths = {line["path"] for line in read_commits(run_dir) if line["kind"] == "segment"}
    assert {"ledger/attempts/m0-1-0.parquet", "ledger/attempts/m0-2-0.parquet"} <= paths


def test_errors_reach_the_driver_as_one_sentence(run_dir: Path) -> None:
    with _supervise(run_dir) as supervisor:
        supervisor.launch([_spec("w0", "fail"), _spec("w1", "crash")])
        assert supervisor.wait(_all_ended, 30)
        failed, crashed = supervisor.state().workers.values()
    assert (failed.reason, failed.error) == (
        "failed",
        "this task cannot be done; ask for another",
    )
    assert crashed.reason == "lost"
    assert "code 9" in crashed.error
    assert "this task cannot be done" in (run_dir / "logs" / "w0-1.log").read_text()


def test_one_that_hangs_is_killed_when_the_time_to_stop_is_over(run_dir: Path) -> None:
    with _supervise(run_dir, limits=WorkerTimeouts(stop_s=0.5)) as supervisor:
        supervisor.launch([_spec("w0", "hang")])
        assert supervisor.wait(busy, 30)
        began = time.monotonic()
    assert time.monotonic() - began < 30
    assert supervisor.state().workers["w0"].error == "it did not stop in time"


def test_epochs_go_on_in_a_run_that_is_taken_up_again(run_dir: Path) -> None:
    with CommitLog(run_dir) as log:
        log.append({"kind": "lease", "worker": "w0", "epoch": 6})
    with _supervise(run_dir) as supervisor:
        supervisor.launch([_spec("w0", "attempts", count=10)])
        supervisor.start_at(0)
        assert supervisor.wait(_all_ended, 30)
        assert supervisor.state().workers["w0"].epoch == 7


def test_a_driver_writes_lines_of_its_own(run_dir: Path) -> None:
    begin = {"kind": "fault", "fault": 1, "phase": "begin", "name": "kill", "target": "w0"}
    fault = {**begin, "detail": {}}
    with _supervise(run_dir) as supervisor:
        supervisor.commit(fault)
        with pytest.raises(UsageError, match="is not a kind"):
            supervisor.commit({"kind": "nonsense"})
    assert read_commits(run_dir)[-1].items() >= fault.items()


def test_a_commit_log_that_cannot_be_written_ends_the_run(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(log: CommitLog, line: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    with _supervise(run_dir) as supervisor:
        supervisor.launch([_spec("w0", "attempts")])
        supervisor.start_at(0)
        assert supervisor.wait(busy, 30)
        monkeypatch.setattr(CommitLog, "append", no_space)
        with pytest.raises(SystemFailure, match="cannot write the commit log"):
            supervisor.wait(lambda state: False, 10)
    assert supervisor.state().failure


def test_a_placement_that_cannot_start_a_worker_says_so(run_dir: Path) -> None:
    class Broken:
        def start(self, assignment: Assignment) -> Any:
            raise SystemFailure(f"no room for {assignment.worker}")

        def close(self) -> None:
            pass

    with WorkerSupervisor("r1", run_dir, Broken()) as supervisor:
        supervisor.launch([_spec("w0", "attempts")])
        assert supervisor.wait(_all_ended, 5)
        assert supervisor.state().workers["w0"].error == "no room for w0"


def test_use_outside_its_life_is_refused(run_dir: Path) -> None:
    supervisor = WorkerSupervisor("r1", run_dir, task_placement())
    with pytest.raises(UsageError, match="is not running"):
        supervisor.start_at(0)
    supervisor.stop()
    with supervisor, pytest.raises(UsageError, match="already"):
        supervisor.start()
    with pytest.raises(UsageError, match="is not running"):
        supervisor.launch([])


def test_waiting_has_a_limit(run_dir: Path) -> None:
    with _supervise(run_dir) as supervisor:
        assert not supervisor.wait(lambda state: False, 0.05)
    assert supervisor_module.TICK_S < 1
