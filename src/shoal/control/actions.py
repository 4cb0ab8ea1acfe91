"""What can be done to a running cluster, mirror or run, for commands and for the page.

    act(Action("cluster:t1", "kill", node=2))
    act(Action("mirror:m1", "pause"))
    act(Action("run:r1/source", "cut", node=2), runs_dir)
    act(Action("run:r1", "stop"), runs_dir)

Rules:
- A thing is named as in the event streams: `cluster:NAME`, `run:NAME/source`, `run:NAME/target`,
  `mirror:NAME`, `run:NAME/mirror`, `run:NAME`.
- `shoal.control.cluster_actions` has what can be done to a cluster; the faults of a run are done by
  the same functions. A whole cluster, named `cluster:NAME`, also goes `down`.
- A mirror is paused and resumed; a run is stopped as by Ctrl-C: it drains and is judged.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal.control.cluster_actions import RULES, ClusterAction, perform
from shoal.control.clusters import find_driver, flow_of, open_cluster
from shoal.model.errors import UsageError

CLUSTER_ACTIONS: Final = tuple(RULES)
DOWN: Final = "down"
MIRROR_ACTIONS: Final = ("pause", "resume")
RUN_ACTIONS: Final = ("stop",)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    thing: str
    action: str
    node: int | None = None
    other: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        allowed = _list_actions(self.thing)
        if self.action not in allowed:
            raise UsageError(
                f"{self.action!r:.40} is not an action for {self.thing:.80}",
                remedy=f"use one of {', '.join(allowed)}" if allowed else "name a thing that runs",
            )
        if self.is_for_nodes:
            self.on_cluster()
        elif self.settings:
            raise UsageError(f"{self.action} has no settings")

    @property
    def is_for_nodes(self) -> bool:
        return _is_cluster(self.thing) and self.action != DOWN

    def on_cluster(self) -> ClusterAction:
        return ClusterAction(self.action, self.node, self.other, self.settings)


def _is_cluster(thing: str) -> bool:
    kind, _, name = thing.partition(":")
    return kind == "cluster" or (kind == "run" and name.endswith(("/source", "/target")))


def _list_actions(thing: str) -> tuple[str, ...]:
    kind, _, name = thing.partition(":")
    if not name:
        return ()
    if _is_cluster(thing):
        return (*CLUSTER_ACTIONS, DOWN) if kind == "cluster" else CLUSTER_ACTIONS
    if kind == "mirror" or (kind == "run" and name.endswith("/mirror")):
        return MIRROR_ACTIONS
    return RUN_ACTIONS if kind == "run" else ()


def act(action: Action, runs_dir: Path | None = None) -> dict[str, Any]:
    """Do it, and return when it is done; the answer says what was done, and what is new."""
    new: dict[str, Any] = {}
    if action.is_for_nodes:
        new = perform(open_cluster(action.thing, runs_dir), action.on_cluster())
    elif action.action == DOWN:
        open_cluster(action.thing, runs_dir).entry.down()
    elif action.action in MIRROR_ACTIONS:
        # Imported late: the client of mirrors takes longer to load than a broker to be killed.
        from shoal.mirror.control import send_command

        send_command(action.action, flow_of(action.thing, runs_dir))
    else:
        _stop_run(action.thing, runs_dir)
    return {"done": describe(action), **new}


def describe(action: Action) -> str:
    """One line for people."""
    name = action.thing.partition(":")[2]
    return action.on_cluster().describe(name) if action.is_for_nodes else f"{action.action}: {name}"


def _stop_run(thing: str, runs_dir: Path | None) -> None:
    name = thing.partition(":")[2]
    driver = find_driver(name, runs_dir)
    if driver is None or not driver.send(signal.SIGINT):
        raise UsageError(f"run {name:.80} is not running", remedy="shoal runs list shows all runs")
