"""A Kafka Lite cluster for programs and tests.

    with LiteCluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

Without a folder the cluster uses a temporary one, which is removed at the end. With a folder its
data is kept, and it can be started again, also after a crash. The nodes are processes of a
supervisor, which ends them when this process ends, however it ends.

A detached cluster continues without its starter; `LiteCluster.attach` finds it by its folder.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from shoal.lite.base.configs import check_properties
from shoal.lite.base.spec import (
    ANY_HOST,
    MAX_BROKERS,
    READY_TIMEOUT_S,
    STOP_TIMEOUT_S,
    SupervisorSpec,
    check_advertised,
)
from shoal.lite.metadata.rules.profiles import check_profile
from shoal.lite.nodes.cluster_folder import ClusterFolder
from shoal.lite.testing.trace.shiviz import merge_trace
from shoal.model.errors import SystemFailure, UnreachableError, UsageError
from shoal.model.nodes import Node
from shoal.model.serialised import from_plain
from shoal.net.control_port import ControlError, request_answer
from shoal.telemetry.http_port import EndpointSpec

_START_TIMEOUT_S = READY_TIMEOUT_S + 10
_COMMAND_TIMEOUT_S = READY_TIMEOUT_S + STOP_TIMEOUT_S + 10
_EXIT_TIMEOUT_S = STOP_TIMEOUT_S + 10

ResultT = TypeVar("ResultT")
ProcessState = Literal["starting", "running", "paused", "dead"]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A broker or controller; one that is dead has process id 0."""

    id: Annotated[int, "id"]
    host: Annotated[str, "host"]
    port: Annotated[int, "port"]
    pid: Annotated[int, "pid"]
    state: Annotated[ProcessState, "state"]
    # How often background work failed unexpectedly in its process, by the name of the work.
    failures: Annotated[dict[str, int], "failures"]
    # Its offline replicas, with the reason; at most a few are named, `offline_count` has all.
    offline: Annotated[dict[str, str], "offline"]
    offline_count: Annotated[int, "offline_count"]
    # The longest CPU time for which one callback blocked its event loop.
    longest_hold_ms: Annotated[int, "longest_hold_ms"] = 0


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """A controller that votes, or a node that follows the metadata, as the leader sees it."""

    id: Annotated[int, "id"]
    # The directory id of its disk.
    directory: Annotated[str, "directory"]
    log_end_offset: Annotated[int, "log_end_offset"]
    # How many records it does not have yet.
    lag: Annotated[int, "lag"]
    last_fetch_ms: Annotated[int, "last_fetch_ms"]


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """The controllers, and which of them is active."""

    leader: Annotated[int, "leader"]
    epoch: Annotated[int, "epoch"]
    high_watermark: Annotated[int, "high_watermark"]
    log_end_offset: Annotated[int, "log_end_offset"]
    voters: Annotated[tuple[QuorumMember, ...], "voters"]
    observers: Annotated[tuple[QuorumMember, ...], "observers"]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return from_plain(cls, values)


class ClusterCommandError(UsageError, SystemFailure):
    """The supervisor rejected a command, for example for an unknown node."""


