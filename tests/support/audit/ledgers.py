"""Synthetic runs for the audit, clean or with planted defects, as rows and as run folders."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.model.commit_chain import START, chain_line
from shoal.model.ledger import FORMAT, FORMAT_KEY, OK, TABLES
from shoal.model.segment_footer import read_footer_check

Row = dict[str, Any]

DEFAULTS: dict[str, Row] = {
    "attempts": {"outcome": OK, "error": 0, "offset": -1, "intended_us": -1, "acked_us": -1},
    "receipts": {"group": "g", "consumer": "c", "assignment": 1, "timestamp_us": 0, "intact": True},
    "manifests": {},
    "scans": {"topic_id": "id", "compacted": False},
    "log": {
        "append_us": -1,
        "timestamp_us": 0,
        "intact": True,
        "key_check": 5,
        "headers_check": 6,
    },
    "batches": {
        "records": 4,
        "codec": 3,
        "records_check": 7,
        "base_timestamp_us": 0,
        "max_timestamp_us": 0,
        "stamped": False,
    },
    "control_ranges": {"cluster": "target", "topic": "t", "partition": 0, "fate": 0},
    "re_encoded": {},
    "assignments": {"group": "g", "consumer": "c", "assignment": 1, "assigned_us": 0},
    "polls": {"group": "g", "consumer": "c", "topic": "t", "partition": 0, "count": 1},
    "positions": {},
    "markers": {},
    "keys": {},
    "transactions": {},
}


@dataclass
class History:
    """A run: rows of each table by worker in the order written, and the lines of its log."""

    mirror: bool = True
    promises: Row = field(default_factory=dict)
    groups: tuple[str, ...] = ("g",)
    all_drained: bool = False
    warm_up_us: int = 0
    started_us: int = 0
    acks: str = "all"
    one_clock: bool = True
    size_bytes: int | None = None
    partitions: dict[str, int] = field(default_factory=dict)  # of source topics, if not lanes
    lanes: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[tuple[str, Row]]] = field(default_factory=lambda: {t: [] for t in TABLES})
    commits: list[Row] = field(default_factory=list)

    def add(self, table: str, worker: str = "w", **row: Any) -> Row:
        whole = {**DEFAULTS[table], **row}
        if "producer" in whole:
            whole.setdefault("incarnation", 0)
        assert whole.keys() == {name for name, _ in TABLES[table]}, whole
        self.rows[table].append((worker, whole))
        return whole

    def commit(self, kind: str, **line: Any) -> None:
        own = {"incarnation": 0} if kind in ("reserve", "drained") else {}
        self.commits.append({"kind": kind, "at_us": 0, **own, **line})

    def table(self, name: str) -> list[Row]:
        """Rows in ledger order."""
        return [row for _, row in sorted(self.rows[name], key=lambda item: item[0])]

    def write(self, folder: Path, *, rows_per_segment: int = 1 << 20, run: str = "r") -> Path:
        (folder / "ledger").mkdir(parents=True)
        plan = {
            "format": FORMAT,
            "run": run,
            "state": "finished",
            "started_us": self.started_us,
            "warm_up_us": self.warm_up_us,
            "acks": self.acks,
            "one_clock": self.one_clock,
            "workload": {"size_bytes": self.size_bytes},
            "promises": self.promises,
            "groups": list(self.groups),
            "clusters": {"source": {}, "target": {} if self.mirror else None},
            "topics": {
                name: {"partitions": n, "lanes": self.lanes.get(name)}
                for name, n in self.partitions.items()
            },
            "all_drained": self.all_drained,
        }
        (folder / "run.json").write_text(json.dumps(plan))
        ended = {str(line.get("worker")) for line in self.commits if line["kind"] == "ended"}
        leased = [line for line in self.commits if line["kind"] == "lease"]
        lines = self.commits + [
            {**line, "kind": "ended", "reason": "stopped"}
            for line in leased
            if str(line.get("worker")) not in ended
        ]
        for table, rows in self.rows.items():
            for worker in sorted({worker for worker, _ in rows}):
                own = [row for name, row in rows if name == worker]
                cuts = range(0, len(own), rows_per_segment)
                for number, start in enumerate(cuts):
                    part = own[start : start + rows_per_segment]
                    lines.append(write_segment(folder, (table, worker, number), part))
        return write_commits(folder, lines)


def write_commits(folder: Path, lines: Iterable[Row | str]) -> Path:
    """Write a whole commit log, and hide the segments that it does not name.

    `run.json` names its last line, as that of a run that has ended.
    """
    rows = [json.loads(line) if isinstance(line, str) else line for line in lines]
    plan = json.loads((folder / "run.json").read_text())
    text, mark = b"", START
    for row in rows:
        bare = {name: value for name, value in row.items() if name not in ("line", "check")}
        line, mark = chain_line(bare, mark)
        text += line
    (folder / "commits.jsonl").write_bytes(text)
    (folder / "run.json").write_text(json.dumps(plan | {"commit_log": mark.to_json()}))
    named = {str(folder / row["path"]) for row in rows if row["kind"] == "segment"}
    for path in folder.glob("ledger/*/*.parquet*"):
        place = path if path.suffix == ".parquet" else path.with_suffix("")
        if (str(place) in named) is not (path == place):
            path.rename(place if str(place) in named else f"{place}.hidden")
    return folder


def remove_chain(folder: Path, table_format: int) -> Path:
    """Rewrite the commit log and `run.json` as in a format without a chain."""
    path = folder / "run.json"
    plan = json.loads(path.read_text()) | {"format": table_format}
    plan.pop("commit_log", None)
    path.write_text(json.dumps(plan))
    lines = [json.loads(line) for line in (folder / "commits.jsonl").read_text().splitlines()]
    for line in lines:
        del line["line"], line["check"]
        line.pop("footer", None)
    (folder / "commits.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_segment(
    folder: Path, name: tuple[str, str, int], rows: Iterable[Mapping[str, Any]]
) -> Row:
    """A sealed segment, and the line that commits it."""
    table, worker, number = name
    listed = list(rows)
    path = f"ledger/{table}/{worker}-1-{number}.parquet"
    (folder / path).parent.mkdir(exist_ok=True)
    columns = {column: [row[column] for row in listed] for column, _ in TABLES[table]}
    content = pa.table(columns, schema=ledger_schema(table))
    pq.write_table(content, folder / path, row_group_size=8 if len(listed) < 256 else 1 << 20)
    details = {"worker": worker, "epoch": 1, "table": table, "number": number, "rows": len(listed)}
    with (folder / path).open("rb") as file:
        check = read_footer_check(file)
    return {"kind": "segment", "at_us": 0, "path": path, **details, "footer": check}


def ledger_schema(table: str) -> pa.Schema:
    words = pa.dictionary(pa.int32(), pa.string())
    fields = [
        pa.field(name, words if kind == "dictionary" else pa.type_for_alias(kind), nullable=False)
        for name, kind in TABLES[table]
    ]
    return pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT).encode()})


def clean_run(
    *, producers: int = 1, lanes: int = 2, count: int = 20, mirror: bool = True, scans: bool = True
) -> History:
    """Every message acknowledged, mirrored, delivered in order, drained and scanned.

    Message `n` of lane `l` is sent at 1,000 n µs, acknowledged 300 µs later, delivered 2,000 µs
    later; its offset is the same in both logs.
    """
    history = History(mirror=mirror)
    clusters = ("source", "target") if mirror else ("source",)
    for lane in range(lanes):
        offset = 0
        for sequence in range(count):
            for producer in (f"p{number}" for number in range(producers)):
                send(history, producer, lane, sequence, offset=offset)
                for cluster in clusters if scans else ():
                    put(history, cluster, producer, lane, sequence, offset=offset)
                receive(history, producer, lane, sequence, offset=offset)
                offset += 1
        for cluster in clusters if scans else ():
            scan(history, cluster, lane, end=offset)
        for producer in (f"p{number}" for number in range(producers)):
            history.add("manifests", producer=producer, topic="t", lane=lane, count=count)
            history.commit("drained", producer=producer, topic="t", lane=lane, group="g")
    return history


def send(history: History, producer: str, lane: int, sequence: int, **row: Any) -> Row:
    sent_us = row.pop("sent_us", 1000 * sequence)
    details = {"acked_us": sent_us + 300, "intended_us": sent_us, "sent_us": sent_us, **row}
    return history.add(
        "attempts", producer=producer, topic="t", lane=lane, sequence=sequence, **details
    )


def put(history: History, cluster: str, producer: str, lane: int, sequence: int, **row: Any) -> Row:
    details = {"partition": lane, "producer": producer, "lane": lane, "sequence": sequence, **row}
    return history.add("log", cluster=cluster, topic="t", **details)


def receive(history: History, producer: str, lane: int, sequence: int, **row: Any) -> Row:
    details = {"partition": lane, "received_us": 1000 * sequence + 2000, **row}
    return history.add(
        "receipts", topic="t", producer=producer, lane=lane, sequence=sequence, **details
    )


def scan(history: History, cluster: str, partition: int, *, end: int, start: int = 0) -> Row:
    return history.add(
        "scans", cluster=cluster, topic="t", partition=partition, start=start, end=end
    )


def busy_run() -> History:
    """A bit of everything: loss, disorder, copies, re-reads, faults, batches, transactions."""
    history = clean_run(producers=2, lanes=3, count=40)
    rows = history.rows["receipts"]
    rows.insert(60, rows.pop(3))
    del rows[10]
    del rows[-1]
    receive(history, "p0", 0, 5, offset=200)
    receive(history, "p0", 1, 5, offset=10, assignment=2, worker="x")
    history.commits.pop()
    stream: Row = {"producer": "p1", "topic": "t", "lane": 2}
    for sequence in (7, 8, 30):
        details: Row = {"transaction": sequence % 7, "fate": 0, "requested_us": 1000}
        history.add("transactions", **stream, sequence=sequence, **details)
    for phase, at_us in (("begin", 9_000), ("end", 30_000)):
        fault = {"fault": 1, "phase": phase, "name": "kill", "target": "source/1", "detail": {}}
        history.commits.append({"kind": "fault", "at_us": at_us, **fault})
    history.promises = {"fidelity": ["bytes"]}
    for cluster, check in (("source", 1), ("target", 2)):
        place: Row = {"topic": "t", "partition": 2, "offset": 4, "records_check": check}
        batch: Row = {"producer": "p0", "lane": 2, "sequence": 2}
        history.add("batches", cluster=cluster, **place, **batch)
    return history
