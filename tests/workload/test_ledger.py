"""Ledgers: durable, readable wherever a writer died, refused when they are not ours."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.model.errors import LedgerError, UsageError
from shoal.model.ledger import FORMAT_KEY, OK, TABLES
from shoal.model.run_folder import read_commits
from shoal.workload.record.ledger import (
    CommitLog,
    LedgerWriter,
    create_run,
    earlier_incarnation,
    first_free_numbers,
    open_run,
    update_run,
)
from shoal.workload.record.recorder import Recorder
from shoal.workload.record.rows import LedgerRows, Names, read_segment, to_parquet

PLAN = {"run": "r1", "state": "running"}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    create_run(tmp_path / "run", PLAN)
    return tmp_path / "run"


def attempts(sequences: Any, **changes: Any) -> dict[str, Any]:
    row = {
        "producer": "p0",
        "incarnation": 7,
        "topic": "t",
        "lane": 0,
        "sequence": sequences,
        "outcome": OK,
        "error": 0,
        "offset": sequences,
        "intended_us": 1,
        "sent_us": 2,
        "acked_us": 3,
    }
    return row | changes


async def test_rows_come_back_as_they_went_in(run_dir: Path) -> None:
    with CommitLog(run_dir) as log:
        recorder = Recorder(run_dir, worker="w1", epoch=1, commit=log.append)
        recorder.append("attempts", **attempts(np.arange(5)))
        recorder.append("attempts", **attempts(7, lane=3, producer="p1"))
        names = Names(np.array([2, 0, 2]), ["a", "unused", "c"])
        recorder.append("attempts", **attempts(np.arange(3), producer=names))
        await recorder.seal()
        await recorder.seal()  # nothing new: no segment
        recorder.append("attempts", **attempts(np.arange(2, 4000), lane=1))
        await recorder.seal()
    run = open_run(run_dir)
    table = run.read("attempts")
    assert [s.rows for s in run.segments("attempts")] == [9, 3998]
    assert table["sequence"].to_pylist()[:9] == [0, 1, 2, 3, 4, 7, 0, 1, 2]
    assert table["producer"].to_pylist()[:9] == ["p0"] * 5 + ["p1", "c", "a", "c"]
    assert table["lane"].to_pylist()[5:10] == [3, 0, 0, 0, 1]
    assert table.num_rows == 4007
    assert run.read("receipts").num_rows == 0


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_the_published_columns(table: str) -> None:
    rows = LedgerRows(table)
    rows.append({name: "x" if kind == "dictionary" else 1 for name, kind in TABLES[table]})
    content = pq.read_table(pa.BufferReader(to_parquet(rows)))
    assert content.schema.names == [name for name, _ in TABLES[table]]
    assert content.schema.metadata[FORMAT_KEY] == b"3"


def test_incarnations_cost_next_to_nothing() -> None:
    """Also where one consumer reads several producers in turn."""
    sizes = []
    for several in (1, 4):
        rows, count = LedgerRows("attempts"), 100_000
        numbers = np.array([Random(n).getrandbits(32) for n in range(several)], np.int64)
        rows.append(attempts(np.arange(count), incarnation=numbers[np.arange(count) % several]))
        content = to_parquet(rows)
        group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
        place = list(dict(TABLES["attempts"])).index("incarnation")
        sizes.append(group.column(place).total_compressed_size)
    assert max(sizes) < 3000, sizes  # bytes, for 100,000 rows


def test_a_ledger_has_one_writer(run_dir: Path) -> None:
    match = "another process is writing to the ledgers"
    with CommitLog(run_dir), pytest.raises(UsageError, match=match):
        CommitLog(run_dir)
    CommitLog(run_dir).close()


def test_rows_of_the_wrong_shape_are_refused() -> None:
    rows = LedgerRows("attempts")
    for bad in (
        {"producer": "p"},
        attempts(np.arange(3), lane=np.arange(2)),
        attempts(1, producer=5),
        attempts(1) | {"more": 1},
    ):
        with pytest.raises(UsageError):
            rows.append(bad)
    assert len(rows) == 0


async def test_a_segment_that_is_not_committed_does_not_exist(run_dir: Path) -> None:
    async def refuse(_line: dict[str, Any]) -> None:
        raise LedgerError("the lease is gone")

    writer = LedgerWriter(run_dir, worker="w", epoch=1, table="attempts", commit=refuse)
    writer.append(**attempts(np.arange(3)))
    with pytest.raises(LedgerError):
        await writer.seal()
    CommitLog(run_dir).close()
    assert list((run_dir / "ledger/attempts").iterdir())
    assert open_run(run_dir).read("attempts").num_rows == 0


async def test_seal_returns_after_the_commit_of_all_rows_so_far(run_dir: Path) -> None:
    gate = asyncio.Event()
    committed: list[dict[str, Any]] = []

    async def slow(line: dict[str, Any]) -> None:
        await gate.wait()
        committed.append(line)

    writer = LedgerWriter(run_dir, worker="w", epoch=2, table="attempts", commit=slow)
    writer.append(**attempts(np.arange(3)))
    first = asyncio.create_task(writer.seal())
    await asyncio.sleep(0.05)
    writer.append(**attempts(np.arange(4)))
    second = asyncio.create_task(writer.seal())
    await asyncio.sleep(0.05)
    assert not first.done()
    assert not second.done()
    gate.set()
    await second
    assert [line["rows"] for line in committed] == [3, 4]
    assert first.done()


async def test_two_epochs_of_a_worker_do_not_collide(run_dir: Path) -> None:
    with CommitLog(run_dir) as log:
        for epoch in (10, 9):
            recorder = Recorder(run_dir, worker="w", epoch=epoch, commit=log.append)
            recorder.append("attempts", **attempts(np.arange(epoch)))
            await recorder.seal()
        again = Recorder(run_dir, worker="w", epoch=9, commit=log.append)
        again.append("attempts", **attempts(np.arange(1)))
        with pytest.raises(FileExistsError):
            await again.seal()
    assert [s.epoch for s in open_run(run_dir).segments("attempts")] == [9, 10]


def test_a_cut_last_line_is_ignored_and_then_overwritten(run_dir: Path) -> None:
    with CommitLog(run_dir) as log:
        log.append({"kind": "lease", "worker": "w", "epoch": 1})
        log.append({"kind": "foreign", "worker": "w", "cluster": "source", "count": 2})
    path = run_dir / "commits.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert len(read_commits(run_dir)) == whole[:cut].count(b"\n")
    path.write_bytes(whole[:-5])
    with CommitLog(run_dir) as log:
        log.append({"kind": "ended", "worker": "w", "epoch": 1, "reason": "lost"})
        assert [line["kind"] for line in log.lines()] == ["lease", "ended"]
    assert all("at_us" in line for line in read_commits(run_dir))


@pytest.mark.parametrize("text", [b"{]\n", b"[]\n", b'{"kind":"surprise"}\n', b"\xff\n"])
def test_a_commit_log_of_something_else_is_refused(run_dir: Path, text: bytes) -> None:
    (run_dir / "commits.jsonl").write_bytes(b'{"kind":"lease"}\n' + text + b'{"kind":"lease"}\n')
    with pytest.raises(LedgerError, match="line 2"):
        open_run(run_dir)


def test_lines_of_no_known_kind_are_not_written(run_dir: Path) -> None:
    with CommitLog(run_dir) as log:
        with pytest.raises(UsageError):
            log.append({"kind": "surprise"})
        with pytest.raises(UsageError):
            log.append({"kind": "fault", "name": "x" * 2_000_000})
    assert read_commits(run_dir) == []


@pytest.mark.parametrize(
    ("content", "match"),
    [(b"{", "not JSON"), (b"[]", "format None"), (b'{"format":4}', "format 4"), (b"{}", "None")],
)
def test_a_folder_of_another_format_is_refused(run_dir: Path, content: bytes, match: str) -> None:
    CommitLog(run_dir).close()
    (run_dir / "run.json").write_bytes(content)
    with pytest.raises(LedgerError, match=match):
        open_run(run_dir)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        open_run(tmp_path)
    create_run(tmp_path, PLAN)
    with pytest.raises(LedgerError, match="cannot be read"):
        open_run(tmp_path)  # no commit log: nothing can count
    with pytest.raises(UsageError):
        create_run(tmp_path, PLAN)


def test_the_state_of_a_run_is_replaced_whole(run_dir: Path) -> None:
    CommitLog(run_dir).close()
    update_run(run_dir, {**open_run(run_dir).plan, "state": "interrupted"})
    assert open_run(run_dir).plan == {"run": "r1", "state": "interrupted", "format": 3}


def test_bad_segments_are_refused(run_dir: Path) -> None:
    rows = LedgerRows("attempts")
    rows.append(attempts(np.arange(3)))
    content = to_parquet(rows).to_pybytes()
    alien = pa.table({"a": [1]})
    folder = run_dir / "ledger/attempts"
    (folder / "cut.parquet").write_bytes(content[:-30])
    (folder / "empty.parquet").write_bytes(b"")
    pq.write_table(alien, folder / "alien.parquet")
    newer = alien.replace_schema_metadata({FORMAT_KEY: b"4"})
    pq.write_table(newer, folder / "newer.parquet")
    marked = alien.replace_schema_metadata({FORMAT_KEY: b"3"})
    pq.write_table(marked, folder / "marked.parquet")
    for name in ("cut", "empty", "alien", "newer", "marked", "missing", "../../../x"):
        line = {"kind": "segment", "worker": "w", "epoch": 1, "number": 0, "rows": 1}
        line |= {"table": "attempts", "path": f"ledger/attempts/{name}.parquet"}
        (run_dir / "commits.jsonl").write_text(json.dumps(line) + "\n")
        with pytest.raises(LedgerError):
            open_run(run_dir).read("attempts")


def test_a_flipped_bit_is_found(run_dir: Path) -> None:
    random = Random(1)
    rows = LedgerRows("attempts")
    rows.append(attempts(np.array([random.getrandbits(60) for _ in range(5000)])))
    content = to_parquet(rows).to_pybytes()
    segment = run_dir / "segment.parquet"
    segment.write_bytes(content)
    group = pq.read_metadata(segment).row_group(0)
    sequences = group.column(list(dict(TABLES["attempts"])).index("sequence"))
    begin = sequences.data_page_offset
    for _ in range(50):
        damaged = bytearray(content)
        # Behind the header of the page, which no checksum covers.
        place = random.randrange(begin + 200, begin + sequences.total_compressed_size)
        damaged[place] ^= 1 << random.randrange(8)
        segment.write_bytes(damaged)
        with pytest.raises(LedgerError, match="checksum"):
            read_segment(str(segment), "attempts")


async def test_reservations_say_where_a_restarted_producer_begins(run_dir: Path) -> None:
    with CommitLog(run_dir) as log:
        recorder = Recorder(run_dir, worker="w", epoch=1, commit=log.append)
        await recorder.reserve("p0", "t", lanes=range(4), until=100, incarnation=7)
        await recorder.reserve("p1", "t", lanes=range(4), until=900, incarnation=9)
        await recorder.reserve("p0", "t", lanes=range(2), until=150, incarnation=7)  # died half-way
        commits = log.lines()
    assert first_free_numbers(commits, "p0", {"t": 4, "other": 2}) == {"t": 600, "other": 0}
    assert [earlier_incarnation(commits, name) for name in ("p0", "p1", "p2")] == [7, 9, 0]


WRITER = """
import asyncio, sys, numpy as np
from pathlib import Path
from shoal.workload.record.ledger import CommitLog
from shoal.workload.record.recorder import Recorder
from test_ledger import attempts

async def main():
    run_dir = Path(sys.argv[1])
    recorder = Recorder(run_dir, worker="w", epoch=1, commit=CommitLog(run_dir).append)
    for first in range(0, 10**9, 1000):
        recorder.append("attempts", **attempts(np.arange(first, first + 1000)))
        await recorder.seal()
        print(first + 1000, flush=True)

asyncio.run(main())
"""


def test_kill_leaves_every_sealed_row_readable(run_dir: Path) -> None:
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", WRITER, str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        reported = 0
        for _ in range(20):
            reported = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        reported = max([reported, *map(int, writer.stdout.read().split())])
    sequences = open_run(run_dir).read("attempts")["sequence"].to_pylist()
    assert len(sequences) >= reported
    assert sequences == list(range(len(sequences)))
