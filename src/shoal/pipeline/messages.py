"""The table of every message with its four timestamps, joined on Spark from the ledgers.

    messages   group, producer, incarnation, topic, lane, sequence, outcome, sent_us,
               published_us, output_us, consumed_us, deliveries

Each group has one row for each message that was recorded as sent, was in the log or was received,
so lost messages are in the table. `sent`: handed to the producer; `published`: acknowledged;
`output`: the append time in the log that is read, if its topic has LogAppendTime (a producer's
timestamp does not count); `consumed`: first received. An absent time is null.
"""

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from shoal.model.ledger import NO_INCARNATION, OUTCOMES, TABLES, UNKNOWN
from shoal.pipeline.failures import translate_failures
from shoal.pipeline.session import set_shuffle_partitions
from shoal.workload.record.ledger import LedgerFolder, open_run

ROWS_PER_PARTITION = 1_000_000
NAME = ("producer", "incarnation", "topic", "lane", "sequence")


def write_messages(run_dir: Path, session: SparkSession) -> Path:
    """Write the folder `tables/messages` and return it."""
    run = open_run(run_dir)
    tables = ("attempts", "receipts", "log")
    rows = sum(segment.rows for table in tables for segment in run.segments(table))
    set_shuffle_partitions(session, rows // ROWS_PER_PARTITION)
    attempts, receipts, log = (_table(run, table, session) for table in tables)
    read = "target" if "target" in run.plan.get("clusters", {}) else "source"
    known = f.col("sequence") >= 0
    groups = session.createDataFrame([(str(name),) for name in run.plan["groups"]], "group string")
    first = (
        receipts.where(known)
        .groupBy("group", *NAME)
        .agg(f.min("received_us").alias("consumed_us"), f.count("*").alias("deliveries"))
    )
    output = (
        log.where(known & (f.col("cluster") == read))
        .groupBy(*NAME)
        .agg(f.min(_time("append_us")).alias("output_us"))
    )
    names = f.array(*map(f.lit, OUTCOMES))
    outcome = f.coalesce(f.col("outcome"), f.lit(UNKNOWN)).cast("int")
    received = first.select(*NAME).distinct()
    known_messages = attempts.join(output, list(NAME), "full").join(received, list(NAME), "full")
    each = known_messages.crossJoin(f.broadcast(groups))
    joined = each.join(first, ["group", *NAME], "left").select(
        "group",
        *NAME,
        names[outcome].alias("outcome"),
        "sent_us",
        _time("acked_us").alias("published_us"),
        "output_us",
        "consumed_us",
        f.coalesce("deliveries", f.lit(0)).alias("deliveries"),
    )
    folder = run_dir / "tables" / "messages"
    with translate_failures("write the table of messages"):
        joined.write.mode("overwrite").parquet(str(folder))
    return folder


def _time(column: str) -> Column:
    return f.when(f.col(column) >= 0, f.col(column))


def _table(run: LedgerFolder, table: str, session: SparkSession) -> DataFrame:
    paths = [str(segment.path) for segment in run.segments(table)]
    if paths:
        frame = session.read.parquet(*paths)
        has_incarnations = "incarnation" in frame.columns  # format 1 has none
        return frame if has_incarnations else frame.withColumn("incarnation", f.lit(NO_INCARNATION))
    kinds = {"dictionary": "string"}
    columns = [f"`{name}` {kinds.get(kind, 'bigint')}" for name, kind in TABLES[table]]
    return session.createDataFrame([], ", ".join(columns))
