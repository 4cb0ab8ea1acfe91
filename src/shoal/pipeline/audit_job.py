"""Runs the audit of a run on Spark."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from shoal.audit.audit import Sizes, examine
from shoal.audit.plan import plan_cells
from shoal.audit.read.folder import Ledger, open_ledger
from shoal.audit.result.conclude import Evidence, conclude
from shoal.model.result import Result
from shoal.pipeline.cells import run_on
from shoal.pipeline.frames import MOST_READS_PER_ROW, Frames, reads_per_row
from shoal.pipeline.tables import write_tables

Formulation = Literal["auto", "cells", "frames"]


def audit_run(
    run_dirs: Sequence[Path],
    session: SparkSession,
    *,
    sizes: Sizes | None = None,
    given: Mapping[str, int] | None = None,
    formulation: Formulation = "auto",
) -> Result:
    """Judge the ledgers in these folders as one run; the tables are written into the first.

    `given` are the user's options for `open_ledger`. `formulation` is by cells, by DataFrames
    (`shoal.pipeline.frames`), or automatically the one that reads less; the result is the same.
    """
    # Tasks may run with another working directory than this process.
    ledger = open_ledger([Path(folder).absolute() for folder in run_dirs], **(given or {}))
    evidence = _examine(ledger, session, sizes or Sizes(), formulation)
    result = conclude(ledger, evidence)
    write_tables(Path(run_dirs[0]) / "tables", evidence, result)
    return result


def _examine(
    ledger: Ledger, session: SparkSession, sizes: Sizes, formulation: Formulation
) -> Evidence:
    if formulation == "auto":
        cells = plan_cells(ledger, rows_per_cell=sizes.rows_per_cell)
        formulation = "frames" if reads_per_row(ledger, cells) > MOST_READS_PER_ROW else "cells"
    if formulation == "cells":
        return examine(ledger, partial(run_on, session), sizes=sizes)
    frames = Frames(ledger, session)
    return examine(ledger, frames.run, sizes=sizes, cuts=frames.cuts(sizes.rows_per_cell))
