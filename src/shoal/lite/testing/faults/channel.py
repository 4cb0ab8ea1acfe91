"""The private channel between a supervisor and one of its nodes.

A pair of sockets, created for each process of a node and inherited by it: no other process has
access. Lines of JSON:

    supervisor  {"number": 3, "links": …, "resets": …, "disk": …, "requests": …, "tasks": …}
                                       all faults
    node        {"done": 3}            it has applied them, or {"done": 3, "error": …}
    node        {"hit": 7}             the fault with this number affected a request
    node        {"health": …}          see `health`; when it has changed

A line has all faults, not the changes: a node that starts, or was paused, needs only the last one.
The first line is sent before the node's process exists, and applied before it does anything.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from typing import Any

from shoal.lite.base.hooks.links import LINKS, NodeLink
from shoal.lite.base.hooks.request_faults import RequestFaults
from shoal.lite.storage.disk import DiskFault, set_fault
from shoal.lite.testing.faults.health import (
    REPORT_EVERY_S,
    OfflineReplicas,
    describe_health,
    empty_health,
)
from shoal.model.errors import ConfigError
from shoal.model.serialised import arguments_of
from shoal.net.link_faults import LinkEffect
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.tasks import call_every, inject_failure

_READ_BYTES = 65536
_logger = logging.getLogger(__name__)


class LineSocket:
    """One end of the pair: sends lines, and calls a function for each received line."""

    def __init__(
        self,
        end: socket.socket,
        on_line: Callable[[dict[str, Any]], None],
        on_closed: Callable[[], None],
    ) -> None:
        end.setblocking(False)
        self._end = end
        self._on_line = on_line
        self._on_closed = on_closed
        self._unread = b""
        self._unsent = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self.receive)

    def send(self, **values: Any) -> None:
        was_idle = not self._unsent
        self._unsent += json.dumps(values).encode() + b"\n"
        if was_idle and not self._flush():
            self._loop.add_writer(self._end, self._on_writable)

    def receive(self) -> None:
        """Read what has arrived; called by the event loop."""
        try:
            data = self._end.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._on_line(json.loads(line))

    def close(self) -> None:
        """Close this end; also called when the other end is gone."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._loop.remove_writer(self._end)
            self._end.close()
            self._on_closed()

    def _on_writable(self) -> None:
        if self._flush():
            self._loop.remove_writer(self._end)

    def _flush(self) -> bool:
        """Send as much as the socket takes; whether nothing is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._unsent = b""
        return True


class SupervisorChannel:
    """The supervisor's end: sends a node's process its faults."""

    def __init__(self, on_hit: Callable[[int], None]) -> None:
        """`on_hit` is called with the number of a fault that affected a request."""
        # The last health report of the process.
        self.health = empty_health()
        own, self.other_end = socket.socketpair()
        self._on_hit = on_hit
        self._number = 0
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        self._is_closed = False
        self._lines = LineSocket(own, self._on_line, self._release)

    def send_faults(self, part: dict[str, Any]) -> "asyncio.Future[str | None]":
        """Send all faults of the node; the future gets None when they apply, or an error."""
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._lines.send(number=self._number, **part)
        if self._is_closed:
            self._release()
        return future

    def close(self) -> None:
        """The process has ended: complete all pending futures."""
        self.other_end.close()
        self._lines.close()

    def _on_line(self, line: dict[str, Any]) -> None:
        if "hit" in line:
            self._on_hit(line["hit"])
            return
        if "health" in line:
            self.health = line["health"]
            return
        future = self._waiting.pop(line["done"], None)
        if future is not None and not future.done():
            future.set_result(line.get("error"))

    def _release(self) -> None:
        self._is_closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()


class NodeChannel:
    """The node's end: applies the faults that it receives."""

    def __init__(
        self,
        end: socket.socket,
        requests: RequestFaults,
        offline_replicas: OfflineReplicas = dict,
    ) -> None:
        self._requests = requests
        self._disk: dict[str, Any] | None = None
        # How often each task was asked to fail. None before the first line: requests to an
        # earlier process no longer apply.
        self._task_failures: dict[str, int] | None = None
        self._offline_replicas = offline_replicas
        self._health = empty_health()
        # On close there is nothing to do: without a supervisor this process ends anyway.
        self._lines = LineSocket(end, self._on_line, lambda: None)
        requests.on_hit = self._report_hit
        self._watch = LoopWatch()
        self._lines.receive()
        self._reporting = call_every("health report", lambda: REPORT_EVERY_S, self._report_health)

    def close(self) -> None:
        self._reporting.cancel()
        self._watch.close()
        self._lines.close()

    def _report_health(self) -> None:
        health = describe_health(self._offline_replicas, self._watch.longest_hold_ms)
        if health != self._health:
            self._health = health
            self._lines.send(health=health)

    def _report_hit(self, number: int) -> None:
        self._lines.send(hit=number)

    def _on_line(self, line: dict[str, Any]) -> None:
        number = line["number"]
        try:
            self._requests.change(line["requests"])
            LINKS.change({int(peer): _link(ways) for peer, ways in line["links"].items()})
            LINKS.reset({int(peer): count for peer, count in line["resets"].items()})
            if line["disk"] != self._disk:
                self._disk = line["disk"]
                set_fault(None if self._disk is None else _disk_fault(self._disk))
            self._fail_tasks(line["tasks"])
        except (ConfigError, TypeError, ValueError, KeyError) as error:
            _logger.warning("cannot apply injected faults: %r", error)
            self._lines.send(done=number, error=str(error))
        else:
            self._lines.send(done=number)

    def _fail_tasks(self, wanted: dict[str, int]) -> None:
        before, self._task_failures = self._task_failures, dict(wanted)
        if before is None:
            return
        for name, count in wanted.items():
            if count > before.get(name, 0) and not inject_failure(name):
                raise ConfigError(f"no background task {name!r} is running in this node")


def _disk_fault(values: dict[str, Any]) -> DiskFault:
    return DiskFault(**arguments_of(DiskFault, values))


def _link(ways: list[list[Any]]) -> NodeLink:
    outgoing, incoming = ways
    return NodeLink(LinkEffect(*outgoing), LinkEffect(*incoming))
