"""How wide jobs are, and which masters try a lost task again."""

import os

import pytest
from pyspark.sql import SparkSession

from shoal.pipeline.session import MOST_PARTITIONS, set_shuffle_partitions
from shoal.pipeline.slots import limit_width, with_tries


@pytest.mark.parametrize(
    ("master", "with_its_tries"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[ 3 ]", "local[3,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_a_local_master_has_tries(master: str, with_its_tries: str) -> None:
    assert with_tries(master) == with_its_tries


@pytest.mark.spark
def test_a_shuffle_is_as_wide_as_its_cells_unless_slots_exceed_cores(spark: SparkSession) -> None:
    # A session with a slot for each worker may have more slots than this machine has cores.
    slots, cores = spark.sparkContext.defaultParallelism, os.cpu_count() or 1
    assert slots == 6
    assert limit_width(spark) == (cores if cores < slots else 0)
    for cells, width in ((0, slots), (300, 300), (10**6, MOST_PARTITIONS)):
        set_shuffle_partitions(spark, cells)
        expected = max(2, cores) if cores < slots else width
        assert spark.conf.get("spark.sql.shuffle.partitions") == str(expected)
