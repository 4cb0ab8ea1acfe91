"""The clusters that plays use one after the other: a source and a target of three brokers each.

Events about a whole cluster get a small one of their own, which is gone after the play.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.systems.clusters import Cluster, make_cluster
from support.lifecycle.sides import Side

BROKERS: Final = 3
_COMMON: Final = {
    "min.insync.replicas": "1",
    "default.replication.factor": str(BROKERS),
    # What is too old is deleted soon, so that wrong timestamps show.
    "log.retention.check.interval.ms": "1000",
}
_INTERNAL: Final = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": str(BROKERS),
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": str(BROKERS),
    "transaction.state.log.min.isr": "1",
}
_LONE: Final = {
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
}
# Of brokers that live for minutes, and are killed: little memory, and soon up.
JVM_OPTIONS: Final = "-Xms64m -Xmx384m -XX:TieredStopAtLevel=1"


class World:
    """Both clusters, for one play at a time."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self._count = 0
        self._clusters: dict[str, Cluster] = {}

    @property
    def source(self) -> Side:
        return Side(self._clusters["source"])

    @property
    def target(self) -> Side:
        return Side(self._clusters["target"])

    @contextmanager
    def running(self) -> Iterator["World"]:
        os.environ.setdefault("KAFKA_HEAP_OPTS", JVM_OPTIONS)
        properties = _COMMON | (_INTERNAL if self.engine == "apache" else {})
        try:
            for name in ("source", "target"):
                folder = self.folder / name
                cluster = make_cluster(
                    self.engine, brokers=BROKERS, directory=folder, properties=properties
                )
                self._clusters[name] = cluster.start()
            yield self
        finally:
            for cluster in self._clusters.values():
                cluster.stop()

    def next_number(self) -> int:
        """Of the play, for names that nobody has used."""
        self._count += 1
        return self._count

    def make_lone(self, name: str, ports_of: Path | None = None) -> Cluster:
        """A cluster of one broker in a folder; at the address of another one, if that is named."""
        folder = self.folder / name
        cluster = make_cluster(self.engine, brokers=1, directory=folder, properties=self._lone())
        cluster.start()
        if ports_of is None:
            return cluster
        cluster.stop()
        set_ports(folder, json.loads((ports_of / "cluster.json").read_text())["ports"])
        return cluster.start()

    def restart_elsewhere(self, name: str, cluster: Cluster) -> Cluster:
        """The cluster of a folder at other ports."""
        folder = self.folder / name
        cluster.stop()
        ports = json.loads((folder / "cluster.json").read_text())["ports"]
        set_ports(folder, _other_ports(ports))
        moved = make_cluster(self.engine, brokers=1, directory=folder, properties=self._lone())
        return moved.start()

    def _lone(self) -> dict[str, str]:
        if self.engine == "apache":
            return _COMMON | _INTERNAL | _LONE
        return _COMMON | {"default.replication.factor": "1"}


def set_ports(folder: Path, ports: object) -> None:
    """Let a stopped cluster listen elsewhere when it is started again."""
    file = folder / "cluster.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "ports": ports}))


def _other_ports(ports: object) -> object:
    """As many free ports, in the form in which the engine keeps them."""
    if isinstance(ports, dict):
        return {key: _free_port() for key in ports}
    if isinstance(ports, list):
        return [_other_ports(each) if isinstance(each, list) else _free_port() for each in ports]
    raise TypeError(f"ports are kept as {ports!r}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
