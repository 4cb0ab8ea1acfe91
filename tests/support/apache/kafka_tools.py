"""The command-line tools of Apache Kafka, in one JVM: each would take seconds to start alone.

A pytest plugin: `kafka_tools(name, *arguments)` runs a tool and returns what it printed.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from py4j.java_gateway import JavaGateway

from shoal.runtime.java import find_java
from shoal.systems.apache.files import class_path
from shoal.systems.apache.jars import fetch_jars
from support.apache.clusters import SHORT_LIVED_JVM

SOURCE = Path(__file__).with_name("KafkaTools.java")
# Tools by the names of their scripts, without `kafka-`.
PACKAGES = {
    "broker-api-versions": "BrokerApiVersionsCommand",
    "client-metrics": "ClientMetricsCommand",
    "cluster": "ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "consumer.ConsoleConsumer",
    "console-producer": "ConsoleProducer",
    "consumer-groups": "consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "ConsumerPerformance",
    "delete-records": "DeleteRecordsCommand",
    "dump-log": "DumpLogSegments",
    "features": "FeatureCommand",
    "get-offsets": "GetOffsetShell",
    "groups": "GroupsCommand",
    "leader-election": "LeaderElectionCommand",
    "log-dirs": "LogDirsCommand",
    "metadata-quorum": "MetadataQuorumCommand",
    "producer-perf-test": "ProducerPerformance",
    "reassign-partitions": "reassign.ReassignPartitionsCommand",
    "topics": "TopicCommand",
    "transactions": "TransactionsCommand",
    "verifiable-consumer": "VerifiableConsumer",
    "verifiable-producer": "VerifiableProducer",
}


@dataclass(frozen=True)
class Said:
    """How a tool ended, and what it printed on both streams."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


class KafkaTools:
    """Runs tools one after the other."""

    def __init__(self, gateway: JavaGateway) -> None:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(8)
        compiler.cook(SOURCE.read_text(encoding="utf-8"))
        tools = compiler.getClassLoader().loadClass("KafkaTools")
        self._run = next(method for method in tools.getMethods() if method.getName() == "run")
        self._gateway = gateway

    def run(self, tool: str, *arguments: str, stdin: bytes = b"") -> Said:
        """Run `kafka-TOOL.sh` with these arguments."""
        strings = self._gateway.new_array(self._gateway.jvm.String, len(arguments))
        for index, argument in enumerate(arguments):
            strings[index] = argument
        values = self._gateway.new_array(self._gateway.jvm.Object, 3)
        values[0], values[1], values[2] = _class_of(tool), strings, stdin
        code, _, text = str(self._run.invoke(None, values)).partition("\n")
        return Said(int(code), text)

    def alone(self, tool: str, *arguments: str, patience_s: float = 60.0) -> str:
        """Run a tool in a JVM of its own, for those that speak only at their very end."""
        command = [str(find_java().executable), *SHORT_LIVED_JVM.split(), "-XX:-UsePerfData"]
        command += ["-cp", class_path(fetch_jars()), _class_of(tool), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=patience_s, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def __call__(self, tool: str, *arguments: str, stdin: bytes = b"") -> str:
        """Run a tool that must end well; what it printed."""
        said = self.run(tool, *arguments, stdin=stdin)
        assert said.code == 0, said.text
        return said.text


def _class_of(tool: str) -> str:
    name = PACKAGES[tool]
    return name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"


@pytest.fixture(scope="session")
def kafka_tools(java_gateway: JavaGateway) -> KafkaTools:
    return KafkaTools(java_gateway)
