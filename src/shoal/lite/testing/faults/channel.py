"""The private way from a supervisor to one of its nodes.

A pair of sockets that is made for each process of a node and inherited by it: nobody else can
speak here. Lines of JSON:

    supervisor  {"number": 3, "links": …, "resets": …, "disk": …, "requests": …, "tasks": …}
                                       all faults
    node        {"done": 3}            it does so from now on, or {"done": 3, "error": …}
    node        {"hit": 7}             a request met the fault with this number
    node        {"health": …}          see `health`; when it has changed

A line says everything there is, not what has changed: a node that starts, or was paused, needs
only the last one. The first is sent before the node's process is there, and taken up before it
does anything.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from typing import Any

from shoal.lite.base.hooks.links import LINKS, Link, Way
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
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.tasks import call_every, inject_failure

_READ_BYTES = 65536
_logger = logging.getLogger(__name__)


class Lines:
    """One end of the pair: lines out, lines in by a function. Made in the event loop."""

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
        if was_idle and not self._sent_all():
            self._loop.add_writer(self._end, self._on_writable)

    def receive(self) -> None:
        """Take what has arrived; called by the event loop."""
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
        """The other end is gone, or this one goes."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._loop.remove_writer(self._end)
            self._end.close()
            self._on_closed()

    def _on_writable(self) -> None:
        if self._sent_all():
            self._loop.remove_writer(self._end)

    def _sent_all(self) -> bool:
        """Send as much as there is room for; whether nothing is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._unsent = b""
        return True


class SupervisorEnd:
    """The supervisor's end: tells a process of a node its faults."""

    def __init__(self, on_hit: Callable[[int], None]) -> None:
        """`on_hit` is called with the number of a fault that a request met."""
        # What the process reported last.
        self.health = empty_health()
        own, self.other_end = socket.socketpair()
        self._on_hit = on_hit
        self._number = 0
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        self._is_closed = False
        self._lines = Lines(own, self._on_line, self._release)

    def tell(self, part: dict[str, Any]) -> "asyncio.Future[str | None]":
        """Say what is wrong with the node; the future is for when it is, or why it is not."""
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._lines.send(number=self._number, **part)
        if self._is_closed:
            self._release()
        return future

    def close(self) -> None:
        """The process has ended. Those who wait for it need not wait any more."""
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


class NodeEnd:
    """The node's end: does what it is told."""

    def __init__(
        self,
        end: socket.socket,
        requests: RequestFaults,
        offline_replicas: OfflineReplicas = dict,
    ) -> None:
        self._requests = requests
        self._disk: dict[str, Any] | None = None
        # How often each task was asked to fail. None before the first line: what an earlier
        # process was asked is over.
        self._task_failures: dict[str, int] | None = None
        self._offline_replicas = offline_replicas
        self._health = empty_health()
        # Without a supervisor this process ends anyway.
        self._lines = Lines(end, self._on_line, lambda: None)
        requests.on_hit = self._tell_hit
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

    def _tell_hit(self, number: int) -> None:
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
            _logger.warning("faults cannot be planted: %r", error)
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


def _link(ways: list[list[Any]]) -> Link:
    outgoing, incoming = ways
    return Link(Way(*outgoing), Way(*incoming))
