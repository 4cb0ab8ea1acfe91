"""The driver as seen by the work inside a worker: `workload.control.Control` over the channel.

Rules:
- Everything runs in the worker's event loop.
- Losing the driver, a refused lease and a signal all mean *stopping*.
- `commit` raises once the driver is gone: no reservation may be taken for durable that is not.
  Only after the work has ended, `seal_locally` allows segments to be sealed without a commit: they
  do not count, but can be inspected.
"""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.net.channel import DRIVER_LOST_AFTER_S, DriverLost, WorkerEvent
from shoal.net.control import ControlClient, DriverGoneError
from shoal.net.messages import (
    Finish,
    Hello,
    LanesDrained,
    Lease,
    LeaseRefused,
    RoleUpdate,
    StartAt,
    Stop,
)
from shoal.runtime.processes import ProcessIdentity, machine_clock
from shoal.runtime.tasks import run_awaited
from shoal.workers.specs import Assignment, Json
from shoal.workload.control import Arrival, StreamLane


class WorkerControl:
    """One worker's view of its driver. Create it inside a running event loop."""

    def __init__(
        self, assignment: Assignment, *, lost_after_s: float = DRIVER_LOST_AFTER_S
    ) -> None:
        me = ProcessIdentity.of(os.getpid())
        hello = Hello(
            worker=assignment.worker,
            epoch=assignment.epoch,
            token=assignment.token,
            instance=secrets.token_hex(8),
            pid=os.getpid(),
            host=machine_clock(),
            start_mark=me.start_mark if me else "",
        )
        address = (assignment.driver_host, assignment.driver_port)
        self.client = ControlClient(
            address, hello, on_event=self._on_event, lost_after_s=lost_after_s
        )
        self.stop_reason = ""
        self._leased = asyncio.Event()
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._finishing = False
        self._sealing_locally = False
        self._start_at_us: int | None = None
        self._drained: dict[str, set[StreamLane]] = {}
        # The last role update from the driver, and an event that is set when it is new.
        self.role_update: Json | None = None
        self.role_updated = asyncio.Event()

    @property
    def is_driver_gone(self) -> bool:
        return self.client.ended_by is not None

    async def wait_lease(self) -> bool:
        """Wait for the lease; False if the worker must stop before."""
        return await self._wait_unless_stopped(self._leased)

    async def wait_start(self) -> int | None:
        """Wait for the start time from the driver; None if the worker must stop before."""
        return self._start_at_us if await self._wait_unless_stopped(self._started) else None

    def stop(self, reason: str) -> None:
        if not self._stop.is_set():
            self.stop_reason = reason
        self._finishing = True
        self._stop.set()
        self.role_updated.set()

    def is_finishing(self) -> bool:
        return self._finishing

    def is_stopping(self) -> bool:
        return self._stop.is_set()

    async def wait_stop(self) -> None:
        await self._stop.wait()

    def progress(self, report: Mapping[str, Any]) -> None:
        self.client.progress(dict(report))

    async def commit(self, line: Json) -> None:
        """Send a line; returns when it is in the driver's commit log."""
        if self._sealing_locally and line.get("kind") == "segment":
            return
        await self.client.commit(line)

    async def commit_drained(self, arrivals: Sequence[Arrival]) -> None:
        await asyncio.gather(
            *(
                self.commit({"kind": "drained", **arrival.to_commit_fields()})
                for arrival in arrivals
            )
        )

    def lanes_drained(self, producer: str) -> frozenset[StreamLane]:
        return frozenset(self._drained.get(producer, ()))

    def seal_locally(self) -> None:
        self._sealing_locally = True

    async def end(self, reason: str, error: str = "", *, retriable: bool = False) -> None:
        """Report to the driver how the work ended, if it is still connected."""
        line = {"kind": "ended", "reason": reason, "error": error[:1000], "retriable": retriable}
        try:
            await self.client.commit(line)
        except DriverGoneError as gone:
            self.stop(str(gone))

    def _on_event(self, event: WorkerEvent) -> None:
        match event:
            case Lease(start_at_us=at_us):
                self._leased.set()
                if at_us is not None:
                    self._start(at_us)
            case StartAt(at_us):
                self._start(at_us)
            case LanesDrained(lanes):
                for producer, *lane in lanes:
                    self._drained.setdefault(producer, set()).add(StreamLane(*lane))
            case RoleUpdate(values):
                self.role_update = values
                self.role_updated.set()
            case Finish():
                self._finishing = True
            case Stop(reason) | LeaseRefused(reason):
                self.stop(reason)
            case DriverLost(silent_s):
                self.stop(f"no message from the driver for {silent_s:.1f} s")

    def _start(self, at_us: int) -> None:
        self._start_at_us = at_us
        self._started.set()

    async def _wait_unless_stopped(self, event: asyncio.Event) -> bool:
        """Wait for an event or a stop; returns whether the event came first."""
        waits = [run_awaited("wait", each.wait()) for each in (event, self._stop)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set() and not self._stop.is_set()
