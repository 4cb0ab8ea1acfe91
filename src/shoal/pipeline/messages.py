"""The table of every message with its four timestamps, joined on Spark from the ledgers.

    messages   producer, topic, lane, sequence, outcome, sent_us, published_us, output_us,
               consumed_us, deliveries

One row for each recorded attempt. `sent`: handed to the producer; `published`: acknowledged;
`output`: the append time of the log, or the record's timestamp where the topic stamps none;
`consumed`: first received. A time that there is not is null.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from shoal.model.ledger import OUTCOMES
from shoal.workload.ledger import Run, open_run

NAME = ("producer", "topic", "lane", "sequence")


def write_messages(run_dir: Path, session: SparkSession) -> Path:
    """Writes the folder `tables/messages`; returns it."""
    run = open_run(run_dir)
    attempts, receipts = _table(run, "attempts", session), _table(run, "receipts", session)
    known = f.lit(None).cast("bigint")
    first = receipts.groupBy(*NAME).agg(
        f.min("received_us").alias("consumed_us"),
        f.min_by("timestamp_us", "received_us").alias("output_us"),
        f.count("*").alias("deliveries"),
    )
    names = f.array(*map(f.lit, OUTCOMES))
    joined = attempts.join(first, list(NAME), "left").select(
        *NAME,
        names[f.col("outcome")].alias("outcome"),
        "sent_us",
        f.when(f.col("acked_us") >= 0, f.col("acked_us")).otherwise(known).alias("published_us"),
        f.when(f.col("output_us") >= 0, f.col("output_us")).otherwise(known).alias("output_us"),
        "consumed_us",
        f.coalesce("deliveries", f.lit(0)).alias("deliveries"),
    )
    folder = run_dir / "tables" / "messages"
    joined.write.mode("overwrite").parquet(str(folder))
    return folder


def _table(run: Run, table: str, session: SparkSession) -> DataFrame:
    from shoal.workload.rows import arrow_schema

    paths = [str(segment.path) for segment in run.segments(table)]
    if paths:
        return session.read.parquet(*paths)
    columns = [field.name for field in arrow_schema(table)]
    return session.createDataFrame([], ", ".join(f"{name} bigint" for name in columns))