class LiteCluster:
    """A cluster, started by `start` or as a context manager; every call returns when it is done."""

    def __init__(
        self,
        brokers: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        name: str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        controllers: int | None = None,
        profile: str | None = None,
        host: str = "127.0.0.1",
        advertise: str | None = None,
        detached: bool = False,
        trace: bool = False,
        metrics: EndpointSpec | None = None,
        events: Path | None = None,
    ) -> None:
        """`properties` are settings of brokers by Apache Kafka's names; a list of racks in
        `broker.rack` is assigned to the brokers round-robin.

        `profile` says how many replicas must have a record before it is acknowledged: strict,
        default or available, see `shoal.lite.metadata.rules.profiles`. Options that are left out
        keep their values of the folder's last use; a new folder gets one broker. A folder with
        more brokers than `brokers` is started with all of them.

        With `controllers` so many controller processes keep the metadata, of which a majority must
        be up; three tolerate the loss of any one of them. Without, the supervisor contains the
        controller.

        `host` is where brokers listen, and the host for clients. With `advertise` that is the host
        for clients, and brokers listen on all addresses, for clients on other machines. A
        `detached` cluster does not end with this process, and needs a folder, by which it is
        found. With `trace` all nodes write traces, which `merged_trace` merges. With `metrics` the
        supervisor serves Prometheus metrics, see `metrics_port`. The event stream is written to
        the folder `events`, by default to that of the cluster.
        """
        if brokers is not None and not 1 <= brokers <= MAX_BROKERS:
            raise UsageError(
                f"a cluster cannot have {brokers} brokers", remedy=f"use 1 to {MAX_BROKERS}"
            )
        if controllers is not None and controllers < 1:
            raise UsageError(
                f"a quorum cannot have {controllers} controllers",
                remedy="use 1 or more; without `controllers` the supervisor is the controller",
            )
        if detached and directory is None:
            raise UsageError(
                "a detached cluster needs a folder, by which other processes find it",
                remedy="give `directory`",
            )
        check_properties(properties or {})
        check_profile(profile)
        if advertise is not None:
            check_advertised(advertise)
        self.name = name or "lite"
        self._brokers = brokers
        self._controllers = controllers
        self._directory = None if directory is None else Path(directory).absolute()
        self._profile = profile
        self._properties = dict(properties or {})
        self._host = host if advertise is None else ANY_HOST
        self._advertise = advertise
        self._detached = detached
        self._trace = trace
        self.metrics = metrics
        self._events = events
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: ClusterFolder | None = None

    @classmethod
    def attach(cls, directory: str | os.PathLike[str]) -> Self:
        """Connect to the running cluster of a folder; `UnreachableError` if none is running."""
        cluster = cls(directory=directory, detached=True)
        cluster._folder = ClusterFolder(Path(directory).absolute())
        cluster.status()
        return cluster

    # Starting and stopping

    def start(self) -> Self:
        """Start all brokers; returns when they serve clients."""
        if self._folder is not None:
            raise UsageError(
                f"the cluster in {self._folder.path} is already running",
                remedy="stop it first, or use another `directory`",
            )
        temporary = self._directory is None
        directory = self._directory or Path(tempfile.mkdtemp(prefix="shoal-"))
        spec = SupervisorSpec(
            directory=str(directory),
            brokers=self._brokers,
            controllers=self._controllers,
            host=self._host,
            advertise=self._advertise,
            profile=self._profile,
            properties=self._properties,
            temporary=temporary,
            owner_pid=None if self._detached else os.getpid(),
            trace=self._trace,
            metrics=self.metrics,
            name=self.name,
            events=None if self._events is None else str(Path(self._events).absolute()),
        )
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shoal.lite.nodes.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            answer = _send_spec(process, spec)
        except BaseException:
            process.kill()
            _release(process)
            if temporary:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        if self._detached:
            _release(process)
        else:
            self._process = process
        if "error" in answer:
            self._wait_for_supervisor()
            raise _failure(answer)
        self._folder = ClusterFolder(directory)
        return self

    def stop(self) -> None:
        """Stop the cluster cleanly; a temporary folder is removed. Does nothing if it has ended."""
        folder = self._folder
        if folder is None:
            return
        try:
            self._command("shutdown")
        except UnreachableError:
            # It has ended already, or is about to.
            if self._process is None:
                self._folder = None
                return
        if self._process is None:
            _wait_for_end(folder)
        self._wait_for_supervisor()
        if self._directory is None:
            shutil.rmtree(folder.path, ignore_errors=True)
        self._folder = None

    def crash(self) -> None:
        """kill -9 of the supervisor and all nodes at once; `start` starts from the folder again."""
        folder = self._running()
        if self._directory is None:
            raise UsageError(
                "a cluster in a temporary folder cannot be restarted after a crash",
                remedy="start it with a folder",
            )
        nodes = [node.pid for node in (*self.status(), *self.controllers()) if node.pid]
        for pid in (folder.control().pid, *nodes):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for_end(folder)
        self._wait_for_supervisor()
        self._folder = None

    def check_supervisor(self) -> None:
        """Raise `UnreachableError` if the supervisor has ended, and all nodes with it."""
        if self._process is not None and self._process.poll() is not None:
            raise UnreachableError(
                f"the supervisor of {self.directory} has ended, and all nodes with it",
                remedy="see supervisor.log there; a cluster with a folder can be started again",
            )

    def _wait_for_supervisor(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        _release(self._process)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await _in_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self.stop)

    # State

    @property
    def directory(self) -> Path:
        """The folder of the running cluster."""
        return self._running().path

    @property
    def bootstrap(self) -> str:
        """The value for `bootstrap.servers` of clients; restarts do not change it."""
        return ",".join(f"{node.host}:{node.port}" for node in self.status())

    @property
    def metrics_port(self) -> int:
        """The port on which the supervisor serves metrics; 0 without `metrics`."""
        return int(self._command("status")["metrics_port"])

    def status(self) -> list[NodeStatus]:
        """All brokers, dead ones too."""
        return [from_plain(NodeStatus, node) for node in self._command("status")["nodes"]]

    def controllers(self) -> list[NodeStatus]:
        """The controller processes, dead ones too."""
        return [from_plain(NodeStatus, node) for node in self._command("status")["controllers"]]

    def quorum(self) -> QuorumStatus | None:
        """The controllers as the active one sees them; None while none is active."""
        values = self._command("quorum")["quorum"]
        return None if values is None else QuorumStatus.from_json(values)

    def nodes(self) -> list[Node]:
        """The brokers that have a process, paused ones too."""
        return [
            Node(node.id, node.host, node.port, node.pid)
            for node in self.status()
            if node.state != "dead"
        ]

    def log_dirs(self) -> dict[int, Path]:
        """The folder of each broker's data."""
        folder = self._running()
        return {node.id: folder.broker(node.id) for node in self.status()}

    def merged_trace(self) -> str:
        """The trace so far, in the format of ShiViz; see `shoal.lite.testing.trace`."""
        return merge_trace(self.directory)

    # Commands for nodes

    def kill(self, node_id: int) -> None:
        """SIGKILL; returns when the process is gone."""
        self._command("kill", node_id)

    def stop_node(self, node_id: int) -> None:
        """SIGTERM: it flushes its data to the disk and ends."""
        self._command("stop", node_id)

    def pause(self, node_id: int) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._command("pause", node_id)

    def resume(self, node_id: int) -> None:
        """SIGCONT, after `pause`."""
        self._command("resume", node_id)

    def restart(self, node_id: int) -> None:
        """Stop a node if it runs, and start it on the same port; returns when it serves."""
        self._command("restart", node_id)

    def add(self) -> NodeStatus:
        """Start one more broker; returns it when it serves.

        It is assigned its share of the replicas, and starts to fetch them.
        """
        return NodeStatus(**self._command("add")["nodes"][-1])

    def remove(self, node_id: int) -> None:
        """Move the replicas of a broker to others, then remove it with its folder.

        Fails if a partition would be left with fewer replicas.
        """
        self._command("remove", node_id)

    def replace_controller(self, node_id: int) -> None:
        """Replace the disk of a controller by an empty one: it is removed from the voters, and
        added again when it has caught up. Needs a majority of the other controllers."""
        self._command("replace", node_id)

    # Commands for partitions

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make another in-sync replica the leader."""
        self._command("move-leader", node_id, topic=topic, partition=partition)

    def shrink_in_sync(self, topic: str, partition: int, node_id: int) -> None:
        """Remove a follower from the in-sync set; the leader adds it again when it is in sync."""
        self._command("shrink-in-sync", node_id, topic=topic, partition=partition)

    # Fault injection. Faults outlive the processes that they affect, until `heal`.

    def cut_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        """Cut the link between two nodes, in both directions or only from source to target.

        Sent data is held until the link is healed; connections are not reset. Clients are not
        affected.
        """
        self._link(source, target, is_cut=True, one_way=one_way)

    def slow_link(
        self,
        source: int,
        target: int,
        delay_ms: int = 0,
        *,
        bytes_per_s: int = 0,
        one_way: bool = False,
    ) -> None:
        """Delay the messages between two nodes, and limit the bandwidth (0: no limit), in both
        directions or one. Replaces earlier faults of the link."""
        self._link(source, target, delay_ms=delay_ms, bytes_per_s=bytes_per_s, one_way=one_way)

    def heal_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        """End the faults of `cut_link` and `slow_link`."""
        self._link(source, target, one_way=one_way)

    def reset_link(self, source: int, target: int) -> None:
        """End all connections between two nodes with a TCP reset; they may connect again."""
        self._inject_fault("reset", source=source, target=target)

    def _link(self, source: int, target: int, **condition: int) -> None:
        free = {"is_cut": False, "delay_ms": 0, "bytes_per_s": 0}
        self._inject_fault("link", source=source, target=target, **(free | condition))

    def isolate(self, node_id: int) -> None:
        """Cut a node off from all others, brokers and controllers."""
        self._inject_fault("isolate", node=node_id)

    def fail_disk(
        self,
        node_id: int,
        *,
        reads: str | None = None,
        writes: str | None = None,
        syncs: str | None = None,
        delay_ms: float = 0,
        room_bytes: int | None = None,
    ) -> None:
        """Make the disk of a node fail, slow or full, until `heal_disk`.

        Errors are named as in `errno`: EIO, ENOSPC. A replica whose log could not be read or
        written is offline until the broker is restarted.
        """
        fault = {
            "reads": reads,
            "writes": writes,
            "syncs": syncs,
            "delay_ms": delay_ms,
            "room_bytes": room_bytes,
        }
        self._inject_fault("disk", node=node_id, fault=fault)

    def heal_disk(self, node_id: int) -> None:
        """End the faults of `fail_disk`."""
        self._inject_fault("disk", node=node_id, fault=None)

    def fail_task(self, node_id: int, task: str) -> None:
        """Make a background task of a node fail once with an unexpected error, by its name:
        "log cleaner", "housekeeping", "heartbeat", "replica fetcher from broker 1"."""
        self._inject_fault("task", node=node_id, task=task)

    def fail_requests(
        self,
        node_id: int,
        api_key: int,
        *,
        times: int = 1,
        error: int | None = None,
        lose_answer: bool = False,
        client_id: str | None = None,
    ) -> int:
        """Make the next requests of an API to a node fail, of all clients or of one.

        With `error` they are answered with that code, and not executed. With `lose_answer` they
        are executed, and the connection is closed instead of an answer. With neither the
        connection is closed at once. Returns a number for `requests_left`.
        """
        if error is not None and lose_answer:
            raise UsageError("error and lose_answer exclude each other")
        how = "error" if error is not None else "lost-answer" if lose_answer else "hang-up"
        number: int = self._inject_fault(
            "request",
            node=node_id,
            api_key=int(api_key),
            times=times,
            how=how,
            error_code=int(error or 0),
            client_id=client_id,
        )["fault"]
        return number

    def requests_left(self, fault: int) -> int:
        """How many requests a fault of `fail_requests` will still affect."""
        return sum(one["left"] for one in self.faults() if one.get("number") == fault)

    def faults(self) -> list[dict[str, Any]]:
        """All injected faults."""
        found: list[dict[str, Any]] = self._command("faults")["faults"]
        return found

    def heal(self) -> None:
        """End all faults of links, disks and requests."""
        self._inject_fault("heal")

    def _inject_fault(self, kind: str, **values: Any) -> dict[str, Any]:
        return self._command("fault", kind=kind, **values)

    def _running(self) -> ClusterFolder:
        if self._folder is None:
            raise UsageError("the cluster is not running", remedy="start it first")
        return self._folder

    def _command(self, command: str, node_id: int | None = None, **values: Any) -> dict[str, Any]:
        folder = self._running()
        address = folder.control()
        request = {"token": address.token, "command": command, "node": node_id} | values
        try:
            answer = request_answer(address.port, request, timeout_s=_COMMAND_TIMEOUT_S)
        except TimeoutError as error:
            raise UnreachableError(
                f"the supervisor of {folder.path} did not answer {command!r} within "
                f"{_COMMAND_TIMEOUT_S:.0f} s",
                remedy=f"see {folder.log_file('supervisor')}; if it is paused, resume it",
            ) from error
        except OSError as error:
            raise UnreachableError(
                f"cannot reach the supervisor of {folder.path}: it has ended",
                remedy=f"see {folder.log_file('supervisor')}, and start the cluster again",
            ) from error
        except ControlError as error:
            raise UnreachableError(
                f"the supervisor of {folder.path} ended before it answered {command!r}",
                remedy=f"see {folder.log_file('supervisor')}, and start the cluster again",
            ) from error
        if "error" in answer:
            raise _failure(answer)
        return answer


async def _in_thread(call: Callable[[], ResultT]) -> ResultT:
    import asyncio

    return await asyncio.to_thread(call)


def _send_spec(process: "subprocess.Popen[bytes]", spec: SupervisorSpec) -> dict[str, Any]:
    """Send the supervisor its spec and return its first answer."""
    assert process.stdin is not None  # noqa: S101 - for the type checker
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(spec.to_json().encode() + b"\n")
    process.stdin.flush()
    readable, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
    if not readable:
        raise SystemFailure(
            f"the supervisor did not answer within {_START_TIMEOUT_S:.0f} s of its start",
            remedy=f"see the logs in {spec.directory}",
        )
    line = process.stdout.readline()
    if not line:
        remedy = f"see {spec.directory}/supervisor.log and the output above"
        raise SystemFailure("the supervisor ended during its start", remedy=remedy)
    answer: dict[str, Any] = json.loads(line)
    return answer


def _failure(answer: dict[str, Any]) -> SystemFailure:
    kind = ClusterCommandError if answer.get("is_usage") else SystemFailure
    return kind(answer["error"], remedy=answer.get("remedy"))


def _release(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _wait_for_end(folder: ClusterFolder) -> None:
    """Wait until the supervisor and all nodes have ended: they hold the lock until then."""
    os.close(folder.lock(_EXIT_TIMEOUT_S, is_ending=True))
