"""A real Apache Kafka cluster: 1 to n nodes, each in one JVM.

Rules:
- From 3.3 on (KRaft) a node is broker and controller in one; older versions get a ZooKeeper.
- The cluster is up when every node lists every broker and a controller, and every process that was
  started is alive. The processes are checked because another cluster might answer on the port.
- Each JVM runs under a guardian and dies with this process (`guardian.py`). Everything it writes,
  native libraries included, is in its node's folder.
- A cluster in a folder that the user names can be started again. It keeps its ids and data, and
  its ports if they are still free.
"""

import fcntl
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Self

from shoal.model.errors import ConfigError, SystemFailure, UsageError
from shoal.model.nodes import Node
from shoal.net.ports import HOST, free_ports, is_free
from shoal.runtime.context_managers import StopsOnExit
from shoal.runtime.java import Java, find_java
from shoal.systems.apache import files
from shoal.systems.apache.cluster_file import ClusterFile, read_cluster_file
from shoal.systems.apache.files import NodePlan
from shoal.systems.apache.ivy import Report, StartProgress
from shoal.systems.apache.jars import NEWEST_KAFKA, fetch_jars
from shoal.systems.apache.zookeeper import Ensemble
from shoal.systems.clusters import AdvertisedPortOf
from shoal.systems.probe import ask_metadata
from shoal.systems.processes.guarded import GuardedProcess, log_excerpt

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
_POLL_EVERY_S: Final = 0.1
_SESSION_TIMEOUT_S: Final = 60.0  # longer than a broker's ZooKeeper session: 18 s by default
_RETRY_EVERY_S: Final = 1.0
_DEFAULT_HEAP: Final = "-Xms64m -Xmx512m"
# The garbage collector of Kafka's own start script, so that measurements show Kafka as people run
# it; and no performance data outside the node's folder.
_JVM_OPTIONS: Final = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)


