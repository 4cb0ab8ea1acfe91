"""Runs for the page: found by name, summarised, and read again only if their files changed.

A name from a request is compared with the names of the folders; it never becomes part of a path.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from shoal.experiment.runs import read_json, summarise
from shoal.model.errors import LedgerError
from shoal.model.result import NEVER
from shoal.model.run_folder import hide_cluster_properties

Json = dict[str, Any]
# A larger result is listed without its numbers.
LARGEST_RESULT_BYTES: Final = 64 * 1024 * 1024
_Stamp = tuple[tuple[int, int] | None, ...]


class RunList:
    """The runs in one folder."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._summaries: dict[str, tuple[_Stamp, Json]] = {}

    def find(self, name: str) -> Path | None:
        """The folder of a run; None if there is no such run."""
        return next((path for path in self._folders() if path.name == name), None)

    def list_newest(self, first: int, count: int) -> tuple[list[Json], int]:
        """Summaries from the `first`-newest on, and the number of all runs."""
        folders = self._folders()
        names = {path.name for path in folders}
        self._summaries = {name: kept for name, kept in self._summaries.items() if name in names}
        runs = [self.summarise(path) for path in folders]
        runs.sort(key=lambda run: (run["started_us"], run["name"]), reverse=True)
        return runs[first : first + count], len(runs)

    def summarise(self, folder: Path) -> Json:
        """A run at a glance: its state, its verdict and the numbers behind it."""
        stamp = tuple(_stamp(folder / file) for file in ("run.json", "result.json"))
        kept = self._summaries.get(folder.name)
        # The state of a run that is not finished depends on its process, not on its files.
        if kept and kept[0] == stamp and kept[1]["state"] == "finished":
            return kept[1]
        summary = _summarise(folder)
        self._summaries[folder.name] = (stamp, summary)
        return summary

    def _folders(self) -> list[Path]:
        if not self.runs_dir.is_dir():
            return []
        return [path.parent for path in self.runs_dir.glob("*/run.json")]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _summarise(folder: Path) -> Json:
    try:
        run = summarise(folder)
    except LedgerError as error:
        return {
            "name": folder.name,
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
        "name": folder.name,
        "run": run.run,
        "state": run.state,
        "started_us": int(run.started.timestamp() * 1e6),
        "verdict": run.verdict,
        "sentence": run.sentence,
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
    p99 = latency.get("owed", latency).get("p99") if latency else None
    return {
        "lost": metrics["lost"],
        "pending": metrics["pending"],
        "duplicated": metrics["deliveries"] - metrics.get("re_reads", 0) - metrics["delivered"],
        "reordered": findings.get("reordered", 0),
        "p99_us": NEVER if p99 is None and latency.get("undelivered") else p99,
        "flow": count_flow(metrics, findings),
        "findings": findings,
    }


def count_flow(metrics: Mapping[str, Any], findings: Mapping[str, int]) -> list[Json]:
    """How many messages reached each stage, and how many ended there.

    Stages: sent, source log, mirror, target log, received. `lost` is the number of messages that
    are missing from this stage and were in the one before.
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
    return [
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
            "lost": undelivered + unlocated,
            "copies": metrics["deliveries"] - metrics.get("re_reads", 0) - metrics["delivered"],
        },
    ]


def read_manifest(folder: Path) -> Json:
    """What the page shows of `run.json`: never the properties of clusters, which hold passwords."""
    try:
        manifest = json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(manifest, dict):
        return {}
    return hide_cluster_properties(manifest)
