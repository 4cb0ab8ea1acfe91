"""Runs the flows of a mirror, from configuration to end: `shoal mirror run`, or a mirror worker.

Rules:
- One command is one process with one or several flows. On SIGTERM or SIGINT it ends once the
  batches in flight are acknowledged. With `stop_with_parent` it also ends when its parent ends.
- A single flow that cannot start, or that ends, ends the command. With several flows, the one
  that fails is retried.
- This module prints nothing: callers pass `on_status` to show progress.
- What each flow does is written as events, if a folder is given for them.
- Problems of single partitions are part of the returned status; errors that make copying
  impossible are raised.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from shoal.mirror.config import MirrorConfig
from shoal.mirror.control import MirrorControl
from shoal.mirror.copy.intake import Counts
from shoal.mirror.events import MirrorEvents
from shoal.mirror.flow import Flow, MakeCopyBackend, OnStatus
from shoal.mirror.metrics import mirror_port
from shoal.mirror.run.copier import Copier
from shoal.mirror.status import MirrorStatus
from shoal.model.errors import ShoalError
from shoal.runtime.tasks import keep_running, report_unhandled_errors, run_awaited, run_once
from shoal.telemetry.http_port import EndpointSpec

PARENT_CHECK_S: Final = 0.5
# Delay before a failed flow is retried.
RETRY_S: Final = 5.0
# The dead parent may have stopped the clusters too, so requests in flight may never be answered.
# Killing the process is safe: a mirror that is killed loses nothing.
ORPHAN_GRACE_S: Final = 5.0
ORPHAN_EXIT_CODE: Final = 3

OnFlowStatus = Callable[[str, MirrorStatus], None]  # with the flow's name
EventsFolder = Callable[[str], Path]  # of the flow with this name

NOTHING_COPIED: Final = MirrorStatus(Counts(), {}, -1, ())

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsEndpoint:
    """Where metrics are served; `on_ready` is called with the port."""

    spec: EndpointSpec
    on_ready: Callable[[int], None] = lambda _port: None


def run_mirrors(
    configs: Sequence[MirrorConfig],
    *,
    on_status: OnFlowStatus | None = None,
    make_backend: MakeCopyBackend = Copier,
    metrics: MetricsEndpoint | None = None,
    events_folder: EventsFolder | None = None,
) -> list[MirrorStatus]:
    """Mirror until a signal arrives; returns the final status of each flow."""
    maker = _FlowMaker(on_status, make_backend)
    if events_folder is not None:
        for config in configs:
            maker.events[config.name] = MirrorEvents(config, events_folder(config.name))
    try:
        statuses = asyncio.run(_run_in_process(configs, maker, metrics))
    except BaseException as error:
        maker.close_events("failed", str(error) or repr(error))
        raise
    maker.close_events("finished")
    return statuses


@dataclass(frozen=True, slots=True)
class _FlowMaker:
    """Creates the flows of this process and keeps them for `MirrorControl`."""

    on_status: OnFlowStatus | None
    make_backend: MakeCopyBackend
    flows: dict[str, Flow] = field(default_factory=dict)
    events: dict[str, MirrorEvents] = field(default_factory=dict)

    def make(self, config: MirrorConfig) -> Flow:
        on_status = partial(self._on_status, config.name)
        self.flows[config.name] = Flow(config, on_status, make_backend=self.make_backend)
        return self.flows[config.name]

    def _on_status(self, name: str, status: MirrorStatus) -> None:
        if name in self.events:
            self.events[name].on_status(status)
        if self.on_status is not None:
            self.on_status(name, status)

    def close_events(self, outcome: Literal["finished", "failed"], text: str = "") -> None:
        for each in self.events.values():
            each.close(outcome, text)


async def _run_in_process(
    configs: Sequence[MirrorConfig], maker: _FlowMaker, metrics: MetricsEndpoint | None = None
) -> list[MirrorStatus]:
    stop = asyncio.Event()
    report_unhandled_errors(asyncio.get_running_loop())
    with stop_on_signals(stop):
        watching = None
        if any(config.stop_with_parent for config in configs):
            watching = keep_running(
                "parent watch", partial(_stop_when_parent_dies, stop, os.getppid())
            )
        run = _run_flow if len(configs) == 1 else _run_with_retry
        names = [config.name for config in configs]
        control = MirrorControl(names, maker.flows)
        port = None if metrics is None else mirror_port(metrics.spec, names, maker.flows)
        await control.start()
        try:
            if metrics is not None and port is not None:
                metrics.on_ready(await port.start())
            async with asyncio.TaskGroup() as group:
                works = [group.create_task(run(stop, config, maker)) for config in configs]
            return [each.result() for each in works]
        except* ShoalError as errors:
            raise errors.exceptions[0] from None
        finally:
            await control.stop()
            if port is not None:
                await port.close()
            if watching is not None:
                watching.cancel()


async def _run_flow(stop: asyncio.Event, config: MirrorConfig, maker: _FlowMaker) -> MirrorStatus:
    return await _flow_until(stop.wait, maker.make(config))


async def _run_with_retry(
    stop: asyncio.Event, config: MirrorConfig, maker: _FlowMaker
) -> MirrorStatus:
    while True:
        try:
            status = await _run_flow(stop, config, maker)
            if stop.is_set():
                return status
            problem = next(iter(status.parked), None)
        except ShoalError as error:
            if stop.is_set():
                raise
            problem = error
        _log.error(
            "flow %s failed and is retried; other flows continue: %s",
            config.name,
            problem or "",
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), RETRY_S)
            return NOTHING_COPIED


async def mirror_until(
    stopped: Callable[[], Awaitable[object]],
    config: MirrorConfig,
    *,
    on_status: OnStatus | None = None,
    make_backend: MakeCopyBackend = Copier,
) -> MirrorStatus:
    """Mirror until `stopped()` returns; for callers that have an event loop already."""
    return await _flow_until(stopped, Flow(config, on_status, make_backend=make_backend))


async def _flow_until(stopped: Callable[[], Awaitable[object]], flow: Flow) -> MirrorStatus:
    work = run_awaited("mirror flow", flow.run())

    async def stop_on_request() -> None:
        await stopped()
        if flow.is_copying:
            flow.stop()
        else:
            work.cancel()  # nothing is in flight: the flow is still connecting

    # Without this task nothing could stop the flow, so its failure cancels the flow.
    stopping = run_once("wait for the stop", stop_on_request(), on_failure=lambda _: work.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if not stopping.done():
            raise
        return NOTHING_COPIED
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop` instead of ending the process."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _stop_when_parent_dies(stop: asyncio.Event, parent: int) -> None:
    # When the parent dies, the operating system assigns another parent.
    while os.getppid() == parent:  # noqa: ASYNC110 - the only portable way to notice
        await asyncio.sleep(PARENT_CHECK_S)
    _log.warning("the parent process of this mirror ended; stopping")
    stop.set()
    kill_timer = threading.Timer(ORPHAN_GRACE_S, os._exit, (ORPHAN_EXIT_CODE,))
    kill_timer.daemon = True
    kill_timer.start()
