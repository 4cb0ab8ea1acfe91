"""What a producer, consumer or scan asks of, and tells to, whoever runs it.

Rules:
- `Control` is the whole of it. Workers implement it over the channel to the driver;
  `LocalControl` is for commands that run alone, and for tests.
- All of it is called from one event loop. Only `drained` and `wait_stop` may wait.
- There are two ways to end early. *Finishing*: send no new messages, then drain as at a
  normal end. *Stopping*: send nothing more at all, wait a little for the answers still
  owed, seal, return. Losing the driver is stopping.
- Durable lines (`reserve`, `segment`, `foreign`) go through the recorder's `Commit`, not
  through here. `drained` lines are the exception: whoever implements `Control` writes
  them, because it must tell the producers too.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

# A line of the commit log, without `at_us`, `worker` and `epoch` where the log adds them.
CommitLine = dict[str, Any]

# Returns (or, if it is a coroutine function, completes) when the line is durable.
Commit = Callable[[CommitLine], Awaitable[None] | None]


class Arrival(NamedTuple):
    """A drain marker of this stream reached this group, and all receipts before it are sealed."""

    producer: str
    incarnation: int
    topic: str
    lane: int
    group: str

    def described(self) -> dict[str, Any]:
        """As a line of kind `drained` of the commit log names it."""
        return {
            "producer": self.producer,
            "incarnation": self.incarnation,
            "topic": self.topic,
            "lane": self.lane,
            "group": self.group,
        }

    @property
    def stream_lane(self) -> "StreamLane":
        return StreamLane(self.incarnation, self.topic, self.lane)


class StreamLane(NamedTuple):
    """One lane of one topic, as the producers with one id see it: each knows its own number."""

    incarnation: int
    topic: str
    lane: int


class Control(Protocol):
    """The driver, as seen by a producer, consumer or scan."""

    def finishing(self) -> bool:
        """Whether to send no new messages. True for good once true; implied by `stopping`."""

    def stopping(self) -> bool:
        """Whether to end at once. True for good once true."""

    async def wait_stop(self) -> None:
        """Return once `stopping()` is true."""

    def progress(self, report: Mapping[str, Any]) -> None:
        """Tell how far it is; JSON values. Never waits; an older report may be dropped."""

    async def drained(self, arrivals: Sequence[Arrival]) -> None:
        """Commit a `drained` line for each arrival, and let the producers know."""

    def lanes_drained(self, producer: str) -> frozenset[StreamLane]:
        """The lanes of that producer id that every group has drained, as far as known here."""


class LocalControl:
    """A `Control` inside one process: several producers and consumers may share one."""

    def __init__(
        self,
        *,
        groups: Iterable[str] = (),
        commit: Commit | None = None,
        on_progress: Callable[[Mapping[str, Any]], None] = lambda _report: None,
    ) -> None:
        self._groups = frozenset(groups)
        self._commit = commit
        self._on_progress = on_progress
        self._arrived: dict[str, dict[StreamLane, set[str]]] = {}
        self._finishing = False
        self._stop = asyncio.Event()

    def finish(self) -> None:
        self._finishing = True

    def stop(self) -> None:
        self._finishing = True
        self._stop.set()

    def finishing(self) -> bool:
        return self._finishing

    def stopping(self) -> bool:
        return self._stop.is_set()

    async def wait_stop(self) -> None:
        await self._stop.wait()

    def progress(self, report: Mapping[str, Any]) -> None:
        self._on_progress(report)

    async def drained(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            lanes = self._arrived.setdefault(arrival.producer, {})
            groups = lanes.setdefault(arrival.stream_lane, set())
            if arrival.group in groups:
                continue
            if self._commit is not None:
                await settle(self._commit({"kind": "drained", **arrival.described()}))
            groups.add(arrival.group)

    def lanes_drained(self, producer: str) -> frozenset[StreamLane]:
        lanes = self._arrived.get(producer, {})
        return frozenset(lane for lane, groups in lanes.items() if groups >= self._groups)


async def settle(result: Awaitable[None] | None) -> None:
    """Wait for what a `Commit` returned, if there is anything to wait for."""
    if result is not None:
        await result


async def sleep_unless_stopped(control: Control, seconds: float) -> bool:
    """Sleep, but not beyond a stop. True if it is time to stop."""
    if seconds > 0 and not control.stopping():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(control.wait_stop(), seconds)
    return control.stopping()
