"""The process that owns the nodes of a cluster.

    python -m shoal.lite.nodes.supervisor    started by `shoal.lite.cluster`, which writes a
                                             `SupervisorSpec` as one line of JSON to its
                                             standard input

It contains the controller, or starts controllers as processes too. It starts, kills, pauses,
restarts, adds and removes brokers by commands over its control port, notices at once when one
ends, and reserves their ports. It ends on command, or when its owner (the process that started it)
is gone: then its standard input closes, and everything that it started is gone within 2 seconds.
If it is killed itself, the lifeline of its nodes closes.

Control: a `shoal.net.control_port`. A request has a token, a command, usually a node, and sometimes
a topic and a partition, or a fault.
"""

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.dial import NodeAddress
from shoal.lite.base.hooks import tracer
from shoal.lite.base.spec import (
    MAX_BROKERS,
    READY_TIMEOUT_S,
    STOP_TIMEOUT_S,
    BrokerSpec,
    ControllerSpec,
    SupervisorSpec,
    properties_of,
)
from shoal.lite.broker import membership
from shoal.lite.metadata.data.requests import MoveLeader, ShrinkInSync
from shoal.lite.metadata.rules.profiles import profile_properties
from shoal.lite.nodes.cluster_events import ClusterEvents, SeenCluster, SeenNode
from shoal.lite.nodes.cluster_folder import ClusterFolder, ControlAddress
from shoal.lite.nodes.cluster_metrics import ClusterEndpoint, MetricsSource
from shoal.lite.nodes.controller_processes import ControllerQuorum, controller_ids
from shoal.lite.nodes.embedded_controller import CONTROLLER_ID, EmbeddedController
from shoal.lite.nodes.fork_server import ForkServer
from shoal.lite.testing.faults.channel import SupervisorChannel
from shoal.lite.testing.faults.health import empty_health
from shoal.lite.testing.faults.plan import FaultPlan
from shoal.model.errors import ShoalError, SystemFailure, UsageError
from shoal.model.topics import TopicPartition
from shoal.net.control_port import ControlPort
from shoal.net.ports import bind_port, reserve_port
from shoal.runtime.os_errors import describe_os_error
from shoal.runtime.tasks import (
    keep_running,
    record_failure,
    report_unhandled_errors,
    run_awaited,
)
from shoal.telemetry.http_port import HttpPort

# When the owner has died, no process may be left after 2 s.
ORPHAN_TIMEOUT_S = 1.0
_LOCK_TIMEOUT_S = 5.0
# Controllers of one machine are for its brokers only.
_CONTROLLER_HOST = "127.0.0.1"
_FAULT_TIMEOUT_S = 20.0
# How often to check whether a node was paused before it confirmed a fault.
_FAULT_CHECK_S = 0.1

# Linux lets two sockets bind a port as long as only one listens; macOS does not.
_CAN_RESERVE = sys.platform == "linux"

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class NodeState:
    """The supervisor's state of a broker or controller."""

    id: int
    # Where it listens, and the address for clients and other nodes.
    host: str
    port: int = 0
    advertised_host: str = ""
    # broker, or controller
    role: str = "broker"
    pid: int = 0
    # The id of the process that was started last.
    incarnation: str = ""
    # starting, running, paused, or dead
    state: str = "dead"
    started: "asyncio.Future[None] | None" = None
    spawned: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Bound, never listening: no other program gets the port while its broker is down.
    reservation: socket.socket | None = None
    # The fault channel to the process that was started last.
    faults: SupervisorChannel | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "host": self.advertised_host or self.host,
            "port": self.port,
            "pid": self.pid,
            "state": self.state,
            **(empty_health() if self.faults is None else self.faults.health),
        }

    def __str__(self) -> str:
        return f"{self.role} {self.id}"


