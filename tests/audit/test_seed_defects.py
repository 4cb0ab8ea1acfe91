"""Mistakes of other testers, each as a run for which Shoal reports the right number.

Kafka Mirror Tester, a consistency benchmark and an end-to-end benchmark were read, and each
of these was found in the code of one of them.
"""

from pathlib import Path

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.model.ledger import FAILED
from shoal.model.result import Result
from support.audit.ledgers import History, put, receive, scan, send


def run(*received: int, sent: int = 8, failed: tuple[int, ...] = ()) -> History:
    """One stream, no mirror, no scans: sequences sent, and sequences received in this order."""
    history = History(mirror=False, all_drained=True)
    for sequence in range(sent):
        outcome = {"outcome": FAILED, "offset": -1} if sequence in failed else {"offset": sequence}
        send(history, "p0", 0, sequence, **outcome)
    for place, sequence in enumerate(received):
        receive(history, "p0", 0, sequence, offset=sequence, received_us=10_000 + place)
    return history


def judge(history: History, folder: Path) -> Result:
    return audit(open_ledger([history.write(folder / "run")]))


def test_a_jump_from_1_to_5_misses_3(tmp_path: Path) -> None:
    result = judge(run(0, 1, 5, sent=6), tmp_path)
    assert result.findings["lost: unlocated"].count == 3


def test_a_replay_is_six_re_reads_and_no_disorder(tmp_path: Path) -> None:
    history = run(*range(8))
    for place in range(2, 8):
        columns = {"assignment": 2, "received_us": 20_000 + place}
        receive(history, "p0", 0, place, offset=place, **columns)
    result = judge(history, tmp_path)
    assert result.findings == {}
    assert result.metrics.re_reads == 6


def test_one_late_message_is_one_reordered_and_no_loss(tmp_path: Path) -> None:
    history = run(sent=8)
    for place, sequence in enumerate((0, 1, 3, 4, 5, 2, 6, 7)):
        receive(history, "p0", 0, sequence, offset=place, received_us=10_000 + place)
        history.rows["attempts"][sequence][1]["offset"] = place
    result = judge(history, tmp_path)
    counts = {name: found.count for name, found in result.findings.items()}
    assert counts == {"reordered": 1, "reordered: source": 1}


def test_a_failed_send_is_no_loss(tmp_path: Path) -> None:
    result = judge(run(0, 1, 2, 4, 5, 6, 7, failed=(3,)), tmp_path)
    assert result.findings == {}
    assert result.metrics.yield_ == 7 / 8


def test_a_rebalance_hides_no_loss(tmp_path: Path) -> None:
    history = run(0, 1, 2)
    for sequence in (5, 6, 7):
        columns = {"consumer": "d", "assignment": 2, "worker": "x", "received_us": 20_000}
        receive(history, "p0", 0, sequence, offset=sequence, **columns)
    assert judge(history, tmp_path).findings["lost: unlocated"].count == 2


def test_what_comes_before_the_first_receipt_is_lost_too(tmp_path: Path) -> None:
    assert judge(run(3, 4, 5, 6, 7), tmp_path).findings["lost: unlocated"].count == 3


def test_harvest_counts_distinct_messages(tmp_path: Path) -> None:
    history = run(*range(8))
    receive(history, "p0", 0, 4, offset=8, received_us=30_000)
    result = judge(history, tmp_path)
    assert result.metrics.harvest == 1.0
    assert result.metrics.duplication == 1 / 9
    assert result.findings["duplicate: source"].count == 1


def test_an_early_loss_displaces_nothing(tmp_path: Path) -> None:
    result = judge(run(1, 2, 3, 4, 5, 6, 7), tmp_path)
    assert (result.metrics.F, result.metrics.K) == (0, 0)
    assert "reordered" not in result.findings


def test_the_order_of_acknowledgements_is_not_the_order_of_messages(tmp_path: Path) -> None:
    history = run(*range(8))
    history.rows["attempts"].reverse()
    result = judge(history, tmp_path)
    assert result.findings == {}
    assert result.metrics.F == 0


def test_lost_messages_stay_in_the_statistics(tmp_path: Path) -> None:
    result = judge(run(0, 1, 2), tmp_path)
    assert result.metrics.latency_us["e2e_actual"].count == 3
    assert result.metrics.latency_us["producer"].count == 8
    assert result.metrics.range_us["sent"] == 7000
    assert result.metrics.lost == 5


def test_a_copy_does_not_replace_the_first_delivery(tmp_path: Path) -> None:
    history = run(*range(8))
    receive(history, "p0", 0, 0, offset=8, received_us=900_000)
    assert judge(history, tmp_path).metrics.latency_us["e2e_actual"].max == 10_000


def test_a_replay_of_everything_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    history = run(*range(6), sent=6)
    for place in range(6):
        receive(history, "p0", 0, place, offset=place, assignment=2, received_us=20_000 + place)
    result = judge(history, tmp_path)
    assert result.findings == {}
    assert (result.metrics.re_reads, result.metrics.duplication, result.metrics.F) == (6, 0.0, 0)


def test_a_group_that_began_at_the_end_has_lost_what_came_before(tmp_path: Path) -> None:
    history = run(6, 7)
    history.add("assignments", topic="t", partition=0, offset=6)
    assert judge(history, tmp_path).findings["lost: unlocated"].count == 6


def test_fewer_received_than_sent_is_measured_like_any_other(tmp_path: Path) -> None:
    result = judge(run(0, 2, 1, 7), tmp_path)
    assert (result.metrics.F, result.metrics.K) == (2, 1)
    assert result.findings["reordered"].count == 1


def test_many_copies_are_all_counted_and_harvest_stays_below_one(tmp_path: Path) -> None:
    history = run(0, 1, 2)
    for place in range(300):  # more than fit into a byte
        receive(history, "p0", 0, 1, offset=10 + place, received_us=30_000 + place)
    result = judge(history, tmp_path)
    assert result.findings["duplicate: source"].count == 300
    assert result.metrics.harvest == 3 / 8
    assert result.metrics.duplication == 300 / 303


def test_output_is_the_time_of_the_append_and_nothing_else(tmp_path: Path) -> None:
    history = run(*range(8))
    for sequence in range(8):
        put(history, "source", "p0", 0, sequence, offset=sequence, timestamp_us=1000 * sequence)
    scan(history, "source", 0, end=8)
    assert judge(history, tmp_path / "creators").metrics.range_us["output"] is None
    for _, row in history.rows["log"]:
        row["append_us"] = 500 + 1100 * row["sequence"]
    assert judge(history, tmp_path / "appended").metrics.range_us["output"] == 7700


def test_latency_begins_when_a_message_should_have_left(tmp_path: Path) -> None:
    history = run(*range(8))
    for _, row in history.rows["attempts"]:
        row["intended_us"] = row["sent_us"] - 5000  # the client held it back
    result = judge(history, tmp_path)
    intended, actual = (result.metrics.latency_us[f"e2e_{n}"].max for n in ("intended", "actual"))
    assert intended is not None
    assert actual is not None
    assert intended - actual == 5000
