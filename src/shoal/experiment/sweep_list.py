"""Sweeps in the folder of runs: how far each came, for commands and for the page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from shoal.experiment.runs import SWEEP_FILE
from shoal.model.errors import LedgerError
from shoal.model.json_files import read_json

Json = dict[str, Any]


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
    is_running = any(run["state"] == "running" for run in runs)
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
