"""Generated ledgers of long runs, for the benchmark of the audit.

Every message is acknowledged, stored in both logs and delivered, but for a few planted things
that each side must count alike: every 1,000,003rd message is not in the target log, every
500,009th was not delivered, every 700,001st was delivered twice, every 300,007th came late.
Segments hold a million rows and come in the order of time, streams side by side, as workers
write them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.model.ledger import FORMAT, FORMAT_KEY, TABLES
from shoal.workload.record.rows import ROWS_PER_GROUP

ROWS_PER_SEGMENT = 1 << 20
NOT_MIRRORED, UNDELIVERED, TWICE, LATE = 1_000_003, 500_009, 700_001, 300_007
INCARNATION = 1
DELAY = 7  # by how many places a late message comes later

Columns = Mapping[str, Any]


def write_run(folder: Path, messages: int, streams: int) -> Path:
    """Write a run folder with messages in several streams of one producer."""
    (folder / "ledger").mkdir(parents=True)
    plan = {
        "format": FORMAT,
        "run": folder.name,
        "promises": {"delivery": "at_least_once", "order": True},
        "groups": ["g"],
        "clusters": {"source": {}, "target": {}},
        "all_drained": True,
    }
    (folder / "run.json").write_text(json.dumps(plan))
    with (folder / "commits.jsonl").open("w") as commits:
        for table, number, columns in _segments(messages, streams):
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
            )
            line = {"kind": "segment", "at_us": 0, "worker": "w", "epoch": 1, "table": table}
            line |= {"number": number, "path": path, "rows": content.num_rows}
            commits.write(json.dumps(line) + "\n")
    return folder


def expected_losses(messages: int) -> dict[str, int]:
    """The losses in the ledgers, by place: what every tool must find."""
    both = messages // (NOT_MIRRORED * UNDELIVERED)  # these have no common factor
    return {
        "not_mirrored": messages // NOT_MIRRORED,
        "undelivered": messages // UNDELIVERED - both,
    }


def _segments(messages: int, streams: int) -> Iterator[tuple[str, int, Columns]]:
    lanes = np.arange(streams, dtype=np.int32)
    counts = messages // streams + (lanes < messages % streams)
    yield "manifests", 0, {"producer": "p", "topic": "t", "lane": lanes, "count": counts}
    for number, cluster in enumerate(("source", "target")):
        lost = _find_lost_by_mirror(messages, streams) if cluster == "target" else 0
        place = {"cluster": cluster, "topic": "t", "topic_id": "i", "partition": lanes}
        bounds = {"start": np.zeros(streams, np.int64), "end": counts - lost}
        yield "scans", number, place | bounds | {"compacted": np.zeros(streams, np.bool_)}
    gone = np.zeros(streams, dtype=np.int64)  # of each lane, not mirrored so far
    for number, low in enumerate(range(0, messages, ROWS_PER_SEGMENT)):
        index = np.arange(low, min(low + ROWS_PER_SEGMENT, messages), dtype=np.int64)
        rows = _Rows(index, streams, gone)
        yield "attempts", number, rows.attempts()
        yield "log", 2 * number, rows.log("source")
        yield "log", 2 * number + 1, rows.log("target")
        yield "receipts", number, rows.receipts()
        gone += np.bincount(rows.lane[rows.lost], minlength=streams)


def _find_lost_by_mirror(messages: int, streams: int) -> Any:
    lost = np.arange(NOT_MIRRORED - 1, messages, NOT_MIRRORED)
    return np.bincount(lost % streams, minlength=streams)


class _Rows:
    """A range of messages in all tables."""

    def __init__(self, index: Any, streams: int, gone: Any) -> None:
        self.index = index
        self.lane = (index % streams).astype(np.int32)
        self.sequence = index // streams
        self.lost = (index + 1) % NOT_MIRRORED == 0
        before = np.zeros(len(index), dtype=np.int64)
        for place in np.flatnonzero(self.lost).tolist():
            before[place + 1 :] += self.lane[place + 1 :] == self.lane[place]
        self.target_offset = self.sequence - gone[self.lane] - before
        self.sent_us = 1_700_000_000_000_000 + 25 * index

    def _message(self, kept: Any = slice(None)) -> dict[str, Any]:
        lane, sequence = self.lane[kept], self.sequence[kept]
        return {"producer": "p", "topic": "t", "lane": lane, "sequence": sequence}

    def attempts(self) -> Columns:
        acked = self.sent_us + 600 + self.index * 7919 % 800
        zeros = np.zeros(len(self.index), dtype=np.int64)
        times = {"intended_us": self.sent_us - 3, "sent_us": self.sent_us, "acked_us": acked}
        return {
            **self._message(),
            "outcome": zeros.astype(np.int8),
            "error": zeros.astype(np.int16),
            "offset": self.sequence,
            **times,
        }

    def log(self, cluster: str) -> Columns:
        kept = ~self.lost if cluster == "target" else slice(None)
        offset = self.target_offset if cluster == "target" else self.sequence
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

    def receipts(self) -> Columns:
        number = self.index + 1
        kept = np.flatnonzero(~self.lost & (number % UNDELIVERED != 0))
        again = kept[number[kept] % TWICE == 0]
        rows = np.insert(kept, np.searchsorted(kept, again) + 1, again)
        key = rows * 2 + np.where(number[rows] % LATE == 0, 2 * 16 * DELAY, 0)
        rows = rows[np.argsort(key, kind="stable")]
        message = self._message(rows)
        received_us = self.sent_us[rows] + 1900 + self.index[rows] * 104_729 % 3000
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


def _table(table: str, columns: Columns) -> Any:
    count = max(len(c) for c in columns.values() if not isinstance(c, str))
    columns = {"incarnation": np.full(count, INCARNATION), **columns}
    words = pa.dictionary(pa.int32(), pa.string())
    arrays, fields = [], []
    for name, kind in TABLES[table]:
        if kind == "dictionary":
            codes = pa.array(np.zeros(count, dtype=np.int32))
            arrays.append(pa.DictionaryArray.from_arrays(codes, pa.array([columns[name]])))
            fields.append(pa.field(name, words, nullable=False))
        else:
            arrays.append(pa.array(columns[name], pa.type_for_alias(kind)))
            fields.append(pa.field(name, pa.type_for_alias(kind), nullable=False))
    schema = pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT).encode()})
    return pa.Table.from_arrays(arrays, schema=schema)
