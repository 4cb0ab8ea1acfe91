"""The interface of every cluster under test, and the choice of the engine that runs it.

Rules for every engine:
- A cluster belongs to the process that started it and ends with it, also if that is killed.
- A cluster in a folder that the user names keeps its data there and can be started again. Without
  a folder it uses a temporary one, which `stop` deletes.
- A kill is SIGKILL, a pause is SIGSTOP. A node keeps its id, port and data when it is restarted.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self

from shoal.model.errors import ConfigError, UsageError
from shoal.model.nodes import Node
from shoal.systems.apache.ivy import Report, StartProgress
from shoal.telemetry.http_port import EndpointSpec

ENGINES = ("lite", "apache")

# The port that a node advertises instead of the one on which it listens, given its id, the
# listener (`clients`, `brokers` or `controllers`) and the real port. This is how a proxy is placed
# in front of each listener.
AdvertisedPortOf = Callable[[int, str, int], int]


class Cluster(Protocol):
    """A cluster that can be started and stopped, and whose nodes can be made to fail."""

    @property
    def engine(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str:
        """Addresses for `bootstrap.servers`."""

    def start(self) -> Self:
        """Start all nodes and return when the cluster can be used."""

    def stop(self) -> None:
        """Stop all nodes, gracefully if possible; calling it again does nothing."""

    def nodes(self) -> list[Node]:
        """Every node; the pid of a node that is down is 0."""

    def kill(self, node_id: int) -> None: ...

    def stop_node(self, node_id: int) -> None:
        """Shut the node down gracefully, and return when it has exited."""

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def restart(self, node_id: int) -> None:
        """Stop the node if it runs, start it, and return when it serves again."""

    def log_dirs(self) -> dict[int, Path] | None:
        """The folder of each node's partitions; None if it is not known."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def no_report(_progress: StartProgress) -> None:
    """The default callback: ignores progress."""


def make_cluster(  # noqa: PLR0913 - keyword arguments only, one for each option of a command
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
    metrics: EndpointSpec | None = None,
    events: Path | None = None,
    properties: Mapping[str, str] | None = None,
    advertised_port_of: AdvertisedPortOf | None = None,
    report: Report = no_report,
) -> Cluster:
    """Make a cluster without starting it; `report` is called with the progress of the start.

    If `brokers` is None, a Kafka Lite has as many brokers as its folder. The property
    `broker.rack` may be a list of racks: brokers take them round-robin. A Kafka Lite writes its
    event stream to the folder `events`, by default to its own.
    """
    if brokers is not None and brokers < 1:
        raise UsageError(f"a cluster cannot have {brokers} brokers", remedy="use 1 or more")
    chosen = dict(properties or {})
    if engine == "apache":
        # Imported here, so that using one engine does not load the other.
        from shoal.systems.apache.apache import ApacheCluster

        _refuse_lite_options(profile, controllers, advertise, trace=trace)
        if metrics is not None:
            raise ConfigError(
                "the engine apache does not support --metrics-port",
                remedy="leave it out, or use --engine lite",
            )
        return ApacheCluster(
            brokers=brokers or 1,
            name=name,
            directory=directory,
            version=version,
            properties=chosen,
            advertised_port_of=advertised_port_of,
            report=report,
        )
    if engine == "lite":
        from shoal.systems.lite import LiteSystem

        if advertised_port_of is not None:
            raise ConfigError("Kafka Lite always advertises the ports on which it listens")
        if version is not None:
            raise ConfigError(
                "Kafka Lite has only one version",
                remedy="leave out the version, or use --engine apache",
            )
        return LiteSystem(
            brokers=brokers,
            name=name,
            directory=directory,
            properties=chosen,
            profile=profile,
            controllers=controllers,
            advertise=advertise,
            trace=trace,
            metrics=metrics,
            events=events,
        )
    raise UsageError(
        f"unknown cluster engine {engine!r}", remedy=f"use one of {', '.join(ENGINES)}"
    )


def _refuse_lite_options(
    profile: str | None, controllers: int | None, advertise: str | None, *, trace: bool
) -> None:
    """Refuse options that the engine apache does not have."""
    if profile is not None:
        raise ConfigError(
            "the engine apache has no profiles",
            remedy="set default.replication.factor and min.insync.replicas",
        )
    if controllers is not None or advertise is not None:
        raise ConfigError(
            "the engine apache does not support --controllers and --advertise",
            remedy="leave them out, or use --engine lite",
        )
    if trace:
        raise ConfigError(
            "the engine apache cannot be traced",
            remedy="leave out --trace, or use --engine lite",
        )
