"""Spark with its own Kafka connector, in a process and JVM of its own: writes, reads, streams.

    python spark_connector.py BOOTSTRAP TOPIC FOLDER

prints what it read as one JSON object. The connector's jars are fetched once, like Kafka's.
"""

import json
import sys
from pathlib import Path
from typing import Any

from shoal.runtime import paths
from shoal.runtime.java import find_java
from shoal.systems.apache.ivy import Coordinates, fetch

COUNT = 500
SPARK = "org.apache.spark"
JARS = (
    Coordinates(SPARK, "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Coordinates(SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Coordinates("org.apache.kafka", "kafka-clients", "3.9.2"),
    Coordinates("org.apache.commons", "commons-pool2", "2.13.1"),
)


def connector_jars() -> list[Path]:
    folder = paths.make_folder(paths.cache_dir()) / "spark-kafka-4.2.0"
    if not folder.is_dir():
        filled, scratch = folder.with_suffix(".filling"), folder.with_suffix(".download")
        fetch(list(JARS), filled, java=find_java(), scratch=scratch, report=lambda _progress: None)
        filled.rename(folder)
    return [folder / jar.file_name for jar in JARS]


def main(bootstrap: str, topic: str, folder: str) -> dict[str, Any]:
    import os

    from shoal.pipeline.session import start_session, stop_session

    jars = ",".join(map(str, connector_jars()))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    session = start_session("local[2]")
    try:
        servers = {"kafka.bootstrap.servers": bootstrap}
        rows = session.range(COUNT).selectExpr(
            "cast(id as string) as key", "concat('v', id) as value"
        )
        rows.write.format("kafka").options(topic=topic, **servers).save()
        wanted = {"subscribe": topic, "startingOffsets": "earliest", **servers}
        table = session.read.format("kafka").options(**wanted).load()
        pairs = table.selectExpr("cast(key as string)", "cast(value as string)").collect()
        query = (
            session.readStream.format("kafka")
            .options(**wanted)
            .load()
            .writeStream.format("parquet")
            .option("path", f"{folder}/out")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        streamed = session.read.parquet(f"{folder}/out").select("partition", "offset").distinct()
        return {"pairs": sorted(map(list, pairs)), "streamed": streamed.count()}
    finally:
        stop_session(session)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:4])) + "\n")
