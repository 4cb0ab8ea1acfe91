"""The audit of a run on Spark."""

from collections.abc import Mapping, Sequence
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
    given: Mapping[str, int] | None = None,
) -> Result:
    """Judges the ledgers in these folders as one run; the first gets the tables.

    `given` is what the user knows besides, as `open_ledger` takes it.
    """
    ledger = open_ledger(run_dirs, **(given or {}))
    evidence = examine(ledger, partial(run_on, session), sizes=sizes)
    result = conclude(ledger, evidence)
    write_tables(Path(run_dirs[0]) / "tables", evidence, result)
    return result
