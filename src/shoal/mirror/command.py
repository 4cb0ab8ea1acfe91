"""A mirror from its configuration to its end: `shoal mirror run`, or a mirror host's work.

Rules:
- One command is one process, with one flow or several. It ends on SIGTERM or SIGINT when what
  is in flight has been acknowledged, and, if asked to, when the process that started it is gone.
- A flow that cannot begin, or ends by itself, ends the command if it is the only one. Beside
  others it is tried again.
- Nothing is printed here: whoever wants to see progress hands in `on_status`.
- What went wrong with single partitions stands in the outcome; what makes copying impossible
  is raised.
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
from typing import Final

from shoal.mirror.config import MirrorConfig
from shoal.mirror.control import MirrorControl
from shoal.mirror.copy.intake import Counts
from shoal.mirror.flow import Flow, MakeHands, OnStatus
from shoal.mirror.run.copier import Copier
from shoal.mirror.status import MirrorStatus
from shoal.model.errors import ShoalError
from shoal.runtime.tasks import keep_running, report_unhandled_errors, run_awaited, run_once

PARENT_CHECK_S: Final = 0.5
# Before a flow that could not run is tried again.
RETRY_S: Final = 5.0
# Whoever started this mirror may have taken the clusters along, so what is in flight may never
# be answered; and a mirror that is killed loses nothing.
ORPHAN_GRACE_S: Final = 5.0
ORPHAN_EXIT_CODE: Final = 3

OnFlowStatus = Callable[[str, MirrorStatus], None]  # with the flow's name

NOTHING_COPIED: Final = MirrorStatus(Counts(), {}, -1, ())

_log = logging.getLogger(__name__)


def run_mirrors(
    configs: Sequence[MirrorConfig],
    *,
    on_status: OnFlowStatus | None = None,
    hands: MakeHands = Copier,
) -> list[MirrorStatus]:
    """Mirror until a signal comes; returns how far each flow came."""
    return asyncio.run(_run_in_process(configs, _FlowMaker(on_status, hands)))


@dataclass(frozen=True, slots=True)
class _FlowMaker:
    """Makes the flows of this process, and remembers them for whoever gives orders."""

    on_status: OnFlowStatus | None
    hands: MakeHands
    flows: dict[str, Flow] = field(default_factory=dict)

    def make(self, config: MirrorConfig) -> Flow:
        told = None if self.on_status is None else partial(self.on_status, config.name)
        self.flows[config.name] = Flow(config, told, hands=self.hands)
        return self.flows[config.name]


async def _run_in_process(configs: Sequence[MirrorConfig], maker: _FlowMaker) -> list[MirrorStatus]:
    stop = asyncio.Event()
    report_unhandled_errors(asyncio.get_running_loop())
    with _set_by_signals(stop):
        watching = None
        if any(config.stop_with_parent for config in configs):
            watching = keep_running(
                "parent watch", partial(_set_by_parents_death, stop, os.getppid())
            )
        run = _once if len(configs) == 1 else _again_and_again
        control = MirrorControl([config.name for config in configs], maker.flows)
        await control.start()
        try:
            async with asyncio.TaskGroup() as group:
                works = [group.create_task(run(stop, config, maker)) for config in configs]
            return [each.result() for each in works]
        except* ShoalError as errors:
            raise errors.exceptions[0] from None
        finally:
            await control.stop()
            if watching is not None:
                watching.cancel()


async def _once(stop: asyncio.Event, config: MirrorConfig, maker: _FlowMaker) -> MirrorStatus:
    return await _flow_until(stop.wait, maker.make(config))


async def _again_and_again(
    stop: asyncio.Event, config: MirrorConfig, maker: _FlowMaker
) -> MirrorStatus:
    while True:
        try:
            status = await _once(stop, config, maker)
            if stop.is_set():
                return status
            problem = next(iter(status.parked), None)
        except ShoalError as error:
            if stop.is_set():
                raise
            problem = error
        _log.error(
            "flow %s does not run, others go on: %s (%s)",
            config.name,
            problem,
            problem.remedy if problem else "",
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), RETRY_S)
            return NOTHING_COPIED


async def mirror_until(
    stopped: Callable[[], Awaitable[object]],
    config: MirrorConfig,
    *,
    on_status: OnStatus | None = None,
    hands: MakeHands = Copier,
) -> MirrorStatus:
    """Mirror until `stopped()` returns; for whoever has an event loop."""
    return await _flow_until(stopped, Flow(config, on_status, hands=hands))


async def _flow_until(stopped: Callable[[], Awaitable[object]], flow: Flow) -> MirrorStatus:
    work = run_awaited("mirror flow", flow.run())

    async def stop_when_told() -> None:
        await stopped()
        if flow.copies:
            flow.stop()
        else:
            work.cancel()  # nothing is in flight yet: it is still looking for its clusters

    # A flow that nobody could stop any more is ended.
    stopping = run_once("wait for the stop", stop_when_told(), on_failure=lambda _: work.cancel())
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
def _set_by_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _set_by_parents_death(stop: asyncio.Event, parent: int) -> None:
    # A process whose parent has died is given another one.
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing else tells of it
        await asyncio.sleep(PARENT_CHECK_S)
    _log.warning("the process that started this mirror is gone")
    stop.set()
    last_means = threading.Timer(ORPHAN_GRACE_S, os._exit, (ORPHAN_EXIT_CODE,))
    last_means.daemon = True
    last_means.start()
