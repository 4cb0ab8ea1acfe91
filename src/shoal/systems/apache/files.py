"""The files of an Apache Kafka node: its configuration, and a formatted data folder.

Rules:
- Kafka's defaults stay, except for what follows from the size of the cluster or from all nodes
  being on one machine. The user's properties override these, except properties for addresses and
  folders, which are refused.
- Data folders are formatted without a JVM. The only part that Kafka's storage tool must compute is
  `bootstrap.checkpoint` (the enabled features), which is the same for every node of a version. The
  tool runs once for each version, and the file is cached beside the jars.
"""

import base64
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import javaproperties

from shoal.model.errors import ConfigError, SystemFailure
from shoal.net.ports import HOST
from shoal.runtime.java import Java

CHECKPOINT: Final = "bootstrap.checkpoint"
_FORMAT_TIMEOUT_S: Final = 120
_RESERVED_PROPERTIES: Final = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "node.id",
        "process.roles",
        "zookeeper.connect",
    }
)
# Logging configuration: Log4j 2 for Kafka 4.0 and later, Log4j 1 for older versions.
_LOG4J_2: Final = """\
rootLogger.level=INFO
rootLogger.appenderRef.output.ref=output
appender.output.type=Console
appender.output.name=output
appender.output.layout.type=PatternLayout
appender.output.layout.pattern=[%d] %p %m (%c)%n
"""
_LOG4J_1: Final = """\
log4j.rootLogger=INFO, output
log4j.appender.output=org.apache.log4j.ConsoleAppender
log4j.appender.output.layout=org.apache.log4j.PatternLayout
log4j.appender.output.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node, as planned: broker and controller in one process.

    The advertised ports may differ from the ports on which it listens.
    """

    id: int
    folder: Path
    port: int
    controller_port: int
    broker_port: int  # where other brokers reach it
    advertised_port: int
    advertised_broker_port: int
    advertised_controller_port: int

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse properties that shoal sets itself."""
    for key in sorted(_RESERVED_PROPERTIES & properties.keys()):
        raise ConfigError(
            f"cannot set the property {key}: shoal chooses the addresses and folders of a cluster "
            "on this machine",
            remedy=f"leave {key} out",
        )


def needs_zookeeper(version: str) -> bool:
    """Whether that version uses ZooKeeper here; versions from 3.3 on use KRaft."""
    return parse_version(version) < (3, 3)


def server_properties(
    node: NodePlan, plan: list[NodePlan], properties: Mapping[str, str], *, version: str
) -> dict[str, str]:
    """The whole configuration of a KRaft node."""
    ours = {
        **_common(node, plan),
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(
            f"{other.id}@{HOST}:{other.advertised_controller_port}" for other in plan
        ),
        "controller.listener.names": "CONTROLLERS",
        "listener.security.protocol.map": _protocols("CLIENTS", "BROKERS", "CONTROLLERS"),
        "listeners": f"{_listeners(node)},CONTROLLERS://{HOST}:{node.controller_port}",
    }
    if parse_version(version) >= (4, 0):
        copies = _replication(plan)
        ours["share.coordinator.state.topic.replication.factor"] = copies[0]
        ours["share.coordinator.state.topic.min.isr"] = copies[1]
    return {**ours, **properties, **_rack(node, properties)}


def zookeeper_properties(
    node: NodePlan, plan: list[NodePlan], properties: Mapping[str, str], *, connect: str
) -> dict[str, str]:
    """The whole configuration of a broker that uses ZooKeeper."""
    ours = {
        **_common(node, plan),
        "broker.id": str(node.id),
        "zookeeper.connect": connect,
        "listener.security.protocol.map": _protocols("CLIENTS", "BROKERS"),
        "listeners": _listeners(node),
    }
    return {**ours, **properties, **_rack(node, properties)}


def _common(node: NodePlan, plan: list[NodePlan]) -> dict[str, str]:
    copies, least = _replication(plan)
    advertised = (
        f"CLIENTS://{HOST}:{node.advertised_port}",
        f"BROKERS://{HOST}:{node.advertised_broker_port}",
    )
    return {
        "inter.broker.listener.name": "BROKERS",
        "advertised.listeners": ",".join(advertised),
        "log.dirs": str(node.data),
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": least,
        # Avoids Kafka's wait of 3 s for more members at the first rebalance of a group.
        "group.initial.rebalance.delay.ms": "0",
    }


def _replication(plan: list[NodePlan]) -> tuple[str, str]:
    """Replication factor and min.insync.replicas of Kafka's internal topics."""
    return str(min(3, len(plan))), str(min(2, len(plan)))


