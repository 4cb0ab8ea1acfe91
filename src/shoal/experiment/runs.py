"""The folder of runs, which `shoal runs` lists, shows and removes.

Rules:
- A run is a folder with a readable `run.json`; other files are ignored. A run of a sweep is in the
  folder of the sweep, and is named `SWEEP/RUN`.
- A run that is still running is never removed. The driver's process id and start time in `run.json`
  show whether it still runs.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from shoal.model.errors import LedgerError, UsageError
from shoal.model.json_files import read_json
from shoal.model.result import RESULT_FORMAT, ThresholdResult
from shoal.model.serialised import FormatMismatch, check_version, to_plain
from shoal.runtime.processes import ProcessIdentity
from shoal.storage.places import is_url

SWEEP_FILE: Final = "sweep.json"
# In the folder of a sweep, held while it runs.
LOCK_FILE: Final = "lock"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run at a glance."""

    run: str
    path: Path
    state: str
    started: datetime
    verdict: str | None
    sentence: str | None
    missed: tuple[str, ...] = ()  # a sentence for each missed threshold
    thresholds: int = 0  # how many the run has
    sweep: str | None = None  # the sweep that it belongs to
    problem: str = ""  # why its result cannot be used, and what to do
    lost_workers: tuple[str, ...] = ()  # that ended unplanned

    @property
    def name(self) -> str:
        """The name of its folder in the folder of runs: `RUN`, or `SWEEP/RUN`."""
        return self.path.name if self.sweep is None else f"{self.sweep}/{self.path.name}"

    @property
    def started_us(self) -> int:
        return int(self.started.timestamp() * 1e6)

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "name": self.name,
            "sweep": self.sweep,
            "path": str(self.path),
            "state": self.state,
            "started": self.started.isoformat(),
            "verdict": self.verdict,
            "sentence": self.sentence,
            "thresholds": self.thresholds,
            "thresholds_missed": list(self.missed),
            "problem": self.problem or None,
            "lost_workers": list(self.lost_workers),
        }


def list_runs(
    runs_dir: Path, report: Callable[[LedgerError], None] = lambda _error: None
) -> list[RunSummary]:
    """All runs in a folder and those of its sweeps, newest first, but those that cannot be read.

    `report` is called with the error of each of these.
    """
    found = []
    for path in list_all_run_folders(runs_dir):
        try:
            found.append(summarise(path))
        except LedgerError as error:
            report(error)
    return sorted(found, key=_start_order, reverse=True)


def list_all_run_folders(runs_dir: Path) -> list[Path]:
    """The folders of runs in the folder of runs, and in those of its sweeps."""
    folders = [runs_dir, *list_sweep_folders(runs_dir)]
    return [run for folder in folders for run in list_run_folders(folder)]


def list_run_folders(folder: Path) -> list[Path]:
    """The folders of runs in the folder of runs, or in that of a sweep."""
    return [path.parent for path in folder.glob("*/run.json")] if folder.is_dir() else []


def list_sweep_folders(runs_dir: Path) -> list[Path]:
    """The folders of sweeps."""
    if not runs_dir.is_dir():
        return []
    return [path.parent for path in runs_dir.glob(f"*/{SWEEP_FILE}")]


def find_run(runs_dir: Path, name: str | None) -> RunSummary:
    """The run with that path, folder name, id or prefix of one; without a name the newest.

    A run of a sweep is `SWEEP/RUN`, also with the beginning of both.
    """
    if name and is_url(name):
        raise UsageError(
            f"{name} is on another file system, and this command reads folders of this machine",
            remedy="judge it there (shoal audit URL), or copy it to a folder",
        )
    for folder in (Path(name), runs_dir / name) if name else ():
        if (folder / "run.json").is_file():
            return summarise(folder)
        if (folder / SWEEP_FILE).is_file():
            raise _sweep_error(folder)
    runs = list_runs(runs_dir)
    matching = [run for run in runs if name is None or run.run == name]
    if not matching and name and Path(name).exists():
        raise _not_a_run(Path(name), name)
    matching = matching or [run for run in runs if name and _has_prefix(run, name)]
    if not matching and name and ("/" in name or os.sep in name):
        raise _not_a_run(Path(name), name)
    if not matching:
        raise UsageError(
            f"no run {name!r} in {runs_dir}, and no folder with that name"
            if name
            else f"no runs in {runs_dir}",
            remedy="list the runs with shoal runs list; create one with shoal demo",
        )
    if name and len(matching) > 1:
        raise _ambiguous(name, matching)
    return matching[0]


def find_run_id(runs_dir: Path, name: str) -> str:
    """The id of the run whose folder has that name; the name itself, if no folder has it."""
    run = next((run for run in list_runs(runs_dir) if run.name == name), None)
    return name if run is None else run.run


def _has_prefix(run: RunSummary, name: str) -> bool:
    if run.sweep is None or "/" not in name:
        return run.run.startswith(name)
    sweep, _, begun = name.rstrip("/").partition("/")
    return run.sweep.startswith(sweep) and run.path.name.startswith(begun)


