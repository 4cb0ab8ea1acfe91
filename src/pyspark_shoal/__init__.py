"""Makes the data source available to Spark without registration: `spark.read.format("shoal")`.

Spark looks for a `DefaultSource` in every package whose name begins with `pyspark_`.
"""

from shoal.pipeline.source.source import ShoalSource as DefaultSource

__all__ = ["DefaultSource"]
