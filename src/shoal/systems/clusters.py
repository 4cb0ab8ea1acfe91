"""Clusters under test behind one small interface, whatever engine runs them.

Rules of every engine:
- A cluster belongs to the process that started it and ends with it, however it ends.
- A cluster in a folder that the user named keeps its data there and can be started again;
  otherwise it lives in a temporary folder that is gone after `stop`.
- A kill is SIGKILL, a pause is SIGSTOP. A node keeps its id, port and data when it is
  restarted.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from shoal.model.errors import ConfigError, UsageError
from shoal.model.nodes import Node
from shoal.systems.apache.ivy import Progress, Report

ENGINES = ("lite", "apache")

# Which port a node advertises instead of the one on which it listens: given its id, the
# listener (`clients`, `brokers` or `controllers`) and the real port. So a proxy can stand before
# each of them.
Advertised = Callable[[int, str, int], int]


class Cluster(Protocol):
    """A cluster that can be started, stopped and harmed."""

    @property
    def engine(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str:
        """Addresses for `bootstrap.servers`."""

    def start(self) -> Self:
        """Starts all nodes and returns when the cluster can be used."""

    def stop(self) -> None:
        """Stops all nodes, gently first; calling it again does nothing."""

    def nodes(self) -> list[Node]:
        """Every node, also one that is down: its pid is 0 then."""

    def kill(self, node_id: int) -> None: ...

    def stop_node(self, node_id: int) -> None:
        """Lets the node shut down in order, and returns when it has."""

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def restart(self, node_id: int) -> None:
        """Stops the node if it runs, starts it, and returns when it serves again."""

    def log_dirs(self) -> dict[int, Path] | None:
        """Where each node keeps its partitions, if that is known."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def no_report(_progress: Progress) -> None:
    """For callers who do not watch."""


def make_cluster(
    engine: str,
    *,
    brokers: int | None = None,
    name: str | None = None,
    directory: Path | None = None,
    version: str | None = None,
    profile: str | None = None,
    controllers: int | None = None,
    advertise: str | None = None,
    trace: bool = False,
    properties: Mapping[str, str] | None = None,
    advertised: Advertised | None = None,
    report: Report = no_report,
) -> Cluster:
    """A cluster that is not started yet; `report` hears of long steps of the start.

    Without a number of brokers a Kafka Lite has as many as its folder has. A list of racks in
    the property `broker.rack` is dealt out to the brokers in turn.
    """
    if brokers is not None and brokers < 1:
        raise UsageError(f"a cluster of {brokers} brokers cannot be", remedy="ask for 1 or more")
    chosen = dict(properties or {})
    if engine == "apache":
        # Imported here so that whoever uses one engine does not load the other.
        from shoal.systems.apache.apache import ApacheCluster

        if profile is not None:
            raise ConfigError(
                "only Kafka Lite has profiles",
                remedy="set default.replication.factor and min.insync.replicas",
            )
        if controllers is not None or advertise is not None:
            raise ConfigError("only Kafka Lite has --controllers and --advertise")
        if trace:
            raise ConfigError("only Kafka Lite can be traced", remedy="leave out --trace")
        return ApacheCluster(
            brokers=brokers or 1,
            name=name,
            directory=directory,
            version=version,
            properties=chosen,
            advertised=advertised,
            report=report,
        )
    if engine == "lite":
        from shoal.systems.lite import LiteSystem

        if advertised is not None:
            raise ConfigError("Kafka Lite advertises the ports on which it listens")
        if version is not None:
            raise ConfigError("Kafka Lite has no versions to choose", remedy="leave it out")
        return LiteSystem(
            brokers=brokers,
            name=name,
            directory=directory,
            properties=chosen,
            profile=profile,
            controllers=controllers,
            advertise=advertise,
            trace=trace,
        )
    raise UsageError(
        f"no cluster engine is called {engine!r}", remedy=f"use one of {', '.join(ENGINES)}"
    )
