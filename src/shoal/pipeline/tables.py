"""Writes the tables of an audit, for SQL: Parquet files in the folder `tables` of a run.

    findings   group, finding, count, streams, witness (JSON)
               one row for each finding that is not zero
    metrics    group, name, value
               every number of `metrics` in `result.json`; parts of names are joined by dots,
               as in `latency_us.e2e_intended.p99`; a metric without a value is null
    latencies  group, name, segment, microseconds, count
               exact histograms: `e2e_intended`, `e2e_actual`, `staleness`, `producer`
               (group is null), as the tasks wrote them: add up the counts. A folder
    streams    group, producer, incarnation, topic, lane, name, count
               every count and finding of each stream; group is null for counts of
               producers and logs. A folder
    anomalies  finding (the name of a folder), group, cause, topic, producer, incarnation, lane,
               sequence, count, outcome, source_partition, source_offset, target_partition,
               target_offset, intended_us, sent_us, acked_us, received_us
               every message with a finding: `lost` with the cause `not-mirrored`, say. A folder
    windows    group, fault, name, value
               every number of `windows` in `result.json`, names as in `metrics`, findings as
               in `findings.reordered`; fault is null for the time outside all faults
    seconds    group, second, sent, received, latency_us_p50, latency_us_p99, latency_us_max
               the series of `result.json`; second is Unix time

Each file is replaced atomically, so a reader never sees an incomplete one. Files that tasks wrote
are moved here from the scratch folder of the audit: the driver does not read them. If the segments
are on another file system, so are those files: there the new ones are moved to their places, then
what an earlier audit left is deleted.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.read.remote import PART_NAME, TABLES_FOLDER, publish_remote_files
from shoal.audit.result.conclude import Evidence
from shoal.audit.result.stream_files import STREAMS_SCHEMA
from shoal.audit.rules.anomalies import SCHEMA as ANOMALIES_SCHEMA
from shoal.audit.times.runs import RUN_SCHEMA
from shoal.model.result import Result
from shoal.storage.places import join_place

Row = tuple[Any, ...]

# The schema of each table; the last three are folders.
SCHEMAS = {
    "findings": pa.schema(
        [
            pa.field("group", pa.string()),
            pa.field("finding", pa.string()),
            pa.field("count", pa.int64()),
            pa.field("streams", pa.int64()),
            pa.field("witness", pa.string()),
        ]
    ),
    "metrics": pa.schema(
        [
            pa.field("group", pa.string()),
            pa.field("name", pa.string()),
            pa.field("value", pa.float64()),
        ]
    ),
    "windows": pa.schema(
        [
            pa.field("group", pa.string()),
            pa.field("fault", pa.int64()),
            pa.field("name", pa.string()),
            pa.field("value", pa.float64()),
        ]
    ),
    "seconds": pa.schema(
        [
            pa.field("group", pa.string()),
            pa.field("second", pa.int64()),
            pa.field("sent", pa.int64()),
            pa.field("received", pa.int64()),
            pa.field("latency_us_p50", pa.int64()),
            pa.field("latency_us_p99", pa.int64()),
            pa.field("latency_us_max", pa.int64()),
        ]
    ),
    "latencies": RUN_SCHEMA,
    "streams": STREAMS_SCHEMA,
    "anomalies": ANOMALIES_SCHEMA,
}


def write_tables(
    run_dir: Path, evidence: Evidence, result: Result, *, url: str | None = None
) -> None:
    """Write the tables into a run's folder; `url` is where its segments are, if elsewhere."""
    folder = run_dir / TABLES_FOLDER
    folder.mkdir(exist_ok=True)
    tables = {
        "findings": _findings(result),
        "metrics": _metrics(result),
        "windows": _windows(result),
        "seconds": _seconds(result),
    }
    for name, rows in tables.items():
        fresh = folder / f"{name}.parquet.new"
        pq.write_table(_table(rows, SCHEMAS[name]), fresh, compression="zstd")
        fresh.replace(folder / f"{name}.parquet")
    files = {
        "latencies": [("", path) for path in evidence.latencies.known.files()],
        "streams": [("", path) for path in evidence.totals.stream_files],
        "anomalies": [
            (f"finding={finding}", path)
            for finding, paths in evidence.totals.anomaly_files.items()
            for path in paths
        ],
    }
    for name, written in files.items():
        if url is not None:
            publish_remote_files(join_place(url, TABLES_FOLDER, name), written)
            continue
        _publish_files(folder / name, written)
        (folder / f"{name}.parquet").unlink(missing_ok=True)  # of an earlier version


def _publish_files(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Replace a table that is a folder; its files are moved into the folders that are named."""
    fresh, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    for rest in (fresh, old):
        shutil.rmtree(rest, ignore_errors=True)
    fresh.mkdir()
    for number, (inner, file) in enumerate(files):
        (fresh / inner).mkdir(exist_ok=True)
        Path(file).replace(fresh / inner / PART_NAME.format(number))
    if folder.is_dir():
        folder.replace(old)
    fresh.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def _table(rows: Iterable[Row], schema: Any) -> Any:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _findings(result: Result) -> Iterator[Row]:
    for group, found in result.groups.items():
        for name, finding in found.findings.items():
            witness = json.dumps(finding.witness, ensure_ascii=False)
            yield group, name, finding.count, finding.streams, witness


def _metrics(result: Result) -> Iterator[Row]:
    for group, found in result.groups.items():
        for name, value in _flat("", found.metrics.to_json()):
            yield group, name, value


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list):  # an interval
            yield from zip((f"{prefix}{name}.low", f"{prefix}{name}.high"), value, strict=False)
        else:
            yield f"{prefix}{name}", value


def _windows(result: Result) -> Iterator[Row]:
    for group, found in result.groups.items():
        for window in found.windows:
            values = window.to_json()
            metrics = values.pop("metrics")
            del values["fault"]
            for name, value in [*_flat("", values), *_flat("", metrics)]:
                yield group, window.fault, name, value


def _seconds(result: Result) -> Iterator[Row]:
    for group, found in result.groups.items():
        series = found.series
        columns = (series.sent, series.received, series.latency_us_p50, series.latency_us_p99)
        for place, values in enumerate(zip(*columns, series.latency_us_max, strict=True)):
            yield group, series.start_s + place, *values