def _sweep_error(folder: Path) -> UsageError:
    return UsageError(
        f"{folder.name} is a sweep, not a run",
        remedy=f"name one of its runs, {folder.name}/RUN: shoal runs list {folder.name}",
    )


def _not_a_run(path: Path, name: str) -> UsageError:
    if not path.exists():
        return UsageError(f"folder {name} does not exist", remedy="check the path")
    if not path.is_dir():
        return UsageError(
            f"{name} is a file, not the folder of a run", remedy="give the folder of a run"
        )
    return UsageError(
        f"folder {name} has no run.json, so it is not the folder of a run",
        remedy="give the folder that contains run.json and commits.jsonl",
    )


def _ambiguous(name: str, runs: list[RunSummary]) -> UsageError:
    if runs[0].run != name:
        return UsageError(f"{len(runs)} runs start with {name!r}", remedy="give more of the name")
    folders = ", ".join(sorted(run.name for run in runs))
    return UsageError(
        f"{len(runs)} folders belong to run {name}: {folders}", remedy="give the folders"
    )


def _start_order(summary: RunSummary) -> tuple[datetime, str]:
    return summary.started, summary.run


def summarise(path: Path) -> RunSummary:
    """Read the state and the verdict of a run from its folder."""
    manifest = read_json(path / "run.json")
    result, problem = _read_result(path)
    try:
        started = datetime.fromtimestamp((manifest.get("started_us") or 0) / 1e6, UTC)
    except (TypeError, ValueError, OverflowError) as error:
        wrong = f"`started_us` is {manifest['started_us']!r:.40}, which is no time"
        raise _not_described(path, wrong) from error
    if "format" not in manifest:
        raise _not_described(path, "it has no `format`")
    state, run = str(manifest.get("state", "unknown")), str(manifest.get("run", path.name))
    if state == "running" and not is_driver_alive(manifest.get("driver")):
        state = "interrupted"
    held = [] if problem else [ThresholdResult.from_json(e) for e in result.get("thresholds", [])]
    return RunSummary(
        run,
        path,
        state,
        started,
        result.get("verdict"),
        result.get("sentence"),
        missed=tuple(sentence for each in held for sentence in each.sentences()),
        thresholds=len(held),
        sweep=path.parent.name if (path.parent / SWEEP_FILE).is_file() else None,
        problem=problem,
        lost_workers=tuple(str(each["worker"]) for each in result.get("lost_workers", ())),
    )


def _not_described(path: Path, wrong: str) -> LedgerError:
    return LedgerError(
        f"{path / 'run.json'} is not a run's description: {wrong}",
        remedy="give the folder of a run; docs/reference/ledgers.md says what run.json holds",
    )


def _read_result(path: Path) -> tuple[dict[str, Any], str]:
    """Return the result of a run, empty if it has none; and why it cannot be used, or "".

    A full disk leaves an empty one: that must not hide the run, nor the others.
    """
    if not (path / "result.json").is_file():
        return {}, ""
    try:
        result = read_json(path / "result.json")
        check_version(result.get("format"), (RESULT_FORMAT,))
        for each in result.get("thresholds", []):
            ThresholdResult.from_json(each).sentences()
        for each in result.get("lost_workers", []):
            str(each["worker"])
        if not isinstance(result["verdict"], str):
            raise TypeError("its verdict is not a text")  # noqa: TRY301 - like those of from_json
    except LedgerError as error:
        problem = error.message
    except FormatMismatch as error:
        problem = f"{path / 'result.json'} {error}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{path / 'result.json'} is not a result: {error!r:.200}"
    else:
        return result, ""
    return {}, f"{problem}; judge the run again: shoal audit {path}"


def remove_run(summary: RunSummary) -> None:
    """Delete a run's folder, unless the run is still running."""
    if summary.state == "running":
        raise UsageError(f"run {summary.run} is still running", remedy="stop it first (Ctrl-C)")
    shutil.rmtree(summary.path)


def remove_sweep(folder: Path, runs: Sequence[RunSummary]) -> None:
    """Delete the folder of a sweep with its runs, unless the sweep is still running."""
    is_running = any(run.sweep == folder.name and run.state == "running" for run in runs)
    with (folder / LOCK_FILE).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_running = True
        if is_running:
            raise UsageError(
                f"sweep {folder.name} is still running", remedy="stop it first (Ctrl-C)"
            )
        shutil.rmtree(folder)


def driver_identity() -> dict[str, Any] | None:
    """The identity of this process for `run.json`, so that others see whether it still runs."""
    identity = ProcessIdentity.of(os.getpid())
    return to_plain(identity) if identity else None


def is_driver_alive(driver: object) -> bool:
    """Whether the driver with that identity still runs; False for a recycled process id."""
    match driver:
        case {"pid": int(pid), "start_mark": str(mark)}:
            return ProcessIdentity(pid, mark).is_alive()
        case _:
            return False
