"""What the processes of a cluster are told when they start. Travels as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.lite.dial import Peer
from shoal.model.errors import UsageError

ANY_HOST = "0.0.0.0"  # noqa: S104 - only if somebody wants to be reached
# How long a broker may take to serve clients (after a crash it checks its logs first), and to
# end when it is told to.
READY_PATIENCE_S = 120.0
STOP_PATIENCE_S = 30.0
# Ids of brokers; controllers have the next ones.
MOST_BROKERS = 99


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

    broker_id: int
    # Names this process; whoever started it tells the controller by this name when it has ended.
    incarnation: str
    folder: str
    host: str
    # 0: any free port; the broker tells which when it is ready.
    port: int
    # What clients and other brokers are told, where that is not `host`.
    advertised_host: str
    cluster_id: str
    # Where controllers are found; the quorum itself may know of more.
    controllers: list[Peer]
    # Settings by Apache Kafka's names.
    properties: dict[str, str]

    @property
    def node_id(self) -> int:
        return self.broker_id

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BrokerSpec":
        values = json.loads(text)
        return cls(**values | {"controllers": [Peer(*peer) for peer in values["controllers"]]})


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """One process of one controller; its folder is the disk of a member of the quorum."""

    controller_id: int
    folder: str
    host: str
    port: int
    cluster_id: str
    # Where the controllers are found; the quorum itself may know of more.
    controllers: list[Peer]
    # Settings of brokers, of which some are for controllers too.
    properties: dict[str, str]
    # Where others find it, if that is not `host`.
    advertised_host: str = ""
    # The disk that the quorum knows it by is lost, and its vote may be taken.
    may_replace: bool = False

    @property
    def node_id(self) -> int:
        return self.controller_id

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ControllerSpec":
        values = json.loads(text)
        return cls(**values | {"controllers": [Peer(*peer) for peer in values["controllers"]]})


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """What a supervisor is told when it starts."""

    directory: str
    # None: as many as the folder has; one in a new folder.
    brokers: int | None
    # How many controllers have processes of their own. None: as in the folder; in a new one none
    # has, and the supervisor is the controller.
    controllers: int | None
    # Where brokers listen, and what clients are told if that is something else.
    host: str
    advertise: str | None
    # None: that of the folder.
    profile: str | None
    # Settings by Apache Kafka's names; those of the folder hold where these say nothing.
    properties: dict[str, str]
    # The folder is removed at the end.
    temporary: bool
    # Who started it; None if it must go on without.
    owner_pid: int | None
    # Whether nodes write down what happened before what; see `trace`.
    trace: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "SupervisorSpec":
        return cls(**json.loads(text))


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