def _listeners(node: NodePlan) -> str:
    return f"CLIENTS://{HOST}:{node.port},BROKERS://{HOST}:{node.broker_port}"


def _protocols(*names: str) -> str:
    return ",".join(f"{name}:PLAINTEXT" for name in names)


def _rack(node: NodePlan, properties: Mapping[str, str]) -> dict[str, str]:
    """The rack of this broker: brokers take the racks of the list round-robin."""
    racks = [rack.strip() for rack in properties.get("broker.rack", "").split(",")]
    return {"broker.rack": racks[(node.id - 1) % len(racks)]} if racks != [""] else {}


def write_node(node: NodePlan, properties: Mapping[str, str]) -> None:
    """Create or update the node's folder; existing data stays."""
    (node.folder / "tmp").mkdir(parents=True, exist_ok=True)
    node.data.mkdir(exist_ok=True)
    (node.folder / "server.properties").write_text(
        javaproperties.dumps(dict(properties), timestamp=False)
    )


def format_data(node: NodePlan, *, cluster_id: str, checkpoint: Path) -> None:
    """Format the node's data folder, unless it is already formatted."""
    if (node.data / "meta.properties").exists():
        return
    shutil.copyfile(checkpoint, node.data / CHECKPOINT)
    identity = {
        "version": "1",
        "node.id": str(node.id),
        "cluster.id": cluster_id,
        "directory.id": new_id(),
    }
    # Written last: this file marks the folder as formatted.
    (node.data / "meta.properties").write_text(javaproperties.dumps(identity, timestamp=False))


def new_id() -> str:
    """A random id as Kafka writes them; never with a leading dash, which confuses its tools."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def parse_version(version: str) -> tuple[int, ...]:
    """A version such as 3.9.2 as numbers that can be compared."""
    return tuple(int(part) for part in version.split("."))


def logging_options(folder: Path, version: str) -> list[str]:
    """Write the logging configuration, and return the Java options that name it."""
    if parse_version(version) >= (4, 0):
        (folder / "log4j2.properties").write_text(_LOG4J_2)
        return [f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
    (folder / "log4j.properties").write_text(_LOG4J_1)
    return [f"-Dlog4j.configuration={(folder / 'log4j.properties').as_uri()}"]


def class_path(jars: Path) -> str:
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))


def bootstrap_checkpoint(jars: Path, java: Java, *, version: str) -> Path:
    """The cached `bootstrap.checkpoint` of this version; Kafka's tool creates it once."""
    kept = jars.with_name(f"{jars.name}.{CHECKPOINT}")
    if not kept.exists():
        with tempfile.TemporaryDirectory(prefix="shoal-format-") as temporary:
            made = _format_with_tool(Path(temporary), jars, java, version=version)
            scratch = kept.with_name(f"{kept.name}.{os.getpid()}")
            shutil.copyfile(made, scratch)
            scratch.replace(kept)
    return kept


def _format_with_tool(folder: Path, jars: Path, java: Java, *, version: str) -> Path:
    node = NodePlan(1, folder, 1, 2, 3, 1, 3, 2)
    file = folder / "server.properties"
    properties = server_properties(node, [node], {}, version=version)
    file.write_text(javaproperties.dumps(properties, timestamp=False))
    command = [str(java.executable), "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", class_path(jars), "kafka.tools.StorageTool"]
    command += ["format", "--cluster-id", new_id(), "--config", str(file)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        output = (result.stderr or result.stdout).strip()[-500:]
        raise SystemFailure(f"Kafka's storage tool failed: {output}")
    return node.data / CHECKPOINT
