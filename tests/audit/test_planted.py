"""Each kind of anomaly, planted alone into a clean run: found, counted and blamed correctly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import Sizes, audit
from shoal.audit.read.folder import open_ledger
from shoal.model.findings import Verdict
from shoal.model.ledger import ABORTED, COMMITTED, FAILED, UNKNOWN
from shoal.model.result import Result
from support.audit.ledgers import History, clean_run, put, receive, scan, send

SMALL = Sizes(rows_per_cell=30, rows_per_walk=20, offsets_per_cell=4)
Predicate = Callable[[dict[str, Any]], bool]


def judge(history: History, folder: Path, sizes: Sizes = SMALL) -> Result:
    return audit(open_ledger([history.write(folder / "run")]), sizes=sizes)


def counts(result: Result) -> dict[str, int]:
    return {name: found.count for name, found in result.findings.items()}


def drop(history: History, table: str, where: Predicate) -> None:
    kept = [(worker, row) for worker, row in history.rows[table] if not where(row)]
    assert len(kept) < len(history.rows[table])
    history.rows[table] = kept


def is_message(lane: int, *sequences: int, cluster: str | None = None) -> Predicate:
    return lambda row: (
        row["lane"] == lane
        and row["sequence"] in sequences
        and (cluster is None or row["cluster"] == cluster)
    )


def change(history: History, table: str, where: Predicate, **columns: Any) -> None:
    for _, row in history.rows[table]:
        if where(row):
            row.update(columns)


def never_stored(history: History) -> None:
    drop(history, "log", is_message(0, 7))
    drop(history, "receipts", is_message(0, 7))


def not_mirrored(history: History) -> None:
    drop(history, "log", is_message(0, 7, cluster="target"))
    drop(history, "receipts", is_message(0, 7))


def lose_delivery(history: History) -> None:
    drop(history, "receipts", is_message(0, 7))


def expire(history: History) -> None:
    first = is_message(0, 0, 1, 2, 3, 4)
    drop(history, "log", first)
    drop(history, "receipts", first)
    change(history, "scans", lambda r: r["cluster"] == "source" and r["partition"] == 0, start=5)


def expire_at_target(history: History) -> None:
    drop(history, "log", is_message(0, 0, 1, 2, 3, 4, cluster="target"))
    drop(history, "receipts", is_message(0, 2, 3, 4))
    change(history, "scans", lambda r: r["cluster"] == "target" and r["partition"] == 0, start=5)


def expire_before_consumers_begin(history: History) -> None:
    drop(history, "log", is_message(0, 0, 1, 2, 3, 4, cluster="target"))
    drop(history, "receipts", is_message(0, 0, 1, 2, 3, 4))
    change(history, "scans", lambda r: r["cluster"] == "target" and r["partition"] == 0, start=5)
    history.add("assignments", topic="t", partition=0, offset=0)


def tail(history: History) -> None:
    drop(history, "log", is_message(0, 17, 18, 19, cluster="target"))
    drop(history, "receipts", is_message(0, 17, 18, 19))


def all_but_the_first(history: History) -> None:
    rest = is_message(0, *range(1, 20), cluster="target")
    drop(history, "log", rest)
    drop(history, "receipts", is_message(0, *range(1, 20)))


def whole_stream(history: History) -> None:
    drop(history, "log", lambda r: r["lane"] == 1 and r["cluster"] == "target")
    drop(history, "receipts", lambda r: r["lane"] == 1)


def swap_by_mirror(history: History) -> None:
    for sequence, offset in ((5, 6), (6, 5)):
        change(history, "log", is_message(0, sequence, cluster="target"), offset=offset)
        change(history, "receipts", is_message(0, sequence), sequence=100 + sequence)
    change(history, "receipts", is_message(0, 105), sequence=6)
    change(history, "receipts", is_message(0, 106), sequence=5)


def swap_by_producer(history: History) -> None:
    swap_by_mirror(history)
    for sequence, offset in ((5, 6), (6, 5)):
        change(history, "log", is_message(0, sequence, cluster="source"), offset=offset)
        change(history, "attempts", is_message(0, sequence), offset=offset)


def swap_by_consumer(history: History) -> None:
    rows = history.rows["receipts"]
    rows[5], rows[6] = rows[6], rows[5]


def corrupt_by_mirror(history: History) -> None:
    change(history, "log", is_message(0, 7, cluster="target"), intact=False)
    change(history, "receipts", is_message(0, 7), intact=False)


def corrupt_by_producer(history: History) -> None:
    change(history, "log", is_message(0, 7), intact=False)
    change(history, "receipts", is_message(0, 7), intact=False)


def add_unexpected(history: History) -> None:
    put(history, "target", "ghost", 0, 3, offset=20)
    receive(history, "ghost", 0, 3, offset=20)
    change(history, "scans", lambda r: r["cluster"] == "target" and r["partition"] == 0, end=21)


def read_aborted(history: History) -> None:
    change(history, "attempts", is_message(0, 7), outcome=FAILED, offset=-1)


def two_at_one_offset(history: History) -> None:
    change(history, "attempts", is_message(0, 7), offset=8)


def vanish(history: History) -> None:
    drop(history, "log", is_message(0, 7, cluster="target"))


def vanish_at_source(history: History) -> None:
    drop(history, "log", is_message(0, 7, cluster="source"))


def see_twice_in_one_poll(history: History) -> None:
    row = dict(history.rows["receipts"][7][1])
    history.rows["receipts"].insert(8, ("w", row))


STAGES = ("producer_to_source", "source_to_target", "log_to_consumers")
PLANTED = [
    (never_stored, {"lost: never-stored": 1}, (0,)),
    (not_mirrored, {"lost: not-mirrored": 1}, (1,)),
    (lose_delivery, {"lost: undelivered": 1, "poll skip": 1}, (2,)),
    (expire, {"lost: expired": 5}, (1,)),
    (expire_at_target, {"lost: expired at target": 3}, (2,)),
    (expire_before_consumers_begin, {"lost: expired at target": 5}, (2,)),
    (tail, {"lost: not-mirrored": 3, "tail loss": 3}, (1,)),
    (all_but_the_first, {"lost: not-mirrored": 19, "tail loss": 19}, (1,)),
    (whole_stream, {"lost: not-mirrored": 20, "tail loss": 20}, (1,)),
    (swap_by_mirror, {"reordered": 1, "reordered: target": 1}, (1,)),
    (
        swap_by_producer,
        {"reordered": 1, "reordered: source": 1, "reordered: target": 1},
        (0,),
    ),
    (
        swap_by_consumer,
        {"reordered": 1, "poll skip": 2, "non-monotonic poll": 1},
        (2,),
    ),
    (corrupt_by_mirror, {"corrupted": 1}, (1,)),
    (corrupt_by_producer, {"corrupted": 1}, (0,)),
    (add_unexpected, {"unexpected": 1}, (1,)),
    (read_aborted, {"aborted read": 1}, (0,)),
    (two_at_one_offset, {"inconsistent offset": 1, "duplicate: source": 1}, (0,)),
    (vanish, {"vanished": 1}, (1,)),
    (vanish_at_source, {"vanished": 1}, (0,)),
    (see_twice_in_one_poll, {"non-monotonic poll": 1}, (2,)),
]


@pytest.mark.parametrize("sizes", [SMALL, Sizes()], ids=["small", "whole"])
@pytest.mark.parametrize(
    ("plant", "expected", "blamed"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED]
)
def test_planted(
    plant: Callable[[History], None],
    expected: dict[str, int],
    blamed: tuple[int, ...],
    sizes: Sizes,
    tmp_path: Path,
) -> None:
    history = clean_run()
    plant(history)
    result = judge(history, tmp_path, sizes)
    assert counts(result) == expected
    assert result.verdict is Verdict.VIOLATED
    verdicts = {name: stage.verdict for name, stage in result.worst.stages.items()}
    assert {name for name, v in verdicts.items() if v is Verdict.VIOLATED} == {
        STAGES[number] for number in blamed
    }
    for found in result.findings.values():
        assert found.witness is not None
        assert found.streams == 1


@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("scans", [True, False])
def test_a_clean_run_is_proven(mirror: bool, scans: bool, tmp_path: Path) -> None:
    result = judge(clean_run(producers=2, mirror=mirror, scans=scans), tmp_path)
    assert counts(result) == {}
    assert result.verdict is Verdict.PROVEN
    assert set(result.worst.stages) == set(STAGES) - (set() if mirror else {"source_to_target"})
    assert {stage.verdict for stage in result.worst.stages.values()} == {Verdict.PROVEN}
    assert result.metrics.completeness == result.metrics.harvest == result.metrics.yield_ == 1.0
    assert result.metrics.loss_rate_bound_95 == pytest.approx(3 / 80)
    assert bool(result.missing_scans) is not scans


def test_a_copy_violates_only_exactly_once(tmp_path: Path) -> None:
    for delivery, verdict in (("at_least_once", "proven"), ("exactly_once", "violated")):
        history = clean_run()
        history.promises = {"delivery": delivery}
        put(history, "target", "p0", 0, 7, offset=20)
        receive(history, "p0", 0, 7, offset=20)
        result = judge(history, tmp_path / delivery)
        assert counts(result) == {"duplicate: target": 1}
        assert result.verdict.value == verdict
        assert result.metrics.duplication == 1 / 41


def test_a_copy_that_the_mirror_found_is_not_the_mirrors(tmp_path: Path) -> None:
    history = clean_run()
    history.promises = {"delivery": "exactly_once"}
    for cluster in ("source", "target"):
        put(history, cluster, "p0", 0, 7, offset=20)
    result = judge(history, tmp_path)
    assert counts(result) == {"duplicate: source": 1, "duplicate: target": 1}
    assert result.worst.stages["producer_to_source"].verdict is Verdict.VIOLATED
    assert result.worst.stages["source_to_target"].verdict is Verdict.PROVEN


@pytest.mark.parametrize("rows_per_walk", [4_000_000, 2, 1])
def test_the_least_of_several_falls_is_the_witness(rows_per_walk: int, tmp_path: Path) -> None:
    history = clean_run(lanes=1, count=6)
    receipts = history.rows["receipts"]
    receipts[:] = [receipts[place] for place in (0, 1, 2, 5, 4, 3)]
    ledger = open_ledger([history.write(tmp_path / "run")])
    found = audit(ledger, sizes=Sizes(rows_per_walk=rows_per_walk)).findings["non-monotonic poll"]
    assert found.count == 2
    assert found.witness is not None
    assert (found.witness["from_offset"], found.witness["to_offset"]) == (4, 3)


def test_a_re_read_is_no_finding(tmp_path: Path) -> None:
    history = clean_run()
    for sequence in range(10, 20):
        details = {"assignment": 2, "consumer": "d", "worker": "x", "received_us": 99_000}
        receive(history, "p0", 0, sequence, offset=sequence, **details)
    result = judge(history, tmp_path)
    assert counts(result) == {}
    assert result.metrics.re_reads == 10
    assert result.metrics.duplication == 0
    assert result.metrics.latency_us["e2e_actual"].max == 2000


def test_an_unknown_attempt_promises_nothing(tmp_path: Path) -> None:
    history = clean_run()
    for sequence in (7, 8):
        change(history, "attempts", is_message(0, sequence), outcome=UNKNOWN, offset=-1)
    drop(history, "log", is_message(0, 8))
    drop(history, "receipts", is_message(0, 8))
    result = judge(history, tmp_path)
    assert counts(result) == {}
    assert result.verdict is Verdict.PROVEN
    assert (result.metrics.unknown, result.metrics.recovered) == (2, 1)
    assert result.metrics.yield_ == 38 / 40


def test_reserved_numbers_of_a_dead_producer_are_unknown_attempts(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    history.rows["manifests"].clear()
    stream = {"producer": "p0", "topic": "t", "lane": 0}
    history.commit("reserve", worker="w", epoch=1, until=30, **stream)
    drop(history, "attempts", is_message(0, 18, 19))
    put(history, "source", "p0", 0, 25, offset=20)
    put(history, "target", "p0", 0, 25, offset=20)
    receive(history, "p0", 0, 25, offset=20)
    result = judge(history, tmp_path)
    assert counts(result) == {}
    metrics = result.metrics
    assert (metrics.attempts, metrics.ok, metrics.unknown, metrics.recovered) == (30, 18, 12, 3)


def test_a_huge_reservation_costs_no_memory(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    history.rows["manifests"].clear()
    stream = {"producer": "p0", "topic": "t", "lane": 0}
    history.commit("reserve", worker="w", epoch=1, until=1 << 50, **stream)
    result = judge(history, tmp_path, Sizes())
    assert counts(result) == {}
    assert result.metrics.attempts == 1 << 50
    assert result.metrics.unknown == (1 << 50) - 20


def test_a_garbled_sequence_costs_no_memory(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    for lane, sequence, offset in ((0, (1 << 62) + 5, 20), (-5, -3, 21)):
        place = {"partition": 0, "offset": offset, "intact": False}
        put(history, "target", "p0", lane, sequence, **place)
        receive(history, "p0", lane, sequence, received_us=1, **place)
    result = judge(history, tmp_path)
    assert counts(result) == {"unexpected": 2, "corrupted": 2}


def test_what_may_still_come_is_pending(tmp_path: Path) -> None:
    history = clean_run()
    tail(history)
    history.commits.clear()
    result = judge(history, tmp_path)
    assert counts(result) == {"pending": 3}
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.worst.stages["source_to_target"].verdict is Verdict.INCONCLUSIVE
    assert result.worst.stages["log_to_consumers"].verdict is Verdict.PROVEN


def test_what_others_overtook_is_lost_before_the_drain(tmp_path: Path) -> None:
    history = clean_run()
    not_mirrored(history)
    history.commits.clear()
    assert counts(judge(history, tmp_path)) == {"lost: not-mirrored": 1}


def test_without_order_only_a_recorded_position_tells_lost_from_pending(tmp_path: Path) -> None:
    for position, expected in ((None, "pending"), (8, "lost: not-mirrored")):
        history = clean_run()
        history.promises = {"order": False}
        not_mirrored(history)
        history.commits.clear()
        if position is not None:
            history.add("positions", reader="mirror", topic="t", partition=0, offset=position)
        assert counts(judge(history, tmp_path / str(position))) == {expected: 1}


def test_without_scans_a_loss_cannot_be_located(tmp_path: Path) -> None:
    history = clean_run(scans=False)
    drop(history, "receipts", is_message(0, 7, 19))
    result = judge(history, tmp_path)
    assert counts(result) == {"lost: unlocated": 2, "tail loss": 1}
    assert {s.verdict for s in result.worst.stages.values()} == {Verdict.INCONCLUSIVE}
    assert result.verdict is Verdict.VIOLATED


def test_nothing_proves_nothing(tmp_path: Path) -> None:
    empty = judge(History(), tmp_path / "empty")
    assert empty.verdict is Verdict.INCONCLUSIVE
    assert empty.metrics.yield_ is None
    history = clean_run()
    change(history, "attempts", lambda _: True, outcome=UNKNOWN, offset=-1)
    assert judge(history, tmp_path / "unknown").verdict is Verdict.INCONCLUSIVE


def test_the_worst_group_decides(tmp_path: Path) -> None:
    history = clean_run()
    history.groups = ("g", "h")
    for row in history.table("receipts"):
        if row["sequence"] != 7:
            history.add("receipts", "x", **{**row, "group": "h"})
    for line in [c for c in history.commits if c["kind"] == "drained"]:
        history.commits.append({**line, "group": "h"})
    result = judge(history, tmp_path)
    assert result.worst_group == "h"
    assert counts(result) == {"lost: undelivered": 2, "poll skip": 2}
    assert result.groups["g"].verdict is Verdict.PROVEN


def test_a_group_that_received_nothing_still_waits(tmp_path: Path) -> None:
    history = clean_run()
    history.groups = ("g", "idle")
    result = judge(history, tmp_path)
    assert result.worst_group == "idle"
    assert counts(result) == {"pending": 40}


def test_what_one_group_received_another_is_owed(tmp_path: Path) -> None:
    history = clean_run(mirror=False, scans=False)
    change(history, "attempts", is_message(0, 7), outcome=UNKNOWN, offset=-1)
    history.groups = ("g", "h")
    for row in history.table("receipts"):
        if row["sequence"] != 7 or row["lane"]:
            history.add("receipts", "x", **{**row, "group": "h"})
    result = judge(history, tmp_path)
    assert counts(result) == {"lost: unlocated": 1, "poll skip": 1}


def test_no_acknowledgements_no_yield(tmp_path: Path) -> None:
    history = clean_run()
    history.acks = "0"
    change(history, "attempts", lambda _: True, outcome=UNKNOWN, offset=-1, acked_us=-1)
    result = judge(history, tmp_path)
    assert result.metrics.yield_ is None
    assert result.metrics.harvest == 1.0


def test_source_with_fewer_partitions_than_lanes(tmp_path: Path) -> None:
    history = History(partitions={"t": 1})
    for sequence in range(10):
        for lane in (0, 1):
            offset = 2 * sequence + lane
            send(history, "p0", lane, sequence, offset=offset)
            put(history, "source", "p0", lane, sequence, partition=0, offset=offset)
            put(history, "target", "p0", lane, sequence, offset=sequence)
            receive(history, "p0", lane, sequence, offset=sequence)
    scan(history, "source", 0, end=20)
    for lane in (0, 1):
        scan(history, "target", lane, end=10)
        history.commit("drained", producer="p0", topic="t", lane=lane, group="g")
    result = judge(history, tmp_path)
    assert counts(result) == {}
    assert result.verdict is Verdict.PROVEN
    assert result.missing_scans == ()


def test_the_nearest_lower_neighbour_tells_whether_a_message_expired(tmp_path: Path) -> None:
    # Message 3 expired with its neighbours; the neighbours of message 7 are still in the log.
    history = clean_run(lanes=1)
    drop(history, "log", is_message(0, 0, 1, 2, 3, 7, cluster="target"))
    drop(history, "receipts", is_message(0, 3, 7))
    change(history, "scans", lambda row: row["cluster"] == "target", start=4)
    result = judge(history, tmp_path, Sizes(rows_per_cell=4))
    assert counts(result) == {"lost: expired at target": 1, "lost: not-mirrored": 1}


def test_of_deliveries_from_two_partitions_the_earlier_is_the_first(tmp_path: Path) -> None:
    # Assignments count per partition, so they say nothing about which of these came first.
    history = clean_run(lanes=1, count=3, scans=False)
    change(history, "receipts", is_message(0, 1), assignment=5)
    receive(history, "p0", 0, 1, partition=1, offset=0, received_us=90_000)
    result = judge(history, tmp_path)
    assert result.metrics.latency_us["e2e_actual"].max == 2000
    assert result.findings["duplicate: target"].count == 1


def alter_key(history: History) -> None:
    copy = is_message(0, 7, cluster="target")
    change(history, "log", copy, intact=False, key_check=99)
    change(history, "receipts", is_message(0, 7), intact=False)


def drop_headers(history: History) -> None:
    change(history, "log", lambda r: r["cluster"] == "target", intact=False, headers_check=0)
    change(history, "receipts", lambda _: True, intact=False)


def change_timestamp(history: History) -> None:
    history.promises = {"fidelity": ["key", "headers", "payload", "timestamps"]}
    change(history, "log", is_message(0, 7, cluster="target"), timestamp_us=123_000)


def change_partition(history: History) -> None:
    history.promises = {"fidelity": ["partition"]}
    change(history, "log", is_message(0, 7, cluster="target"), partition=1, offset=20)
    change(history, "receipts", is_message(0, 7), partition=1, offset=20)
    change(history, "scans", lambda r: r["cluster"] == "target" and r["partition"] == 1, end=21)


ALTERED = [
    (alter_key, {"altered: key": 1}),
    (drop_headers, {"altered: headers": 40}),
    (change_timestamp, {"altered: timestamp": 1}),
    (change_partition, {"altered: partition": 1}),
]


@pytest.mark.parametrize(("plant", "expected"), ALTERED, ids=[p.__name__ for p, _ in ALTERED])
def test_what_the_mirror_altered(
    plant: Callable[[History], None], expected: dict[str, int], tmp_path: Path
) -> None:
    history = clean_run()
    plant(history)
    result = judge(history, tmp_path)
    assert expected.items() <= counts(result).items()
    assert "corrupted" not in counts(result)
    assert result.verdict is Verdict.VIOLATED
    assert result.worst.stages["source_to_target"].verdict is Verdict.VIOLATED


def test_what_is_not_promised_may_change(tmp_path: Path) -> None:
    history = clean_run()
    change(history, "log", lambda r: r["cluster"] == "target", timestamp_us=123_000)
    assert judge(history, tmp_path).verdict is Verdict.PROVEN


def test_records_that_cannot_be_read_are_nobodys(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    nobody = {"producer": "", "lane": -1, "sequence": -1, "intact": False}
    for cluster in ("source", "target"):
        for offset in (3, 4):
            change(history, "log", is_message(0, offset, cluster=cluster), **nobody)
    change(history, "receipts", is_message(0, 3), **nobody)
    change(history, "receipts", is_message(0, 4), **nobody)
    result = judge(history, tmp_path)
    assert counts(result) == {"unreadable": 2, "lost: never-stored": 2}
    blamed = {name for name, stage in result.worst.stages.items() if stage.findings}
    assert blamed == {"producer_to_source"}
    assert result.findings["unreadable"].witness is not None
    assert result.findings["unreadable"].witness["offset"] == 3


# ---------------------------------------------------------------- batches


def make_batched_run(**changes: Any) -> History:
    """One lane in batches of four messages, the same in both logs, with bytes promised."""
    history = clean_run(lanes=1, count=20)
    history.promises = {"fidelity": ["bytes"]}
    for cluster in ("source", "target"):
        for first in range(0, 20, 4):
            own = changes if (cluster, first) == ("target", 8) else {}
            message = {"topic": "t", "partition": 0, "producer": "p0", "lane": 0}
            row = {"offset": first, "sequence": first, "records_check": first, **message, **own}
            history.add("batches", cluster=cluster, **row)
    return history


def test_batches_that_are_the_same_differ_in_nothing(tmp_path: Path) -> None:
    assert judge(make_batched_run(offset=77), tmp_path).findings == {}


@pytest.mark.parametrize(
    "change",
    [
        {"records_check": 99},
        {"codec": 4},
        {"records": 3},
        {"base_timestamp_us": 1000},
        {"max_timestamp_us": 1000},
        {"sequence": 9},
    ],
)
def test_a_batch_that_differs_in_anything_is_found(change: dict[str, int], tmp_path: Path) -> None:
    result = judge(make_batched_run(**change), tmp_path)
    assert counts(result) == {"batch differs": 1}
    assert result.worst.stages["source_to_target"].findings == ("batch differs",)
    assert result.findings["batch differs"].witness is not None
    assert result.findings["batch differs"].witness["sequence"] == change.get("sequence", 8)


def test_a_batch_that_was_encoded_anew_is_compared_record_by_record(tmp_path: Path) -> None:
    history = make_batched_run(records_check=99)
    history.add("re_encoded", topic="t", partition=0, offset=8)
    assert judge(history, tmp_path / "same").findings == {}
    change(history, "log", is_message(0, 9, cluster="target"), timestamp_us=5)
    assert counts(judge(history, tmp_path / "other")) == {"altered: timestamp": 1}


def test_append_times_of_the_target_are_its_own(tmp_path: Path) -> None:
    history = make_batched_run(max_timestamp_us=1000, stamped=True)
    assert judge(history, tmp_path).findings == {}


def test_a_batch_whose_source_is_gone_cannot_be_compared(tmp_path: Path) -> None:
    history = make_batched_run(records_check=99)
    drop(history, "log", is_message(0, *range(12), cluster="source"))
    drop(history, "batches", lambda r: r["cluster"] == "source" and r["offset"] < 12)
    change(history, "scans", lambda r: r["cluster"] == "source", start=12)
    assert "batch differs" not in counts(judge(history, tmp_path))


def test_batches_may_differ_where_bytes_are_not_promised(tmp_path: Path) -> None:
    history = make_batched_run(records_check=99)
    history.promises = {}
    assert judge(history, tmp_path).verdict is Verdict.PROVEN


def test_partitions_are_kept_only_where_both_topics_have_as_many(tmp_path: Path) -> None:
    history = clean_run()
    history.partitions = {"t": 1}
    history.lanes = {"t": 2}
    history.promises = {"fidelity": ["partition"]}
    for table in ("log", "attempts"):
        for _, row in history.rows[table]:
            if table == "attempts" or row["cluster"] == "source":
                row["offset"] += 20 * row["lane"]
                if table == "log":
                    row["partition"] = 0
    drop(history, "scans", lambda r: r["cluster"] == "source" and r["partition"] == 1)
    change(history, "scans", lambda r: r["cluster"] == "source", end=40)
    assert judge(history, tmp_path / "grown").findings == {}
    history.lanes = {}
    assert counts(judge(history, tmp_path / "kept")) == {"altered: partition": 20}


# ---------------------------------------------------------------- blame


def unreadable_copy(history: History) -> None:
    nobody = {"producer": "", "lane": -1, "sequence": -1, "intact": False}
    change(history, "log", is_message(0, 7, cluster="target"), **nobody)
    change(history, "receipts", is_message(0, 7), **nobody)


def in_transaction(history: History, fate: int, **columns: Any) -> None:
    for sequence in (7, 8):
        message = {"producer": "p0", "topic": "t", "lane": 0, "sequence": sequence}
        details = {"transaction": 1, "fate": fate, "requested_us": 0, **columns}
        history.add("transactions", **{**message, **details})


def abort_and_show(history: History) -> None:
    in_transaction(history, ABORTED)


def show_too_early(history: History) -> None:
    in_transaction(history, COMMITTED, requested_us=9_500)


def tear_in_the_mirror(history: History) -> None:
    in_transaction(history, COMMITTED)
    not_mirrored(history)


def refuse_and_commit(history: History) -> None:
    in_transaction(history, COMMITTED)
    change(history, "attempts", is_message(0, 7), outcome=FAILED, error=10, offset=-1)


BLAMED = [
    (refuse_and_commit, "producer_to_source", "producer_to_source"),
    (unreadable_copy, "source_to_target", "log_to_consumers"),
    (abort_and_show, "source_to_target", "log_to_consumers"),
    (show_too_early, "source_to_target", "log_to_consumers"),
    (tear_in_the_mirror, "source_to_target", "log_to_consumers"),
]


@pytest.mark.parametrize(
    ("plant", "with_mirror", "without"), BLAMED, ids=[plant.__name__ for plant, _, _ in BLAMED]
)
def test_the_stage_that_exposes_hidden_messages_is_blamed(
    plant: Callable[[History], None], with_mirror: str, without: str, tmp_path: Path
) -> None:
    for mirror, blamed in ((True, with_mirror), (False, without)):
        if not mirror and plant in (unreadable_copy, tear_in_the_mirror):
            continue  # these are a mirror's doing
        history = clean_run(mirror=mirror)
        plant(history)
        result = judge(history, tmp_path / str(mirror))
        assert result.verdict is Verdict.VIOLATED
        stages = result.worst.stages.items()
        assert [name for name, stage in stages if stage.findings] == [blamed], counts(result)


def test_isolation_is_that_of_each_group(tmp_path: Path) -> None:
    history = clean_run()
    abort_and_show(history)
    one = history.write(tmp_path / "one")
    other = History(groups=("h",)).write(tmp_path / "other")
    plan = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(plan | {"isolation": "read_uncommitted"}))
    result = audit(open_ledger([one, other]))
    assert result.groups["g"].findings["aborted read"].count > 0
    assert result.worst_group == "g"
    plan = json.loads((one / "run.json").read_text())
    (one / "run.json").write_text(json.dumps(plan | {"isolation": "read_uncommitted"}))
    assert "aborted read" not in audit(open_ledger([one, other])).groups["g"].findings


def test_a_refused_send_is_seen_in_an_aborted_transaction_at_any_isolation(tmp_path: Path) -> None:
    """Producers record `failed` for every send of such a transaction; error codes differ."""
    for error, found in ((0, {}), (10, {"aborted read": 1})):
        history = clean_run()
        in_transaction(history, ABORTED)
        change(history, "attempts", is_message(0, 7, 8), outcome=FAILED, offset=-1)
        change(history, "attempts", is_message(0, 7), error=error)
        folder = history.write(tmp_path / str(error))
        plan = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(plan | {"isolation": "read_uncommitted"}))
        assert counts(audit(open_ledger([folder]), sizes=SMALL)) == found


def test_an_attempt_without_a_record_shares_the_fate_of_its_transaction(tmp_path: Path) -> None:
    """A producer died after the commit, before it recorded what was acknowledged."""
    history = clean_run()
    in_transaction(history, COMMITTED)
    drop(history, "attempts", is_message(0, 7, 8))
    never_stored(history)
    result = judge(history, tmp_path)
    assert counts(result) == {"lost: never-stored": 1, "torn transaction": 1}
    assert result.metrics.unknown == 0


def test_a_neighbour_in_another_partition_and_another_cell_tells_too(tmp_path: Path) -> None:
    # The mirror put message 18 into partition 1, whose start has moved past it since.
    history = clean_run(lanes=1)
    drop(history, "log", is_message(0, 18, 19, cluster="target"))
    drop(history, "receipts", is_message(0, 18, 19))
    receive(history, "p0", 0, 18, partition=1, offset=0)
    scan(history, "target", 1, start=1, end=1)
    for sizes in (Sizes(), Sizes(rows_per_cell=4), Sizes(rows_per_cell=1)):
        result = judge(history, tmp_path / str(sizes.rows_per_cell), sizes)
        assert counts(result)["lost: expired at target"] == 1
