"""The transactional ids of one process: partitions of a stuck id continue with another id.

    id 0:  A  B  C          B loses its leader: the transaction cannot end, and no other can begin
    id 0:  B                waits for B's leader, and continues
    id 1:  A  C             continue once the outcome of id 0's transaction is known there

Rules:
- A transaction that has begun cannot be rescued: commit and abort both need the marker of every
  partition. So a partition without a leader is left out before a transaction begins, and a
  partition that loses its leader inside a transaction keeps the id busy.
- The other partitions move when no transaction is open in them: what id 0 wrote there is then
  committed or aborted for good, and their positions are read after that. The other id claims them
  as a later process would (`shoal.mirror.run.transaction_session`).
- A partition stays with its new id. Ids that are free again are used before new ones are created.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from shoal.mirror.copy.delivery.transactional import TransactionalMirror
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route
from shoal.mirror.run.transaction_session import TransactionStuck, TransactionWriter
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited

MAX_TRANSACTIONAL_IDS: Final = 16
_LOOK_EVERY_S: Final = 0.5

_log = logging.getLogger(__name__)


class TransactionWriters:
    """Writes the batches of transactional partitions, with as many ids as needed."""

    def __init__(self, make_writer: Callable[[int], TransactionWriter]) -> None:
        """`make_writer` creates the writer with a number; number 0 always exists."""
        self._make_writer = make_writer
        self._writers: list[TransactionWriter] = []
        self._works: dict[int, asyncio.Task[None]] = {}
        self._is_running = False
        self._begun: dict[TopicPartition, TransactionWriter] = {}
        self.on_progress: Callable[[], None] = lambda: None
        self._add()

    def _add(self) -> TransactionWriter:
        number = len(self._writers)
        writer = self._make_writer(number)
        writer.on_progress = self._report_progress
        writer.on_stuck = self._move_healthy
        self._writers.append(writer)
        if self._is_running:
            self._run(number)
        return writer

    def _report_progress(self) -> None:
        self.on_progress()

    # Adding and releasing partitions.

    async def abort_open(self, routes: Iterable[Route], workers: Iterable[int]) -> None:
        """Abort open transactions of earlier writers; see `TransactionWriter.abort_open`."""
        await self._writers[0].abort_open(routes, workers)

    async def begin(self, routes: Iterable[Route]) -> dict[Route, Checkpoint]:
        """Take partitions over; returns where each starts or resumes."""
        return await self._begin(list(routes), avoid=None)

    async def _begin(
        self, routes: list[Route], avoid: TransactionWriter | None
    ) -> dict[Route, Checkpoint]:
        for number in range(MAX_TRANSACTIONAL_IDS):
            writer = self._writers[number] if number < len(self._writers) else self._add()
            if writer is avoid or writer.is_stuck:
                continue
            try:
                claimed = await writer.begin(routes)
            except TransactionStuck as stuck:
                _log.warning("%s", stuck)
                continue
            self._begun.update((route.target, writer) for route in routes)
            return claimed
        raise ConfigError(
            f"all {MAX_TRANSACTIONAL_IDS} transactional ids of this mirror wait for partitions "
            "without a leader",
            remedy="restart the brokers of the target that are down",
        )

    def follow(self, mirrors: Iterable[TransactionalMirror]) -> None:
        """Write the batches of these partitions, which `begin` took over."""
        for mirror in mirrors:
            self._begun.pop(mirror.target).follow([mirror])

    def release(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Stop writing these, which have nothing in flight: another process may resume them."""
        gone = list(mirrors)
        for writer in self._writers:
            writer.release(gone)

    async def drop(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Stop writing these: their target topic was recreated. Waits for open transactions."""
        gone = list(mirrors)
        for writer in self._writers:
            await writer.drop(gone)

    async def restore(self) -> set[TopicPartition]:
        """Write all positions again, to a recreated checkpoint topic."""
        restored: set[TopicPartition] = set()
        for writer in self._writers:
            restored |= await writer.restore()
        return restored

    async def _move_healthy(
        self, writer: TransactionWriter, healthy: list[TransactionalMirror]
    ) -> None:
        """Move available partitions of a stuck id to another id."""
        routes = [Route(mirror.partition, mirror.target) for mirror in healthy]
        claimed = await self._begin(routes, avoid=writer)
        writer.release(healthy)
        for route, mirror in zip(routes, healthy, strict=True):
            mirror.delivery.rewind(claimed[route].source_offset, claimed[route].target_offset)
        self.follow(healthy)
        names = ", ".join(str(mirror.target) for mirror in healthy)
        _log.warning("%s is stuck: %s continue with another transactional.id", writer.id, names)
        self.on_progress()

    # Copying.

    def wake(self) -> None:
        """Check for batches to send."""
        for writer in self._writers:
            writer.wake()

    def stop(self) -> None:
        """Stop when the open transactions have ended."""
        for writer in self._writers:
            writer.stop()

    async def run(self) -> None:
        """Write until `stop`."""
        self._is_running = True
        for number in range(len(self._writers)):
            self._run(number)
        try:
            while unfinished := [work for work in self._works.values() if not work.done()]:
                # With a timeout: a writer may be added in the meantime.
                await asyncio.wait(
                    unfinished, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                for work in self._works.values():
                    if work.done():
                        work.result()
        finally:
            self._is_running = False
            for work in self._works.values():
                work.cancel()
            await asyncio.gather(*self._works.values(), return_exceptions=True)

    def _run(self, number: int) -> None:
        self._works[number] = run_awaited("mirror transactions", self._writers[number].run())
