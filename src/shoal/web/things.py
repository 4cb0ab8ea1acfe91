"""Runs, clusters and mirrors that write events, and whether they still do.

Ids: `run:NAME`, `run:NAME/source` (also target and mirror), `cluster:NAME`, `mirror:NAME`. The name
of a run of a sweep is `SWEEP/RUN`. A single node is a cluster as that node sees it, named
`CLUSTER-broker-1`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.experiment.runs import list_sweep_folders
from shoal.model.events import FILE_NAME
from shoal.runtime.paths import state_dir
from shoal.runtime.processes import ProcessIdentity
from shoal.web.event_files import read_chunk, read_meta

Json = dict[str, Any]
PARTS: Final = ("source", "target", "mirror")
# An older file of a living process is one that it no longer writes to.
MOST_THINGS: Final = 200
_MOST_ENDED: Final = 20_000


@dataclass(frozen=True, slots=True)
class Thing:
    """One event file and its writer."""

    id: str
    path: Path
    meta: Json
    is_alive: bool

    def to_json(self) -> Json:
        return {
            "id": self.id,
            "subject": self.meta.get("subject"),
            "name": str(self.meta.get("name")),
            "started_us": self.meta["t"],
            "details": self.meta.get("details", {}),
            "is_alive": self.is_alive,
            "written_us": _read_mtime_us(self.path),
        }


class EndedFiles:
    """Event files that are no longer written, by what identifies their content.

    A page asks each second, and a folder may have thousands of runs: such a file is read once, and
    again only if it is written or replaced.
    """

    def __init__(self) -> None:
        self._stamps: dict[Path, tuple[int, int, int]] = {}

    def is_known(self, path: Path) -> bool:
        kept = self._stamps.get(path)
        return kept is not None and kept == _read_stamp(path)

    def add(self, path: Path, stamp: tuple[int, int, int] | None) -> None:
        if len(self._stamps) >= _MOST_ENDED:
            self._stamps.clear()
        if stamp is not None:
            self._stamps[path] = stamp


_ended = EndedFiles()


def find_things(runs_dir: Path) -> list[Thing]:
    """All event files of things that may run now, those of running processes only."""
    found = []
    for id_, path in _event_files(runs_dir):
        if _ended.is_known(path):
            continue
        # Before it is read: what is written meanwhile makes it another file.
        stamp = _read_stamp(path)
        meta = read_meta(path)
        if meta is not None and _is_writer_alive(meta) and not has_ended(path):
            found.append(Thing(id_, path, meta, is_alive=True))
        elif meta is not None:
            _ended.add(path, stamp)
    found.sort(key=lambda thing: (thing.meta["t"], thing.id), reverse=True)
    return found[:MOST_THINGS]


def find_thing(runs_dir: Path, id_: str) -> Thing | None:
    """The thing with that id, whether it runs or not."""
    for each, path in _event_files(runs_dir):
        if each == id_ and (meta := read_meta(path)) is not None:
            is_alive = _is_writer_alive(meta) and not has_ended(path)
            return Thing(id_, path, meta, is_alive)
    return None


def has_ended(path: Path) -> bool:
    """Whether the last event says that nothing more is written."""
    chunk = read_chunk(path, "tail")
    return chunk is not None and bool(chunk.events) and chunk.events[-1]["kind"] == "end"


def _event_files(runs_dir: Path) -> Iterator[tuple[str, Path]]:
    for folder in (runs_dir, *list_sweep_folders(runs_dir)) if runs_dir.is_dir() else ():
        for path in filter(Path.is_file, folder.glob(f"*/{FILE_NAME}")):
            name = path.parent.relative_to(runs_dir).as_posix()
            yield f"run:{name}", path
            for part in PARTS:
                if (of_part := path.parent / part / FILE_NAME).is_file():
                    yield f"run:{name}/{part}", of_part
    state = state_dir()
    for path in filter(Path.is_file, (state / "mirrors").glob(f"*/{FILE_NAME}")):
        yield f"mirror:{path.parent.name}", path
    for entry in (*(state / "clusters").glob("*.json"), *(state / "nodes").glob("*.json")):
        try:
            folder = json.loads(entry.read_bytes())["directory"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(folder, str) and (path := Path(folder) / FILE_NAME).is_file():
            yield f"cluster:{entry.stem}", path


def _is_writer_alive(meta: Json) -> bool:
    match meta:
        case {"pid": int(pid), "process_start": str(mark)}:
            return ProcessIdentity(pid, mark).is_alive()
        case _:
            return False


def _read_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read_mtime_us(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // 1000
    except OSError:
        return 0
