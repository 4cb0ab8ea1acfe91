"""The supervisor's state machine: leases, fencing, ends, restarts, commits, drains, clocks."""

from typing import Any

import pytest

from shoal.model.errors import UsageError
from shoal.net.messages import (
    Ack,
    Commit,
    Finish,
    Hello,
    LanesDrained,
    Lease,
    LeaseRefused,
    Probe,
    ProbeReply,
    ProgressReport,
    StartAt,
    Stop,
)
from shoal.workers.specs import Assignment, RestartPolicy, Role, WorkerSpec
from shoal.workers.supervision import (
    Action,
    Append,
    Close,
    Interrupt,
    Kill,
    Send,
    StartWorker,
    Supervision,
    WorkerPhase,
    WorkerTimeouts,
)


def _hello(worker: str = "p0", epoch: int = 1, instance: str = "one") -> Hello:
    return Hello(worker, epoch, "secret", instance, 7, "host")


def _say(core: Supervision, connection: int, message: Any, *, now: float = 0.0) -> list[Action]:
    return core.on_message(connection, message, now=now, clock_us=0)


def _tick(core: Supervision, now: float) -> list[Action]:
    """Without the probes."""
    actions = core.tick(now=now, clock_us=0)
    return [a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Probe))]


def _running(
    name: str = "p0",
    *,
    role: Role = Role.PRODUCE,
    restart: RestartPolicy | None = None,
    **options: Any,
) -> Supervision:
    core = Supervision(**options)
    core.launch(WorkerSpec(name, role, restart=restart), now=0.0)
    _say(core, 1, _hello(name))
    return core


LEASE_LINE = {"kind": "lease", "worker": "p0", "epoch": 1, "host": "host"}
SEGMENT = {
    "kind": "segment",
    "table": "attempts",
    "number": 0,
    "path": "ledger/attempts/p0-1-0.parquet",
    "rows": 10,
    "footer": "0c68f974",
}


def test_a_lease_is_durable_before_it_is_given() -> None:
    core = Supervision()
    assert core.launch(WorkerSpec("p0", Role.PRODUCE), now=0.0) == [StartWorker("p0", 1)]
    assert core.workers["p0"].phase == "starting"
    assert _say(core, 1, _hello()) == [Append(LEASE_LINE), Send(1, Lease("p0", 1, None))]
    assert core.workers["p0"].phase == "running"


def test_epochs_go_on_where_the_commit_log_ends() -> None:
    core = Supervision(last_epochs={"p0": 4})
    assert core.launch(WorkerSpec("p0", Role.PRODUCE), now=0.0) == [StartWorker("p0", 5)]


def test_a_name_is_used_once() -> None:
    core = _running()
    with pytest.raises(UsageError, match="a worker named p0 exists already"):
        core.launch(WorkerSpec("p0", Role.PRODUCE), now=0.0)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (_hello("p9"), "no worker"),
        (_hello(epoch=0), "fenced by epoch 1"),
        (_hello(epoch=2), "never assigned"),
        (_hello(instance="two"), "another instance"),
    ],
)
def test_the_wrong_ones_get_no_lease(hello: Hello, reason: str) -> None:
    refused, closed = _say(_running(), 2, hello)
    assert isinstance(refused, Send)
    assert isinstance(refused.message, LeaseRefused)
    assert reason in refused.message.reason
    assert closed == Close(2)


def test_an_instance_that_dials_again_keeps_its_lease() -> None:
    core = _running()
    core.on_connection_closed(1, now=1.0)
    assert _say(core, 2, _hello(), now=2.0) == [Send(2, Lease("p0", 1, None))]
    # Even when the end of the old connection has not been heard of.
    assert _say(core, 3, _hello(), now=3.0) == [Close(2), Send(3, Lease("p0", 1, None))]
    assert _say(core, 2, ProgressReport({}))[-1] == Close(2)


def test_a_commit_is_durable_before_its_acknowledgement_and_is_written_once() -> None:
    core = _running()
    line = {**SEGMENT, "worker": "p0", "epoch": 1}
    assert _say(core, 1, Commit(1, SEGMENT)) == [Append(line), Send(1, Ack(1))]
    assert _say(core, 1, Commit(1, SEGMENT)) == [Send(1, Ack(1))]


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"kind": "lease", "worker": "p0", "epoch": 9},
        {"kind": "fault"},
        {**SEGMENT, "rows": -1},
        {**SEGMENT, "rows": True},
        {**SEGMENT, "table": "secrets"},
        {**SEGMENT, "path": "ledger/attempts/../../x.parquet"},
        {**SEGMENT, "path": "ledger/attempts/p0-2-0.parquet"},
        {"kind": "reserve", "producer": "p", "topic": "t", "lane": 0},
        {"kind": "ended", "reason": "lost", "error": "", "retriable": False},
    ],
)
def test_a_worker_that_commits_what_it_may_not_has_failed(line: dict[str, Any]) -> None:
    core = _running()
    actions = _say(core, 1, Commit(1, line))
    assert [type(action) for action in actions] == [Append, Close]
    assert core.workers["p0"].reason == "failed"
    assert core.workers["p0"].error


