"""A process that has everything loaded that a node needs, and forks one when asked.

Starting an interpreter and importing takes a tenth of a second or more; forking takes
milliseconds, and brokers share the memory of what was imported.

    supervisor ──commands (lines of JSON)──► fork server ──fork──► broker, controller, …
                 with each the broker's end of its channel for faults
        ▲                                         │                   │
        └─────────── reports (lines of JSON) ◄────┴───────────────────┘
        └─────────── lifeline: never written to; when it closes, the supervisor is gone

Rules of this file:
- The fork server has one thread, no event loop and no locks: what it forks is sound.
- It outlives its brokers: when the supervisor is gone it kills them all, paused ones too.
- A line is shorter than a pipe writes at once, so that lines of several writers do not mix.
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
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import request_class, response_class

# POSIX promises that this much is written at once; Linux promises more.
_LONGEST_LINE = 500
_CHANNELS_AT_ONCE = 64
# What clients do wrong is logged, and clients must not fill the disk.
_MOST_LOGGED = 10_000


# What every client asks first, by the versions that librdkafka and Java ask for.
_FIRST_MESSAGES = (
    (ApiKey.API_VERSIONS, (0, 3, 4)),
    (ApiKey.METADATA, (12,)),
    (ApiKey.INIT_PRODUCER_ID, (4,)),
    # What every broker asks the controller.
    *((api_key, (version,)) for api_key, version in rpc.VERSIONS.items()),
)


NodeSpec = BrokerSpec | ControllerSpec
_KINDS: dict[type[NodeSpec], str] = {BrokerSpec: "broker", ControllerSpec: "controller"}


class ForkServer:
    """The supervisor's end: start it before any thread or event loop is there."""

    def __init__(self) -> None:
        _preload()
        self._commands, commands_read = socket.socketpair()
        self.reports, reports_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        self._has_ended = False
        self.pid = os.fork()
        if self.pid == 0:
            _ending(lambda: self._be_server(commands_read, reports_write, lifeline_read))
        commands_read.close()
        for descriptor in (reports_write, lifeline_read):
            os.close(descriptor)

    def _be_server(self, commands: socket.socket, reports: int, lifeline: int) -> None:
        # The ends that belong to the supervisor: kept open here, they would hide its death.
        self._commands.close()
        for descriptor in (self.reports, self._lifeline):
            os.close(descriptor)
        _Server(commands, reports, lifeline).run()

    def spawn(self, spec: NodeSpec, log_file: Path, faults: socket.socket) -> None:
        """Ask for a node, which gets an end of a channel. Reports tell how it went."""
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
        """Let the fork server, and every broker that is left, end."""
        self._commands.close()
        os.close(self._lifeline)
        if self.is_alive():
            os.waitpid(self.pid, 0)
        os.close(self.reports)


class _Server:
    def __init__(self, commands: socket.socket, reports: int, lifeline: int) -> None:
        self._commands = commands
        self._reports = reports
        self._lifeline = lifeline
        self._nodes: dict[int, int] = {}
        self._unread = b""
        # One for each line, in their order.
        self._channels: deque[int] = deque()
        # A byte arrives here whenever a child has ended.
        self._wakeup_read, self._wakeup_write = os.pipe()

    def run(self) -> None:
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        signal.set_wakeup_fd(self._wakeup_write)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Not ignored: a child must not lose one that comes before it can do anything.
        signal.signal(signal.SIGTERM, _ignore)
        gc.collect()
        # What is loaded now stays: collections in brokers need not visit it, nor unshare it.
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
            self._forget(*os.wait())

    def _take_commands(self) -> bool:
        """Whether the supervisor is still there."""
        data, channels, _, _ = socket.recv_fds(self._commands, 65536, _CHANNELS_AT_ONCE)
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
        # What is sent to a node in its first moment waits until it has no handlers of ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid == 0:
            _ending(lambda: self._be_node(spec, command["log_file"], channel))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(channel)
        self._nodes[pid] = spec.node_id
        _report(self._reports, kind="spawned", node=spec.node_id, pid=pid)

    def _be_node(self, spec: NodeSpec, log_file: str, channel: int) -> None:
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
            asyncio.run(_node(spec, lifeline=self._lifeline, faults=faults, on_ready=on_ready))
        except (ShoalError, OSError) as error:
            _report(
                self._reports,
                kind="failed",
                node=spec.node_id,
                message=str(error)[:_LONGEST_LINE],
                remedy=getattr(error, "remedy", None),
            )
            raise

    def _reap(self) -> None:
        while self._nodes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._forget(pid, status)

    def _forget(self, pid: int, status: int) -> None:
        node_id = self._nodes.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        _report(self._reports, kind="exited", node=node_id, pid=pid, code=code)


def _node(
    spec: NodeSpec, *, lifeline: int, faults: socket.socket, on_ready: Callable[[int], None]
) -> Coroutine[None, None, None]:
    """What a process of this kind does all its life."""
    if isinstance(spec, BrokerSpec):
        return run_broker(spec, lifeline=lifeline, faults=faults, on_ready=on_ready)
    return run_controller(spec, lifeline=lifeline, faults=faults, on_ready=on_ready)


def _preload() -> None:
    """Load once, before the fork, what every broker would load for its first client."""
    classes = [
        find(api_key, version)
        for api_key, versions in _FIRST_MESSAGES
        for version in versions
        for find in (request_class, response_class)
    ]
    # Not at the top: kio must come in by the functions above, which keep it small.
    from shoal.wire.codec import entity_format

    for cls in classes:
        entity_format(cls)


def _ending(action: Callable[[], None]) -> NoReturn:
    """Do it and end this process: nothing of the process that was forked may run on."""
    code = 1
    try:
        action()
        code = 0
    except BaseException:  # noqa: BLE001 - the last place where it can be told
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _report(reports: int, **values: Any) -> None:
    try:
        os.write(reports, json.dumps(values).encode() + b"\n")
    except BrokenPipeError:
        # The supervisor is gone; so will we be.
        return


def _log_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    handler = logging.StreamHandler()
    handler.addFilter(_Limit())
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[handler]
    )


class _Limit(logging.Filter):
    """Lets the first lines of a process through."""

    def __init__(self) -> None:
        super().__init__()
        self._left = _MOST_LOGGED

    def filter(self, record: logging.LogRecord) -> bool:
        self._left -= 1
        if self._left == 0:
            record.msg, record.args = "this is the last line that this process logs", None
        return self._left >= 0


def _ignore(*_: object) -> None:
    """A handler, so that the signal arrives at all."""
