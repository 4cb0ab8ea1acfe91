"""Spark's own Kafka connector, batch and streaming, as it comes from its makers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.spark.connector import COUNT

SCRIPT = Path(__file__).parents[1] / "support" / "spark" / "connector.py"


@pytest.mark.spark
@pytest.mark.long
def test_spark_writes_reads_and_streams_by_its_own_connector(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=3)
    command = [sys.executable, str(SCRIPT), bootstrap, topic, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    assert read["pairs"] == sorted([str(number), f"v{number}"] for number in range(COUNT))
    assert read["streamed"] == COUNT
