"""What can be done to the nodes and links of a cluster: one table for commands, page and runs.

    perform(cluster, ClusterAction("kill", 2))
    perform(cluster, ClusterAction("slow", 1, 2, {"delay_ms": 200, "one_way": True}))

Rules:
- `kill` is SIGKILL, `stop` SIGTERM, `pause` SIGSTOP, `resume` SIGCONT; `restart` starts a node
  again on its port. `remove` moves the replicas of a broker to others, and removes it; `add` starts
  one more.
- `cut` drops all traffic between a node and the others, or `other` alone; `slow` delays and limits
  it; `reset` ends connections. `heal` ends the faults of one link or of a node's links, or all
  faults of the cluster without a node.
- `disk` and `request` make a node's disk and the answers to an API fail, `task` a background task
  once; `move-leader` and `shrink-in-sync` change a partition.
- Signals work on every engine; what needs more than signals works on Kafka Lite.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from shoal.lite.cluster import LiteCluster
from shoal.model.errors import UsageError
from shoal.systems.remote import RemoteCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code

_LONGEST_TEXT: Final = 300
_LARGEST_NUMBER: Final = 10**15
_NUMBER: Final = re.compile(r"-?[0-9]{1,6}")
_ONE_WAY: Final = {"one_way": bool}
_SLOW: Final = {"delay_ms": int, "bytes_per_s": int}
_DISK: Final = {
    "reads": str, "writes": str, "syncs": str, "delay_ms": float, "room_bytes": int
}  # fmt: skip
_REQUEST: Final = {
    "api": str, "times": int, "error": str, "lose_answer": bool, "client_id": str
}  # fmt: skip
_PARTITION: Final = {"topic": str, "partition": int}


class ActedCluster(Protocol):
    """A cluster whose nodes take signals and can be restarted."""

    def kill(self, node_id: int) -> None: ...

    def stop_node(self, node_id: int) -> None: ...

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def restart(self, node_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ClusterAction:
    """One thing to do; refused at once if it is not complete."""

    name: str
    node: int | None = None
    other: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rule = RULES.get(self.name)
        if rule is None:
            raise UsageError(
                f"{self.name!r:.40} is not an action for a cluster",
                remedy=f"use one of {', '.join(RULES)}",
            )
        self._check_nodes(rule)
        self._check_settings(rule)

    def _check_nodes(self, rule: "Rule") -> None:
        named = [each for each in (self.node, self.other) if each is not None]
        if len(named) < rule.least_nodes:
            wanted = "a node" if rule.least_nodes == 1 else "two nodes"
            raise UsageError(f"{self.name} needs {wanted}", remedy="name their ids")
        if len(named) > rule.most_nodes or (self.node is None and self.other is not None):
            raise UsageError(f"{self.name} takes at most {rule.most_nodes} nodes")

    def _check_settings(self, rule: "Rule") -> None:
        for name, value in self.settings.items():
            if not _is_valid(value, rule.settings.get(name)):
                raise UsageError(
                    f"{self.name} has no setting {name:.40} with the value {value!r:.80}",
                    remedy=f"its settings: {', '.join(rule.settings) or 'none'}",
                )
        if self.is_one_way and self.other is None:
            raise UsageError(f"{self.name} has no direction", remedy="name two nodes")
        if rule.needed and not any(self.settings.get(name) for name in rule.needed):
            raise UsageError(f"{self.name} needs one of {', '.join(rule.needed)}")
        if missing := [name for name in rule.required if name not in self.settings]:
            raise UsageError(f"{self.name} needs {', '.join(missing)}")

    @property
    def is_one_way(self) -> bool:
        return bool(self.settings.get("one_way"))

    def describe(self, cluster: str) -> str:
        """One line for people."""
        arrow = "→" if self.is_one_way else "↔"
        link = "" if self.other is None else f" {arrow} node {self.other}"
        where = cluster if self.node is None else f"node {self.node}{link} of {cluster}"
        shown = {k: v for k, v in self.settings.items() if k != "one_way" and v is not None}
        more = ", ".join(f"{name} {value}" for name, value in shown.items())
        return f"{self.name}: {where} ({more})" if more else f"{self.name}: {where}"


def perform(cluster: ActedCluster, action: ClusterAction) -> dict[str, Any]:
    """Do it, and return when it is done; the answer has what is new (`node` of `add`)."""
    return RULES[action.name].does(cluster, action) or {}


Does = Callable[[Any, ClusterAction], dict[str, Any] | None]


class Rule(NamedTuple):
    """How many nodes an action names, its settings with their types, and what it does."""

    does: Does
    least_nodes: int = 0
    most_nodes: int = 0
    settings: Mapping[str, type] = {}
    required: tuple[str, ...] = ()
    # At least one of them must be set.
    needed: tuple[str, ...] = ()


def _is_valid(value: Any, kind: type | None) -> bool:
    if kind is float and type(value) is int:
        kind = int
    if kind is None or type(value) is not kind:
        return False
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    return not isinstance(value, int | float) or 0 <= value <= _LARGEST_NUMBER


def _on_node(method: str) -> Rule:
    def act(cluster: ActedCluster, action: ClusterAction) -> None:
        getattr(cluster, method)(action.node)

    return Rule(act, 1, 1)


def lite_of(cluster: ActedCluster) -> LiteCluster:
    """The Kafka Lite behind a cluster; `UsageError` for other engines."""
    if isinstance(cluster, LiteCluster):
        return cluster
    if isinstance(cluster, RemoteCluster):
        return cluster.lite()
    raise UsageError("only a Kafka Lite takes this fault", remedy="use the engine lite")


def _remote(cluster: ActedCluster) -> RemoteCluster:
    if isinstance(cluster, RemoteCluster):
        return cluster
    raise UsageError("brokers of a run are not added or removed")


def _remove(cluster: ActedCluster, action: ClusterAction) -> None:
    assert action.node is not None  # noqa: S101 - for the type checker
    _remote(cluster).remove(action.node)


def _add(cluster: ActedCluster, _action: ClusterAction) -> dict[str, Any]:
    remote = _remote(cluster)
    return {"node": remote.add(), "bootstrap": remote.bootstrap}


def _cut(cluster: ActedCluster, action: ClusterAction) -> None:
    lite = lite_of(cluster)
    assert action.node is not None  # noqa: S101 - for the type checker
    if action.other is None:
        lite.isolate(action.node)
    else:
        lite.cut_link(action.node, action.other, one_way=action.is_one_way)


def _slow(cluster: ActedCluster, action: ClusterAction) -> None:
    lite_of(cluster).slow_link(
        *_link_of(action),
        action.settings.get("delay_ms", 0),
        bytes_per_s=action.settings.get("bytes_per_s", 0),
        one_way=action.is_one_way,
    )


def _reset(cluster: ActedCluster, action: ClusterAction) -> None:
    lite_of(cluster).reset_link(*_link_of(action))


def _heal(cluster: ActedCluster, action: ClusterAction) -> None:
    lite = lite_of(cluster)
    if action.node is None:
        lite.heal()
    elif action.other is not None:
        lite.heal_link(action.node, action.other, one_way=action.is_one_way)
    else:
        for fault in lite.faults():
            if fault["kind"] == "link" and action.node in (fault["source"], fault["target"]):
                lite.heal_link(fault["source"], fault["target"], one_way=True)


def _link_of(action: ClusterAction) -> tuple[int, int]:
    assert action.node is not None  # noqa: S101 - for the type checker
    assert action.other is not None  # noqa: S101 - for the type checker
    return action.node, action.other


def _fail_disk(cluster: ActedCluster, action: ClusterAction) -> None:
    assert action.node is not None  # noqa: S101 - for the type checker
    lite_of(cluster).fail_disk(action.node, **action.settings)


def _fail_requests(cluster: ActedCluster, action: ClusterAction) -> None:
    assert action.node is not None  # noqa: S101 - for the type checker
    settings = dict(action.settings)
    api, error = settings.pop("api"), settings.pop("error", None)
    code = None if error is None else find_number(Code, error)
    lite_of(cluster).fail_requests(action.node, find_number(ApiKey, api), error=code, **settings)


def find_number(names: type[Code] | type[ApiKey], word: str) -> int:
    """The number of an error code or API key, given by number or by Kafka's name."""
    try:
        return int(word) if _NUMBER.fullmatch(word) else int(names[word.upper()])
    except KeyError:
        some = ", ".join(list(names.__members__)[:4])
        raise UsageError(
            f"{word!r:.80} is not a known name", remedy=f"use a number, or a name such as {some}"
        ) from None


