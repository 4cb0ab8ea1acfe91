"""The audit of a run on Spark."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from shoal.audit.folder import open_ledger
from shoal.audit.judge import audit
from shoal.model.result import Result
from shoal.pipeline.cells import run_on


def audit_run(run_dirs: Sequence[Path], session: SparkSession) -> Result:
    """Judges the ledgers in these folders as one run."""
    return audit(open_ledger(run_dirs), partial(run_on, session))
