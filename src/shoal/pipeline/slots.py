"""How many tasks of a session run at once, and how many should.

A local Spark may have more slots than cores: workers wait for messages most of the time. The tasks
of an audit compute, so no more of them than cores run at once.
"""

import os
import re
from typing import Final

from pyspark.sql import SparkSession

# The slots of a local Spark are fixed, but not those of `local-cluster`.
_LOCAL: Final = re.compile(r"local(\[.*\])?")


def is_local(master: str | None) -> bool:
    """Whether this master runs all tasks in the driver's JVM."""
    return _LOCAL.fullmatch(master or "") is not None


def count_slots(session: SparkSession) -> int:
    """How many tasks can run at once now; executors of a cluster may connect at any time."""
    return session.sparkContext.defaultParallelism


def count_cores(session: SparkSession) -> int:
    """How many tasks that compute should run at once."""
    slots = count_slots(session)
    return min(slots, os.cpu_count() or 1) if is_local(session.sparkContext.master) else slots
