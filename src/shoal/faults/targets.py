"""The targets of faults: small protocols, and the names that a timeline uses for them.

Names: `source`, `target` (a whole cluster), `source/2` (a node), `source/leader`,
`source/follower`, `source/followers`, `source/controller`, `source/any` (resolved when the fault
begins; leader and followers are those of partition 0 of the fault's topic, or of the run's first
topic), `mirror`, `producers`, `consumers`, one worker (`producer-1`), or a random one
(`consumers/any`); for links also `zone/NAME` and names of consumer groups.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from shoal.faults.timeline import LINK_FAULTS, TOPIC_FAULTS, Fault, Timeline
from shoal.model.errors import ConfigError, UsageError
from shoal.net.link_faults import LinkEffect

CLUSTERS: Final = ("source", "target")
ROLES: Final = ("producers", "consumers")
MIRROR: Final = "mirror"
_Item = TypeVar("_Item")
_RESOLVED_LATER: Final = ("leader", "follower", "followers", "controller", "any")


class Nodes(Protocol):
    """The brokers of one cluster."""

    def node_ids(self) -> Sequence[int]: ...

    def kill(self, node_id: int) -> None: ...

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def restart(self, node_id: int) -> None: ...


class TargetAdmin(Protocol):
    """Queries of a cluster and changes of its topics, as any Kafka client can make them."""

    def replicas(self, topic: str) -> tuple[int, Sequence[int]]:
        """The leader of partition 0, and its followers."""

    def controller(self) -> int: ...

    def recreate(self, topic: str) -> None: ...

    def grow(self, topic: str, partitions: int) -> None: ...

    def purge(self, topic: str, keep: int) -> None: ...


class MirrorProcess(Protocol):
    """The process of the mirror."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Workers(Protocol):
    """Producers and consumers. The supervisor restarts a killed one where that is configured."""

    def kill(self, name: str) -> None: ...

    def wait_until_back(self, name: str) -> None: ...


