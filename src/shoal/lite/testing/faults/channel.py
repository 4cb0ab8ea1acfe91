"""The private channel between a supervisor and one of its nodes.

A pair of sockets, created for each process of a node and inherited by it: no other process has
access. Lines of JSON:

    supervisor  {"number": 3, "links": …, "resets": …, "disk": …, "requests": …, "tasks": …}
                                       all faults
    node        {"done": 3}            it has applied them, or {"done": 3, "error": …}
    node        {"hit": 7}             the fault with this number affected a request
    node        {"health": …}          see `health`; when it has changed
    supervisor  {"collect": 5, "what": "broker"}     asks for metrics
    node        {"collected": 5, "chunk": …}         a chunk of them; null after the last

A line of faults has all of them, not the changes: a node that starts, or was paused, needs only
the last one. The first line is sent before the node's process exists, and applied before it does
anything.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator
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
from shoal.runtime.tasks import call_every, inject_failure, log_only, run_once
from shoal.telemetry.samples import Chunk

# Yields the metrics of a kind, see `shoal.lite.nodes.cluster_metrics`.
Collect = Callable[[str], Iterator[Chunk]]
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
        # Metrics that were asked for, by number: what has arrived, and the future of the rest.
        self._collecting: dict[int, tuple[list[Chunk], asyncio.Future[None]]] = {}
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

    async def collect(self, what: str) -> list[Chunk]:
        """Ask the process for metrics; `ConnectionError` if it has ended."""
        if self._is_closed:
            raise ConnectionError("the process has ended")
        self._number += 1
        number, done = self._number, asyncio.get_running_loop().create_future()
        chunks: list[Chunk] = []
        self._collecting[number] = (chunks, done)
        self._lines.send(collect=number, what=what)
        try:
            await done
        finally:
            del self._collecting[number]
        return chunks

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
        if "collected" in line:
            self._on_collected(line["collected"], line["chunk"])
            return
        future = self._waiting.pop(line["done"], None)
        if future is not None and not future.done():
            future.set_result(line.get("error"))

    def _on_collected(self, number: int, chunk: list[Any] | None) -> None:
        chunks, done = self._collecting.get(number, ([], None))
        if chunk is not None:
            chunks.append((chunk[0], chunk[1]))
        elif done is not None and not done.done():
            done.set_result(None)

    def _release(self) -> None:
        """Wake those who wait for answers of a process that has ended."""
        self._is_closed = True
        for _, done in self._collecting.values():
            if not done.done():
                done.set_exception(ConnectionError("the process has ended"))
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
        collect: Collect | None = None,
    ) -> None:
        """`collect` yields the metrics of a kind."""
        self._requests = requests
        self._collect = collect
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

    @property
    def longest_hold_ms(self) -> int:
        return self._watch.longest_hold_ms

    def _report_health(self) -> None:
        health = describe_health(self._offline_replicas, self._watch.longest_hold_ms)
        if health != self._health:
            self._health = health
            self._lines.send(health=health)

    def _report_hit(self, number: int) -> None:
        self._lines.send(hit=number)

    def _on_line(self, line: dict[str, Any]) -> None:
        if "collect" in line:
            sending = self._send_metrics(line["collect"], str(line["what"]))
            # A scrape without an answer times out, and the next one asks again.
            run_once("metrics of a scrape", sending, on_failure=log_only)
            return
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

    async def _send_metrics(self, number: int, what: str) -> None:
        for chunk in () if self._collect is None else self._collect(what):
            self._lines.send(collected=number, chunk=chunk)
            await asyncio.sleep(0)
        self._lines.send(collected=number, chunk=None)

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
