"""A running cluster and a running mirror for the page: real processes, found by their files."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from confluent_kafka import Producer

from shoal.lite.cluster import LiteCluster
from shoal.mirror.proof.comparison import Difference
from shoal.mirror.proof.files import FILE_NAME, PartitionProof, Proof, write_file
from shoal.systems import registry
from shoal.systems.lite import LiteSystem
from shoal.telemetry.discovery import mirror_folder
from support.lite.clusters import PATIENCE_S, create_topic, eventually, send
from support.web_runs import HOSTILE

CLUSTER, TARGET, MIRROR = "places", "copy", "m1"
TOPIC, PLANTED = "orders", "planted"
PLANTED_AT = 3


@dataclass
class RunningThings:
    """Two clusters and a mirror between them."""

    source: LiteCluster
    target: LiteCluster
    mirror: "subprocess.Popen[bytes]"
    state: Path

    @property
    def mirror_folder(self) -> Path:
        return self.state / "shoal" / "mirrors" / MIRROR


@contextmanager
def run_things(state: Path) -> Iterator[RunningThings]:
    """Start them in a state folder of their own: 3 brokers with traces, 1 broker, a mirror.

    The topic `planted` is on both sides, and differs at one offset; `proof.json` says so. Its keys
    and headers are markup.
    """
    with mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(state)}), ExitStack() as stack:
        # Detached: a broker that a test restarts is no child of the test.
        made = LiteSystem(3, state / CLUSTER, CLUSTER, detached=True, trace=True)
        source = stack.enter_context(made)
        target = stack.enter_context(LiteSystem(brokers=1, name=TARGET))
        for cluster in (source, target):
            registry.publish(cluster)
            stack.callback(registry.withdraw, cluster.name)
        create_topic(source, TOPIC, partitions=2, factor=3)
        for cluster in (source, target):
            create_topic(cluster, PLANTED, partitions=1, factor=1)
        values = [b"order %d of 5 pieces" % number for number in range(6)]
        send(source, TOPIC, *values)
        plant(source, *values)
        plant(target, *values[:PLANTED_AT], b"order 3 of 7 pieces", HOSTILE.encode())
        mirror = stack.enter_context(_run_mirror(source, target))
        write_proof(mirror_folder(MIRROR), source.bootstrap, target.bootstrap)
        yield RunningThings(source, target, mirror, state)


def plant(cluster: LiteCluster, *values: bytes) -> None:
    """Send values with markup as their keys, and as the names and values of their headers."""
    text = HOSTILE.encode()
    with Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0}) as producer:
        for value in values:
            producer.produce(PLANTED, value, text, partition=0, headers=[(HOSTILE, text)])
        assert producer.flush(PATIENCE_S) == 0


@contextmanager
def _run_mirror(source: LiteCluster, target: LiteCluster) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "shoal", "mirror", "run", "--name", MIRROR]
    command += ["--source-bootstrap-server", source.bootstrap, "--topics", TOPIC]
    command += ["--target-bootstrap-server", target.bootstrap, "--replication-factor", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            events = mirror_folder(MIRROR) / "events.jsonl"
            eventually(lambda: events.exists() and '"position":' in events.read_text())
            yield process
        finally:
            process.terminate()
            process.communicate()


def write_proof(folder: Path, source: str, target: str) -> None:
    """What a continuous verification keeps, if it had come this far."""
    now_us = time.time_ns() // 1000
    difference = Difference(PLANTED_AT, PLANTED_AT, "the value differs")
    partitions = [
        PartitionProof(f"{name}-0", f"{name}-0", 3, 6, now_us, "00", difference=differs)
        for name, differs in ((TOPIC, None), (PLANTED, difference))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    proof = Proof(MIRROR, source, target, os.getpid(), now_us, partitions)
    write_file(folder / FILE_NAME, proof)
