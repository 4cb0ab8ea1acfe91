"""Finds the event streams of this machine: runs of a folder, clusters and mirrors.

Rules:
- A run is a folder with an event stream in the folder of runs; its clusters and its mirror are
  below it, and are named `RUN/source`, `RUN/target` and `RUN/mirror`.
- A cluster is found by its entry in the registry, which has its folder; so is a single node
  (`shoal broker`, `shoal controller`), which is one view of a cluster, by its own entry. A mirror
  is found by its folder below the state folder. Streams of processes that have ended are found
  too, as long as their folder is.
- A stream that this version cannot read is left out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.model.events import FILE_NAME, Meta, Subject
from shoal.runtime.paths import state_dir
from shoal.runtime.processes import ProcessIdentity
from shoal.telemetry.events import read_meta

PARTS_OF_A_RUN: Final = ("source", "target", "mirror")


@dataclass(frozen=True, slots=True)
class EventSource:
    """An event stream, and whether its writer runs."""

    subject: Subject
    name: str
    folder: Path
    is_alive: bool
    meta: Meta


def mirror_folder(name: str) -> Path:
    """Where a mirror with this name writes its events."""
    return state_dir() / "mirrors" / name


def node_file(name: str) -> Path:
    """The file by which a single node with this name is found."""
    return state_dir() / "nodes" / f"{name}.json"


def list_node_entries() -> list[Path]:
    """The files of all single nodes."""
    return sorted((state_dir() / "nodes").glob("*.json"))


def find_sources(runs_dir: Path) -> list[EventSource]:
    """All event streams: runs with the newest first, then clusters and mirrors by name."""
    found = [*find_runs(runs_dir), *_find_clusters(), *_find_mirrors()]
    return list({source.folder.resolve(): source for source in found}.values())


def find_runs(runs_dir: Path) -> Iterator[EventSource]:
    """The runs of a folder with their clusters and mirrors, the newest run first."""
    runs = [source for folder in _list_folders(runs_dir) if (source := open_source(folder))]
    for run in sorted(runs, key=lambda run: run.meta.t, reverse=True):
        yield run
        for part in PARTS_OF_A_RUN:
            if source := open_source(run.folder / part, f"{run.name}/{part}"):
                yield source


def _find_clusters() -> Iterator[EventSource]:
    clusters = sorted((state_dir() / "clusters").glob("*.json"))
    for file in (*clusters, *list_node_entries()):
        try:
            entry = json.loads(file.read_text())
            name, folder = str(entry["name"]), Path(entry["directory"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not an entry, or a cluster without a folder
        if source := open_source(folder, name):
            yield source


def _find_mirrors() -> Iterator[EventSource]:
    for folder in _list_folders(state_dir() / "mirrors"):
        if source := open_source(folder):
            yield source


def open_source(folder: Path, name: str | None = None) -> EventSource | None:
    """The event stream of a folder; None if it has none that this version can read."""
    meta = read_meta(folder)
    if meta is None:
        return None
    is_alive = ProcessIdentity(meta.pid, meta.process_start).is_alive()
    return EventSource(meta.subject, name or meta.name, folder, is_alive, meta)


def _list_folders(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if (each / FILE_NAME).exists())
    except OSError:
        return []
