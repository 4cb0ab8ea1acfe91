"""A process that has imported everything a node needs, and forks nodes on command.

Starting an interpreter and importing takes a tenth of a second or more; forking takes
milliseconds, and brokers share the memory of what was imported.

    supervisor ──commands (lines of JSON)──► fork server ──fork──► broker, controller, …
                 with each the node's end of its fault channel
        ▲                                         │                   │
        └─────────── reports (lines of JSON) ◄────┴───────────────────┘
        └─────────── lifeline: never written to; it closes when the supervisor is gone

Rules of this file:
- The fork server has one thread, no event loop and no locks, so that forking is safe.
- It outlives its brokers: when the supervisor is gone it kills them all, paused ones too.
- A line is shorter than an atomic pipe write, so that lines of several writers do not mix.
"""

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from select import select
from typing import Any, NoReturn

from shoal.lite.base.spec import BrokerSpec, ControllerSpec
from shoal.lite.metadata.data import rpc
from shoal.lite.nodes.broker import run_broker
from shoal.lite.nodes.controller import run_controller
from shoal.model.errors import ShoalError
from shoal.runtime.os_errors import describe_os_error
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import request_class, response_class

# POSIX guarantees that this much is written atomically; Linux guarantees more.
_MAX_MESSAGE_CHARS = 500
_MAX_CHANNELS_PER_READ = 64
# Errors of clients are logged, and clients must not be able to fill the disk.
_MAX_LOG_LINES = 10_000


# The first requests of every client, in the versions of librdkafka and Java.
_PRELOADED_MESSAGES = (
    (ApiKey.API_VERSIONS, (0, 3, 4)),
    (ApiKey.METADATA, (12,)),
    (ApiKey.INIT_PRODUCER_ID, (4,)),
    # The requests of every broker to the controller.
    *((api_key, (version,)) for api_key, version in rpc.VERSIONS.items()),
)


NodeSpec = BrokerSpec | ControllerSpec
_KINDS: dict[type[NodeSpec], str] = {BrokerSpec: "broker", ControllerSpec: "controller"}


class ForkServer:
    """The supervisor's side: create it before any thread or event loop exists."""

    def __init__(self) -> None:
        _preload()
        self._commands, commands_read = socket.socketpair()
        self.reports, reports_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        self._has_ended = False
        self.pid = os.fork()
        if self.pid == 0:
            _run_and_exit(lambda: self._run_server(commands_read, reports_write, lifeline_read))
        commands_read.close()
        for descriptor in (reports_write, lifeline_read):
            os.close(descriptor)

    def _run_server(self, commands: socket.socket, reports: int, lifeline: int) -> None:
        # The supervisor's ends: if they stayed open here, its death would go unnoticed.
        self._commands.close()
        for descriptor in (self.reports, self._lifeline):
            os.close(descriptor)
        _ForkServer(commands, reports, lifeline).run()

    def spawn(self, spec: NodeSpec, log_file: Path, faults: socket.socket) -> None:
        """Ask for a node, which gets one end of a fault channel. Its state arrives as reports."""
        kind = _KINDS[type(spec)]
        command = {"kind": kind, "spec": spec.to_json(), "log_file": str(log_file)}
        line = json.dumps(command).encode() + b"\n"
        sent = socket.send_fds(self._commands, [line], [faults.fileno()])
        self._commands.sendall(line[sent:])

    def is_alive(self) -> bool:
        if not self._has_ended:
            self._has_ended = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return not self._has_ended

    def close(self) -> None:
        """End the fork server and every node that is left."""
        self._commands.close()
        os.close(self._lifeline)
        if self.is_alive():
            os.waitpid(self.pid, 0)
        os.close(self.reports)


