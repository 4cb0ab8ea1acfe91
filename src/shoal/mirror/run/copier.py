"""Copies the assigned partitions in this process: starts, checkpoints, the runner.

Rules:
- `assign` sets the partitions to copy. New ones start where the target's state says
  (`shoal.mirror.run.start`). Removed ones are released when nothing of them is in flight and a last
  checkpoint is written.
- Checkpoints are read again before partitions start, because another process may have copied them.
- A target partition is claimed by a checkpoint before the first record is written to it.
- A partition that cannot start waits or is refused, with the reason in the status; the others start
  (`shoal.mirror.watch.starts`).
- A partition whose topic was recreated, at the source or at the target, is released and started
  again: every `assign` compares topic ids, and the event `changed` requests one immediately.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import ClientError
from shoal.client.results import LATEST
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorConfig
from shoal.mirror.copy.delivery.names import TRANSACTIONAL
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.routes import Route
from shoal.mirror.run.latencies import MirrorLatencies
from shoal.mirror.run.runner import MirrorRunner
from shoal.mirror.run.start import PartitionStarter
from shoal.mirror.status import MirrorStatus, status_of_not_started
from shoal.mirror.watch.readiness import PROBE_S, probe_routes
from shoal.mirror.watch.starts import RouteStarts
from shoal.model.errors import ShoalError, SystemFailure
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import keep_running, run_once

# How long nothing must be appended to the target before a partition resumes that another process
# with this mirror's name has overtaken.
QUIET_S: Final = 3.0

_log = logging.getLogger(__name__)


class Copier:
    """Copies partitions of one mirror. Create and use it in one event loop."""

    def __init__(
        self, source: Client, target: Client, config: MirrorConfig, *, is_of_team: bool = False
    ) -> None:
        """With `is_of_team` it continues when all its partitions are parked: it may get others."""
        self._source = source
        self._target = target
        self._config = config
        self._starter = PartitionStarter(source, target, config)
        self._checkpointer = self._starter.checkpointer
        self._runner = MirrorRunner(
            source,
            target,
            self._starter.transaction_writers,
            limits=config.limits,
            throttle=self._starter.throttle,
            topic_throttles=self._starter.topic_throttles,
            fails_on_loss=config.copy.on_loss == "fail",
            ends_when_parked=not is_of_team,
            is_waiting=lambda: bool(self._starts.waiting.errors or self._resuming),
        )
        self.changed = asyncio.Event()
        self._runner.on_topic_changed = self.changed.set
        self._runner.set_on_moved(self._checkpointer.note)
        self._routes: dict[Route, PartitionMirror] = {}
        self._assigning = asyncio.Lock()
        self._starts = RouteStarts(
            partial(probe_routes, source, target),
            self._begin,
            is_running=self._routes.__contains__,
        )
        self._is_first = True
        self._resuming: dict[Route, ShoalError] = {}  # released, to resume
        # Log ends of the source that a partition knew when it was released to resume: a fetch
        # session reports them again only when they change.
        self._known_ends: dict[Route, tuple[int, int]] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._runner.watch.on_diverged = self._on_diverged
        # Lost with source topics that were deleted: counted for the next generation too.
        self._lost: dict[Route, int] = {}
        # Of recreated target topics: below these offsets all records are from this process.
        self._own_ends: dict[TopicPartition, int] = {}

    @property
    def latencies(self) -> MirrorLatencies | None:
        """How long the copies of this process took."""
        return self._runner.latencies

    @property
    def routes(self) -> list[Route]:
        """The routes that are copied or wait to start."""
        return [*self._routes, *self._starts.waiting.errors]

    @property
    def refused(self) -> dict[str, ShoalError]:
        """Why partitions are refused; the first reason of each source topic."""
        found: dict[str, ShoalError] = {}
        for route, error in self._starts.refused.items():
            found.setdefault(route.source.topic, error)
        return found

    async def prepare(self) -> None:
        """Read the state of earlier starts."""
        await self._starter.load_state()

    async def check(self, routes: list[Route]) -> bool:
        """Raise if this mirror must not write to a target partition; whether it wrote to any."""
        own_ends = {**self._own_ends, **self._find_own_ends(self._routes)}
        return await self._starter.check(routes, own_ends)

    async def assign(self, routes: Iterable[Route]) -> None:
        """Copy these routes and no others."""
        wanted = set(routes)
        async with self._assigning:
            await self._starts.keep_only(wanted)
            gone = [route for route in self._routes if route not in wanted]
            deleted = [route for route in gone if self._is_source_deleted(route)]
            await self._release([route for route in gone if route not in deleted])
            await self._release(deleted, is_source_deleted=True)
            await self._release_changed()
            new = [r for r in sorted(wanted) if r not in self._routes]
            await self._starts.start(new, has_others=bool(self._routes))
            if self._is_first:
                # Routes that wait existed at the start, so the configured start applies to them.
                self._starter.keep_start([r for r in new if r not in self._routes])
            self._is_first = False
            # Partitions created from now on are copied from their first record.
            self._starter.begin_new_at("earliest")

    async def compare_ids(self) -> None:
        """Refresh topic ids: without traffic, a recreated topic would not be noticed."""
        await self._source.metadata({route.source.topic for route in self._routes}, refresh=True)
        await self._target.metadata({route.target.topic for route in self._routes}, refresh=True)

    async def run(self) -> None:
        """Copy until `stop`, or until everything is parked."""
        works = [
            keep_running("mirror checkpoints", self._checkpointer.keep),
            keep_running("mirror checkpoint topic", self._starter.loss.watch),
            keep_running("mirror waiting partitions", self._starts.retry),
        ]
        try:
            await self._runner.run()
        finally:
            works += self._restarts
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await self._starts.close()
            await self._checkpointer.end()

    def stop(self) -> None:
        """Send nothing new; `run` ends when all requests are answered."""
        self._runner.stop()

    def limit_rate(self, max_bytes_per_s: float, by_topic: Mapping[str, float]) -> None:
        """Set the send rate limits of the mirror and of topics; 0 for no limit."""
        self._starter.throttle.max_bytes_per_s = max_bytes_per_s
        for topic, limit in by_topic.items():
            self._starter.topic_throttles[topic].max_bytes_per_s = limit

    def pause(self) -> None:
        """Fetch nothing until `resume`."""
        self._runner.pause()

    def resume(self) -> None:
        self._runner.resume()

    async def refresh_log_ends(self) -> None:
        """Read the log ends of the source, for an accurate lag."""
        await self._runner.refresh_log_ends()

    def status(self) -> MirrorStatus:
        status = replace(
            self._runner.status(),
            deliveries=self._starter.deliveries,
            notices=tuple(self._starter.loss.notices),
        )
        others = {**self._starts.not_running, **self._resuming}
        if not others:
            return status
        return replace(
            status,
            lag=-1,
            partitions=(
                *(each for each in status.partitions if each.route not in others),
                *(status_of_not_started(route, error) for route, error in sorted(others.items())),
            ),
        )

    async def _begin(self, routes: Sequence[Route]) -> None:
        await self._source.metadata({route.source.topic for route in routes})
        await self._target.metadata({route.target.topic for route in routes})
        # Another process may have copied some of them in the meantime.
        await self._starter.load_state(routes)
        own = {r.target: self._own_ends[r.target] for r in routes if r.target in self._own_ends}
        begun = await self._starter.begin(routes, own)
        for tp in own:
            del self._own_ends[tp]
        for route, mirror in begun.items():
            mirror.on_resume_needed = self._on_resume_needed
            ends = self._known_ends.pop(route, (-1, -1))
            mirror.last_stable_offset, mirror.high_watermark = ends
            mirror.counts.lost = max(mirror.counts.lost, self._lost.pop(route, 0))
        self._routes.update(begun)
        _log.info("mirroring %d partitions as %s", len(self._routes), self._config.name)
        self._runner.add(begun.values())

    def _on_diverged(self, mirror: PartitionMirror, offset: int) -> None:
        """Restart a partition: from `offset` on, the source has other records than were fetched.

        Batches in flight are answered first. Then the start compares the target with the source
        and continues where the two logs diverge.
        """
        self._resume_later(
            mirror,
            SystemFailure(
                f"{mirror.partition}: from offset {offset} on, the source has other records than "
                f"were fetched up to {mirror.position}; copying continues when all requests in "
                "flight are answered",
                remedy="check that the brokers of the target answer",
            ),
        )

    def _on_resume_needed(self, mirror: PartitionMirror) -> None:
        """Restart a partition: another process has written to it, or its delivery changes."""
        level = logging.INFO if mirror.delivery.name == TRANSACTIONAL else logging.ERROR
        remedy = "wait; if it does not resume, run only one mirror with this name"
        when = ""
        if mirror.is_overtaken:
            when = f" when nothing has been written to it for {QUIET_S:.0f} s"
            remedy = "run only one mirror with this name: this one resumes when the other has ended"
        self._resume_later(
            mirror,
            SystemFailure(
                f"{mirror.partition}: {mirror.resume_reason}; copying resumes behind what the "
                f"target has{when}",
                remedy=remedy,
            ),
            level,
        )

    def _resume_later(
        self, mirror: PartitionMirror, error: ShoalError, level: int = logging.ERROR
    ) -> None:
        """Release a partition, and start it again; `error` says why, until it runs."""
        route = Route(mirror.partition, mirror.target)
        if route in self._resuming or route not in self._routes:
            return
        error.retriable = True
        _log.log(level, "%s", error)
        self._resuming[route] = error
        task = run_once(
            "mirror resume", self._release_to_resume(route, error), on_failure=self._runner.fail
        )
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _release_to_resume(self, route: Route, error: ShoalError) -> None:
        mirrors = await self._runner.release([route.source])
        if any(mirror.parked for mirror in mirrors):
            self._resuming.pop(route, None)
            self._runner.add(mirrors)
            return
        backoff = Backoff(100, 5000)
        overtaken = [mirror for mirror in mirrors if mirror.is_overtaken]
        # The checkpoint of the process that is ahead stays.
        self._checkpointer.forget(overtaken)
        while overtaken and self._routes.get(route) in mirrors:
            if await self._is_quiet(route.target):
                break
        while self._routes.get(route) in mirrors:
            try:
                # An older checkpoint would not cover all records at the target.
                await self._checkpointer.release(mirrors, must_write=True)
                self._starter.transaction_writers.release(mirrors)
                del self._routes[route]
                for mirror in mirrors:
                    self._known_ends[route] = mirror.last_stable_offset, mirror.high_watermark
                self._starts.waiting.put(route, error, asyncio.get_running_loop().time())
            except ClientError as failure:
                _log.warning("%s waits until its checkpoint is written: %s", route.source, failure)
                await asyncio.sleep(backoff.next_wait_s())
        self._resuming.pop(route, None)

    async def _is_quiet(self, tp: TopicPartition) -> bool:
        """Whether nothing is appended to a target partition for `QUIET_S`.

        If another process appends again later, the target takes each sequence only once.
        """
        ends: set[int] = set()
        for pause_s in (QUIET_S, 0.0):
            listed = await self._target.list_offsets_or_errors({tp: LATEST}, timeout_s=PROBE_S)
            ends.add(listed.offsets[tp].offset if tp in listed.offsets else -1 - len(ends))
            await asyncio.sleep(pause_s)
        return len(ends) == 1

    async def _release_changed(self) -> None:
        """Release partitions whose source or target topic was recreated."""
        routes = self._routes
        void = [r for r, mirror in routes.items() if self._runner.has_other_target(mirror)]
        if void:
            mirrors = [routes[route] for route in void]
            await self._starter.transaction_writers.drop(mirrors)
            # A last checkpoint would describe a topic that is gone.
            self._checkpointer.forget(mirrors)
            patience_s = self._config.limits.stop_s
            await self._runner.release([r.source for r in void], patience_s=patience_s)
        self._own_ends.update(self._find_own_ends(void))
        for route in void:
            routes.pop(route, None)
        former = [r for r, mirror in routes.items() if self._runner.has_other_source(mirror)]
        await self._release(former, is_source_deleted=True)

    def _is_source_deleted(self, route: Route) -> bool:
        known = self._source.cluster.topics.get(route.source.topic)
        return known is None or known.error == Code.UNKNOWN_TOPIC_OR_PARTITION

    def _find_own_ends(self, routes: Iterable[Route]) -> dict[TopicPartition, int]:
        """Find below which offsets all records of recreated target topics are from this process."""
        mirrors = [self._routes[route] for route in routes if route in self._routes]
        return {each.target: each.own_end for each in mirrors if each.own_end is not None}

    async def _release(self, routes: list[Route], *, is_source_deleted: bool = False) -> None:
        """Stop copying these; what was fetched of topics that are gone is delivered first."""
        if not routes:
            return
        mirrors = await self._runner.release(
            [route.source for route in routes],
            sends_rest=is_source_deleted,
            patience_s=self._config.limits.stop_s if is_source_deleted else None,
        )
        if is_source_deleted:
            self._count_lost(mirrors)
        with contextlib.suppress(TimeoutError):
            await self._checkpointer.release(mirrors)
        self._starter.transaction_writers.release(mirrors)
        self._own_ends.update(self._find_own_ends(routes))
        for route in routes:
            self._routes.pop(route, None)

    def _count_lost(self, mirrors: Iterable[PartitionMirror]) -> None:
        """Report what was not copied of source topics that are gone."""
        for mirror in mirrors:
            try:
                mirror.on_source_deleted()
            except ShoalError as error:
                self._runner.fail(error)
            if mirror.counts.lost:
                self._lost[Route(mirror.partition, mirror.target)] = mirror.counts.lost
