"""The clusters, mirrors and drivers behind the names of things.

Rules:
- A cluster of `shoal cluster up` is found in the registry. Those of a run are found by the first
  event of their stream, which has the process of the supervisor, the folder and the addresses.
- A single node is a cluster whose only process here is its own: it takes signals, nothing else.
- A name is compared with those of existing things; it never becomes part of a path. A run of a
  sweep is named `SWEEP/RUN`.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.model.errors import LedgerError, UsageError
from shoal.model.json_files import read_json
from shoal.model.nodes import Node
from shoal.model.serialised import FormatMismatch, from_plain
from shoal.runtime.paths import state_dir
from shoal.runtime.processes import ProcessIdentity
from shoal.systems import registry
from shoal.systems.registry import RegistryEntry
from shoal.systems.remote import RemoteCluster, open_remote_cluster
from shoal.telemetry.discovery import (
    PARTS_OF_A_RUN,
    EventSource,
    list_node_entries,
    open_source,
)


def open_cluster(thing: str, runs_dir: Path | None) -> RemoteCluster:
    """The running cluster with that name."""
    kind, _, name = thing.partition(":")
    if kind == "cluster":
        return open_remote_cluster(find_entry(name))
    source = _find_source(thing, runs_dir)
    if source is None or not source.is_alive:
        raise UsageError(f"cluster {name:.80} is not running", remedy="its run may have ended")
    return open_remote_cluster(_entry_of(source))


def find_entry(name: str | None) -> RegistryEntry:
    """The running cluster or single node with this name; without a name, the only cluster."""
    node = None if name is None else _find_single_node(name)
    return registry.find(name) if node is None else node


def list_entries() -> list[RegistryEntry]:
    """All clusters that run on this machine, then all single nodes."""
    nodes = [_find_single_node(file.stem) for file in list_node_entries()]
    return [*registry.entries(), *(node for node in nodes if node is not None)]


def find_sides(thing: str, runs_dir: Path | None) -> tuple[str, str]:
    """The addresses of the source and of the target of a mirror, running or not."""
    source = _find_source(thing, runs_dir)
    details: Mapping[str, Any] = {} if source is None else source.meta.details
    match details:
        case {"source": str(left), "target": str(right)}:
            return left, right
    raise UsageError(f"{thing:.80} names no mirror whose clusters are known")


def flow_of(thing: str, runs_dir: Path | None) -> str:
    """The name by which a mirror process knows a mirror."""
    source = _find_source(thing, runs_dir)
    return thing.partition(":")[2] if source is None else source.meta.name


def _find_source(thing: str, runs_dir: Path | None) -> EventSource | None:
    kind, _, name = thing.partition(":")
    if kind == "mirror":
        return _open_named(state_dir() / "mirrors", name)
    run, _, part = name.rpartition("/")
    if kind != "run" or runs_dir is None or part not in PARTS_OF_A_RUN:
        return None
    folder = _find_run_folder(runs_dir, run)
    return None if folder is None else open_source(folder / part, run)


def _open_named(folder: Path, name: str) -> EventSource | None:
    found = _find_folder(folder, name)
    return None if found is None else open_source(found, name)


def _find_single_node(name: str) -> RegistryEntry | None:
    """The process of a single node; None if no node with that name runs."""
    source = _open_node(name)
    if source is None or not source.is_alive:
        return None
    details = source.meta.details
    owner = ProcessIdentity(source.meta.pid, source.meta.process_start)
    match details:
        case {"node": str(node), "address": str(address), "bootstrap": str(bootstrap)}:
            number, (host, _, port) = node.rpartition(" ")[2], address.rpartition(":")
            if not (number.isdecimal() and port.isdecimal()):
                return None
            node_id = int(number)
            found = Node(node_id, host, int(port), owner.pid)
            return RegistryEntry(
                *(name, "single node", bootstrap, source.meta.t, owner),
                nodes=(found,),
                identities={node_id: owner},
            )
    return None


def _open_node(name: str) -> EventSource | None:
    for file in list_node_entries():
        if file.stem == name:
            with suppress(LedgerError, KeyError):
                return open_source(Path(str(read_json(file)["directory"])), name)
    return None


def _find_run_folder(runs_dir: Path, name: str) -> Path | None:
    """The folder with the name of a run, or of a run of a sweep: `SWEEP/RUN`."""
    sweep, _, run = name.rpartition("/")
    folder = _find_folder(runs_dir, sweep) if sweep else runs_dir
    return None if folder is None else _find_folder(folder, run)


def _find_folder(folder: Path, name: str) -> Path | None:
    named = [path for path in folder.iterdir() if path.name == name] if folder.is_dir() else []
    return named[0] if named else None


def _entry_of(source: EventSource) -> RegistryEntry:
    details, owner = (
        source.meta.details,
        ProcessIdentity(source.meta.pid, source.meta.process_start),
    )
    match details:
        case {"engine": "lite", "directory": str(folder), "bootstrap": str(bootstrap)}:
            return RegistryEntry(
                source.name, "lite", bootstrap, source.meta.t, owner, (), {}, folder
            )
        case {"engine": "apache"}:
            raise UsageError(
                f"only the run can act on the brokers of {source.name:.80}: it is Apache Kafka",
                remedy="plan a fault in the experiment file, or act on a cluster of"
                " shoal cluster up --engine apache",
            )
    raise UsageError(
        f"cluster {source.name:.80} was not started by this run",
        remedy="act on it where it was started",
    )


def find_driver(name: str, runs_dir: Path | None) -> ProcessIdentity | None:
    """The process that drives a run; None if there is no such run."""
    folder = None if runs_dir is None else _find_run_folder(runs_dir, name)
    if folder is None:
        return None
    try:
        return from_plain(ProcessIdentity, read_json(folder / "run.json")["driver"])
    except (LedgerError, FormatMismatch, KeyError, TypeError):
        return None
