"""What is to be deployed: how many nodes, under which names, and what is mirrored.

Node ids are unique over brokers and controllers: brokers have 1 to 99, controllers 101 and up.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from shoal import __version__
from shoal.model.errors import UsageError

BROKER_PORT = 9092
CONTROLLER_PORT = 9093
# Of brokers, and of a mirror, which may be on the host of one.
METRICS_PORT = 9644
MIRROR_METRICS_PORT = 9645
MAX_BROKERS = 99
MAX_CONTROLLERS = 9
IMAGE = f"shoal:{__version__}"
# Seconds: a broker moves its leaderships before it ends.
STOP_GRACE_S = 60
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,255}")
_ADDRESSES = re.compile(r"[A-Za-z0-9.:,_\[\]-]{1,4096}")
_TOPICS = re.compile(r"[^\s'\"$`\\]{1,4096}")


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """The cluster and the topics that a mirror copies into the deployed cluster."""

    source: str
    topics: str = ".*"

    def __post_init__(self) -> None:
        _check(_ADDRESSES, self.source, "--mirror-source", "write HOST:PORT,HOST:PORT")
        _check(_TOPICS, self.topics, "--topics", "write names or patterns, separated by commas")


def metrics_options(port: int) -> list[str]:
    """The options by which a node or a mirror serves its metrics to other hosts."""
    return ["--metrics-port", str(port), "--metrics-host", "0.0.0.0"]  # noqa: S104 - for Prometheus


class Replication(NamedTuple):
    """How many replicas topics have, and how many must have an acknowledged record.

    Three and two, as in the profile `default` of `shoal cluster up`, if there are enough brokers.
    """

    factor: int
    min_in_sync: int

    @classmethod
    def of(cls, brokers: int) -> "Replication":
        return cls(min(3, brokers), min(2, brokers))

    @property
    def properties(self) -> list[str]:
        return [
            f"default.replication.factor={self.factor}",
            f"min.insync.replicas={self.min_in_sync}",
        ]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """One cluster. Its name is also its cluster id."""

    name: str = "shoal"
    brokers: int = 3
    controllers: int = 3
    image: str = IMAGE
    mirror: MirrorPlan | None = None

    def __post_init__(self) -> None:
        _check(_NAME, self.name, "--name", "use lower-case letters, digits and hyphens")
        _check(_IMAGE, self.image, "--image", "write NAME:TAG")

    @property
    def replication(self) -> "Replication":
        return Replication.of(self.brokers)

    @property
    def broker_ids(self) -> range:
        return range(1, self.brokers + 1)

    @property
    def controller_ids(self) -> range:
        return range(101, 101 + self.controllers)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine, by the name that the others reach it by, and its zone if that is known."""

    name: str
    zone: str = ""

    @classmethod
    def parse(cls, text: str) -> "Host":
        """HOST or HOST@ZONE."""
        name, _, zone = text.strip().partition("@")
        _check(_HOST, name, "--hosts", "write HOST@ZONE,HOST@ZONE")
        if zone:
            _check(_HOST, zone, "--hosts", "write HOST@ZONE,HOST@ZONE")
        return cls(name, zone)


def _check(pattern: re.Pattern[str], text: str, option: str, remedy: str) -> None:
    if not pattern.fullmatch(text):
        raise UsageError(f"{option}: {text[:80]!r} is not valid here", remedy=remedy)
