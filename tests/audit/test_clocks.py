"""Clocks that differ: intervals of latencies, and reads that came before their commit."""

from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.times.clocks import WorkerClock, skew_between
from shoal.model.errors import LedgerError
from shoal.model.ledger import COMMITTED
from shoal.model.result import Result
from support.audit.ledgers import History, clean_run, receive, send


@pytest.mark.parametrize(
    ("producer", "consumer", "given_us", "skew"),
    [
        (WorkerClock(0, "a"), WorkerClock(0, "a"), None, (0, 0)),
        (
            WorkerClock(0, "a", (-9, 9)),
            WorkerClock(1, "a"),
            None,
            (0, 0),
        ),  # one machine, two folders
        (WorkerClock(0, "a", (0, 0)), WorkerClock(0, "b", (5, 8)), None, (5, 8)),
        (WorkerClock(0, "a", (-2, 3)), WorkerClock(0, "b", (5, 8)), None, (2, 10)),
        (WorkerClock(0, None, (-2, 3)), WorkerClock(0, None, (5, 8)), None, (2, 10)),
        (WorkerClock(0, "a"), WorkerClock(0, "b", (5, 8)), None, None),
        (WorkerClock(0, "a"), WorkerClock(0, "b", (5, 8)), 7, (-7, 7)),
        (WorkerClock(0, "a"), WorkerClock(1, "b"), None, None),  # no common coordinator
        (WorkerClock(0), WorkerClock(1), None, None),
        (WorkerClock(0, "a"), WorkerClock(1, "b"), 7, (-7, 7)),
        (WorkerClock(0, "a", (0, 0)), WorkerClock(1, "b", (5, 8)), 7, (-2, 15)),
    ],
)
def test_what_is_known_of_two_clocks(
    producer: WorkerClock, consumer: WorkerClock, given_us: int | None, skew: tuple[int, int] | None
) -> None:
    assert skew_between(producer, consumer, given_us) == skew


def two_workers(**bounds: tuple[int, int]) -> History:
    """A clean run whose producers are worker `w` and whose consumers are worker `c`."""
    history = clean_run(lanes=1, count=10)
    history.one_clock = False
    history.rows["receipts"] = [("c", row) for _, row in history.rows["receipts"]]
    for worker in ("w", "c"):
        history.commit("lease", worker=worker, epoch=1, host=f"host of {worker}")
    for worker, (low_us, high_us) in bounds.items():
        history.commit("clock", worker=worker, epoch=1, low_us=low_us, high_us=high_us)
    return history


def judge(history: History, folder: Path, **options: Any) -> Result:
    return audit(open_ledger([history.write(folder / "run")], **options))


def test_latencies_between_hosts_are_intervals(tmp_path: Path) -> None:
    history = two_workers(w=(-100, 200), c=(500, 700))
    history.commit("clock", worker="c", epoch=1, low_us=450, high_us=600)
    metrics = judge(history, tmp_path).metrics
    assert metrics.clock_skew_us == (450 - 200, 700 + 100)
    latency = metrics.latency_us["e2e_actual"].to_json()
    assert latency["p50"] == 2000
    assert latency["interval"]["p50"] == [2000 - 800, 2000 - 250]
    assert "interval" not in metrics.latency_us["producer"].to_json()


def test_what_no_coordinator_compared_is_unknown_unless_given(tmp_path: Path) -> None:
    history = two_workers()
    metrics = judge(history, tmp_path / "unknown").metrics
    assert metrics.clock_skew_us is None
    assert metrics.latency_us["e2e_intended"].to_json()["interval"] is None
    metrics = judge(history, tmp_path / "given", clock_skew_us=300).metrics
    assert metrics.clock_skew_us == (-300, 300)


def test_folders_of_one_machine_have_one_clock(tmp_path: Path) -> None:
    whole = two_workers()
    produced, consumed = History(one_clock=False), History(one_clock=False)
    for table, rows in whole.rows.items():
        (consumed if table == "receipts" else produced).rows[table] = rows
    for side, worker in ((produced, "w"), (consumed, "c")):
        side.commit("lease", worker=worker, epoch=1, host="the same")
    folders = [produced.write(tmp_path / "here"), consumed.write(tmp_path / "there")]
    assert audit(open_ledger(folders)).metrics.clock_skew_us == (0, 0)


def transaction(*, ahead_us: int, **bounds: tuple[int, int]) -> History:
    """A message that was received so long before the commit of its transaction was requested."""
    history = two_workers(**bounds)
    send(history, "p0", 0, 10, offset=10)
    message: dict[str, Any] = {"producer": "p0", "topic": "t", "lane": 0, "sequence": 10}
    message |= {"transaction": 1, "fate": COMMITTED, "requested_us": 50_000}
    history.add("transactions", **message)
    receive(history, "p0", 0, 10, worker="c", offset=10, received_us=50_000 - ahead_us)
    return history


@pytest.mark.parametrize(
    ("ahead_us", "is_early"), [(601, True), (600, False), (1, False), (-200, False)]
)
def test_a_read_is_uncommitted_if_the_clocks_cannot_explain_it(
    ahead_us: int, is_early: bool, tmp_path: Path
) -> None:
    history = transaction(ahead_us=ahead_us, w=(0, 0), c=(-600, 300))
    result = judge(history, tmp_path)
    assert ("uncommitted read" in result.findings) == is_early
    [lane] = result.worst.lanes
    assert ("undecided_reads" in lane) != is_early


def test_a_late_read_is_clear_and_with_unknown_clocks_none_is_uncommitted(tmp_path: Path) -> None:
    clear = judge(transaction(ahead_us=-301, w=(0, 0), c=(-600, 300)), tmp_path / "clear")
    assert "undecided_reads" not in clear.worst.lanes[0]
    unknown = judge(transaction(ahead_us=9000), tmp_path / "unknown")
    assert "uncommitted read" not in unknown.findings
    assert unknown.worst.lanes[0]["undecided_reads"] == 1


def test_a_bad_clock_line_is_refused(tmp_path: Path) -> None:
    history = two_workers()
    history.commit("clock", worker="c", epoch=1, low_us="soon", high_us=1)
    with pytest.raises(LedgerError, match="bad clock line"):
        judge(history, tmp_path)
