"""A mirror from its configuration to its end: `shoal mirror run`, or a mirror host's work.

Rules:
- One command is one process. It ends on SIGTERM or SIGINT when what is in flight has been
  acknowledged, and, if asked to, when the process that started it is gone.
- Nothing is printed here: whoever wants to see progress hands in `on_status`.
- What went wrong with single partitions stands in the outcome; what makes copying impossible
  is raised.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from shoal.client.backoff import Backoff
from shoal.client.client import Client
from shoal.mirror.config import MirrorConfig
from shoal.mirror.core import PartitionMirror
from shoal.mirror.handlers import load_handler
from shoal.mirror.positions import write_positions
from shoal.mirror.producers import new_identity
from shoal.mirror.runner import MirrorRunner, MirrorStatus
from shoal.mirror.topics import prepare_topics

STATUS_EVERY_S: Final = 1.0
PARENT_CHECK_S: Final = 0.5

OnStatus = Callable[[MirrorStatus], None]

_log = logging.getLogger(__name__)


def run_mirror(config: MirrorConfig, *, on_status: OnStatus | None = None) -> MirrorStatus:
    """Mirror until a signal comes; returns how far it came."""
    return asyncio.run(_run_in_process(config, on_status))


async def _run_in_process(config: MirrorConfig, on_status: OnStatus | None) -> MirrorStatus:
    stop = asyncio.Event()
    with _set_by_signals(stop):
        watching = None
        if config.stop_with_parent:
            watching = asyncio.create_task(_set_by_parents_death(stop, os.getppid()))
        try:
            return await mirror_until(stop.wait, config, on_status=on_status)
        finally:
            if watching is not None:
                watching.cancel()


async def mirror_until(
    stopped: Callable[[], Awaitable[object]],
    config: MirrorConfig,
    *,
    on_status: OnStatus | None = None,
) -> MirrorStatus:
    """Mirror until `stopped()` returns; for whoever has an event loop."""
    handler = None if config.handler is None else load_handler(config.handler)
    async with Client(config.source) as source, Client(config.target) as target:
        starts = await prepare_topics(source, target, config.topics)
        identity = await new_identity(target)
        runner = MirrorRunner(
            source,
            target,
            [
                PartitionMirror(tp, identity, offset, Backoff(100, 1000), handler)
                for tp, offset in starts.items()
            ],
            limits=config.limits,
        )
        _log.info("mirroring %d partitions as producer %d", len(starts), identity.producer_id)
        return await _run(runner, stopped, config, on_status)


async def _run(
    runner: MirrorRunner,
    stopped: Callable[[], Awaitable[object]],
    config: MirrorConfig,
    on_status: OnStatus | None,
) -> MirrorStatus:
    async def stop_when_told() -> None:
        await stopped()
        runner.stop()

    async def report_now_and_then() -> None:
        while True:
            _report(runner.status(), config, on_status, final=False)
            await asyncio.sleep(STATUS_EVERY_S)

    helpers = [asyncio.create_task(stop_when_told()), asyncio.create_task(report_now_and_then())]
    in_order = False
    try:
        await runner.run()
        in_order = True
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        status = runner.status()
        _report(status, config, on_status, final=in_order)
    return status


def _report(
    status: MirrorStatus, config: MirrorConfig, on_status: OnStatus | None, *, final: bool
) -> None:
    if config.positions is not None:
        write_positions(config.positions, status.positions, status.counts, final=final)
    if on_status is not None:
        on_status(status)


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