def test_a_gap_in_the_numbers_of_commits_is_a_failure() -> None:
    core = _running()
    _say(core, 1, Commit(2, SEGMENT))
    assert core.workers["p0"].error == "commit 2 follows commit 0"


def _make_ended(reason: str = "finished", *, retriable: bool = False) -> dict[str, Any]:
    return {"kind": "ended", "reason": reason, "error": "", "retriable": retriable}


def test_an_end_is_written_acknowledged_and_final() -> None:
    core = _running()
    line = {"kind": "ended", "worker": "p0", "epoch": 1, "reason": "finished"}
    assert _say(core, 1, Commit(1, _make_ended())) == [Append(line), Send(1, Ack(1)), Close(1)]
    assert core.on_exit("p0", 1, how="code 0", now=1.0) == []
    assert core.workers["p0"].phase is WorkerPhase.ENDED
    assert "has ended" in str(_say(core, 2, _hello()))
    assert _say(core, 1, Commit(2, SEGMENT))[-1] == Close(1)


def test_a_worker_that_ended_but_stays_is_killed() -> None:
    core = _running(limits=WorkerTimeouts(exit_s=5.0))
    _say(core, 1, Commit(1, _make_ended()), now=10.0)
    assert _tick(core, 14.9) == []
    assert _tick(core, 15.0) == [Kill("p0", 1)]
    assert _tick(core, 16.0) == []


def test_a_dead_producer_is_lost_and_stays_dead() -> None:
    core = _running()
    actions = core.on_exit("p0", 1, how="SIGKILL", now=1.0)
    line = {"kind": "ended", "worker": "p0", "epoch": 1, "reason": "lost", "error": "SIGKILL"}
    assert actions == [Append(line), Close(1)]
    assert _tick(core, 1000.0) == []
    assert core.workers["p0"].phase is WorkerPhase.ENDED


def test_a_dead_mirror_comes_back_under_a_new_epoch_that_fences_the_old() -> None:
    core = _running("m0", role=Role.MIRROR)
    core.on_exit("m0", 1, how="SIGKILL", now=1.0)
    assert core.workers["m0"].phase is WorkerPhase.RESTARTING
    assert _tick(core, 1.4) == []
    assert _tick(core, 1.5) == [StartWorker("m0", 2)]
    assert "fenced by epoch 2" in str(_say(core, 2, _hello("m0")))
    granted = _say(core, 3, _hello("m0", epoch=2, instance="two"))
    assert granted[0] == Append({**LEASE_LINE, "worker": "m0", "epoch": 2})
    assert core.workers["m0"].restarts == 1


def test_a_commit_of_the_old_epoch_does_not_count_after_a_restart() -> None:
    core = _running(
        restart=RestartPolicy(limit=1, delay_s=0.0), limits=WorkerTimeouts(silence_s=5.0)
    )
    assert [type(a) for a in _tick(core, 6.0)] == [Append, Close, Kill, StartWorker]
    _say(core, 2, _hello(epoch=2, instance="two"), now=6.5)
    stale = _say(core, 1, Commit(1, SEGMENT), now=7.0)
    assert not any(isinstance(action, Append) for action in stale)
    assert stale[-1] == Close(1)


def test_restarts_are_delayed_longer_each_time_and_bounded() -> None:
    policy = RestartPolicy(limit=3, delay_s=1.0, longest_delay_s=3.0)
    assert [policy.delay_before(n) for n in range(4)] == [1.0, 2.0, 3.0, 3.0]
    core = _running("m0", role=Role.MIRROR, restart=RestartPolicy(limit=1, delay_s=0.0))
    core.on_exit("m0", 1, how="x", now=1.0)
    assert _tick(core, 1.0) == [StartWorker("m0", 2)]
    core.on_exit("m0", 2, how="x", now=2.0)
    assert core.workers["m0"].phase is WorkerPhase.ENDED


def test_a_failure_that_cannot_be_mended_by_trying_again_is_not_tried_again() -> None:
    core = _running("m0", role=Role.MIRROR)
    _say(core, 1, Commit(1, _make_ended("failed")))
    assert core.workers["m0"].phase is WorkerPhase.ENDED
    again = _running("m0", role=Role.MIRROR)
    _say(again, 1, Commit(1, _make_ended("failed", retriable=True)))
    assert again.workers["m0"].phase is WorkerPhase.RESTARTING


def test_a_worker_that_never_says_hello_is_lost_without_a_line() -> None:
    core = Supervision(limits=WorkerTimeouts(start_s=10.0))
    core.launch(WorkerSpec("p0", Role.PRODUCE), now=0.0)
    assert _tick(core, 10.0) == []
    assert _tick(core, 10.1) == [Kill("p0", 1)]
    assert core.workers["p0"].reason == "lost"


