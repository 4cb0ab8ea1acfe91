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
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from shoal.client.backoff import Backoff
from shoal.client.client import Client
from shoal.mirror.appending import COMPARE_AND_APPEND, AppendingMirror
from shoal.mirror.checkpoints import Checkpoint, CheckpointTopic
from shoal.mirror.config import MirrorConfig
from shoal.mirror.core import Counts, PartitionMirror
from shoal.mirror.handlers import load_handler
from shoal.mirror.keeper import CheckpointKeeper
from shoal.mirror.positions import write_positions
from shoal.mirror.resume import Resume, Start
from shoal.mirror.runner import MirrorRunner, MirrorStatus
from shoal.mirror.takeover import TakeOver, choose_delivery
from shoal.mirror.topics import prepare_topics
from shoal.model.errors import LedgerError
from shoal.model.topics import TopicPartition

STATUS_EVERY_S: Final = 1.0
PARENT_CHECK_S: Final = 0.5
# Whoever started this mirror may have taken the clusters along, so what is in flight may never
# be answered; and a mirror that is killed loses nothing.
ORPHAN_GRACE_S: Final = 5.0
ORPHAN_EXIT_CODE: Final = 3

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
    mirroring = _Mirroring(config, on_status)
    work = asyncio.create_task(mirroring.run())

    async def stop_when_told() -> None:
        await stopped()
        if mirroring.runner is None:
            work.cancel()  # nothing is in flight yet: it is still looking for its clusters
        else:
            mirroring.runner.stop()

    stopping = asyncio.create_task(stop_when_told())
    try:
        return await work
    except asyncio.CancelledError:
        if not stopping.done():
            raise
        return MirrorStatus(Counts(), {}, -1, ())
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


class _Mirroring:
    """One mirror's work. It can be stopped in order once there is a `runner`."""

    def __init__(self, config: MirrorConfig, on_status: OnStatus | None) -> None:
        self.runner: MirrorRunner | None = None
        self._config = config
        self._on_status = on_status
        self._handler = None if config.handler is None else load_handler(config.handler)

    async def run(self) -> MirrorStatus:
        config = self._config
        async with Client(config.source) as source, Client(config.target) as target:
            topic = CheckpointTopic(target, config.name)
            found = await topic.read()
            used = {found[tp].delivery for tp in found if tp.topic in config.topics}
            delivery = await choose_delivery(config.delivery, target, used)
            resume = Resume(source, target, found, delivery=delivery)
            partitions = await prepare_topics(source, target, config.topics, resume.check)
            if delivery == COMPARE_AND_APPEND:
                first = await TakeOver(source, target, resume).starts(partitions)
                mirrors = [self._appending(tp, each) for tp, each in first.items()]
            else:
                starts = await resume.starts(partitions)
                first = {tp: start.checkpoint for tp, start in starts.items()}
                mirrors = [self._sequenced(tp, start) for tp, start in starts.items()]
            keeper = CheckpointKeeper(topic, first)
            await keeper.begin()
            _log.info("mirroring %d partitions as %s", len(mirrors), config.name)
            self.runner = MirrorRunner(source, target, mirrors, limits=config.limits)
            keeping = asyncio.create_task(keeper.keep(mirrors))
            try:
                return await self._copy(self.runner)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                await keeper.end(mirrors)

    def _sequenced(self, tp: TopicPartition, start: Start) -> PartitionMirror:
        checkpoint = start.checkpoint
        return PartitionMirror(
            tp,
            checkpoint.identity,
            checkpoint.source_offset,
            Backoff(100, 1000),
            self._handler,
            next_sequence=checkpoint.sequence,
            target_offset=checkpoint.target_offset,
            already_there=start.already_there,
            is_known=start.is_known,
            tail=start.tail,
        )

    def _appending(self, tp: TopicPartition, checkpoint: Checkpoint) -> PartitionMirror:
        return AppendingMirror(
            tp,
            checkpoint.identity,
            checkpoint.source_offset,
            Backoff(100, 1000),
            self._handler,
            target_offset=checkpoint.target_offset,
            mirror_epoch=checkpoint.mirror_epoch,
        )

    async def _copy(self, runner: MirrorRunner) -> MirrorStatus:
        # A place that cannot be written to must show before anything is copied.
        self._report(runner.status(), final=False)
        reporting = asyncio.create_task(self._report_now_and_then(runner))
        in_order = False
        try:
            await runner.run()
            in_order = True
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            status = runner.status()
            self._report(status, final=in_order)
        return status

    async def _report_now_and_then(self, runner: MirrorRunner) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            try:
                self._report(runner.status(), final=False)
            except LedgerError as error:
                _log.warning("%s", error)

    def _report(self, status: MirrorStatus, *, final: bool) -> None:
        if self._config.positions is not None:
            write_positions(self._config.positions, status.positions, status.counts, final=final)
        if self._on_status is not None:
            self._on_status(status)


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
