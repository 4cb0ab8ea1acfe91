"""The driver, as work inside a worker sees it: `workload.control.Control` over the channel.

Rules:
- All of it lives in the worker's event loop.
- Losing the driver, being refused by it and a signal are all *stopping*.
- `commit` raises once the driver is gone: no reservation may be thought durable that is not.
  Only after the work has ended, `seal_locally` lets segments be sealed that nobody commits:
  they do not count, but they are there to be looked at.
"""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.net.channel import DRIVER_LOST_AFTER_S, Lost, WorkerEvent
from shoal.net.control import ControlClient, DriverGoneError
from shoal.net.messages import Drained, Finish, Hello, Lease, Refused, StartAt, Stop, Tell
from shoal.runtime.processes import machine_clock
from shoal.runtime.tasks import run_awaited
from shoal.workers.specs import Assignment, Json
from shoal.workload.control import Arrival, StreamLane


class WorkerControl:
    """One worker's view of its driver. Make it inside a running event loop."""

    def __init__(
        self, assignment: Assignment, *, lost_after_s: float = DRIVER_LOST_AFTER_S
    ) -> None:
        hello = Hello(
            worker=assignment.worker,
            epoch=assignment.epoch,
            token=assignment.token,
            instance=secrets.token_hex(8),
            pid=os.getpid(),
            host=machine_clock(),
        )
        address = (assignment.driver_host, assignment.driver_port)
        self.client = ControlClient(address, hello, on_event=self._take, lost_after_s=lost_after_s)
        self.stop_reason = ""
        self._leased = asyncio.Event()
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._finishing = False
        self._sealing_locally = False
        self._start_at_us: int | None = None
        self._drained: dict[str, set[StreamLane]] = {}
        # What the driver last told this worker's role, and a mark that it is new.
        self.told: Json | None = None
        self.news = asyncio.Event()

    @property
    def driver_gone(self) -> bool:
        return self.client.ended_by is not None

    async def wait_lease(self) -> bool:
        """True once the lease is there, False if it is time to stop before."""
        return await self._first(self._leased)

    async def wait_start(self) -> int | None:
        """The time to begin at, when the driver has said it; None if it is time to stop before."""
        return self._start_at_us if await self._first(self._started) else None

    def stop(self, reason: str) -> None:
        if not self._stop.is_set():
            self.stop_reason = reason
        self._finishing = True
        self._stop.set()
        self.news.set()

    def finishing(self) -> bool:
        return self._finishing

    def stopping(self) -> bool:
        return self._stop.is_set()

    async def wait_stop(self) -> None:
        await self._stop.wait()

    def progress(self, report: Mapping[str, Any]) -> None:
        self.client.progress(dict(report))

    async def commit(self, line: Json) -> None:
        """Returns when the line stands in the driver's commit log."""
        if self._sealing_locally and line.get("kind") == "segment":
            return
        await self.client.commit(line)

    async def drained(self, arrivals: Sequence[Arrival]) -> None:
        await asyncio.gather(
            *(self.commit({"kind": "drained", **arrival.described()}) for arrival in arrivals)
        )

    def lanes_drained(self, producer: str) -> frozenset[StreamLane]:
        return frozenset(self._drained.get(producer, ()))

    def seal_locally(self) -> None:
        self._sealing_locally = True

    async def end(self, reason: str, error: str = "", *, retriable: bool = False) -> None:
        """Tell the driver how the work ended, if it is still there."""
        line = {"kind": "ended", "reason": reason, "error": error[:1000], "retriable": retriable}
        try:
            await self.client.commit(line)
        except DriverGoneError as gone:
            self.stop(str(gone))

    def _take(self, event: WorkerEvent) -> None:
        match event:
            case Lease(start_at_us=at_us):
                self._leased.set()
                if at_us is not None:
                    self._start(at_us)
            case StartAt(at_us):
                self._start(at_us)
            case Drained(lanes):
                for producer, *lane in lanes:
                    self._drained.setdefault(producer, set()).add(StreamLane(*lane))
            case Tell(values):
                self.told = values
                self.news.set()
            case Finish():
                self._finishing = True
            case Stop(reason) | Refused(reason):
                self.stop(reason)
            case Lost(silent_s):
                self.stop(f"the driver was silent for {silent_s:.1f} s")

    def _start(self, at_us: int) -> None:
        self._start_at_us = at_us
        self._started.set()

    async def _first(self, event: asyncio.Event) -> bool:
        """Wait for the event or a stop; whether it was the event."""
        waits = [run_awaited("wait", each.wait()) for each in (event, self._stop)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set() and not self._stop.is_set()
