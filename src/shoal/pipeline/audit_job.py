"""The audit of a run on Spark."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from shoal.audit.conclude import conclude
from shoal.audit.folder import open_ledger
from shoal.audit.judge import Sizes, examine
from shoal.model.result import Result
from shoal.pipeline.cells import run_on
from shoal.pipeline.tables import write_tables


def audit_run(
    run_dirs: Sequence[Path],
    session: SparkSession,
    *,
    sizes: Sizes | None = None,
    clock_skew_us: int | None = None,
) -> Result:
    """Judges the ledgers in these folders as one run; the first gets the tables.

    `clock_skew_us`, if given, bounds by how much clocks of different folders differ.
    """
    ledger = open_ledger(run_dirs, clock_skew_us=clock_skew_us)
    evidence = examine(ledger, partial(run_on, session), sizes=sizes)
    result = conclude(ledger, evidence)
    write_tables(Path(run_dirs[0]) / "tables", evidence, result)
    return result
