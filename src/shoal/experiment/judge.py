"""Judges ledgers: writes `result.json` and `report.html`. Also runs and judges an experiment."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.audit.result.thresholds import hold, parse
from shoal.experiment.plan import Addresses
from shoal.experiment.run import FaultHooks, RunProgress, Watch, WorkerLocation, run_workload
from shoal.experiment.spec import ExperimentSpec
from shoal.model.result import Result
from shoal.model.run_folder import read_plan
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.session import SessionFuture
from shoal.report.page import render


def judge(
    run_dirs: Sequence[Path],
    *,
    session: SessionFuture,
    given: Mapping[str, int] | None = None,
    thresholds: Sequence[str] = (),
) -> Result:
    """Audit the ledgers in these folders as one run; the first folder gets the results.

    `given` is what the user states: `clock_skew_us`, `deadline_us`. The result is checked against
    the thresholds in the `run.json` of every folder, and against `thresholds`.
    """
    home = run_dirs[0]
    wanted = parse(dict.fromkeys([*read_planned_thresholds(run_dirs), *thresholds]))
    result = hold(audit_run(run_dirs, session.result(), given=given), wanted)
    text = json.dumps(result.to_json(), indent=2, ensure_ascii=False)
    (home / "result.json").write_text(text + "\n", encoding="utf-8")
    page = render(result, read_plan(home))
    (home / "report.html").write_text(page, encoding="utf-8")
    return result


def read_planned_thresholds(run_dirs: Sequence[Path]) -> list[str]:
    """The thresholds in the `run.json` of every folder, in their order."""
    plans = [read_plan(folder) for folder in run_dirs]
    return [str(text) for plan in plans for text in plan.get("thresholds") or ()]


def run_experiment(
    spec: ExperimentSpec,
    *,
    addresses: Addresses,
    run_dir: Path,
    session: SessionFuture,
    watch: Watch,
    location: WorkerLocation | None = None,
    faults: FaultHooks | None = None,
) -> Result:
    """Run an experiment and judge it; `run_dir` then has its ledgers and results."""
    run_workload(
        spec, addresses=addresses, run_dir=run_dir, watch=watch, location=location, faults=faults
    )
    watch(RunProgress("judging on Spark"))
    return judge([run_dir], session=session)
