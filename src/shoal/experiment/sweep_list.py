"""Sweeps in the folder of runs: how far each came, for commands and for the page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, Final

from shoal.experiment.runs import LOCK_FILE, SWEEP_FILE
from shoal.model.errors import LedgerError
from shoal.model.json_files import read_json

Json = dict[str, Any]
_LOCKS: Final = Path("/proc/locks")


def describe_sweep(folder: Path, runs: Sequence[Mapping[str, Any]]) -> Json:
    """What a sweep varies, how far it came, and how often each verdict was reached."""
    plan: Json = {}
    with suppress(LedgerError):
        plan = read_json(folder / SWEEP_FILE)
    varied = plan.get("parameters")
    parameters = (
        {str(key): list(map(str, values)) for key, values in varied.items()}
        if isinstance(varied, dict) and all(isinstance(each, list) for each in varied.values())
        else {}
    )
    repeats = plan.get("repeats")
    combinations = prod(len(values) for values in parameters.values()) if parameters else 0
    verdicts = Counter(run["verdict"] or "none" for run in runs)
    # Between two of its runs only the lock of its folder shows that it continues.
    is_running = any(run["state"] == "running" for run in runs) or _is_locked(folder / LOCK_FILE)
    done = sum(run["state"] == "finished" and run["verdict"] is not None for run in runs)
    planned = combinations * repeats if isinstance(repeats, int) else 0
    return {
        "kind": "sweep",
        "name": folder.name,
        "experiment": str(plan.get("file", folder.name)).removesuffix(".toml"),
        "state": "running" if is_running else "finished" if done >= planned else "interrupted",
        "started_us": max((run["started_us"] for run in runs), default=0),
        "parameters": parameters,
        "planned": planned,
        "done": done,
        "verdicts": dict(verdicts),
    }


def _is_locked(file: Path) -> bool:
    """Whether a process holds the lock of a file, without trying to take it; False if unknown."""
    with suppress(OSError, IndexError):
        inode = str(file.stat().st_ino)
        lines = [line.split() for line in _LOCKS.read_text().splitlines()]
        return any(line[1] == "FLOCK" and line[5].rpartition(":")[2] == inode for line in lines)
    return False
