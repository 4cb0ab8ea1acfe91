"""What the processes of a cluster are told when they start. Travels as JSON.

A supervisor and its nodes are of one version of shoal; fields have the names that are declared
beside their types all the same (`shoal.model.serialised`), and `version` says whose they are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from shoal.lite.base.dial import Peer
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain

ANY_HOST = "0.0.0.0"  # noqa: S104 - only if somebody wants to be reached
# How long a broker may take to serve clients (after a crash it checks its logs first), and to
# end when it is told to.
READY_PATIENCE_S = 120.0
STOP_PATIENCE_S = 30.0
# Ids of brokers; controllers have the next ones.
MOST_BROKERS = 99


VERSION = 1
_Spec = TypeVar("_Spec")


def _encode(spec: Any) -> str:
    return json.dumps({"version": VERSION, **to_plain(spec)})


def _decode(cls: type[_Spec], text: str) -> _Spec:
    values = json.loads(text)
    try:
        check_version(values.pop("version", None), (VERSION,))
        return from_plain(cls, values)
    except FormatMismatch as error:
        raise SystemFailure(
            f"what a process of a cluster is told when it starts {error}",
            remedy="start the cluster and its processes with one version of shoal",
        ) from error


def properties_of(broker_id: int, properties: Mapping[str, str]) -> dict[str, str]:
    """The settings of one broker of a cluster: several racks are dealt out to brokers in turn."""
    if "broker.rack" not in properties:
        return dict(properties)
    racks = properties["broker.rack"].split(",")
    return {**properties, "broker.rack": racks[(broker_id - 1) % len(racks)]}


def check_advertised(host: str) -> None:
    """Refuse what nobody could connect to."""
    if host in {"", ANY_HOST, "::"} or any(letter.isspace() or letter == "," for letter in host):
        raise UsageError(
            f"nobody can connect to {host or 'no host'}",
            remedy="name this machine: --advertise HOST",
        )


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """One process of one broker of one cluster."""

    broker_id: Annotated[int, "broker_id"]
    # Names this process; whoever started it tells the controller by this name when it has ended.
    incarnation: Annotated[str, "incarnation"]
    folder: Annotated[str, "folder"]
    host: Annotated[str, "host"]
    # 0: any free port; the broker tells which when it is ready.
    port: Annotated[int, "port"]
    # What clients and other brokers are told, where that is not `host`.
    advertised_host: Annotated[str, "advertised_host"]
    cluster_id: Annotated[str, "cluster_id"]
    # Where controllers are found; the quorum itself may know of more.
    controllers: Annotated[list[Peer], "controllers"]
    # Settings by Apache Kafka's names.
    properties: Annotated[dict[str, str], "properties"]

    @property
    def node_id(self) -> int:
        return self.broker_id

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def to_json(self) -> str:
        return _encode(self)

    @classmethod
    def from_json(cls, text: str) -> "BrokerSpec":
        return _decode(cls, text)


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """One process of one controller; its folder is the disk of a member of the quorum."""

    controller_id: Annotated[int, "controller_id"]
    folder: Annotated[str, "folder"]
    host: Annotated[str, "host"]
    port: Annotated[int, "port"]
    cluster_id: Annotated[str, "cluster_id"]
    # Where the controllers are found; the quorum itself may know of more.
    controllers: Annotated[list[Peer], "controllers"]
    # Settings of brokers, of which some are for controllers too.
    properties: Annotated[dict[str, str], "properties"]
    # Where others find it, if that is not `host`.
    advertised_host: Annotated[str, "advertised_host"] = ""
    # The disk that the quorum knows it by is lost, and its vote may be taken.
    may_replace: Annotated[bool, "may_replace"] = False

    @property
    def node_id(self) -> int:
        return self.controller_id

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def to_json(self) -> str:
        return _encode(self)

    @classmethod
    def from_json(cls, text: str) -> "ControllerSpec":
        return _decode(cls, text)


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """What a supervisor is told when it starts."""

    directory: Annotated[str, "directory"]
    # None: as many as the folder has; one in a new folder.
    brokers: Annotated[int | None, "brokers"]
    # How many controllers have processes of their own. None: as in the folder; in a new one none
    # has, and the supervisor is the controller.
    controllers: Annotated[int | None, "controllers"]
    # Where brokers listen, and what clients are told if that is something else.
    host: Annotated[str, "host"]
    advertise: Annotated[str | None, "advertise"]
    # None: that of the folder.
    profile: Annotated[str | None, "profile"]
    # Settings by Apache Kafka's names; those of the folder hold where these say nothing.
    properties: Annotated[dict[str, str], "properties"]
    # The folder is removed at the end.
    temporary: Annotated[bool, "temporary"]
    # Who started it; None if it must go on without.
    owner_pid: Annotated[int | None, "owner_pid"]
    # Whether nodes write down what happened before what; see `trace`.
    trace: Annotated[bool, "trace"] = False

    def to_json(self) -> str:
        return _encode(self)

    @classmethod
    def from_json(cls, text: str) -> "SupervisorSpec":
        return _decode(cls, text)


def own_settings(spec: BrokerSpec, port: int) -> dict[str, str]:
    """What a broker is, as settings of Apache Kafka: its id, where it listens, its folder."""
    return {
        "process.roles": "broker",
        "node.id": str(spec.broker_id),
        "broker.id": str(spec.broker_id),
        "listeners": f"PLAINTEXT://{spec.host}:{port}",
        "advertised.listeners": f"PLAINTEXT://{spec.advertised_host}:{port}",
        "log.dirs": str(spec.path),
    }
