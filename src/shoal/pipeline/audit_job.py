"""Runs the audit of a run: on Spark, or in this process without a JVM.

The result is the same to the last byte.
"""

import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from shoal.audit.audit import Runner, Sizes, divide_messages, examine, run_here
from shoal.audit.context import build_context
from shoal.audit.page.build import build_page, write_page
from shoal.audit.plan import reads_per_row
from shoal.audit.read.folder import Ledger, open_ledger
from shoal.audit.read.remote import LEFT_BEHIND_S, remote_scratch_folder
from shoal.audit.result.conclude import Evidence, conclude
from shoal.audit.scratch import SCRATCH
from shoal.audit.usage import DriverUsage
from shoal.model.errors import SystemFailure
from shoal.model.result import Result
from shoal.pipeline.tables import write_tables
from shoal.storage.places import is_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With fewer messages an audit in this process ends before Spark has started.
MOST_MESSAGES_HERE: Final = 200_000

Formulation = Literal["auto", "cells", "frames"]


def is_small(ledger: Ledger) -> bool:
    """Whether to judge a ledger in this process."""
    logs = 2  # at most: source and target
    rows = (ledger.rows_of("attempts"), ledger.rows_of("receipts"), ledger.rows_of("log") // logs)
    return max(rows) < MOST_MESSAGES_HERE


def audit_run(
    run_dirs: Sequence[Path],
    session: "SparkSession | None",
    *,
    sizes: Sizes | None = None,
    given: Mapping[str, int] | None = None,
    formulation: Formulation = "auto",
    usage: DriverUsage | None = None,
) -> Result:
    """Judge the ledgers in these folders as one run.

    `given` are the user's options for `open_ledger`; the others are those of `audit_ledger`.
    """
    # Tasks may run with another working directory than this process.
    ledger = open_ledger([Path(folder).absolute() for folder in run_dirs], **(given or {}))
    return audit_ledger(ledger, session, sizes=sizes, formulation=formulation, usage=usage)


def audit_ledger(
    ledger: Ledger,
    session: "SparkSession | None",
    *,
    sizes: Sizes | None = None,
    formulation: Formulation = "auto",
    usage: DriverUsage | None = None,
) -> Result:
    """Judge ledgers; the tables and `page.json` are written into the first of their folders.

    Without a session all tasks run in this process. `formulation` is by cells, by DataFrames
    (`shoal.pipeline.frames`), or automatically the one that reads less; the result is the same.
    `usage`, if given, counts what the driver receives.
    """
    home = ledger.folders[0].directory
    with scratch_folder(ledger.folders[0].place) as scratch:
        evidence = _examine(ledger, session, sizes or Sizes(), formulation, job=(scratch, usage))
        result = conclude(ledger, evidence)
        write_tables(home, evidence, result, url=ledger.folders[0].url)
    write_page(home, build_page(ledger, evidence, result.worst_group))
    return result


@contextmanager
def scratch_folder(place: str) -> Iterator[str]:
    """Make a folder where the segments of a run are, and remove it at the end.

    All executors can reach it. Another audit may have its own folder there. One that was killed a
    day ago has left its own behind, which is removed too.
    """
    make = remote_scratch_folder if is_url(place) else _local_scratch_folder
    with make(place) as folder:
        yield folder


@contextmanager
def _local_scratch_folder(place: str) -> Iterator[str]:
    run_dir = Path(place)
    parent = run_dir / SCRATCH
    folder = parent / uuid.uuid4().hex
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise SystemFailure(
            f"the audit cannot write to the run's folder {run_dir}: {error}",
            remedy="make the folder writable, or copy it",
        ) from error
    try:
        yield str(folder)
    finally:
        for own in parent.glob("*"):
            if own == folder or own.stat().st_mtime < time.time() - LEFT_BEHIND_S:
                shutil.rmtree(own, ignore_errors=True)
        with suppress(OSError):  # another audit is using it
            parent.rmdir()


def _examine(
    ledger: Ledger,
    session: "SparkSession | None",
    sizes: Sizes,
    formulation: Formulation,
    *,
    job: tuple[str, DriverUsage | None],
) -> Evidence:
    scratch, usage = job
    context = build_context(ledger)
    runner: Runner = run_here
    division = divide_messages(ledger, context, sizes)
    has_rows = True
    if session is not None:
        # Only here, so that an audit in this process does not load PySpark.
        from shoal.pipeline.cells import run_on
        from shoal.pipeline.frames import MOST_READS_PER_ROW, Frames

        runner = partial(run_on, session)
        if formulation == "auto":
            # Rows of many streams are regrouped by tasks.
            is_spread = reads_per_row(ledger, division) > MOST_READS_PER_ROW
            formulation = "frames" if is_spread and not division.shares else "cells"
        if formulation == "frames":
            frames = Frames(ledger, session)
            runner, has_rows = frames.run, False
            cuts = frames.cuts(sizes.rows_per_cell)
            division = divide_messages(ledger, context, sizes, cuts=cuts)
    return examine(
        ledger,
        runner if usage is None else usage.watch(runner),
        sizes=sizes,
        context=context,
        division=division,
        has_rows=has_rows,
        scratch=scratch,
    )