def test_a_connection_that_stays_away_is_a_lost_worker() -> None:
    core = _running(limits=WorkerTimeouts(detached_s=15.0, silence_s=100.0))
    core.on_connection_closed(1, now=5.0)
    assert _tick(core, 20.0) == []
    assert [type(action) for action in _tick(core, 20.1)] == [Append, Kill]


def test_a_stop_is_an_order_then_a_kill() -> None:
    core = _running(limits=WorkerTimeouts(stop_s=10.0))
    core.launch(WorkerSpec("p1", Role.PRODUCE), now=0.0)
    actions = core.stop(["p0", "p1"], "enough", now=1.0)
    assert actions == [Send(1, Stop("enough")), Interrupt("p1", 1)]
    assert core.stop(["p0", "p1"], "enough", now=2.0) == []
    assert _say(core, 2, _hello("p1"))[-1] == Send(2, Stop("the run is stopping"))
    assert [type(action) for action in _tick(core, 11.1)] == [Append, Close, Kill] * 2


def test_a_stop_ends_a_pending_restart() -> None:
    core = _running("m0", role=Role.MIRROR)
    core.on_exit("m0", 1, how="x", now=1.0)
    core.stop(["m0"], "enough", now=1.1)
    assert _tick(core, 100.0) == []
    assert core.workers["m0"].phase is WorkerPhase.ENDED


def test_start_time_and_finish_reach_the_late_too() -> None:
    core = _running()
    core.launch(WorkerSpec("p1", Role.PRODUCE), now=0.0)
    assert core.start_at(123) == [Send(1, StartAt(123))]
    assert core.finish(["p0", "p1"], "done") == [Send(1, Finish("done"))]
    greetings = _say(core, 2, _hello("p1"))[1:]
    assert greetings == [Send(2, Lease("p1", 1, 123)), Send(2, Finish("the run is finishing"))]


def _make_drained(group: str, incarnation: int = 7) -> dict[str, Any]:
    stream = {"producer": "p", "incarnation": incarnation, "topic": "t", "lane": 3}
    return {"kind": "drained", **stream, "group": group}


def test_a_lane_is_drained_for_all_when_every_group_has_drained_it() -> None:
    core = _running("c0", role=Role.CONSUME, groups=["a", "b"])
    assert _say(core, 1, Commit(1, _make_drained("a"))) == [
        Append(_make_drained("a")),
        Send(1, Ack(1)),
    ]
    done = LanesDrained([["p", 7, "t", 3]])
    other = _make_drained("b", incarnation=8)  # of another producer with that id
    assert _say(core, 1, Commit(2, other)) == [Append(other), Send(1, Ack(2))]
    second = _say(core, 1, Commit(3, _make_drained("b")))
    assert second == [Append(_make_drained("b")), Send(1, Ack(3)), Send(1, done)]
    assert _say(core, 1, Commit(4, _make_drained("a"))) == [
        Append(_make_drained("a")),
        Send(1, Ack(4)),
    ]
    core.launch(WorkerSpec("p1", Role.PRODUCE), now=0.0)
    assert Send(2, done) in _say(core, 2, _hello("p1"))


def test_progress_is_kept_and_ends_silence() -> None:
    core = _running(limits=WorkerTimeouts(silence_s=5.0))
    _say(core, 1, ProgressReport({"sent": 4}), now=4.0)
    assert core.workers["p0"].progress == {"sent": 4}
    assert _tick(core, 9.0) == []


def test_probes_bound_the_clock_and_the_bounds_are_written() -> None:
    core = _running(limits=WorkerTimeouts(silence_s=1000.0))
    assert core.tick(now=1.0, clock_us=5_000) == [Send(1, Probe(5_000))]
    assert core.tick(now=1.5, clock_us=6_000) == []
    core.on_message(1, ProbeReply(5_000, 5_700), now=1.0, clock_us=5_400)  # 300 … 700 ahead
    core.on_message(1, ProbeReply(6_000, 6_600), now=2.0, clock_us=6_100)  # 500 … 600 ahead
    clock = {"kind": "clock", "worker": "p0", "epoch": 1, "low_us": 500, "high_us": 600}
    assert Append(clock) in core.tick(now=10.0, clock_us=0)
    assert not any(isinstance(a, Append) for a in core.tick(now=20.0, clock_us=0))


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-x", "x" * 65, "a b"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name of a worker"):
        WorkerSpec(name, Role.SCAN)


def test_an_assignment_survives_json_and_hides_its_token() -> None:
    assignment = Assignment("p0", 1, Role.SCAN, {"x": 1}, "r", "d", "", "h", 9, "secret")
    assert Assignment.from_json(assignment.to_json()) == assignment
    assert "secret" not in repr(assignment)
