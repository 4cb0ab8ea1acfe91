"""Runs for the page: found by name, summarised, and read again only if their files changed.

A name from a request is compared with the names of the folders; it never becomes part of a path.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from shoal.experiment.runs import list_run_folders, list_sweep_folders, summarise
from shoal.experiment.sweep_list import describe_sweep
from shoal.model.errors import LedgerError
from shoal.model.json_files import read_json
from shoal.model.result import NEVER
from shoal.model.run_folder import hide_cluster_properties
from shoal.report.side_by_side import describe_result

Json = dict[str, Any]
# A larger result is listed without its numbers.
LARGEST_RESULT_BYTES: Final = 64 * 1024 * 1024
_Stamp = tuple[tuple[int, int] | None, ...]


class RunList:
    """The runs in one folder, and the sweeps there, which have runs of their own.

    A run of a sweep is named `SWEEP/RUN`.
    """

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._summaries: dict[str, tuple[_Stamp, Json]] = {}

    def find(self, name: str) -> Path | None:
        """The folder of a run; None if there is no such run."""
        return find_run_folder(self.runs_dir, name)

    def list_newest(self, first: int, count: int) -> tuple[list[Json], int]:
        """Runs and sweeps from the `first`-newest on, and the number of both."""
        sweeps = list_sweep_folders(self.runs_dir)
        folders = list_run_folders(self.runs_dir)
        known = {self._name(each) for each in (*folders, *_list_runs_of(sweeps))}
        self._summaries = {name: kept for name, kept in self._summaries.items() if name in known}
        rows = [self.summarise(path) for path in folders]
        rows += [self.summarise_sweep(path) for path in sweeps]
        rows.sort(key=_start_order, reverse=True)
        return rows[first : first + count], len(rows)

    def summarise(self, folder: Path) -> Json:
        """A run at a glance: its state, its verdict and the numbers behind it."""
        name = self._name(folder)
        stamp = tuple(_stamp(folder / file) for file in ("run.json", "result.json"))
        kept = self._summaries.get(name)
        # The state of a run that is not finished depends on its process, not on its files.
        if kept and kept[0] == stamp and kept[1]["state"] == "finished":
            return kept[1]
        summary = _summarise(folder, name)
        self._summaries[name] = (stamp, summary)
        return summary

    def find_sweep(self, name: str) -> Path | None:
        """The folder of a sweep; None if there is no such sweep."""
        return next((p for p in list_sweep_folders(self.runs_dir) if p.name == name), None)

    def list_runs_of(self, sweep: Path) -> list[Json]:
        """The runs of a sweep, newest first."""
        runs = [self.summarise(path) for path in list_run_folders(sweep)]
        return sorted(runs, key=_start_order, reverse=True)

    def summarise_sweep(self, folder: Path) -> Json:
        """A sweep at a glance: what it varies, how far it came, its verdicts."""
        return describe_sweep(folder, self.list_runs_of(folder))

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.runs_dir).as_posix()


def _start_order(summary: Json) -> tuple[int, str]:
    return summary["started_us"], summary["name"]


def _list_runs_of(sweeps: Iterable[Path]) -> list[Path]:
    return [run for sweep in sweeps for run in list_run_folders(sweep)]


def find_run_folder(runs_dir: Path, name: str) -> Path | None:
    """The folder of a run, or of a run of a sweep; None if there is no such run."""
    sweep, slash, _ = name.rpartition("/")
    folders = [p for p in list_sweep_folders(runs_dir) if p.name == sweep] if slash else [runs_dir]
    runs = [run for folder in folders for run in list_run_folders(folder)]
    return next((run for run in runs if run.relative_to(runs_dir).as_posix() == name), None)


def read_sweep_result(folder: Path) -> Json | None:
    """What `shoal sweep` concluded, as its report shows it; None if it has not yet."""
    result = read_result(folder)
    try:
        return None if result is None else describe_result(result)
    except (KeyError, TypeError, AttributeError):
        return None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _summarise(folder: Path, name: str) -> Json:
    try:
        run = summarise(folder)
    except LedgerError as error:
        return {
            "kind": "run",
            "name": name,
            "run": folder.name,
            "state": "unreadable",
            "started_us": 0,
            "verdict": None,
            "sentence": str(error),
            "thresholds": 0,
            "missed": [],
            "numbers": None,
        }
    return {
        "kind": "run",
        "name": name,
        "run": run.run,
        "state": run.state,
        "started_us": int(run.started.timestamp() * 1e6),
        "verdict": run.verdict,
        "sentence": run.sentence or run.problem or None,
        "thresholds": run.thresholds,
        "missed": list(run.missed),
        "numbers": read_numbers(folder),
    }


def read_result(folder: Path) -> Json | None:
    """`result.json` of a run; None if it is missing, too large or malformed."""
    path = folder / "result.json"
    with suppress(OSError, LedgerError):
        if path.stat().st_size <= LARGEST_RESULT_BYTES:
            return read_json(path)
    return None


def read_numbers(folder: Path) -> Json | None:
    """What the list shows of a result; None if the run has not been judged."""
    result = read_result(folder)
    try:
        return None if result is None else count_numbers(result)
    except (KeyError, TypeError, AttributeError):
        return None


def count_numbers(result: Mapping[str, Any]) -> Json:
    """The numbers of the worst group: what was lost, duplicated and reordered, p99, the flow."""
    metrics = result["metrics"]
    findings = {name: found["count"] for name, found in result["findings"].items()}
    latency = metrics["latency_us"].get("e2e_intended", {})
    stages = result.get("stages", {})
    p99 = latency.get("owed", latency).get("p99") if latency else None
    return {
        "lost": metrics["lost"],
        "pending": metrics["pending"],
        "duplicated": metrics["deliveries"] - metrics.get("re_reads", 0) - metrics["delivered"],
        "reordered": findings.get("reordered", 0),
        "p99_us": NEVER if p99 is None and latency.get("undelivered") else p99,
        "flow": count_flow(metrics, findings, has_mirror="source_to_target" in stages),
        "findings": findings,
    }


def count_flow(
    metrics: Mapping[str, Any], findings: Mapping[str, int], *, has_mirror: bool
) -> list[Json]:
    """How many messages reached each stage, and how many ended there.

    Stages: sent, source log, mirror, target log, received; without a mirror, sent, source log and
    received. `lost` is the number of messages that are missing from a stage and were in the one
    before. A run that is still judged may count more of a later stage than were sent.
    """
    sent = metrics["attempts"]
    never_stored = findings.get("lost: never-stored", 0) + findings.get("lost: expired", 0)
    not_mirrored = findings.get("lost: not-mirrored", 0)
    expired = findings.get("lost: expired at target", 0)
    unlocated = findings.get("lost: unlocated", 0)
    received = metrics["delivered_attempts"]
    undelivered = findings.get("lost: undelivered", 0)
    target = received + undelivered + metrics["pending"] + unlocated
    mirror = target + expired
    source = mirror + not_mirrored
    before_received = undelivered + unlocated
    if not has_mirror:
        before_received += not_mirrored + expired
    flow = [
        {"stage": "sent", "count": sent, "lost": 0, "copies": 0},
        {
            "stage": "source",
            "count": min(source, sent),
            "lost": never_stored,
            "copies": findings.get("duplicate: source", 0),
        },
        {"stage": "mirror", "count": min(mirror, sent), "lost": not_mirrored, "copies": 0},
        {
            "stage": "target",
            "count": min(target, sent),
            "lost": expired,
            "copies": findings.get("duplicate: target", 0),
        },
        {
            "stage": "received",
            "count": received,
            "lost": before_received,
            "copies": metrics["deliveries"] - metrics.get("re_reads", 0) - metrics["delivered"],
        },
    ]
    return [each for each in flow if has_mirror or each["stage"] not in ("mirror", "target")]


def read_manifest(folder: Path) -> Json:
    """What the page shows of `run.json`: never the properties of clusters, which hold passwords."""
    with suppress(LedgerError):
        return hide_cluster_properties(read_json(folder / "run.json"))
    return {}
