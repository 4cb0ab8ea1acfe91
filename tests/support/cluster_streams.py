"""What the event stream of a cluster says now."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_states(folder: Path) -> Mapping[str, dict[str, Any]]:
    """The last state of each object; an unknown one for those that are not written yet."""
    known = {each["object"]: each for each in read_events(folder) if each["kind"] == "state"}
    return defaultdict(lambda: {"state": "unknown", "details": {"leader": None}}, known)


def last_tick(folder: Path) -> dict[str, Any]:
    ticks = [each for each in read_events(folder) if each["kind"] == "tick"]
    return ticks[-1] if ticks else {"counters": {}, "processes": []}
