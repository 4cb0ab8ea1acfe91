"""The interface between a producer, consumer or scan and the driver that runs it.

Rules:
- `Control` is the whole interface. Workers implement it over the channel to the driver;
  `LocalControl` is for standalone commands and for tests.
- All methods are called from one event loop. Only `commit_drained` and `wait_stop` may wait.
- There are two ways to end early. *Finishing*: send no new messages, then drain as at a normal
  end. *Stopping*: send nothing more, wait a little for outstanding answers, seal, return. Losing
  the driver is stopping.
- Durable lines (`reserve`, `segment`, `foreign`) go through the recorder's `Commit`, not through
  `Control`. Lines of kind `drained` are the exception: the implementation of `Control` writes them,
  because it must notify the producers too.
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

    def to_commit_fields(self) -> dict[str, Any]:
        """The fields of its line of kind `drained` in the commit log."""
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
    """One lane of one topic of a producer id; the incarnation says which producer of that id."""

    incarnation: int
    topic: str
    lane: int


class Control(Protocol):
    """The driver, as seen by a producer, consumer or scan."""

    def is_finishing(self) -> bool:
        """Whether to send no new messages. Stays true; implied by `is_stopping`."""

    def is_stopping(self) -> bool:
        """Whether to end at once. Stays true."""

    async def wait_stop(self) -> None:
        """Return once `is_stopping()` is true."""

    def progress(self, report: Mapping[str, Any]) -> None:
        """Report the progress as JSON values. Never waits; an older report may be dropped."""

    async def commit_drained(self, arrivals: Sequence[Arrival]) -> None:
        """Commit a line of kind `drained` for each arrival, and notify the producers."""

    def lanes_drained(self, producer: str) -> frozenset[StreamLane]:
        """The lanes of that producer id that are known to be drained by every group."""


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

    def is_finishing(self) -> bool:
        return self._finishing

    def is_stopping(self) -> bool:
        return self._stop.is_set()

    async def wait_stop(self) -> None:
        await self._stop.wait()

    def progress(self, report: Mapping[str, Any]) -> None:
        self._on_progress(report)

    async def commit_drained(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            lanes = self._arrived.setdefault(arrival.producer, {})
            groups = lanes.setdefault(arrival.stream_lane, set())
            if arrival.group in groups:
                continue
            if self._commit is not None:
                await await_commit(self._commit({"kind": "drained", **arrival.to_commit_fields()}))
            groups.add(arrival.group)

    def lanes_drained(self, producer: str) -> frozenset[StreamLane]:
        lanes = self._arrived.get(producer, {})
        return frozenset(lane for lane, groups in lanes.items() if groups >= self._groups)


async def await_commit(result: Awaitable[None] | None) -> None:
    """Await the result of a `Commit`, if it is awaitable."""
    if result is not None:
        await result


async def sleep_unless_stopped(control: Control, seconds: float) -> bool:
    """Sleep until the time is over or a stop is requested; True if it is time to stop."""
    if seconds > 0 and not control.is_stopping():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(control.wait_stop(), seconds)
    return control.is_stopping()