class _ForkServer:
    def __init__(self, commands: socket.socket, reports: int, lifeline: int) -> None:
        self._commands = commands
        self._reports = reports
        self._lifeline = lifeline
        self._nodes: dict[int, int] = {}
        self._unread = b""
        # One for each command line, in order.
        self._channels: deque[int] = deque()
        # A byte arrives here whenever a child has ended.
        self._wakeup_read, self._wakeup_write = os.pipe()

    def run(self) -> None:
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        signal.set_wakeup_fd(self._wakeup_write)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Not SIG_IGN: a child must not lose a SIGTERM that arrives before it has a handler.
        signal.signal(signal.SIGTERM, _ignore)
        gc.collect()
        # Loaded objects stay: garbage collections in nodes need not visit and so unshare them.
        gc.freeze()
        commands = self._commands.fileno()
        while True:
            readable, _, _ = select([commands, self._wakeup_read], [], [])
            if self._wakeup_read in readable:
                os.read(self._wakeup_read, 4096)
                self._reap()
            if commands in readable and not self._take_commands():
                break
        for pid in self._nodes:
            os.kill(pid, signal.SIGKILL)
        while self._nodes:
            self._report_exit(*os.wait())

    def _take_commands(self) -> bool:
        """Read and run commands; False if the supervisor is gone."""
        data, channels, _, _ = socket.recv_fds(self._commands, 65536, _MAX_CHANNELS_PER_READ)
        self._channels.extend(channels)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._fork(json.loads(line))
        return bool(data)

    def _fork(self, command: dict[str, str]) -> None:
        spec: NodeSpec
        if command["kind"] == "broker":
            spec = BrokerSpec.from_json(command["spec"])
        else:
            spec = ControllerSpec.from_json(command["spec"])
        channel = self._channels.popleft()
        # A SIGTERM for a new node waits until the fork server's handlers are removed in it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid == 0:
            _run_and_exit(lambda: self._run_child(spec, command["log_file"], channel))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(channel)
        self._nodes[pid] = spec.node_id
        _report(self._reports, kind="spawned", node=spec.node_id, pid=pid)

    def _run_child(self, spec: NodeSpec, log_file: str, channel: int) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._commands.close()
        for descriptor in (*self._channels, self._wakeup_read, self._wakeup_write):
            os.close(descriptor)
        _log_to(log_file)
        faults = socket.socket(fileno=channel)

        def on_ready(port: int) -> None:
            _report(self._reports, kind="ready", node=spec.node_id, pid=os.getpid(), port=port)

        try:
            asyncio.run(_run_node(spec, lifeline=self._lifeline, faults=faults, on_ready=on_ready))
        except (ShoalError, OSError) as error:
            shown = describe_os_error(error) if isinstance(error, OSError) else error
            _report(
                self._reports,
                kind="failed",
                node=spec.node_id,
                message=shown.message[:_MAX_MESSAGE_CHARS],
                remedy=shown.remedy,
            )
            raise

    def _reap(self) -> None:
        while self._nodes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._report_exit(pid, status)

    def _report_exit(self, pid: int, status: int) -> None:
        node_id = self._nodes.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        _report(self._reports, kind="exited", node=node_id, pid=pid, code=code)


def _run_node(
    spec: NodeSpec, *, lifeline: int, faults: socket.socket, on_ready: Callable[[int], None]
) -> Coroutine[None, None, None]:
    """The main coroutine of a node's process."""
    if isinstance(spec, BrokerSpec):
        return run_broker(spec, lifeline=lifeline, faults=faults, on_ready=on_ready)
    return run_controller(spec, lifeline=lifeline, faults=faults, on_ready=on_ready)


def _preload() -> None:
    """Load before the fork what every broker would load for its first client."""
    classes = [
        find(api_key, version)
        for api_key, versions in _PRELOADED_MESSAGES
        for version in versions
        for find in (request_class, response_class)
    ]
    # Not at the top: the functions above must import kio first, in a reduced form.
    from shoal.wire.codec import entity_format

    for cls in classes:
        entity_format(cls)


def _run_and_exit(action: Callable[[], None]) -> NoReturn:
    """Run `action` and exit: no code of the parent's stack may run in the forked process."""
    code = 1
    try:
        action()
        code = 0
    except BaseException:  # noqa: BLE001 - the last place that can report it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _report(reports: int, **values: Any) -> None:
    try:
        os.write(reports, json.dumps(values).encode() + b"\n")
    except BrokenPipeError:
        # The supervisor is gone; this process ends soon too.
        return


def _log_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    handler = logging.StreamHandler()
    handler.addFilter(_LineLimit())
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler]
    )


class _LineLimit(logging.Filter):
    """Passes a limited number of lines of a process."""

    def __init__(self) -> None:
        super().__init__()
        self._left = _MAX_LOG_LINES

    def filter(self, record: logging.LogRecord) -> bool:
        self._left -= 1
        if self._left == 0:
            record.msg, record.args = "log limit reached: this process logs no further lines", None
        return self._left >= 0


def _ignore(*_: object) -> None:
    """A handler that does nothing, so that the signal is delivered to the wake-up descriptor."""