class ClusterSupervisor:
    """Starts and stops the nodes of one cluster, and serves control commands."""

    def __init__(self, spec: SupervisorSpec, folder: ClusterFolder, forks: ForkServer) -> None:
        self._spec = spec
        self._folder = folder
        self._forks = forks
        broker_ids = _broker_ids(folder, spec.brokers or 1)
        folder.profile = spec.profile or folder.profile
        folder.properties |= spec.properties
        if spec.trace:
            (folder.path / tracer.FOLDER).mkdir(exist_ok=True)
        self._properties = profile_properties(folder.profile, len(broker_ids)) | folder.properties
        self._controller_ids = controller_ids(folder, spec.controllers)
        self._controllers: list[NodeAddress] = []
        self._unread_reports = b""
        self._nodes = {
            broker_id: self._new_broker(broker_id, folder.ports.get(broker_id, 0))
            for broker_id in broker_ids
        }
        self._failure: str | None = None
        # The port of the metrics; 0 without one.
        self._metrics_port = 0
        self._controller = self._create_controller()
        self._faults = FaultPlan()
        self._token = secrets.token_hex(16)
        self._end = asyncio.Event()
        self._stop_timeout_s = STOP_TIMEOUT_S
        self._commands: dict[str, Callable[[int], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
            "restart": self._restart,
            "remove": self._remove,
            "replace": self._replace,
        }

    async def run(self, on_ready: Callable[[dict[str, Any]], None]) -> None:
        """Start all nodes, serve commands until the end is requested, stop all nodes."""
        loop = asyncio.get_running_loop()
        report_unhandled_errors(loop)
        loop.add_reader(self._forks.reports, self._on_readable_reports)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        loop.add_signal_handler(signal.SIGCHLD, self._on_child_ended)
        self._watch_owner(loop)
        serving = run_awaited("supervision", self._serve(on_ready))
        ending = run_awaited("wait for the end", self._end.wait())
        try:
            await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            serving.cancel()
            ending.cancel()
            self._folder.retract_control()
            await self._stop_nodes()
            loop.remove_reader(self._forks.reports)
            await self._controller.close()
        if self._failure is not None:
            raise SystemFailure(self._failure)

    async def _serve(self, on_ready: Callable[[dict[str, Any]], None]) -> None:
        """Start all nodes and serve commands until cancelled."""
        await self._start_controllers()
        await asyncio.gather(*map(self._start, self._brokers()))
        self._save_folder()
        control = ControlPort(self._answer, token=self._token)
        port = await control.start()
        metrics = await self._start_metrics()
        try:
            self._folder.publish_control(ControlAddress(os.getpid(), port, self._token))
            async with self._write_events():
                on_ready(self._status())
                await self._end.wait()
        finally:
            if metrics is not None:
                await metrics.close()
            await control.close()

    async def _start_metrics(self) -> HttpPort | None:
        if self._spec.metrics is None:
            return None
        controller = self._controller
        endpoint = ClusterEndpoint(
            self._spec.metrics,
            brokers=self._metrics_sources,
            state=lambda: controller.state if isinstance(controller, EmbeddedController) else None,
            quorum=controller.describe_as_json,
        )
        self._metrics_port = await endpoint.port.start()
        return endpoint.port

    @asynccontextmanager
    async def _write_events(self) -> AsyncIterator[None]:
        brokers = [self._nodes[broker_id].describe() for broker_id in self._brokers()]
        details = {
            "engine": "lite",
            "bootstrap": ",".join(f"{each['host']}:{each['port']}" for each in brokers),
            "directory": str(self._folder.path),
        }
        folder = Path(self._spec.events or self._spec.directory)
        seen = SeenCluster(
            self._see_nodes,
            lambda: self._controller.state,
            self._find_leader,
            self._faults.describe,
        )
        events = ClusterEvents(folder, self._spec.name, seen, details)
        watching = keep_running("event stream", events.watch)
        try:
            yield
        finally:
            watching.cancel()
            events.close()

    def _see_nodes(self) -> list[SeenNode]:
        found = []
        for node in self._nodes.values():
            source = node.faults if node.state == "running" and node.role == "broker" else None
            address = f"{node.advertised_host or node.host}:{node.port}"
            found.append(SeenNode(node.id, node.role, node.state, node.pid, address, source))
        if isinstance(self._controller, EmbeddedController):
            found.append(SeenNode(CONTROLLER_ID, "controller", "running", os.getpid(), "", None))
        return found

    async def _find_leader(self) -> int | None:
        if isinstance(self._controller, EmbeddedController):
            return CONTROLLER_ID
        found = await self._controller.describe()
        return None if found is None else found.leader_id

    def _metrics_sources(self) -> dict[int, MetricsSource | None]:
        nodes = [self._nodes[broker_id] for broker_id in self._brokers()]
        return {node.id: node.faults if node.state == "running" else None for node in nodes}

    def _create_controller(self) -> EmbeddedController | ControllerQuorum:
        folder = self._folder
        if not self._controller_ids:
            return EmbeddedController(folder, self._properties, self._on_controller_failed)
        for controller_id in self._controller_ids:
            port = folder.controllers.get(controller_id, 0)
            node = NodeState(controller_id, _CONTROLLER_HOST, port, role="controller")
            self._nodes[controller_id] = node
            _reserve(node)
            folder.controllers[controller_id] = node.port
            self._controllers.append(NodeAddress(node.id, node.host, node.port))
        quorum = ControllerQuorum(folder, self._controllers)
        folder.save()
        return quorum

    def _new_broker(self, broker_id: int, port: int = 0) -> NodeState:
        return NodeState(broker_id, self._spec.host, port, self._spec.advertise or self._spec.host)

    async def _start_controllers(self) -> None:
        if isinstance(self._controller, EmbeddedController):
            self._controllers = await self._controller.start()
            return
        lost = self._controller.find_lost_disks()
        present = [node_id for node_id in self._controller_ids if node_id not in lost]
        await asyncio.gather(*map(self._start, present))
        await self._controller.start()
        for controller_id in lost:
            _logger.warning("%s has lost its disk; it gets a new one", self._nodes[controller_id])
            await self._start_with_new_disk(controller_id)

    def _brokers(self) -> list[int]:
        return [node.id for node in self._nodes.values() if node.role == "broker"]

    def _watch_owner(self, loop: asyncio.AbstractEventLoop) -> None:
        owner_pid = self._spec.owner_pid
        if owner_pid is None:
            return
        owner_descriptors = [sys.stdin.fileno()]
        # A child of the owner may hold the pipe open after the owner's death.
        if hasattr(os, "pidfd_open"):
            try:
                owner_descriptors.append(os.pidfd_open(owner_pid))
            except ProcessLookupError:
                self._end.set()

        def on_owner_gone() -> None:
            _logger.info("the owner process is gone; stopping the cluster")
            self._stop_timeout_s = ORPHAN_TIMEOUT_S
            self._end.set()
            for descriptor in owner_descriptors:
                loop.remove_reader(descriptor)

        for descriptor in owner_descriptors:
            loop.add_reader(descriptor, on_owner_gone)

    async def _stop_nodes(self) -> None:
        if self._spec.temporary:
            endings = [self._kill(broker_id) for broker_id in self._nodes]
        else:
            endings = [self._stop(broker_id) for broker_id in self._nodes]
        await asyncio.gather(*endings)

    # Nodes

    async def _start(self, node_id: int) -> None:
        node = self._nodes[node_id]
        if node.reservation is None:
            _reserve(node)
        node.state = "starting"
        node.spawned.clear()
        node.ended.clear()
        node.started = asyncio.get_running_loop().create_future()
        faults = node.faults = SupervisorChannel(self._faults.on_request_hit)
        faults.send_faults(self._faults.faults_of(node_id))
        self._forks.spawn(self._spec_of(node), self._log_file(node), faults.other_end)
        faults.other_end.close()
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await node.started
        except TimeoutError:
            message = f"{node} was not ready within {READY_TIMEOUT_S:.0f} s after its start"
            raise SystemFailure(message, remedy=f"see {self._log_file(node)}") from None

    def _spec_of(self, node: NodeState) -> BrokerSpec | ControllerSpec:
        folder = self._folder
        if node.role == "controller":
            return ControllerSpec(
                controller_id=node.id,
                folder=str(folder.controller(node.id)),
                host=node.host,
                port=node.port,
                cluster_id=folder.cluster_id,
                controllers=self._controllers,
                properties=self._properties,
            )
        node.incarnation = uuid.uuid4().hex
        return BrokerSpec(
            broker_id=node.id,
            incarnation=node.incarnation,
            folder=str(folder.broker(node.id)),
            host=node.host,
            port=node.port,
            advertised_host=node.advertised_host,
            cluster_id=folder.cluster_id,
            controllers=self._controllers,
            properties=properties_of(node.id, self._properties),
        )

    def _log_file(self, node: NodeState) -> Path:
        return self._folder.log_file(f"{node.role}-{node.id}")

    async def _kill(self, broker_id: int) -> None:
        node = self._nodes[broker_id]
        if node.state != "dead":
            await node.spawned.wait()
            _signal(node.pid, signal.SIGKILL)
            await node.ended.wait()

    async def _stop(self, broker_id: int) -> None:
        node = self._nodes[broker_id]
        if node.state == "dead":
            return
        await node.spawned.wait()
        _signal(node.pid, signal.SIGTERM)
        _signal(node.pid, signal.SIGCONT)
        try:
            async with asyncio.timeout(self._stop_timeout_s):
                await node.ended.wait()
        except TimeoutError:
            _logger.warning("%s did not stop in time; killing it", node)
            await self._kill(broker_id)

    async def _pause(self, broker_id: int) -> None:
        node = self._require_running(broker_id)
        await node.spawned.wait()
        _signal(node.pid, signal.SIGSTOP)
        node.state = "paused"

    async def _resume(self, broker_id: int) -> None:
        node = self._require_running(broker_id)
        await node.spawned.wait()
        _signal(node.pid, signal.SIGCONT)
        node.state = "running"

    async def _restart(self, broker_id: int) -> None:
        await self._stop(broker_id)
        await self._start(broker_id)

    async def _add(self) -> None:
        """Start one more broker."""
        broker_id = _new_id(self._brokers())
        node = self._nodes[broker_id] = self._new_broker(broker_id)
        async with node.lock:
            await self._start(broker_id)
        self._save_folder()
        await membership.move_share_to(self._controller, broker_id)

    async def _remove(self, broker_id: int) -> None:
        """Remove a broker and its folder once other brokers have its replicas."""
        node = self._nodes[broker_id]
        if node.role == "controller":
            raise UsageError(f"{node} cannot be removed", remedy="replace it instead")
        if len(self._brokers()) == 1:
            message = f"broker {broker_id} is the only one and cannot be removed"
            raise UsageError(message, remedy="stop the cluster instead")
        while True:
            await membership.drain_broker(self._controller, broker_id)
            await self._stop(broker_id)
            if await membership.unregister(self._controller, broker_id):
                break
        if node.reservation is not None:
            node.reservation.close()
        del self._nodes[broker_id]
        self._faults.forget(broker_id)
        self._save_folder()
        # A future broker with this id must not find the data of this one.
        shutil.rmtree(self._folder.broker(broker_id), ignore_errors=True)

    async def _replace(self, controller_id: int) -> None:
        """Replace the disk of a controller by an empty one, as if it moved to another machine."""
        if controller_id not in self._controller_ids or isinstance(
            self._controller, EmbeddedController
        ):
            raise UsageError(f"{self._nodes[controller_id]} is not a controller process")
        await self._stop(controller_id)
        await self._start_with_new_disk(controller_id)

    async def _start_with_new_disk(self, controller_id: int) -> None:
        assert isinstance(self._controller, ControllerQuorum)  # noqa: S101 - for the type checker
        await self._controller.replace(controller_id)
        await self._start(controller_id)
        await self._controller.wait_for_vote(controller_id)

    def _save_folder(self) -> None:
        self._folder.ports = {node_id: self._nodes[node_id].port for node_id in self._brokers()}
        self._folder.save()

    def _require_running(self, broker_id: int) -> NodeState:
        node = self._nodes[broker_id]
        if node.state == "dead":
            raise UsageError(f"{node} is not running", remedy="restart it first")
        return node

    def _on_readable_reports(self) -> None:
        try:
            self._on_reports()
        except Exception as error:  # noqa: BLE001 - fail-stop: starts and exits of nodes would go unnoticed
            record_failure("supervision", error, "the cluster stops")
            self._failure = f"internal error of the supervisor: {error!r}; see supervisor.log"
            self._end.set()

    def _on_reports(self) -> None:
        data = os.read(self._forks.reports, 65536)
        *lines, self._unread_reports = (self._unread_reports + data).split(b"\n")
        reports = [json.loads(line) for line in lines]
        ended = [self._nodes[report["node"]] for report in reports if report["kind"] == "exited"]
        # First, so that a client that sees an exit finds the controller informed of it.
        self._controller.on_brokers_exited(
            {node.id: node.incarnation for node in ended if node.incarnation}
        )
        for report in reports:
            self._on_report(report)

    def _on_controller_failed(self, reason: str) -> None:
        """Stop all nodes, as if the supervisor had died: leaders would no longer be elected."""
        self._failure = reason
        self._end.set()

    def _on_child_ended(self) -> None:
        """If the fork server has died, exits of nodes are no longer reported: kill all nodes."""
        if self._forks.is_alive():
            return
        _logger.error("the fork server has died; killing all nodes")
        for node in self._nodes.values():
            if node.pid:
                _signal(node.pid, signal.SIGKILL)
            node.state = "dead"
            node.spawned.set()
            node.ended.set()
        self._end.set()

    def _on_report(self, report: dict[str, Any]) -> None:
        node = self._nodes[report["node"]]
        if report["kind"] == "spawned":
            node.pid = report["pid"]
            node.spawned.set()
        elif report["kind"] == "ready":
            node.state = "running"
            self._finish_start(node, None)
        elif report["kind"] == "failed":
            error = SystemFailure(
                f"{node} did not start: {report['message']}", remedy=report["remedy"]
            )
            self._finish_start(node, error)
        else:
            _logger.info("%s (process %d) ended with exit code %d", node, node.pid, report["code"])
            node.state = "dead"
            node.pid = 0
            node.ended.set()
            if node.faults is not None:
                node.faults.close()
            log_file = self._log_file(node)
            # Quote the log: a temporary folder is removed with the cluster, including the log.
            died = f"{node} ended during its start: {_last_line(log_file)}"
            self._finish_start(node, SystemFailure(died, remedy=f"its log is {log_file}"))

    def _finish_start(self, node: NodeState, error: SystemFailure | None) -> None:
        if node.started is None or node.started.done():
            return
        if error is None:
            node.started.set_result(None)
        else:
            node.started.set_exception(error)

    # Control

    def _status(self) -> dict[str, Any]:
        described: dict[str, list[dict[str, Any]]] = {"broker": [], "controller": []}
        for node in self._nodes.values():
            described[node.role].append(node.describe())
        return {
            "nodes": described["broker"],
            "controllers": described["controller"],
            "metrics_port": self._metrics_port,
        }

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._run_command(str(request.get("command")), request)
        except ShoalError as error:
            return _error_answer(error)
        return self._status() | answer

    async def _run_command(self, command: str, request: dict[str, Any]) -> dict[str, Any]:
        """Run a command; returns what the answer has beside the state of the nodes."""
        if command == "fault":
            return await self._inject_fault(request)
        if command == "faults":
            return {"faults": self._faults.describe()}
        if command == "quorum":
            return {"quorum": await self._controller.describe_as_json()}
        if command == "add":
            await self._add()
        elif command == "shutdown":
            self._end.set()
        elif command != "status":
            await self._run_node_command(command, request)
        return {}

    async def _inject_fault(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the injected faults; returns when all running nodes have confirmed the change."""
        inside = [CONTROLLER_ID] if isinstance(self._controller, EmbeddedController) else []
        can_fail = {kind: [*self._nodes] for kind in ("disk", "task")}
        can_fail["request"] = self._brokers()
        answer = self._faults.inject(
            request, can_fail.get(str(request.get("kind")), [*self._nodes, *inside])
        )
        asked = {}
        for node in self._nodes.values():
            if node.faults is not None and node.state != "dead":
                asked[node.faults.send_faults(self._faults.faults_of(node.id))] = node
        deadline = asyncio.get_running_loop().time() + _FAULT_TIMEOUT_S
        # A paused node applies it when it resumes.
        while late := [
            done for done, node in asked.items() if not done.done() and node.state == "running"
        ]:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                names = ", ".join(str(asked[done]) for done in late)
                raise SystemFailure(
                    f"{names} did not confirm the fault within {_FAULT_TIMEOUT_S:.0f} s",
                    remedy="inject it again, or heal it, when the machine is less busy",
                )
            await asyncio.wait(late, timeout=min(left_s, _FAULT_CHECK_S))
        finished = [done for done in asked if done.done()]
        for error in filter(None, (done.result() for done in finished)):
            raise UsageError(error)
        return answer

    async def _run_node_command(self, command: str, request: dict[str, Any]) -> None:
        """Run a command on a node, or on a partition and a node."""
        if command not in {*self._commands, "move-leader", "shrink-in-sync"}:
            raise UsageError(f"unknown command {command!r}")
        broker_id = request.get("node")
        node = self._nodes.get(broker_id) if isinstance(broker_id, int) else None
        if node is None:
            known = ", ".join(map(str, self._nodes))
            raise UsageError(f"unknown node {broker_id!r}; the nodes are {known}")
        if command not in self._commands:
            index = request.get("partition")
            if not isinstance(index, int):
                raise UsageError(f"{index!r} is not a partition number")
            partition = TopicPartition(str(request.get("topic")), index)
            await self._change_partition(command, partition, node.id)
        elif command in {"restart", "remove", "replace"}:
            async with node.lock:
                await self._commands[command](node.id)
        else:
            # No lock: these must work while a restart waits, for example for missing controllers.
            await self._commands[command](node.id)

    async def _change_partition(
        self, command: str, partition: TopicPartition, broker_id: int
    ) -> None:
        try:
            if command == "move-leader":
                await self._controller.submit(MoveLeader(partition, broker_id))
            else:
                await self._controller.submit(ShrinkInSync(partition, (broker_id,)))
        except ApiError as refused:
            is_unknown = refused.code == Code.UNKNOWN_TOPIC_OR_PARTITION
            message = f"unknown partition {partition}" if is_unknown else str(refused)
            raise UsageError(message) from refused


def _broker_ids(folder: ClusterFolder, wanted: int) -> list[int]:
    """The brokers of the folder, and as many new ones as are missing."""
    known = sorted(folder.ports)
    ids = list(known)
    while len(ids) < wanted:
        ids.append(_new_id(ids))
    return sorted(ids)


def _new_id(taken: Sequence[int]) -> int:
    """The id after the highest one; if that is too high, the lowest free one."""
    after_last = max(taken, default=0) + 1
    if after_last <= MAX_BROKERS:
        return after_last
    free = set(range(1, MAX_BROKERS + 1)) - set(taken)
    if not free:
        raise UsageError(f"a cluster has at most {MAX_BROKERS} brokers")
    return min(free)


def _reserve(node: NodeState) -> None:
    node.reservation = _bind_reservation(node.host, node.port)
    node.port = node.reservation.getsockname()[1]
    if not _CAN_RESERVE:
        node.reservation.close()


def _bind_reservation(host: str, port: int) -> socket.socket:
    """Bind a port without listening: connections are refused, and no other program gets it."""
    if not port:
        return reserve_port(host)
    remedy = "stop the process that uses it; the clients of this cluster use that port"
    return bind_port(host, port, remedy=remedy)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _error_answer(error: ShoalError) -> dict[str, Any]:
    is_usage = isinstance(error, UsageError)
    return {"error": error.message, "remedy": error.remedy, "is_usage": is_usage}


def _answer_owner(answer: dict[str, Any]) -> None:
    """Write the one line on standard output that the owner waits for."""
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


async def _supervise(spec: SupervisorSpec, folder: ClusterFolder, forks: ForkServer) -> None:
    # Created in the event loop: the embedded controller takes its timers from it.
    await ClusterSupervisor(spec, folder, forks).run(_answer_owner)


def main() -> None:
    spec = SupervisorSpec.from_json(sys.stdin.readline())
    if spec.owner_pid is None and os.fork():
        # Detached: the parent exits at once, so that the starter is left without a child process.
        os._exit(0)
    folder = ClusterFolder(Path(spec.directory))
    try:
        # Held until this process and all that it starts have ended. The wait is for brokers of
        # a killed supervisor, which end within moments.
        folder.lock(_LOCK_TIMEOUT_S)
        _log_to(folder.log_file("supervisor"))
        folder.load()
        forks = ForkServer()
        try:
            asyncio.run(_supervise(spec, folder, forks))
        finally:
            forks.close()
    except ShoalError as error:
        _logger.info("%s", error)
        _answer_owner(_error_answer(error))
    except OSError as error:
        _logger.info("%s", error, exc_info=True)
        found = describe_os_error(error)
        text = f"cannot use the folder of the cluster: {found.message}"
        _answer_owner(_error_answer(SystemFailure(text, remedy=found.remedy)))
    finally:
        if spec.temporary:
            shutil.rmtree(spec.directory, ignore_errors=True)


def _log_to(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _last_line(log_file: Path) -> str:
    try:
        lines = log_file.read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


if __name__ == "__main__":
    main()