class LinkControl(Protocol):
    """The network of a run."""

    def add_fault(
        self, sources: Sequence[str], targets: Sequence[str], effect: LinkEffect
    ) -> Sequence[int]: ...

    def remove_faults(self, numbers: Sequence[int]) -> None: ...

    def reset(self, sources: Sequence[str], targets: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Targets:
    """Everything that the faults of a run can be applied to."""

    nodes: Mapping[str, Nodes]
    admins: Mapping[str, TargetAdmin]
    topics: tuple[str, ...]
    workers: Workers | None = None
    worker_names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by role
    mirror: MirrorProcess | None = None
    links: LinkControl | None = None
    # Names of the mirrored topics on the target, where a mirror renames them.
    copies: Mapping[str, str] = field(default_factory=dict)

    def nodes_of(self, target: str, fault: Fault, choice_seed: int) -> tuple[str, list[int]]:
        """The cluster and the nodes that a target name stands for now."""
        cluster, _, which = target.partition("/")
        known = list(self.nodes[cluster].node_ids())
        if not which:
            return cluster, known
        if which.isdigit():
            if int(which) not in known:
                raise UsageError(
                    f"{fault.title} cannot affect {target}: the cluster has no node {which}",
                    remedy=f"use one of its nodes: {', '.join(map(str, known)) or 'it has none'}",
                )
            return cluster, [int(which)]
        if which == "any":
            return cluster, [_choose(known, choice_seed)]
        if which == "controller":
            return cluster, [self.admins[cluster].controller()]
        leader, followers = self.admins[cluster].replicas(self.topic_of(fault, cluster))
        if which == "leader":
            return cluster, [leader]
        if which == "follower" and followers:
            return cluster, [_choose(followers, choice_seed)]
        return cluster, list(followers)

    def workers_of(self, target: str, choice_seed: int) -> list[str]:
        role, _, which = target.partition("/")
        if role not in self.worker_names:
            return [target]
        names = list(self.worker_names[role])
        return [_choose(names, choice_seed)] if which == "any" else names

    def places_of(self, place: str, fault: Fault, choice_seed: int) -> list[str]:
        """The names that one end of a link stands for now."""
        cluster, _, which = place.partition("/")
        if cluster in CLUSTERS and which in _RESOLVED_LATER:
            cluster, ids = self.nodes_of(place, fault, choice_seed)
            return [f"{cluster}/{node_id}" for node_id in ids]
        if which == "any":
            return self.workers_of(place, choice_seed)
        return [place]

    def topic_of(self, fault: Fault, cluster: str) -> str:
        """The topic that a fault applies to, by its name on that cluster."""
        topic = fault.topic or self.topics[0]
        return self.copies.get(topic, topic) if cluster == "target" else topic


@dataclass(frozen=True, slots=True)
class PlannedTargets:
    """The targets that a planned run will have, before anything is started."""

    brokers: Mapping[str, int | None]  # by cluster; None: not known, of an external cluster
    workers: Mapping[str, Sequence[str]]  # by role
    groups: Sequence[str] = ()
    zones: Sequence[str] = ()
    topics: Sequence[str] = ()
    has_mirror: bool = False

    def check(self, timeline: Timeline) -> None:
        """Raise `ConfigError` for a fault whose target the run will not have."""
        for fault in timeline.faults:
            if fault.name in LINK_FAULTS:
                for place in (*fault.sources, *fault.targets):
                    if not self._is_place(place):
                        raise _unknown_target_error(fault, place, self._links())
            elif fault.name in TOPIC_FAULTS or fault.name == "rolling_restart":
                if fault.target not in self.brokers:
                    raise _unknown_target_error(fault, fault.target, list(self.brokers))
                if fault.topic and fault.topic not in self.topics:
                    raise _unknown_target_error(fault, fault.topic, list(self.topics))
            elif fault.name != "heal" and not self._is_valid_target(fault):
                raise _unknown_target_error(fault, fault.target, self._processes())

    def _is_valid_target(self, fault: Fault) -> bool:
        if self._is_node(fault.target):
            return True
        if fault.name != "kill":
            return fault.name == "pause" and fault.target == MIRROR and self.has_mirror
        return self._is_worker(fault.target) or (fault.target == MIRROR and self.has_mirror)

    def _is_place(self, place: str) -> bool:
        kind, _, name = place.partition("/")
        if kind == "zone":
            return name in self.zones
        is_mirror = place == MIRROR and self.has_mirror
        return self._is_node(place) or self._is_worker(place) or is_mirror or place in self.groups

    def _is_node(self, target: str) -> bool:
        cluster, slash, which = target.partition("/")
        if cluster not in self.brokers:
            return False
        if not slash or which in _RESOLVED_LATER:
            return True
        count = self.brokers[cluster]
        return (
            which.isdecimal()
            and int(which) >= (count is not None)
            and (count is None or int(which) <= count)
        )

    def _is_worker(self, target: str) -> bool:
        role, _, which = target.partition("/")
        if role in self.workers:
            return which in {"", "any"}
        return any(target in names for names in self.workers.values())

    def _processes(self) -> list[str]:
        names = [name for role in self.workers.values() for name in role]
        nodes = [f"{cluster}/1" for cluster in self.brokers]
        return [*nodes, *names, *self.workers, *([MIRROR] if self.has_mirror else [])]

    def _links(self) -> list[str]:
        return [*self._processes(), *self.groups, *(f"zone/{zone}" for zone in self.zones)]


def _unknown_target_error(fault: Fault, name: str, known: Sequence[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return ConfigError(
        f"{fault.title} has the unknown target {name!r:.60}",
        remedy=f"did you mean {near[0]}?" if near else f"use one of {', '.join(known) or 'none'}",
    )


def _choose(choices: Sequence[_Item], choice_seed: int) -> _Item:
    if not choices:
        raise UsageError("the target has no members to choose from")
    return choices[choice_seed % len(choices)]
