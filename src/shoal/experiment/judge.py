"""Judges ledgers: writes `result.json` and the report with its twins. Also runs an experiment."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.audit.read.folder import Ledger, open_ledger
from shoal.audit.result.thresholds import hold, parse
from shoal.audit.usage import DriverUsage
from shoal.experiment.ledgers.remote_run import storing_run
from shoal.experiment.plan import Addresses
from shoal.experiment.run import (
    NOTHING_SENT,
    FaultHooks,
    RunProgress,
    Watch,
    no_watch,
    run_workload,
)
from shoal.experiment.spec import ExperimentSpec
from shoal.model.errors import SystemFailure
from shoal.model.result import Result
from shoal.model.run_folder import read_plan
from shoal.pipeline.audit_job import audit_ledger
from shoal.report.files import write_report_files
from shoal.runtime.interrupts import explain_interrupt
from shoal.telemetry.excerpt import read_excerpt

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from shoal.pipeline.session import SessionFuture

    StartSpark = Callable[[], SessionFuture]


def judge(
    run_dirs: Sequence[Path],
    *,
    session: "SessionFuture | None",
    given: Mapping[str, int] | None = None,
    watch: Watch = no_watch,
) -> Result:
    """Audit the ledgers in these folders as one run; see `judge_ledger`.

    `given` is what the user states: `clock_skew_us`, `deadline_us`.
    """
    ledger = open_ledger([folder.absolute() for folder in run_dirs], **(given or {}))
    return judge_ledger(ledger, session=session, watch=watch)


def judge_ledger(
    ledger: Ledger,
    *,
    session: "SessionFuture | None",
    thresholds: Sequence[str] = (),
    usage: DriverUsage | None = None,
    watch: Watch = no_watch,
) -> Result:
    """Audit ledgers, on Spark or without a session in this process; the first folder gets the
    results, and so does the place of its segments, if they are elsewhere.

    The result is checked against the thresholds in the `run.json` of every folder, and against
    `thresholds`. `usage`, if given, counts what the driver receives. `watch` gets the progress.
    """
    run_dirs = [folder.directory for folder in ledger.folders]
    home = run_dirs[0]
    wanted = parse(dict.fromkeys([*read_planned_thresholds(run_dirs), *thresholds]))
    result = hold(_audit(ledger, session, usage, watch), wanted)
    text = json.dumps(result.to_json(), indent=2, ensure_ascii=False)
    (home / "result.json").write_text(text + "\n", encoding="utf-8")
    write_report_files(home, result, read_excerpt(home))
    if url := ledger.folders[0].url:
        from shoal.audit.read.remote import store_results
        from shoal.pipeline.tables import SCHEMAS

        store_results(home, url, SCHEMAS)
    return result


def _audit(
    ledger: Ledger, session: "SessionFuture | None", usage: DriverUsage | None, watch: Watch
) -> Result:
    if session is None:
        watch(RunProgress("judging"))
        return audit_ledger(ledger, None, usage=usage)
    from shoal.pipeline.task_progress import report_tasks

    watch(RunProgress("starting Spark"))
    started = session.result()
    watch(RunProgress("judging on Spark"))

    def on_tasks(ended: int, total: int) -> None:
        watch(RunProgress("judging on Spark", done=ended, to_do=total, unit="tasks"))

    with report_tasks(started, on_tasks):
        return audit_ledger(ledger, started, usage=usage)


def _compact_many_streams(run_dir: Path, start_spark: "StartSpark", watch: Watch) -> None:
    """Compact the ledgers of a long run with many streams; without that it is judged as well."""
    try:
        compact_ledgers(run_dir, start_spark, watch)
    except SystemFailure as error:
        _log.warning("%s", error)


def compact_ledgers(run_dir: Path, start_spark: "StartSpark", watch: Watch) -> int:
    """Compact ledgers if audits read less then; return how many files were written."""
    from shoal.experiment.ledgers.compaction import compact_run, is_worth_compacting
    from shoal.pipeline.cells import run_on

    if not is_worth_compacting(run_dir):
        return 0
    watch(RunProgress("compacting the ledgers"))
    return compact_run(run_dir, partial(run_on, start_spark().result()))


def read_planned_thresholds(run_dirs: Sequence[Path]) -> list[str]:
    """The thresholds in the `run.json` of every folder, in their order."""
    plans = [read_plan(folder) for folder in run_dirs]
    return [str(text) for plan in plans for text in plan.get("thresholds") or ()]


def run_experiment(
    spec: ExperimentSpec,
    *,
    addresses: Addresses,
    run_dir: Path,
    session: "SessionFuture",
    watch: Watch,
    faults: FaultHooks | None = None,
) -> Result:
    """Run an experiment where its spec places it, and judge it; `run_dir` then has its results."""
    from shoal.experiment.placing import find_location

    with explain_interrupt(NOTHING_SENT):
        location = find_location(spec, session, watch)
    with storing_run(run_dir):
        run_workload(
            spec,
            addresses=addresses,
            run_dir=run_dir,
            watch=watch,
            location=location,
            faults=faults,
        )
    with explain_interrupt(f"the ledgers are complete; judge them with: shoal audit {run_dir}"):
        if spec.workers.on_spark:
            _compact_many_streams(run_dir, lambda: session, watch)
        return judge([run_dir], session=session if spec.workers.on_spark else None, watch=watch)
