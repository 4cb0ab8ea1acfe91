"""Completion of values in a shell: presets, runs, clusters, mirrors and topics.

Rules:
- A key press waits for the answer, so nothing heavy is imported that the answer does not need, and
  a cluster that does not answer within two seconds has no
  topics.
- An error completes to nothing: a shell has no place for messages.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import rich_click as click

from shoal.model.errors import ShoalError

TIMEOUT_S: Final = 2.0
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _quietly(find: Callable[[click.Context, str], Iterable[str]]) -> Complete:
    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        try:
            return [value for value in find(context, begun) if value.startswith(begun)]
        except (OSError, ValueError, ShoalError):
            return []

    return complete


@_quietly
def complete_experiment(_context: click.Context, begun: str) -> Iterable[str]:
    """Presets, and experiment files below the folder that is typed."""
    from shoal.experiment.presets import presets

    folder = Path(begun) if begun.endswith("/") else Path(begun).parent
    files = sorted(str(file) for file in folder.glob("*.toml"))
    folders = sorted(f"{each}/" for each in folder.glob("*/")) if "/" in begun else []
    return [*presets(), *files, *folders]


@_quietly
def complete_run(context: click.Context, begun: str) -> Iterable[str]:
    """Folders of runs, newest first; a sweep as `SWEEP/`, and then its runs."""
    sweep, slash, _ = begun.rpartition("/")
    if slash:
        return [f"{sweep}/{name}" for name in _list_newest(context, f"{sweep}/*/run.json")]
    return [*_list_newest(context, "*/run.json"), *(f"{n}/" for n in _list_sweeps(context))]


@_quietly
def complete_sweep(context: click.Context, _begun: str) -> Iterable[str]:
    """Folders of sweeps, newest first."""
    return _list_sweeps(context)


@_quietly
def complete_run_or_sweep(context: click.Context, begun: str) -> Iterable[str]:
    """Folders of runs and of sweeps, newest first; after `SWEEP/`, its runs."""
    sweep, slash, _ = begun.rpartition("/")
    if slash:
        return [f"{sweep}/{name}" for name in _list_newest(context, f"{sweep}/*/run.json")]
    return [*_list_newest(context, "*/run.json"), *_list_sweeps(context)]


def _list_sweeps(context: click.Context) -> list[str]:
    return _list_newest(context, "*/sweep.json")


def _list_newest(context: click.Context, pattern: str) -> list[str]:
    chosen = context.params.get("runs_dir") or os.environ.get("SHOAL_RUNS_DIR", "runs")
    found = sorted(Path(chosen).glob(pattern), key=_read_mtime_s, reverse=True)
    return [file.parent.name for file in found]


def _read_mtime_s(file: Path) -> float:
    return file.stat().st_mtime


@_quietly
def complete_cluster(_context: click.Context, _begun: str) -> Iterable[str]:
    """Names of the clusters that run on this machine."""
    from shoal.control.clusters import list_entries

    return [entry.name for entry in list_entries()]


@_quietly
def complete_mirror(_context: click.Context, _begun: str) -> Iterable[str]:
    """Names of the mirrors that run on this machine."""
    from shoal.mirror.control import send_command

    return [flow for answer in send_command("status", None) for flow in answer["flows"]]


@_quietly
def complete_topics(context: click.Context, begun: str) -> Iterable[str]:
    """The last name of a list of topics, from the cluster that the command names."""
    earlier, comma, _ = begun.rpartition(",")
    return [f"{earlier}{comma}{name}" for name in asyncio.run(_list_topics(context.params))]


async def _list_topics(options: Mapping[str, Any]) -> list[str]:
    from shoal.cli.shared.options import cluster_properties
    from shoal.client.client import Client

    side = "the" if "bootstrap_server" in options else "source"
    named = {f"the_{name}": value for name, value in options.items()} | dict(options)
    settings = ("bootstrap_server", "command_config", "command_property")
    given = {f"{side}_{name}": named.get(f"{side}_{name}") or () for name in settings}
    try:
        async with asyncio.timeout(TIMEOUT_S), Client(cluster_properties(side, given)) as client:
            cluster = await client.metadata(refresh=True)
            return sorted(name for name in cluster.topics if not name.startswith("__"))
    except TimeoutError:
        return []
