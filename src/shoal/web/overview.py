"""What a page needs of a cluster or a mirror that may have run for days, from its event file.

`find_replicas` looks up who led when one message was appended.

Rules:
- States are read from the whole file: the last one of each object, and of processes the history.
- Ticks, faults and remarks are those of the last `RECENT_BYTES`.
- A tick names only partitions that changed: the last entry of each is returned, apart from ticks.
  A mirror that starts again names all of them: entries from before its last start do not count.
- `proof.json` is what a continuous verification keeps beside the events of a mirror.
"""

import json
from pathlib import Path
from typing import Any, Final

from shoal.model.events import FILE_NAME
from shoal.web.event_files import parse_event, read_lines

Json = dict[str, Any]
RECENT_BYTES: Final = 2 * 1024 * 1024
MOST_TICKS: Final = 900
MOST_STATES: Final = 2000
MOST_PARTITIONS: Final = 5000
LARGEST_PROOF_BYTES: Final = 8 * 1024 * 1024
PROOF_FILE: Final = "proof.json"
PROOF_VERSION: Final = 2
# `"kind": "state"` is near the start of a line.
_HEAD_BYTES: Final = 80


def read_overview(path: Path) -> Json | None:
    """Events by time, partitions, and the position behind them; None if the file is unreadable."""
    found = _Overview()
    try:
        with path.open("rb") as file:
            found.read(file, path.stat().st_size)
            inode = path.stat().st_ino
    except OSError:
        return None
    return {
        "events": found.list_events(),
        "partitions": list(found.partitions.values()),
        "position": f"{inode}-{found.end}",
    }


class _Overview:
    def __init__(self) -> None:
        self.end = 0
        self.partitions: dict[str, Json] = {}
        self._meta: list[Json] = []
        self._last: dict[str, Json] = {}
        self._history: list[Json] = []
        self._ticks: list[Json] = []
        self._others: list[Json] = []

    def read(self, file: Any, size: int) -> None:
        for line, end in read_lines(file):
            is_recent = size - self.end < RECENT_BYTES
            is_first = self.end == 0
            self.end = end
            if is_recent or is_first or b'"state"' in line[:_HEAD_BYTES]:
                self._take(parse_event(line))
            if self.end > size:
                break  # it grows while it is read

    def _take(self, event: Json | None) -> None:
        if event is None:
            return
        match event:
            case {"kind": "meta"}:
                self._meta = [event]
            case {"kind": "state", "object": str(name)}:
                self._take_state(name, event)
            case {"kind": "tick"}:
                self._take_tick(event)
            case {"kind": "fault" | "log" | "end" | "finding"}:
                self._others = [*self._others[-MOST_STATES:], event]

    def _take_state(self, name: str, event: Json) -> None:
        if event.get("state") == "removed":
            self._last.pop(name, None)
        elif len(self._last) < MOST_PARTITIONS or name in self._last:
            self._last[name] = event
        self._history.append(event)
        if len(self._history) > 2 * MOST_STATES:
            self._history = self._history[-MOST_STATES:]

    def _take_tick(self, event: Json) -> None:
        is_of_this_start = not self._meta or event["t"] >= self._meta[0]["t"]
        for entry in event.get("partitions", []) if is_of_this_start else ():
            name = entry.get("partition") if isinstance(entry, dict) else None
            if isinstance(name, str) and (
                len(self.partitions) < MOST_PARTITIONS or name in self.partitions
            ):
                self.partitions[name] = entry
        self._ticks.append({**event, "partitions": []})
        if len(self._ticks) > 2 * MOST_TICKS:
            self._ticks = self._ticks[-MOST_TICKS:]

    def list_events(self) -> list[Json]:
        history = self._history[-MOST_STATES:]
        kept = {id(event) for event in history}
        states = [event for event in self._last.values() if id(event) not in kept] + history
        events = [*self._meta, *states, *self._ticks[-MOST_TICKS:], *self._others]
        return sorted(events, key=lambda event: event["t"])


def find_replicas(run_dir: Path, life: Json) -> Json:
    """Leader and in-sync replicas of a message's partitions in both logs, as they then were.

    `life` is the life of the message. Without states of its partition a cluster is left out.
    """
    found = {}
    for cluster in ("source", "target"):
        places = life.get(cluster) or []
        if not places:
            continue
        times = (life.get("acknowledged_us"), life.get("sent_us"), life.get("intended_us"))
        at_us = next((t for t in (places[0]["append_us"], *times) if t is not None), None)
        topic = f"partition {life['topic']}-{places[0]['partition']}"
        state = at_us and _find_state(run_dir / cluster / FILE_NAME, topic, at_us)
        if state:
            found[cluster] = state
    return found


def _find_state(path: Path, partition: str, at_us: int) -> Json | None:
    """The last state of a partition that was written before this time."""
    wanted, found = json.dumps(partition, ensure_ascii=False).encode(), None
    try:
        with path.open("rb") as file:
            # Most lines are ticks, or about others: they need not be parsed.
            for line, _ in read_lines(file):
                event = parse_event(line) if wanted in line else None
                if event and event.get("object") == partition and event["t"] <= at_us:
                    found = event
    except OSError:
        return None
    match found:
        case {"details": {"leader": int(leader), "in_sync": list(in_sync)}}:
            return {"leader": leader, "in_sync": in_sync}
    return None


def read_proof(path: Path) -> Json | None:
    """The proof beside an event file; None if there is none that this version can read."""
    proof = path.with_name(PROOF_FILE)
    try:
        if proof.stat().st_size > LARGEST_PROOF_BYTES:
            return None
        content = json.loads(proof.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    is_known = isinstance(content, dict) and content.get("version") == PROOF_VERSION
    return content if is_known and isinstance(content.get("partitions"), list) else None
