"""Joins the files that the cells of one task have written, so that their number does not grow."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.seen_transactions import read_seen, record_seen
from shoal.audit.rules.anomalies import SCHEMA as ANOMALIES_SCHEMA
from shoal.audit.scratch import scratch_file
from shoal.audit.times.runs import join_runs
from shoal.storage.files import remove_file
from shoal.storage.parquet import open_parquet

_JOINED: Final = (PartKind.LATENCY_FILE, PartKind.ANOMALY_FILE, PartKind.SEEN_FILE)


def join_files(parts: Iterable[TaskPart], scratch: str | None) -> list[TaskPart]:
    """Return the parts with one file instead of several of each kind and name."""
    listed = list(parts)
    if scratch is None:
        return listed
    found: dict[tuple[PartKind, str | bool], list[TaskPart]] = defaultdict(list)
    for part in listed:
        if part.kind in _JOINED:
            found[part.kind, _name(part)].append(part)
    joined = [part for part in listed if part.kind not in _JOINED]
    for (kind, name), own in found.items():
        joined += own if len(own) == 1 else _JOINERS[kind](name, own, scratch)
    return joined


def _name(part: TaskPart) -> str | bool:
    """Return what parts must share to be joined: a finding, a group, or which latencies."""
    label = part.label
    name: str | bool = label[1] if part.kind is PartKind.LATENCY_FILE else label[0]
    return name


def _join_latencies(
    is_apart: str | bool, parts: Sequence[TaskPart], scratch: str
) -> list[TaskPart]:
    path, rows = join_runs([part.label[0] for part in parts], scratch)
    return [make_part(PartKind.LATENCY_FILE, [path, is_apart], [rows])]


def _join_anomalies(finding: str | bool, parts: Sequence[TaskPart], scratch: str) -> list[TaskPart]:
    rows = 0
    with (
        scratch_file(scratch, "anomalies") as file,
        pq.ParquetWriter(file.sink, ANOMALIES_SCHEMA, compression="zstd") as writer,
    ):
        for table in _read_and_remove(part.label[1] for part in parts):
            writer.write_table(table)
            rows += len(table)
    return [make_part(PartKind.ANOMALY_FILE, [finding, file.place, parts[0].label[2]], [rows])]


def _read_and_remove(paths: Iterable[str]) -> Iterator[pa.Table]:
    for name in paths:
        with open_parquet(name) as file:
            yield file.read(use_threads=False)
        remove_file(name)


def _join_seen(group: str | bool, parts: Sequence[TaskPart], scratch: str) -> list[TaskPart]:
    paths = [part.label[1] for part in parts]
    seen = np.unique(np.concatenate([read_seen(path) for path in paths]))
    for path in paths:
        remove_file(path)
    return record_seen(str(group), seen, scratch)


_JOINERS: Final = {
    PartKind.LATENCY_FILE: _join_latencies,
    PartKind.ANOMALY_FILE: _join_anomalies,
    PartKind.SEEN_FILE: _join_seen,
}
