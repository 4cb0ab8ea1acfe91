"""The start parameters of the processes of a cluster, passed as JSON.

A supervisor and its nodes run the same version of shoal. Serialised names are still declared beside
the types (`shoal.model.serialised`), and `version` identifies the format.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from shoal.lite.base.dial import NodeAddress
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain
from shoal.telemetry.http_port import EndpointSpec

ANY_HOST = "0.0.0.0"  # noqa: S104 - only with an advertised host
# How long a broker may take to start (after a crash it checks its logs first), and to stop.
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
# The highest broker id; controllers have higher ones.
MAX_BROKERS = 99


VERSION = 2


class _ProcessSpec:
    """The start parameters of one process."""

    __slots__ = ()

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **to_plain(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = json.loads(text)
        try:
            check_version(values.pop("version", None), (VERSION,))
            return from_plain(cls, values)
        except FormatMismatch as error:
            raise SystemFailure(
                f"the start parameters of a cluster process: the JSON {error}",
                remedy="start the cluster and its processes with one version of shoal",
            ) from error


def properties_of(broker_id: int, properties: Mapping[str, str]) -> dict[str, str]:
    """The settings of one broker: a list of racks is assigned to the brokers round-robin."""
    if "broker.rack" not in properties:
        return dict(properties)
    racks = properties["broker.rack"].split(",")
    return {**properties, "broker.rack": racks[(broker_id - 1) % len(racks)]}


def check_advertised(host: str) -> None:
    """Raise `UsageError` for a host that clients cannot connect to."""
    if host in {"", ANY_HOST, "::"} or any(letter.isspace() or letter == "," for letter in host):
        raise UsageError(
            f"clients cannot connect to the advertised host {host!r}",
            remedy="use a name or address of this machine: --advertise HOST",
        )


@dataclass(frozen=True, slots=True)
class BrokerSpec(_ProcessSpec):
    """One process of one broker of one cluster."""

    broker_id: Annotated[int, "broker_id"]
    # The id of this process, by which its parent reports its exit to the controller.
    incarnation: Annotated[str, "incarnation"]
    folder: Annotated[str, "folder"]
    host: Annotated[str, "host"]
    # 0: any free port; the broker reports it when it is ready.
    port: Annotated[int, "port"]
    # The host for clients and other brokers.
    advertised_host: Annotated[str, "advertised_host"]
    cluster_id: Annotated[str, "cluster_id"]
    # Known controllers; the quorum itself may have more.
    controllers: Annotated[list[NodeAddress], "controllers"]
    # Settings by Apache Kafka's names.
    properties: Annotated[dict[str, str], "properties"]

    @property
    def node_id(self) -> int:
        return self.broker_id

    @property
    def path(self) -> Path:
        return Path(self.folder)


@dataclass(frozen=True, slots=True)
class ControllerSpec(_ProcessSpec):
    """One process of one controller; its folder is the disk of a member of the quorum."""

    controller_id: Annotated[int, "controller_id"]
    folder: Annotated[str, "folder"]
    host: Annotated[str, "host"]
    port: Annotated[int, "port"]
    cluster_id: Annotated[str, "cluster_id"]
    # Known controllers; the quorum itself may have more.
    controllers: Annotated[list[NodeAddress], "controllers"]
    # Settings of brokers; some of them apply to controllers too.
    properties: Annotated[dict[str, str], "properties"]
    # The host for other nodes, if it differs from `host`.
    advertised_host: Annotated[str, "advertised_host"] = ""
    # The disk that the quorum knows is lost, and its voter may be removed.
    may_replace: Annotated[bool, "may_replace"] = False

    @property
    def node_id(self) -> int:
        return self.controller_id

    @property
    def path(self) -> Path:
        return Path(self.folder)


@dataclass(frozen=True, slots=True)
class SupervisorSpec(_ProcessSpec):
    """The start parameters of a supervisor."""

    directory: Annotated[str, "directory"]
    # None: as many as the folder has; one in a new folder.
    brokers: Annotated[int | None, "brokers"]
    # The number of controller processes. None: as in the folder; in a new folder there are none,
    # and the supervisor contains the controller.
    controllers: Annotated[int | None, "controllers"]
    # Where brokers listen, and the host for clients if it differs.
    host: Annotated[str, "host"]
    advertise: Annotated[str | None, "advertise"]
    # None: that of the folder.
    profile: Annotated[str | None, "profile"]
    # Settings by Apache Kafka's names; they override those of the folder.
    properties: Annotated[dict[str, str], "properties"]
    # The folder is removed at the end.
    temporary: Annotated[bool, "temporary"]
    # The process that started it; None for a detached cluster.
    owner_pid: Annotated[int | None, "owner_pid"]
    # Whether nodes write traces; see `shoal.lite.testing.trace`.
    trace: Annotated[bool, "trace"] = False
    # Where metrics are served; None: nowhere.
    metrics: Annotated[EndpointSpec | None, "metrics"] = None
    name: Annotated[str, "name"] = "lite"
    # The folder of the event stream; None: that of the cluster.
    events: Annotated[str | None, "events"] = None


def own_settings(spec: BrokerSpec, port: int) -> dict[str, str]:
    """The identity of a broker as settings of Apache Kafka: its id, listeners and folder."""
    return {
        "process.roles": "broker",
        "node.id": str(spec.broker_id),
        "broker.id": str(spec.broker_id),
        "listeners": f"PLAINTEXT://{spec.host}:{port}",
        "advertised.listeners": f"PLAINTEXT://{spec.advertised_host}:{port}",
        "log.dirs": str(spec.path),
    }
