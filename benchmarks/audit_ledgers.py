"""Generated ledgers of long runs, for the benchmark of the audit.

Every message is acknowledged, stored in both logs and delivered, but for a few planted things
that each side must count alike: every 1,000,003rd message is not in the target log, every
500,009th was not delivered, every 700,001st was delivered twice, every 300,007th came late.
With `mixed` every time has a jitter, the run has faults, and a tenth of the messages are in
transactions of 100, of which each one that lost a message is torn.
Segments hold a million rows and come in the order of time, streams side by side, as workers
write them. They are generated independently of each other, by as many processes as cores.
"""

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.model.commit_chain import START, chain_line
from shoal.model.ledger import COMMITTED, FORMAT, FORMAT_KEY, TABLES
from shoal.workload.record.rows import ROWS_PER_GROUP

ROWS_PER_SEGMENT = 1 << 20
NOT_MIRRORED, UNDELIVERED, TWICE, LATE = 1_000_003, 500_009, 700_001, 300_007
INCARNATION = 1
IN_TRANSACTION, EVERY_TRANSACTION = 100, 10
FAULTS = 20
BEGAN_US, SEND_EVERY_US = 1_700_000_000_000_000, 25
DELAY = 7  # by how many places a late message comes later

Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """How many messages, in how many streams of how many producers.

    Deliveries come up to `spread_us` after the fastest.
    """

    messages: int
    streams: int
    producers: int = 1
    spread_us: int = 3000
    mixed: bool = False

    @property
    def lanes(self) -> int:
        return self.streams // self.producers


def write_run(
    folder: Path,
    messages: int,
    streams: int,
    *,
    producers: int = 1,
    spread_us: int = 3000,
    mixed: bool = False,
) -> Path:
    """Write a run folder with messages of a `Shape`."""
    shape = Shape(messages, streams, producers, spread_us, mixed)
    assert streams % producers == 0, "every producer sends to every lane"
    assert not mixed or shape.lanes % IN_TRANSACTION == 0, "a transaction is of one producer"
    (folder / "ledger").mkdir(parents=True)
    plan = {
        "format": FORMAT,
        "run": folder.name,
        "state": "finished",
        "started_us": 1_700_000_000_000_000,
        "promises": {"delivery": "at_least_once", "order": True},
        "groups": ["g"],
        "clusters": {"source": {}, "target": {}},
        "all_drained": True,
    }
    lows = range(0, messages, ROWS_PER_SEGMENT)
    portions = [(folder, shape, low) for low in (-1, *lows)]
    if len(lows) == 1:
        lines = [line for portion in portions for line in _write_portion(portion)]
    else:
        lines = _write_in_parallel(portions)
    lines += _fault_lines(shape) if mixed else []
    mark = START
    with (folder / "commits.jsonl").open("wb") as file:
        for line in lines:
            text, mark = chain_line(line, mark)
            file.write(text)
    (folder / "run.json").write_text(json.dumps(plan | {"commit_log": mark.to_json()}))
    return folder


def _write_in_parallel(portions: list[tuple[Path, Shape, int]]) -> list[dict[str, Any]]:
    processes = min(len(portions), os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return [line for own in pool.imap(_write_portion, portions) for line in own]


def _write_portion(portion: tuple[Path, Shape, int]) -> list[dict[str, Any]]:
    """Write the segments of the messages from `low` on, or for -1 those of whole streams."""
    folder, shape, low = portion
    segments = _small_segments(shape) if low < 0 else _segments(shape, low)
    lines = []
    for table, number, columns in segments:
        path = f"ledger/{table}/w-1-{number}.parquet"
        (folder / path).parent.mkdir(exist_ok=True)
        content = _table(table, columns)
        pq.write_table(
            content,
            folder / path,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name, kind in TABLES[table] if kind == "dictionary"],
            column_encoding={
                name: "DELTA_BINARY_PACKED"
                for name, kind in TABLES[table]
                if kind in ("int32", "int64")
            },
            row_group_size=ROWS_PER_GROUP,
            write_page_checksum=True,  # as workers do
        )
        line = {"kind": "segment", "at_us": 0, "worker": "w", "epoch": 1, "table": table}
        lines.append({**line, "number": number, "path": path, "rows": content.num_rows})
    return lines


