"""Writes the tables of an audit, for SQL: Parquet files in the folder `tables` of a run.

    findings   group, finding, count, streams, witness (JSON)
               one row for each finding that is not zero
    metrics    group, name, value
               every number of `metrics` in `result.json`; parts of names are joined by dots,
               as in `latency_us.e2e_intended.p99`; a metric without a value is null
    latencies  group, name, microseconds, count
               exact histograms: `e2e_intended`, `e2e_actual`, `staleness`, `producer`
               (group is null)
    streams    group, producer, incarnation, topic, lane, name, count
               every count and finding of each stream; group is null for counts of
               producers and logs
    windows    group, fault, name, value
               every number of `windows` in `result.json`, names as in `metrics`, findings as
               in `findings.reordered`; fault is null for the time outside all faults
    seconds    group, second, sent, received, latency_us_p50, latency_us_p99, latency_us_max
               the series of `result.json`; second is Unix time

Each file is replaced atomically, so a reader never sees an incomplete one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.parts import PartKind
from shoal.audit.result.conclude import Evidence
from shoal.model.result import Result

Row = tuple[Any, ...]

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
    "latencies": pa.schema(
        [
            pa.field("group", pa.string()),
            pa.field("name", pa.string()),
            pa.field("microseconds", pa.int64()),
            pa.field("count", pa.int64()),
        ]
    ),
    "streams": pa.schema(
        [
            pa.field("group", pa.string()),
            pa.field("producer", pa.string()),
            pa.field("incarnation", pa.int64()),
            pa.field("topic", pa.string()),
            pa.field("lane", pa.int32()),
            pa.field("name", pa.string()),
            pa.field("count", pa.int64()),
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
}


def write_tables(folder: Path, evidence: Evidence, result: Result) -> None:
    folder.mkdir(exist_ok=True)
    tables = {
        "findings": _findings(result),
        "metrics": _metrics(result),
        "latencies": _latencies(evidence),
        "streams": _streams(evidence),
        "windows": _windows(result),
        "seconds": _seconds(result),
    }
    for name, rows in tables.items():
        fresh = folder / f"{name}.parquet.new"
        pq.write_table(_table(rows, SCHEMAS[name]), fresh, compression="zstd")
        fresh.replace(folder / f"{name}.parquet")


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


def _latencies(evidence: Evidence) -> Iterator[Row]:
    pairs: list[tuple[str | None, str]] = [(None, "producer")]
    for group in evidence.context.groups:
        pairs += [(group, "e2e_intended"), (group, "e2e_actual"), (group, "staleness")]
    for of, name in pairs:
        for microseconds, count in evidence.totals.table(PartKind.LATENCY, of, name).tolist():
            yield of, name, microseconds, count


def _streams(evidence: Evidence) -> Iterator[Row]:
    for group in (None, *evidence.context.groups):
        for name, by_stream in sorted(evidence.totals.counts[group].items()):
            for stream, count in sorted(by_stream.items()):
                if count:
                    producer, topic, lane, incarnation = stream
                    yield group, producer, incarnation, topic, lane, str(name), count


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
