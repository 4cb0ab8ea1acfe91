"""The data behind the page of a run, against plain counts, and the life of single messages."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import Sizes, examine
from shoal.audit.page.build import build_page, load_page, shrink, write_page
from shoal.audit.page.life import MessageName, message_life
from shoal.audit.page.missing import find_missing
from shoal.audit.read.folder import open_ledger
from shoal.audit.result.conclude import conclude
from shoal.cli.main import execute
from shoal.model.errors import LedgerError, UsageError
from shoal.model.ledger import FAILED, UNKNOWN
from shoal.model.pages.run import (
    MOST_BINS,
    MOST_BYTES,
    GroupPage,
    PageData,
    bucket_bounds_us,
    percentile_us,
    read_page,
)
from support.audit.ledgers import History, busy_run, clean_run, receive

SMALL = Sizes(rows_per_cell=50)


def build(history: History, folder: Path, sizes: Sizes = SMALL) -> PageData:
    ledger = open_ledger([history.write(folder)])
    evidence = examine(ledger, sizes=sizes)
    return build_page(ledger, evidence, conclude(ledger, evidence).worst_group)


def page_of(history: History, folder: Path) -> GroupPage:
    return build(history, folder).groups["g"]


def make_faulted(history: History, began_us: int, ended_us: int) -> History:
    for phase, at_us in (("begin", began_us), ("end", ended_us)):
        fault = {"fault": 1, "phase": phase, "name": "kill", "target": "source/1", "detail": {}}
        history.commits.append({"kind": "fault", "at_us": at_us, **fault})
    return history


def drop(history: History, table: str, lane: int, *sequences: int, **where: Any) -> None:
    wanted = {"lane": lane, **where}
    history.rows[table] = [
        (worker, row)
        for worker, row in history.rows[table]
        if row["sequence"] not in sequences or any(row[k] != v for k, v in wanted.items())
    ]


def lossy_run() -> History:
    """2 lanes of 300 messages each, one every ms; lane 1 loses 5 from 100 on, at three stages."""
    history = clean_run(lanes=2, count=300)
    history.started_us = 0
    drop(history, "receipts", 1, *range(100, 105))
    drop(history, "log", 1, 101, 102, cluster="target")
    drop(history, "log", 1, 102, cluster="source")
    receive(history, "p0", 0, 7, offset=7, received_us=10_000)
    return history


# Bins


def test_bins_count_what_the_rows_have(tmp_path: Path) -> None:
    history = lossy_run()
    bins = page_of(history, tmp_path / "run").bins
    width = bins.bin_us
    assert (bins.start_us, width, len(bins.due)) == (0, 10_000, 31)
    lists = (bins.due, bins.acknowledged, bins.received, bins.lost, bins.never, bins.latency)
    assert {len(each) for each in lists} == {31}
    attempts, receipts = history.table("attempts"), history.table("receipts")
    due = Counter(row["intended_us"] // width for row in attempts)
    acked = Counter(row["acked_us"] // width for row in attempts)
    came = {(row["lane"], row["sequence"]): row["received_us"] for row in reversed(receipts)}
    received = Counter(time // width for time in came.values())
    missing = [row for row in attempts if (row["lane"], row["sequence"]) not in came]
    lost = Counter(row["intended_us"] // width for row in missing)
    for found, wanted in zip(lists, (due, acked, received, lost, lost), strict=False):
        assert found == [wanted[number] for number in range(31)]
    arrived = [sum(buckets.values()) for buckets in bins.latency]
    assert arrived == [n - lost[i] for i, n in enumerate(bins.due)]
    low, high = bucket_bounds_us(int(next(iter(bins.latency[3]))))
    assert low <= 2000 < high
    assert high / low == pytest.approx(2 ** (1 / 16))


def test_pages_do_not_depend_on_the_size_of_cells(tmp_path: Path) -> None:
    small = build(busy_run(), tmp_path / "small")
    assert small == build(busy_run(), tmp_path / "large", Sizes())


def test_a_long_run_has_wider_bins_and_an_undated_one_has_none(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    for _, row in history.rows["receipts"]:
        row["received_us"] = 3_600_000_000
    bins = page_of(history, tmp_path / "long").bins
    assert len(bins.due) == MOST_BINS
    assert bins.bin_us == 9_000_001
    history = clean_run(lanes=1)
    for _, row in history.rows["attempts"]:
        row |= {"intended_us": -1, "sent_us": -1, "acked_us": -1}
    del history.rows["receipts"][3]
    bins = page_of(history, tmp_path / "undated").bins
    assert (bins.due, bins.undated_never) == ([], 1)


@pytest.mark.parametrize(
    ("percent", "never", "bucket"),
    [(50, 0, 160), (99, 0, 160), (99.9, 0, 176), (99, 11, None), (90, 11, 160), (100, 0, 176)],
)
def test_percentiles_of_buckets_reach_losses(
    percent: float, never: int, bucket: int | None
) -> None:
    found = percentile_us({"160": 990, "176": 10}, percent, never=never)
    assert found == (None if bucket is None else bucket_bounds_us(bucket)[1])


# Flow, lanes, curves


def test_the_flow_has_losses_and_copies_where_they_happened(tmp_path: Path) -> None:
    flow = page_of(lossy_run(), tmp_path / "run").flow
    rows = [(s.name, s.count, s.lost, s.duplicated) for s in flow.stages]
    assert rows == [
        ("sent", 600, 0, 0),
        ("source", 599, 1, 0),
        ("mirror", 598, 1, 0),
        ("target", 598, 0, 0),
        ("received", 595, 3, 1),
    ]
    assert (flow.acknowledged, flow.failed, flow.unlocated, flow.pending) == (600, 0, 0, 0)


def test_the_flow_without_a_mirror_has_three_stages(tmp_path: Path) -> None:
    flow = page_of(clean_run(mirror=False), tmp_path / "run").flow
    assert [(s.name, s.count) for s in flow.stages] == [
        ("sent", 40),
        ("source", 40),
        ("received", 40),
    ]


def test_the_worst_lanes_come_first_with_their_stretches(tmp_path: Path) -> None:
    lanes = page_of(lossy_run(), tmp_path / "run").lanes
    assert [(row.lane, row.due, row.affected) for row in lanes] == [(1, 300, 5), (0, 300, 0)]
    assert lanes[0].share == pytest.approx(5 / 300)
    assert lanes[0].findings == {
        "lost: never-stored": 1,
        "lost: not-mirrored": 1,
        "lost: undelivered": 3,
    }
    hit = [(first, last, due) for first, last, due, affected in lanes[0].stretches if affected]
    assert hit == [(100_000, 101_000, 2), (102_000, 103_000, 2), (104_000, 105_000, 2)]


def test_curves_are_those_before_during_and_after_faults(tmp_path: Path) -> None:
    history = make_faulted(clean_run(lanes=1, count=300), 100_000, 200_000)
    for _, row in history.rows["receipts"]:
        if 100 <= row["sequence"] < 200:
            row["received_us"] += 50_000
    drop(history, "receipts", 0, 150)
    before, during, after = page_of(history, tmp_path / "run").curves
    assert [c.phase for c in (before, during, after)] == ["before", "during", "after"]
    assert [(c.count, c.never) for c in (before, during, after)] == [(100, 0), (99, 1), (100, 0)]
    assert dict(before.points)[99.0] == 2000
    assert dict(during.points)[50.0] == 52_000
    assert dict(during.points)[100.0] is None  # never
    [whole] = page_of(clean_run(), tmp_path / "calm").curves
    assert (whole.phase, whole.count, dict(whole.points)[50.0]) == ("whole", 40, 2000)


# The file


def test_a_page_is_read_as_it_was_written_or_computed(tmp_path: Path) -> None:
    page = build(busy_run(), tmp_path / "run")
    assert read_page(tmp_path / "run") is None
    assert load_page(tmp_path / "run") == page
    write_page(tmp_path / "run", page)
    assert read_page(tmp_path / "run") == page


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1}', "[" * 10_000])
def test_a_page_that_is_not_valid_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "page.json").write_text(content)
    with pytest.raises(LedgerError, match=r"page\.json is not a valid page") as found:
        read_page(tmp_path)
    assert "shoal audit" in str(found.value.remedy)


def test_a_page_is_made_to_fit(tmp_path: Path) -> None:
    page = build(lossy_run(), tmp_path / "run")
    group = page.groups["g"]
    many = {str(bucket): 1_000_000 for bucket in range(100)}
    bins = replace(group.bins, latency=[many] * 400, due=[1] * 400)
    large = replace(page, groups={f"g{n}": replace(group, bins=bins) for n in range(60)})
    small = shrink(large)
    assert len(small.to_bytes()) <= MOST_BYTES
    assert next(iter(small.groups)) == "g0"
    assert [*small.groups, *small.left_out] == [f"g{n}" for n in range(60)]
    fuller = {**small.groups, small.left_out[0]: small.groups["g0"]}
    assert len(replace(small, groups=fuller).to_bytes()) > MOST_BYTES
    kept = small.groups["g0"].bins
    assert sum(kept.due) == 400
    assert kept.bin_us == bins.bin_us * 8


# One message


def trace(folder: Path, lane: int, sequence: int, producer: str = "p0") -> Any:
    return message_life([folder], MessageName("t", producer, lane, sequence))


def test_a_life_has_every_event_and_the_neighbours(tmp_path: Path) -> None:
    history = make_faulted(lossy_run(), 50_000, 100_500)
    for row in history.table("log"):
        row["append_us"] = 1000 * row["sequence"] + (100 if row["cluster"] == "source" else 900)
    folder = history.write(tmp_path / "run")
    life = trace(folder, 0, 99)
    assert (life.intended_us, life.sent_us, life.acknowledged_us) == (99_000, 99_000, 99_300)
    assert [(p.partition, p.offset, p.append_us) for p in life.source] == [(0, 99, 99_100)]
    assert [(p.partition, p.offset, p.append_us) for p in life.target] == [(0, 99, 99_900)]
    assert [(p.group, p.offset, p.received_us, p.latency_us) for p in life.polls] == [
        ("g", 99, 101_000, 2000)
    ]
    assert [n.sequence for n in life.neighbours] == [96, 97, 98, 100, 101, 102]
    assert [fault["name"] for fault in life.faults] == ["kill"]
    assert json.loads(json.dumps(life.to_json()))["last_stage"] == "received"
    assert [n.last_stage for n in trace(folder, 1, 103).neighbours] == [
        "target",
        "source",
        "acknowledged",
        "target",
        "received",
        "received",
    ]


def odd_run() -> History:
    history = lossy_run()
    for _, row in history.rows["attempts"]:
        if (row["lane"], row["sequence"]) in {(1, 200), (1, 201)}:
            row |= {"outcome": FAILED if row["sequence"] == 200 else UNKNOWN, "acked_us": -1}
            row |= {"error": 7, "offset": -1}
    for table in ("log", "receipts"):
        drop(history, table, 1, 200, 201)
    return history


@pytest.mark.parametrize(
    ("lane", "sequence", "stage", "sentence"),
    [
        (0, 7, "received", "was received by group g 2.00 ms later, and 1 more time."),
        (1, 100, "target", "after 300 µs, is in the target at partition 1, offset 100, but no "),
        (1, 101, "source", "is in the source at partition 1, offset 101, but is not in the target"),
        (1, 102, "acknowledged", "was acknowledged after 300 µs, but is not in the source."),
        (1, 200, "sent", "failed to be sent, but is not in the source."),
        (1, 201, "sent", "was sent without an answer, but is not in the source."),
        (0, 400, "unknown", "No ledger of this run has message 400 of lane 0."),
        (9, 1, "unknown", "No ledger of this run has message 1 of lane 9."),
    ],
)
def test_a_life_ends_in_one_plain_sentence(
    tmp_path: Path, lane: int, sequence: int, stage: str, sentence: str
) -> None:
    life = trace(odd_run().write(tmp_path / "run"), lane, sequence)
    assert life.last_stage == stage
    assert sentence in life.sentence
    assert life.sentence.count(". ") == 0


def test_one_of_two_producers_with_one_id_must_be_named(tmp_path: Path) -> None:
    history = clean_run(lanes=1)
    for table in ("attempts", "log", "receipts"):
        for worker, row in list(history.rows[table]):
            more = {"incarnation": 0x2A, "offset": row["offset"] + 100}
            history.rows[table].append((worker, row | more))
    folder = history.write(tmp_path / "run")
    with pytest.raises(UsageError, match="several producers had the id p0") as found:
        trace(folder, 0, 3)
    assert "p0#00000000, p0#0000002a" in str(found.value.remedy)
    assert trace(folder, 0, 3, "p0#0000002a").polls[0].offset == 103


def test_a_life_reads_only_the_row_groups_that_may_have_the_message(tmp_path: Path) -> None:
    folder = clean_run(lanes=1, count=300).write(tmp_path / "run", rows_per_segment=50)
    damaged = [
        path for path in folder.glob("ledger/*/w-1-[1-5].parquet") if path.parent.name != "scans"
    ]
    assert len(damaged) >= 15
    for path in damaged:
        content = bytearray(path.read_bytes())
        footer = int.from_bytes(content[-8:-4], "little") + 8
        content[4:-footer] = bytes(len(content) - 4 - footer)
        path.write_bytes(content)
    assert trace(folder, 0, 20).last_stage == "received"
    with pytest.raises(LedgerError):
        trace(folder, 0, 120)


def test_the_command_line_shows_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(lossy_run().write(tmp_path / "run"))
    assert execute(["runs", "message", folder, "t", "p0", "1", "101"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "but is not in the target" in shown[0]
    assert shown[1:] == [
        f"  {n}: {s}"
        for n, s in zip(
            (98, 99, 100, 102, 103, 104),
            ("received", "received", "target", "acknowledged", "target", "target"),
            strict=True,
        )
    ]
    assert execute(["runs", "message", folder, "t", "p0", "1", "101", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["last_stage"] == "source"


def test_what_later_messages_have_passed_is_missing(tmp_path: Path) -> None:
    """Lane 0 lost 50 to 54; of lane 1 nothing arrived after 60, so that may be on its way."""
    history = clean_run(lanes=2, count=100)
    history.rows["receipts"] = [
        (worker, row)
        for worker, row in history.rows["receipts"]
        if not (row["lane"] == 0 and 50 <= row["sequence"] < 55)
        and not (row["lane"] == 1 and row["sequence"] >= 60)
    ]
    folder = history.write(tmp_path / "run")
    at = {row["sequence"]: row["acked_us"] for row in history.table("attempts")}

    def missing(before_us: int, most: int = 1000) -> tuple[int, list[int]]:
        found = find_missing([folder], before_us, most_sequences=most)
        assert all(name.lane == 0 for name in found.examples)
        return found.count, [name.sequence for name in found.examples]

    assert missing(at[70]) == (5, [50, 51, 52, 53, 54])
    assert missing(at[52]) == (2, [50, 51])
    assert missing(at[50]) == (0, [])
    assert missing(at[99] + 1) == (0, [])  # nothing acknowledged after that time has arrived
