"""Polars and DuckDB on the ledgers of a run: classification only, as a program of its own.

    python -m benchmarks.audit_peers polars|duckdb FOLDER

prints how many messages are not in the target log though in the source's, how many were not
delivered though in the target log, the seconds that took and the peak memory, as JSON. Each
program uses all cores; reading the modules is not counted.
"""

import json
import resource
import sys
import time
from pathlib import Path

# Anti-joins: faster than grouping the union of all tables. Attempts decide nothing here.
_DUCKDB = """
WITH source AS (SELECT lane, sequence FROM '{0}/log/*.parquet' WHERE cluster = 'source'),
     target AS (SELECT lane, sequence FROM '{0}/log/*.parquet' WHERE cluster = 'target'),
     received AS (SELECT lane, sequence FROM '{0}/receipts/*.parquet')
SELECT (SELECT count(*) FROM source ANTI JOIN target USING (lane, sequence)),
       (SELECT count(*) FROM target ANTI JOIN received USING (lane, sequence))
"""


def with_duckdb(folder: Path) -> tuple[int, int]:
    import duckdb

    [row] = duckdb.connect().execute(_DUCKDB.format(folder / "ledger")).fetchall()
    return row[0], row[1]


def with_polars(folder: Path) -> tuple[int, int]:
    import polars as pl

    def table(name: str) -> pl.LazyFrame:
        return pl.scan_parquet(folder / "ledger" / name / "*.parquet")

    names = ("lane", "sequence")
    attempts = table("attempts").filter(pl.col("outcome") == 0).select(names)
    log = table("log").select(*names, pl.col("cluster").cast(pl.String))
    source = log.filter(pl.col("cluster") == "source").select(*names, source=True)
    target = log.filter(pl.col("cluster") == "target").select(*names, target=True)
    receipts = table("receipts").select(names).unique().with_columns(received=True)
    joined = attempts
    for other in (source, target, receipts):
        joined = joined.join(other, on=names, how="left")
    held = {name: pl.col(name).is_not_null() for name in ("source", "target", "received")}
    found = joined.select(
        not_mirrored=(held["source"] & ~held["target"]).sum(),
        undelivered=(held["target"] & ~held["received"]).sum(),
    ).collect(engine="streaming")
    return found["not_mirrored"][0], found["undelivered"][0]


PEERS = {"polars": with_polars, "duckdb": with_duckdb}


def main(peer: str, folder: str) -> None:
    __import__(peer)
    started = time.perf_counter()
    not_mirrored, undelivered = PEERS[peer](Path(folder))
    wall_s = time.perf_counter() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"not_mirrored": not_mirrored, "undelivered": undelivered}
    print(json.dumps({**found, "wall_s": wall_s, "peak_mib": peak_kib // 1024}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