def _fail_task(cluster: ActedCluster, action: ClusterAction) -> None:
    assert action.node is not None  # noqa: S101 - for the type checker
    lite_of(cluster).fail_task(action.node, action.settings["task"])


def _on_partition(method: str) -> Rule:
    def act(cluster: ActedCluster, action: ClusterAction) -> None:
        topic, partition = action.settings["topic"], action.settings["partition"]
        getattr(lite_of(cluster), method)(topic, partition, action.node)

    return Rule(act, 1, 1, _PARTITION, required=tuple(_PARTITION))


RULES: Final[Mapping[str, Rule]] = {
    "kill": _on_node("kill"),
    "stop": _on_node("stop_node"),
    "pause": _on_node("pause"),
    "resume": _on_node("resume"),
    "restart": _on_node("restart"),
    "add": Rule(_add),
    "remove": Rule(_remove, 1, 1),
    "cut": Rule(_cut, 1, 2, _ONE_WAY),
    "slow": Rule(_slow, 2, 2, {**_ONE_WAY, **_SLOW}, needed=tuple(_SLOW)),
    "reset": Rule(_reset, 2, 2),
    "heal": Rule(_heal, 0, 2, _ONE_WAY),
    "disk": Rule(_fail_disk, 1, 1, _DISK, needed=tuple(_DISK)),
    "request": Rule(_fail_requests, 1, 1, _REQUEST, required=("api",)),
    "task": Rule(_fail_task, 1, 1, {"task": str}, required=("task",)),
    "move-leader": _on_partition("move_leader"),
    "shrink-in-sync": _on_partition("shrink_in_sync"),
}