def count_losses(messages: int) -> dict[str, int]:
    """The losses in the ledgers, by place: what every tool must find."""
    both = messages // (NOT_MIRRORED * UNDELIVERED)  # these have no common factor
    return {
        "not_mirrored": messages // NOT_MIRRORED,
        "undelivered": messages // UNDELIVERED - both,
    }


def count_torn(messages: int) -> int:
    """The transactions of a mixed run that lost a message."""
    numbers = [np.arange(every, messages + 1, every) for every in (NOT_MIRRORED, UNDELIVERED)]
    transactions = np.unique((np.concatenate(numbers) - 1) // IN_TRANSACTION)
    return int(np.count_nonzero(transactions % EVERY_TRANSACTION == 0))


def _fault_lines(shape: Shape) -> list[dict[str, Any]]:
    """Faults of a tenth of the time between them."""
    step_us = SEND_EVERY_US * shape.messages // FAULTS
    lines = []
    for number in range(FAULTS):
        name = {"fault": number, "name": "kill", "target": f"source/{number % 3}", "detail": {}}
        begin_us = BEGAN_US + number * step_us
        for phase, at_us in (("begin", begin_us), ("end", begin_us + step_us // 10)):
            lines.append({"kind": "fault", "at_us": at_us, "phase": phase, **name})
    return lines


def _small_segments(shape: Shape) -> Iterator[tuple[str, int, Columns]]:
    streams, lanes = np.arange(shape.streams), np.arange(shape.lanes, dtype=np.int32)
    counts = shape.messages // shape.streams + (streams < shape.messages % shape.streams)
    manifest = {"topic": "t", "lane": (streams % shape.lanes).astype(np.int32), "count": counts}
    yield "manifests", 0, {"producer": streams // shape.lanes, **manifest}
    per_lane = np.bincount(streams % shape.lanes, weights=counts).astype(np.int64)
    for number, cluster in enumerate(("source", "target")):
        lost = _count_lost_by_mirror(shape, shape.messages) if cluster == "target" else 0
        place = {"cluster": cluster, "topic": "t", "topic_id": "i", "partition": lanes}
        bounds = {"start": np.zeros(shape.lanes, np.int64), "end": per_lane - lost}
        yield "scans", number, place | bounds | {"compacted": np.zeros(shape.lanes, np.bool_)}


def _segments(shape: Shape, low: int) -> Iterator[tuple[str, int, Columns]]:
    number = low // ROWS_PER_SEGMENT
    rows = _Rows(shape, low)
    yield "attempts", number, rows.attempts()
    yield "log", 2 * number, rows.log("source")
    yield "log", 2 * number + 1, rows.log("target")
    yield "receipts", number, rows.receipts()
    if shape.mixed:
        yield "transactions", number, rows.transactions()


def _count_lost_by_mirror(shape: Shape, until: int) -> Any:
    """Return how many of the messages below `until` were not mirrored, by lane."""
    lost = np.arange(NOT_MIRRORED - 1, until, NOT_MIRRORED)
    return np.bincount(lost % shape.streams % shape.lanes, minlength=shape.lanes)


class _Rows:
    """A range of messages in all tables."""

    def __init__(self, shape: Shape, low: int) -> None:
        high = min(low + ROWS_PER_SEGMENT, shape.messages)
        index = self.index = np.arange(low, high, dtype=np.int64)
        self._spread_us = shape.spread_us
        stream = index % shape.streams
        self.lane = (stream % shape.lanes).astype(np.int32)
        self.producer = stream // shape.lanes
        self.sequence = index // shape.streams
        self.offset = self.sequence * shape.producers + self.producer
        gone = _count_lost_by_mirror(shape, low)
        self.lost = (index + 1) % NOT_MIRRORED == 0
        before = np.zeros(len(index), dtype=np.int64)
        for place in np.flatnonzero(self.lost).tolist():
            before[place + 1 :] += self.lane[place + 1 :] == self.lane[place]
        self.target_offset = self.offset - gone[self.lane] - before
        self.sent_us = BEGAN_US + SEND_EVERY_US * index
        self._jitter_us = np.zeros((3, len(index)), dtype=np.int64)
        if shape.mixed:
            chance = np.random.default_rng(low)
            self._jitter_us = chance.gamma(2.0, 400.0, (3, len(index))).astype(np.int64)
        self.sent_us += self._jitter_us[0]

    def _message(self, kept: Any = slice(None)) -> dict[str, Any]:
        lane, sequence = self.lane[kept], self.sequence[kept]
        name = {"producer": self.producer[kept], "topic": "t"}
        return {**name, "lane": lane, "sequence": sequence}

    def attempts(self) -> Columns:
        acked = self.sent_us + 600 + self.index * 7919 % 800 + self._jitter_us[1]
        zeros = np.zeros(len(self.index), dtype=np.int64)
        times = {"intended_us": self.sent_us - 3, "sent_us": self.sent_us, "acked_us": acked}
        return {
            **self._message(),
            "outcome": zeros.astype(np.int8),
            "error": zeros.astype(np.int16),
            "offset": self.offset,
            **times,
        }

    def log(self, cluster: str) -> Columns:
        kept = ~self.lost if cluster == "target" else slice(None)
        offset = self.target_offset if cluster == "target" else self.offset
        message = self._message(kept)
        sent_us = self.sent_us[kept]
        return {
            "cluster": cluster,
            **message,
            "partition": message["lane"],
            "offset": offset[kept],
            "append_us": np.full(len(sent_us), -1),
            "timestamp_us": sent_us,
            "intact": np.ones(len(sent_us), dtype=np.bool_),
            "key_check": message["lane"] * 77_777,
            "headers_check": np.zeros(len(sent_us), np.int32),
        }

    def transactions(self) -> Columns:
        number = self.index // IN_TRANSACTION
        kept = number % EVERY_TRANSACTION == 0
        # Requested before the first of its messages is delivered: no read is uncommitted.
        requested_us = BEGAN_US + SEND_EVERY_US * IN_TRANSACTION * number[kept]
        return {
            **self._message(kept),
            "transaction": number[kept],
            "fate": np.full(len(requested_us), COMMITTED, np.int8),
            "requested_us": requested_us,
        }

    def receipts(self) -> Columns:
        number = self.index + 1
        kept = np.flatnonzero(~self.lost & (number % UNDELIVERED != 0))
        again = kept[number[kept] % TWICE == 0]
        rows = np.insert(kept, np.searchsorted(kept, again) + 1, again)
        key = rows * 2 + np.where(number[rows] % LATE == 0, 2 * 16 * DELAY, 0)
        rows = rows[np.argsort(key, kind="stable")]
        message = self._message(rows)
        received_us = self.sent_us[rows] + 1900 + self.index[rows] * 104_729 % self._spread_us
        received_us += self._jitter_us[2][rows]
        return {
            "group": "g",
            "consumer": "c",
            "assignment": np.ones(len(rows), np.int32),
            **message,
            "partition": message["lane"],
            "offset": self.target_offset[rows],
            "timestamp_us": self.sent_us[rows],
            "received_us": received_us,
            "intact": np.ones(len(rows), dtype=np.bool_),
        }


def _names(value: Any, count: int) -> Any:
    """Return one name for all rows, or the names of producers by number."""
    if isinstance(value, str):
        codes = pa.array(np.zeros(count, dtype=np.int32))
        return pa.DictionaryArray.from_arrays(codes, pa.array([value]))
    numbers, codes = np.unique(value, return_inverse=True)
    names = pa.array([f"p{number}" for number in numbers.tolist()])
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), names)


def _table(table: str, columns: Columns) -> Any:
    count = max(len(c) for c in columns.values() if not isinstance(c, str))
    columns = {"incarnation": np.full(count, INCARNATION), **columns}
    words = pa.dictionary(pa.int32(), pa.string())
    arrays, fields = [], []
    for name, kind in TABLES[table]:
        if kind == "dictionary":
            arrays.append(_names(columns[name], count))
            fields.append(pa.field(name, words, nullable=False))
        else:
            arrays.append(pa.array(columns[name], pa.type_for_alias(kind)))
            fields.append(pa.field(name, pa.type_for_alias(kind), nullable=False))
    schema = pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT).encode()})
    return pa.Table.from_arrays(arrays, schema=schema)