class ApacheCluster(StopsOnExit):
    """A cluster of Apache Kafka on this machine."""

    engine = "apache"

    def __init__(
        self,
        *,
        brokers: int = 1,
        name: str | None = None,
        directory: Path | None = None,
        version: str | None = None,
        zookeepers: int = 1,
        properties: Mapping[str, str] | None = None,
        advertised_port_of: AdvertisedPortOf | None = None,
        report: Report | None = None,
    ) -> None:
        self.name = name or f"apache-{os.getpid()}-{id(self) & 0xFFFF:x}"
        self.version = version or NEWEST_KAFKA
        self._brokers = brokers
        self._zookeepers = zookeepers
        self._ensemble: Ensemble | None = None
        self._named_directory = None if directory is None else directory.absolute()
        self._properties = dict(properties or {})
        self._advertised_port_of = advertised_port_of or (lambda _node, _listener, port: port)
        self._report = report or (lambda _progress: None)
        self._directory: Path | None = None
        self._lock: IO[str] | None = None
        self._plan: list[NodePlan] = []
        self._processes: dict[int, GuardedProcess] = {}
        self._launch: Callable[[NodePlan], GuardedProcess] | None = None
        files.check_properties(self._properties)

    @property
    def directory(self) -> Path | None:
        """The folder of the running cluster."""
        return self._directory

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.advertised_port}" for node in self._plan)

    def nodes(self) -> list[Node]:
        """Every node; the pid of a node that is down is 0."""
        return [
            Node(id=plan.id, host=HOST, port=plan.port, pid=self._pid_of(plan.id))
            for plan in self._plan
        ]

    def log_dirs(self) -> dict[int, Path]:
        return {plan.id: plan.data for plan in self._plan}

    def server_logs(self) -> dict[int, Path]:
        """The log file of each node."""
        return {plan.id: plan.log for plan in self._plan}

    def start(self) -> Self:
        """Start all nodes and return when each of them serves."""
        if self._processes:
            raise UsageError(f"cluster {self.name} is already started")
        java = find_java()
        jars = fetch_jars(self.version, report=self._report)
        try:
            self._directory = self._claim_directory()
            saved = self._load_or_plan()
            if files.needs_zookeeper(self.version):
                self._prepare_with_zookeeper(self._directory, java, jars)
            else:
                self._prepare(saved.cluster_id, java, jars)
            self._launch = self._make_launcher(java, jars)
            for node in self._plan:
                self._processes[node.id] = self._launch(node)
            self._wait_until_ready(self._plan, {node.id for node in self._plan})
        except BaseException:
            self._shut_down(patience_s=0)
            raise
        return self

    def _prepare(self, cluster_id: str, java: Java, jars: Path) -> None:
        """Write the folders of KRaft nodes."""
        checkpoint = files.bootstrap_checkpoint(jars, java, version=self.version)
        for node in self._plan:
            properties = files.server_properties(
                node, self._plan, self._properties, version=self.version
            )
            files.write_node(node, properties)
            files.format_data(node, cluster_id=cluster_id, checkpoint=checkpoint)

    def _prepare_with_zookeeper(self, directory: Path, java: Java, jars: Path) -> None:
        """Start ZooKeeper, and write the folders of the brokers that use it."""
        ensemble = Ensemble(directory, self._zookeepers, is_temporary=self._named_directory is None)
        self._ensemble = ensemble
        logging = files.logging_options(directory, self.version)
        ensemble.start(str(java.executable), files.class_path(jars), logging)
        for node in self._plan:
            properties = files.zookeeper_properties(
                node, self._plan, self._properties, connect=ensemble.connect
            )
            files.write_node(node, properties)

    def stop(self) -> None:
        """Stop all nodes, gracefully if possible; delete the data unless a folder was named."""
        self._shut_down(patience_s=STOP_TIMEOUT_S)

    def kill(self, node_id: int) -> None:
        process = self._process(node_id)
        process.send(signal.SIGKILL)
        process.kill_and_wait()

    def stop_node(self, node_id: int) -> None:
        """Shut the node down gracefully: it moves its leaderships first."""
        self._process(node_id).stop(STOP_TIMEOUT_S)

    def pause(self, node_id: int) -> None:
        self._process(node_id).pause()

    def resume(self, node_id: int) -> None:
        self._process(node_id).send(signal.SIGCONT)

    def restart(self, node_id: int) -> None:
        """Stop the node if it runs, start it with its port and data, and wait until it serves."""
        process = self._process(node_id)
        process.stop(STOP_TIMEOUT_S)
        if self._launch is None:
            raise UsageError(f"cluster {self.name} is not started", remedy="start it first")
        node = next(plan for plan in self._plan if plan.id == node_id)
        if not is_free(node.port):
            raise SystemFailure(
                f"cannot restart node {node_id}: another program listens on its port {node.port}"
            )
        deadline = time.monotonic() + (0 if self._ensemble is None else _SESSION_TIMEOUT_S)
        while True:
            self._processes[node_id] = self._launch(node)
            try:
                return self._wait_until_ready([node], {node_id})
            except SystemFailure:
                # A killed broker stays registered in ZooKeeper until its session times out, and a
                # new one with the same id exits; so the start is retried.
                if time.monotonic() > deadline or self._processes[node_id].is_alive():
                    raise
                self._processes[node_id].kill_and_wait()
                time.sleep(_RETRY_EVERY_S)

    def _process(self, node_id: int) -> GuardedProcess:
        if node_id not in self._processes:
            known = (
                ", ".join(str(plan.id) for plan in self._plan) or "none, the cluster is not running"
            )
            raise UsageError(
                f"cluster {self.name} has no node {node_id}", remedy=f"its nodes are: {known}"
            )
        return self._processes[node_id]

    def _pid_of(self, node_id: int) -> int:
        process = self._processes.get(node_id)
        return process.pid if process is not None and process.is_alive() else 0

    def _claim_directory(self) -> Path:
        """The folder of this cluster, locked against other processes."""
        if self._named_directory is None:
            return Path(tempfile.mkdtemp(prefix="shoal-apache-"))
        directory = self._named_directory
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise SystemFailure(
                f"another cluster is running in {directory}",
                remedy="stop it, or name another folder",
            ) from error
        self._lock = lock
        return directory

    def _load_or_plan(self) -> ClusterFile:
        """Fill `_plan`; return what must stay the same when the folder is used again."""
        if self._directory is None:
            raise AssertionError("_claim_directory must run first")
        saved = read_cluster_file(self._directory)
        ports = [] if saved is None else list(saved.ports)
        if ports and len(ports) != self._brokers:
            raise ConfigError(
                f"{self._directory} holds a cluster of {len(ports)} brokers, not {self._brokers}",
                remedy=f"use --brokers {len(ports)}, or name another folder",
            )
        if not all(len(trio) == 3 for trio in ports):
            ports = []  # written by a version of shoal with fewer listeners
        if not ports or not all(is_free(port) for trio in ports for port in trio):
            chosen = free_ports(3 * self._brokers)
            ports = [chosen[at : at + 3] for at in range(0, len(chosen), 3)]
        self._plan = [
            NodePlan(
                id=number,
                folder=self._directory / f"node-{number}",
                port=clients,
                controller_port=controllers,
                broker_port=brokers,
                advertised_port=self._advertised_port_of(number, "clients", clients),
                advertised_broker_port=self._advertised_port_of(number, "brokers", brokers),
                advertised_controller_port=self._advertised_port_of(
                    number, "controllers", controllers
                ),
            )
            for number, (clients, controllers, brokers) in enumerate(ports, start=1)
        ]
        cluster_id = files.new_id() if saved is None else saved.cluster_id
        kept = ClusterFile(self.version, cluster_id, ports)
        kept.write(self._directory)
        return kept

    def _make_launcher(self, java: Java, jars: Path) -> Callable[[NodePlan], GuardedProcess]:
        heap = shlex.split(os.environ.get("KAFKA_HEAP_OPTS", _DEFAULT_HEAP))
        common = [str(java.executable), *heap, *_JVM_OPTIONS]
        common += ["-cp", files.class_path(jars)]
        is_temporary = self._named_directory is None

        def launch(node: NodePlan) -> GuardedProcess:
            own = [
                f"-Djava.io.tmpdir={node.folder / 'tmp'}",
                *files.logging_options(node.folder, self.version),
                "kafka.Kafka",
                str(node.folder / "server.properties"),
            ]
            return GuardedProcess(
                [*common, *own],
                log=node.log,
                folder=node.folder,
                scratch=node.folder if is_temporary else None,
            )

        return launch

    def _wait_until_ready(self, nodes: list[NodePlan], expected: set[int]) -> None:
        """Return when each of `nodes` lists all `expected` brokers and a controller."""
        started = time.monotonic()
        waiting = list(nodes)
        while waiting:
            for node in nodes:
                if not self._processes[node.id].is_alive():
                    raise SystemFailure(
                        f"node {node.id} of cluster {self.name} exited while starting "
                        f"({self._processes[node.id].exit_description()}): {log_excerpt(node.log)}"
                    )
            waiting = [node for node in waiting if not _has_all_brokers(node, expected)]
            elapsed_s = time.monotonic() - started
            if waiting and elapsed_s > START_TIMEOUT_S:
                raise SystemFailure(
                    f"node {waiting[0].id} of cluster {self.name} does not serve after "
                    f"{elapsed_s:.0f} s: {log_excerpt(waiting[0].log)}"
                )
            done = len(nodes) - len(waiting)
            self._report(StartProgress(done, len(nodes), "waiting for Kafka to serve"))
            if waiting:
                time.sleep(_POLL_EVERY_S)

    def _shut_down(self, *, patience_s: float) -> None:
        """Stop all processes at the same time, and delete temporary data."""
        for process in self._processes.values():
            with suppress(SystemFailure):  # it may have exited already
                process.send(signal.SIGCONT)
                process.send(signal.SIGTERM if patience_s else signal.SIGKILL)
        deadline = time.monotonic() + patience_s
        for process in self._processes.values():
            process.wait(max(0, deadline - time.monotonic()))
            process.kill_and_wait()
        self._processes.clear()
        if self._ensemble is not None:  # last, since brokers close their sessions there
            self._ensemble.stop(gently=patience_s > 0)
            self._ensemble = None
        if self._directory is not None and self._named_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _has_all_brokers(node: NodePlan, expected: set[int]) -> bool:
    view = ask_metadata(HOST, node.port)
    return view is not None and expected <= view.broker_ids and view.controller_id >= 0
