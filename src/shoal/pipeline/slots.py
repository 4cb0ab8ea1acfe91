"""How many tasks of a session run at once, and how many should.

A local Spark may have more slots than cores: workers wait for messages most of the time. The tasks
of an audit compute, so at most one for each core runs at once.

A lost task of a local Spark is tried again, like that of a cluster; Spark itself does so only for
masters of the form `local[CORES,TRIES]`.
"""

import os
import re
from typing import Final

from pyspark.sql import SparkSession

# The slots of a local Spark are fixed, but not those of `local-cluster`.
_LOCAL: Final = re.compile(r"local(\[.*\])?")
_LOCAL_WITHOUT_TRIES: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*\])?")

TASK_TRIES: Final = 4


def is_local(master: str | None) -> bool:
    """Whether this master runs all tasks in the driver's JVM."""
    return _LOCAL.fullmatch(master or "") is not None


def with_tries(master: str) -> str:
    """Return the master with a number of tries, if it is local and has none."""
    found = _LOCAL_WITHOUT_TRIES.fullmatch(master)
    return f"local[{found[1] or 1},{TASK_TRIES}]" if found else master


def count_slots(session: SparkSession) -> int:
    """How many tasks can run at once now; executors of a cluster may connect at any time."""
    return session.sparkContext.defaultParallelism


def count_cores(session: SparkSession) -> int:
    """How many tasks that compute should run at once."""
    slots = count_slots(session)
    return min(slots, os.cpu_count() or 1) if is_local(session.sparkContext.master) else slots


def limit_width(session: SparkSession) -> int:
    """How many tasks that compute one job may have; 0: any number, which retries and balances best.

    Spark has no other limit on what runs at once in a session with more slots than cores.
    """
    cores = count_cores(session)
    return cores if cores < count_slots(session) else 0
