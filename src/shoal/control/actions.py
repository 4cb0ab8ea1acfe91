"""What can be done to a running cluster, mirror or run, for commands and for the page.

    act(Action("cluster:t1", "kill", node=2))
    act(Action("mirror:m1", "pause"))
    act(Action("run:r1/source", "cut", node=2), runs_dir)
    act(Action("run:r1", "stop"), runs_dir)

Rules:
- A thing is named as in the event streams: `cluster:NAME`, `run:NAME/source`, `run:NAME/target`,
  `mirror:NAME`, `run:NAME/mirror`, `run:NAME`.
- `kill` is SIGKILL, `stop` SIGTERM, `pause` SIGSTOP, `resume` SIGCONT; `restart` starts a node
  again on its port. `cut` drops all traffic between a node and the others, or `other` alone; `heal`
  ends the cuts and delays of a node's links, or all faults of the cluster without a node; `remove`
  moves the replicas of a broker to others, and removes it.
- A mirror is paused and resumed; a run is stopped as by Ctrl-C: it drains and is judged.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.control.clusters import find_driver, flow_of, open_cluster
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import UsageError
from shoal.systems.remote import RemoteCluster

NODE_ACTIONS: Final = ("kill", "stop", "pause", "resume", "restart", "remove")
CLUSTER_ACTIONS: Final = (*NODE_ACTIONS, "cut", "heal")
MIRROR_ACTIONS: Final = ("pause", "resume")
RUN_ACTIONS: Final = ("stop",)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    thing: str
    action: str
    node: int | None = None
    other: int | None = None

    def __post_init__(self) -> None:
        allowed = _list_actions(self.thing)
        if self.action not in allowed:
            raise UsageError(
                f"{self.action!r:.40} is not an action for {self.thing:.80}",
                remedy=f"use one of {', '.join(allowed)}" if allowed else "name a thing that runs",
            )
        if self.node is None and self.action in (*NODE_ACTIONS, "cut") and self.is_for_cluster:
            raise UsageError(f"{self.action} needs a node", remedy="name its id")

    @property
    def is_for_cluster(self) -> bool:
        return _list_actions(self.thing) == CLUSTER_ACTIONS


def _list_actions(thing: str) -> tuple[str, ...]:
    kind, _, name = thing.partition(":")
    if not name:
        return ()
    if kind == "cluster" or (kind == "run" and name.endswith(("/source", "/target"))):
        return CLUSTER_ACTIONS
    if kind == "mirror" or (kind == "run" and name.endswith("/mirror")):
        return MIRROR_ACTIONS
    return RUN_ACTIONS if kind == "run" else ()


def act(action: Action, runs_dir: Path | None = None) -> dict[str, Any]:
    """Do it, and return when it is done; the answer says what was done."""
    if action.is_for_cluster:
        cluster = open_cluster(action.thing, runs_dir)
        _act_on_cluster(cluster, action)
    elif action.action in MIRROR_ACTIONS:
        # Imported late: the client of mirrors takes longer to load than a broker to be killed.
        from shoal.mirror.control import send_command

        send_command(action.action, flow_of(action.thing, runs_dir))
    else:
        _stop_run(action.thing, runs_dir)
    return {"done": describe(action)}


def describe(action: Action) -> str:
    """One line for people."""
    name = action.thing.partition(":")[2]
    if action.node is None:
        return f"{action.action}: {name}"
    link = "" if action.other is None else f" from node {action.other}"
    return f"{action.action}: node {action.node}{link} of {name}"


def _act_on_cluster(cluster: RemoteCluster, action: Action) -> None:
    node = action.node
    if action.action == "cut" and node is not None:
        if action.other is None:
            cluster.lite().isolate(node)
        else:
            cluster.lite().cut_link(node, action.other)
    elif action.action == "heal":
        if node is None:
            cluster.lite().heal()
        else:
            _heal_links(cluster.lite(), node)
    else:
        getattr(cluster, action.action)(node)


def _heal_links(lite: LiteCluster, node: int) -> None:
    for fault in lite.faults():
        if fault["kind"] == "link" and node in (fault["source"], fault["target"]):
            lite.heal_link(fault["source"], fault["target"], one_way=True)


def _stop_run(thing: str, runs_dir: Path | None) -> None:
    name = thing.partition(":")[2]
    driver = find_driver(name, runs_dir)
    if driver is None or not driver.send(signal.SIGINT):
        raise UsageError(f"run {name:.80} is not running", remedy="shoal runs list shows all runs")
