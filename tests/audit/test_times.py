"""Latencies, ranges, throughput and series."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.audit import Sizes, audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.result.thresholds import hold, parse
from shoal.audit.times.latency import bucket_bounds, bucket_of
from shoal.model.ledger import UNKNOWN
from shoal.model.result import Result
from support.audit.ledgers import History, clean_run, put, receive, send


def judge(history: History, folder: Path) -> Result:
    return audit(open_ledger([history.write(folder / "run")]), sizes=Sizes(rows_per_cell=50))


@given(st.integers(-5, 2**60))
def test_buckets_hold_their_values_closely(value: int) -> None:
    bucket = int(bucket_of(np.array([value], dtype=np.int64))[0])
    low, high = bucket_bounds(bucket)
    assert low <= max(value, 0) <= high
    assert (high - low) * 32 <= max(low, 1)


def test_times_of_a_clean_run(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    for row in history.table("log"):
        if row["cluster"] == "target":
            row["append_us"] = 5000 + 10 * row["offset"]
    metrics = judge(history, tmp_path).metrics
    for name, value in (("e2e_intended", 2000), ("e2e_actual", 2000), ("producer", 300)):
        found = metrics.latency_us[name]
        assert (found.count, found.negative, found.mean, found.max) == (20, 0, value, value)
        assert set(found.percentiles.values()) == {value}
    ranges = {"sent": 19_000, "published": 19_000, "output": 190, "consumed": 19_000}
    assert metrics.range_us == ranges


def test_latency_counts_from_the_intended_send_and_the_first_delivery(tmp_path: Path) -> None:
    history = History(mirror=False, all_drained=True)
    send(history, "p0", 0, 0, offset=0, intended_us=1000, sent_us=4000, acked_us=4500)
    send(history, "p0", 0, 1, offset=1, intended_us=-1, sent_us=5000, acked_us=-1, outcome=UNKNOWN)
    send(history, "p0", 0, 2, offset=2, intended_us=9000, sent_us=9000, acked_us=9100)
    receive(history, "p0", 0, 0, offset=0, received_us=10_000)
    receive(history, "p0", 0, 1, offset=1, received_us=10_000)
    receive(history, "p0", 0, 2, offset=2, received_us=8_000)
    receive(history, "p0", 0, 0, offset=3, received_us=90_000)
    metrics = judge(history, tmp_path).metrics
    intended, actual = metrics.latency_us["e2e_intended"], metrics.latency_us["e2e_actual"]
    assert (intended.count, intended.negative, intended.max) == (3, 1, 9000)
    assert (actual.count, actual.max, actual.percentiles["p50"]) == (3, 6000, 5000)
    assert metrics.latency_us["producer"].count == 2
    assert metrics.range_us["consumed"] == 2000
    assert metrics.range_us["output"] is None


def test_warm_up_leaves_latency_and_throughput_but_no_finding(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    history.started_us, history.warm_up_us = 0, 10_000
    history.rows["receipts"].pop(3)
    result = judge(history, tmp_path)
    assert result.metrics.latency_us["e2e_intended"].count == 10
    assert result.findings["lost: undelivered"].count == 1
    everything, of_topic = result.worst.throughput
    assert (everything.topic, everything.sent, everything.delivered) == (None, 10, 10)
    assert everything.sent_per_s == pytest.approx(10 / 0.009)
    assert of_topic.topic == "t"


def test_series_and_histogram_for_pictures(tmp_path: Path) -> None:
    history = clean_run(lanes=1, count=4)
    for place, row in enumerate(history.table("attempts")):
        row["intended_us"] = row["sent_us"] = (10 + 2 * (place // 2)) * 1_000_000
    for place, row in enumerate(history.table("receipts")):
        row["received_us"] = (10 + 2 * (place // 2)) * 1_000_000 + 40 + place
    group = judge(history, tmp_path).worst
    assert group.series.start_s == 10
    assert group.series.sent == group.series.received == [2, 0, 2]
    assert group.series.latency_us_p50 == [40, None, 42]
    assert group.series.latency_us_max == [41, None, 43]
    assert group.histogram == ((40, 40, 1), (41, 41, 1), (42, 42, 1), (43, 43, 1))


def test_strips_show_where_in_a_lane_something_happened(tmp_path: Path) -> None:
    history = clean_run(lanes=2, count=500)
    history.rows["receipts"] = [
        (worker, row)
        for worker, row in history.rows["receipts"]
        if (row["lane"], row["sequence"]) not in {(1, 250), (1, 251)}
    ]
    first, second = judge(history, tmp_path).worst.strips
    assert (first.lane, first.length, first.stretch, first.marks) == (0, 500, 2, ())
    assert second.marks == ((250, "lost: undelivered", 2),)


def test_replication_is_from_append_to_append_of_first_copies(tmp_path: Path) -> None:
    history = clean_run(lanes=1, count=10)
    for _, row in history.rows["log"]:
        behind_us = 700 if row["cluster"] == "target" else 0
        row["append_us"] = 1000 * row["sequence"] + 50 + behind_us
    put(history, "target", "p0", 0, 3, offset=40, append_us=900_000)  # a copy
    history.rows["log"][4][1]["append_us"] = -1
    replication = judge(history, tmp_path).metrics.latency_us["replication"]
    assert (replication.count, replication.max) == (9, 700)
    assert replication.skew_us is None  # the clocks of brokers are not compared


def test_append_times_that_a_mirror_kept_are_not_the_targets(tmp_path: Path) -> None:
    history = clean_run(lanes=1, count=10)
    for _, row in history.rows["log"]:
        row["append_us"] = 1000 * row["sequence"] + 50
    assert "replication" not in judge(history, tmp_path).metrics.latency_us


def test_replication_within_a_microsecond_counts_in_every_cell(tmp_path: Path) -> None:
    history = clean_run(lanes=1, count=10)
    for _, row in history.rows["log"]:
        behind_us = 700 if row["cluster"] == "target" and row["sequence"] == 9 else 0
        row["append_us"] = 1000 * row["sequence"] + 50 + behind_us
    ledger = open_ledger([history.write(tmp_path / "run")])
    for sizes in (Sizes(), Sizes(rows_per_cell=4)):
        replication = audit(ledger, sizes=sizes).worst.metrics.latency_us["replication"]
        assert (replication.count, replication.max) == (10, 700)


def test_without_append_times_there_is_no_replication_latency(tmp_path: Path) -> None:
    assert "replication" not in judge(clean_run(), tmp_path).metrics.latency_us


def test_rates_in_bytes_need_the_size_of_messages(tmp_path: Path) -> None:
    history = clean_run(lanes=1, count=11)
    [row, _] = judge(history, tmp_path / "unknown").worst.throughput
    assert row.sent_bytes_per_s is None
    history.size_bytes = 200
    [row, _] = judge(history, tmp_path / "known").worst.throughput
    assert row.sent_per_s == 1100
    assert row.sent_bytes_per_s == 220_000


def test_staleness_is_that_of_every_poll(tmp_path: Path) -> None:
    history = clean_run()
    for offset, polled_us, known_us in ((0, 100, 40), (1, 300, 290), (2, 500, 490)):
        history.add("polls", offset=offset, polled_us=polled_us, known_us=known_us)
    history.add("polls", offset=3, polled_us=600, known_us=-1, count=7)  # nothing was known
    history.add("polls", group="h", offset=0, polled_us=900, known_us=100)
    result = audit(open_ledger([history.write(tmp_path / "run")]))
    stale = result.metrics.latency_us["staleness"]
    assert (stale.count, stale.max, stale.mean) == (10, 60, 8.0)
    assert (stale.percentiles["p50"], stale.percentiles["p90"]) == (0, 10)
    assert (stale.undelivered, stale.skew_us) == (0, (0, 0))
    [missed] = hold(result, parse(["staleness_us_max<60"])).missed
    assert list(missed.values.values()) == [60]


def test_without_polls_there_is_no_staleness(tmp_path: Path) -> None:
    result = audit(open_ledger([clean_run().write(tmp_path / "run")]))
    assert "staleness" not in result.metrics.latency_us
