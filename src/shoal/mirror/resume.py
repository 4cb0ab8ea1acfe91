"""Where the idempotent mode goes on, by the truth on the target.

A checkpoint gives a point (source offset, sequence, target offset). What was written since is
the difference between the target's end and that point: only this mirror writes there, and each
record takes one offset and one sequence. `shoal.mirror.core` walks the source from the point on,
passes over as many records, and goes on with the **same** producer id, epoch and sequences.

Rules:
- The end that counts is the committed one, and only once it agrees with the last sequence that
  the leader has of our producer: before that, what is written last may still be lost.
- A leader that knows nothing of our producer (its memory ends a day after the timestamps of
  the records) leaves only the end to go by; it is looked at twice, and this is said.
- The last batch at the target must be the one that the source has there (checked by the core).
- Where the source has other records than were copied (an unclean election), the copy continues
  from there behind what the target has; the former records stay, counted (`truncated`).
- A target that is not empty and not this mirror's is refused, as is one that lost what it had
  or to which somebody else wrote.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.delivery import Identity
from shoal.client.errors import error_for
from shoal.client.results import EARLIEST, LATEST
from shoal.client.sessions import new_identity
from shoal.mirror.beginning import start_offsets
from shoal.mirror.checkpoints import Checkpoint, Checkpoints
from shoal.mirror.modes import IDEMPOTENT, may_go_on
from shoal.mirror.producers import last_sequence_of
from shoal.mirror.routes import Route
from shoal.mirror.watch.divergence import cut_epochs
from shoal.mirror.watch.readiness import PROBE_S, unavailable
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, iter_batches, sequence_after

# How long an end and a last sequence may differ, which they do until all is replicated.
SETTLE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.2
# Between two looks at an end that nothing confirms.
_SECOND_LOOK_S: Final = 2.0

_log = logging.getLogger(__name__)


class Divergence(NamedTuple):
    """The source offset from which on a leader has other records than were copied."""

    offset: int
    records: int  # at the target, from there on, as far as the checkpoint goes


@dataclass(frozen=True, slots=True)
class Start:
    """Where one partition begins or goes on."""

    checkpoint: Checkpoint
    already_there: int = 0  # records behind the checkpoint that the target has
    is_known: bool = False  # whether the target's leader remembers our producer
    tail: Batch | None = None  # the last of what is already there, as the target stores it


class Resume:
    """Finds the starts of a mirror's partitions."""

    def __init__(
        self,
        source: Client,
        target: Client,
        found: Checkpoints,
        *,
        delivery: str = IDEMPOTENT,
        start: str = "earliest",
    ) -> None:
        """`delivery` is the one that is wanted; `start` is for partitions that begin."""
        self._source = source
        self._target = target
        self._found = found
        self._delivery = delivery
        self._start = start
        self._created_ms = time.time_ns() // 1_000_000
        # Partitions that were there from the beginning and could not start yet.
        self._kept_starts: dict[TopicPartition, str] = {}
        # By target partition: where the source's log parts from what was copied of it.
        self.diverged: dict[TopicPartition, Divergence] = {}
        # Of topics of the source that are copies themselves: see `shoal.mirror.watching`.
        self.ways: dict[str, set[str]] = {}

    def update(self, found: Checkpoints) -> None:
        """Go by these checkpoints from now on."""
        self._found = found

    def begin_new_at(self, start: str) -> None:
        """Where partitions begin that are found from now on."""
        self._start = start

    def keep_start(self, routes: Iterable[Route]) -> None:
        """Let these begin where this mirror was told to, though others begin elsewhere by then.

        For `latest` that is the time at which the mirror started: what is written before such a
        partition can be looked at must be copied.
        """
        start = str(self._created_ms) if self._start == "latest" else self._start
        self._kept_starts.update((route.source, start) for route in routes)

    async def check(self, routes: Iterable[Route], *, needs_all: bool = False) -> None:
        """Refuse partitions of the target, which are there, that are not ours to write to.

        One that does not answer is not checked for records, unless all must be.
        """
        wanted = {route.target: route for route in routes}
        ask = partial(self._target.list_offsets_each, timeout_s=PROBE_S)
        starts = await ask(dict.fromkeys(wanted, EARLIEST))
        ends = await ask(dict.fromkeys(starts.offsets, LATEST))
        for tp, error in (starts.errors | ends.errors).items():
            if needs_all:
                raise unavailable("target", str(tp), error)
        for tp, route in wanted.items():
            is_known = tp in ends.offsets
            first = starts.offsets[tp].offset if is_known else 0
            self._check(route, first, ends.offsets[tp].offset if is_known else 0)

    def _check(self, route: Route, first: int, end: int) -> None:
        checkpoint, tp = self.found(route), route.target
        if checkpoint is None:
            if end > first:
                raise ConfigError(
                    f"the target's partition {tp} is not empty: it holds {end - first} offsets, "
                    "and this mirror did not write them",
                    remedy="delete or rename the target's topic, "
                    "or give the --name under which it was mirrored",
                )
            return
        if checkpoint.source_cluster != self._source.cluster.cluster_id:
            raise ConfigError(
                f"the target's partition {tp} was mirrored from another cluster, "
                f"{checkpoint.source_cluster}",
                remedy="mirror into another topic, or under another --name",
            )
        if (checkpoint.source_topic or tp.topic) != route.source.topic:
            raise ConfigError(
                f"the target's partition {tp} was mirrored from another topic, "
                f"{checkpoint.source_topic or tp.topic}",
                remedy="let each topic of the source have a topic of its own at the target",
            )
        if checkpoint.source_topic_id != topic_id(self._source, route.source.topic):
            raise ConfigError(
                f"the source topic {route.source.topic} was deleted and made again "
                "since it was mirrored",
                remedy="delete the target's topic, or mirror into another cluster",
            )
        if not may_go_on(self._delivery, checkpoint.delivery):
            raise ConfigError(
                f"the target's partition {tp} was mirrored by {checkpoint.delivery}",
                remedy=f"go on with --delivery {checkpoint.delivery}",
            )

    async def starts(self, routes: Iterable[Route]) -> dict[Route, Start]:
        """Where each partition begins or goes on."""
        old: dict[Route, Checkpoint] = {}
        new: list[Route] = []
        for route in routes:
            checkpoint = self.found(route)
            if checkpoint is not None:
                old[route] = checkpoint
            else:
                new.append(route)
        resumed = await asyncio.gather(*(self._resumed(r.target, old[r]) for r in old))
        return dict(zip(old, resumed, strict=True)) | await self._fresh(new)

    async def _fresh(self, routes: list[Route]) -> dict[Route, Start]:
        if not routes:
            return {}
        identity = await new_identity(self._target)
        known = await self.known(routes)
        return {
            route: Start(
                replace(one, producer_id=identity.producer_id, producer_epoch=identity.epoch)
            )
            for route, one in known.items()
        }

    async def known(self, routes: Iterable[Route]) -> dict[Route, Checkpoint]:
        """The checkpoint of each partition; for those that begin, one of where they begin."""
        found = {route: self.found(route) for route in routes}
        new = [route for route, checkpoint in found.items() if checkpoint is None]
        first: dict[TopicPartition, int] = {}
        for start in {self._start_of(r) for r in new}:
            some = [r.source for r in new if self._start_of(r) == start]
            first |= await start_offsets(self._source, some, start)
        ends = await self._target.list_offsets({r.target: LATEST for r in new}) if new else {}
        return {
            r: self._rewound(r.target, checkpoint)
            if checkpoint is not None
            else self._new_checkpoint(r, first[r.source], ends[r.target].offset)
            for r, checkpoint in found.items()
        }

    def _rewound(self, tp: TopicPartition, checkpoint: Checkpoint, written: int = 0) -> Checkpoint:
        """Where the copy continues: behind what the target has, with what the source has now.

        `written` counts records at the target that are not in the checkpoint yet.
        """
        divergence = self.diverged.get(tp)
        if divergence is None:
            return checkpoint
        offset, truncated = divergence.offset, divergence.records + written
        epochs = cut_epochs(checkpoint.source_epochs, offset)
        _log.error(
            "TRUNCATED: %s: the source lost the records from offset %d on after %d of them were "
            "copied; they stay at the target, and the copy continues with what the source has now",
            tp,
            offset,
            truncated,
        )
        return replace(
            checkpoint,
            source_offset=offset,
            target_offset=checkpoint.target_offset + written,
            sequence=sequence_after(checkpoint.sequence, written),
            source_epochs=tuple((each.epoch, each.offset) for each in epochs),
            source_epoch=epochs[-1].epoch if epochs else -1,
            truncated=checkpoint.truncated + truncated,
        )

    def _start_of(self, route: Route) -> str:
        return self._kept_starts.get(route.source, self._start)

    def found(self, route: Route) -> Checkpoint | None:
        """The checkpoint of a target partition that is still the same."""
        checkpoint = self._found.get(route.target)
        is_same = checkpoint and self._is_same_target(route.target, checkpoint)
        return checkpoint if is_same else None

    def _new_checkpoint(self, route: Route, source_offset: int, target_offset: int) -> Checkpoint:
        source_topic, target_topic = route.source.topic, route.target.topic
        return Checkpoint(
            source_cluster=self._source.cluster.cluster_id,
            source_topic_id=topic_id(self._source, source_topic),
            target_topic_id=topic_id(self._target, target_topic),
            delivery=self._delivery,
            source_offset=source_offset,
            target_offset=target_offset,
            source_topic=None if source_topic == target_topic else source_topic,
            came_by=tuple(sorted(self.ways.get(source_topic, ()))),
        )

    def _is_same_target(self, tp: TopicPartition, checkpoint: Checkpoint) -> bool:
        return checkpoint.target_topic_id == topic_id(self._target, tp.topic)

    async def _resumed(self, tp: TopicPartition, checkpoint: Checkpoint) -> Start:
        written, is_known = await self._settled(tp, checkpoint)
        if not is_known and (written or checkpoint.sequence):
            _log.warning(
                "%s: the target no longer remembers this mirror's producer: going on behind its "
                "last record, one batch at a time; a batch of a mirror that still runs under "
                "this name would not be noticed",
                tp,
            )
        if tp in self.diverged:
            return Start(self._rewound(tp, checkpoint, written), is_known=is_known)
        tail = await self._tail(tp, checkpoint, checkpoint.target_offset + written)
        _log.info("%s goes on: %d records since the checkpoint", tp, written)
        return Start(checkpoint, written, is_known, tail)

    async def _settled(self, tp: TopicPartition, checkpoint: Checkpoint) -> tuple[int, bool]:
        """How many records are safely there since the checkpoint, and who says so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        seen = -1
        while True:
            last = await self._last_sequence(tp, checkpoint.identity)
            end = (await self._target.list_offsets({tp: LATEST}))[tp].offset
            written = end - checkpoint.target_offset
            if written >= 0:
                if last is None and end == seen:
                    return written, False
                if last == sequence_after(checkpoint.sequence, written - 1):
                    return written, True
            if loop.time() > deadline:
                raise _strange(tp, checkpoint, end, last)
            await asyncio.sleep(_SECOND_LOOK_S if last is None and written else _LOOK_EVERY_S)
            seen = end

    async def _last_sequence(self, tp: TopicPartition, identity: Identity) -> int | None:
        async def attempt() -> int | None:
            return await last_sequence_of(self._target, tp, identity)

        return await self._target.retrying(attempt)

    async def _tail(self, tp: TopicPartition, checkpoint: Checkpoint, end: int) -> Batch | None:
        """The last batch below `end` if it was written since the checkpoint and is still there."""
        first = (await self._target.list_offsets({tp: EARLIEST}))[tp].offset
        if end - 1 < max(first, checkpoint.target_offset):
            return None

        async def attempt() -> Batch | None:
            part = (await self._target.fetch({tp: end - 1}))[tp]
            if part.error_code == Code.OFFSET_OUT_OF_RANGE:
                return None  # deleted meanwhile
            if part.error_code != Code.NONE:
                raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            found = (b for b in iter_batches(part.records) if b.last_offset == end - 1)
            return next(found, None)

        return await self._target.retrying(attempt)


def topic_id(client: Client, topic: str) -> str | None:
    """The topic's id, on clusters that have ids."""
    known = client.cluster.topics.get(topic)
    return None if known is None or known.topic_id is None else str(known.topic_id)


def _strange(tp: TopicPartition, checkpoint: Checkpoint, end: int, last: int | None) -> ConfigError:
    if end < checkpoint.target_offset:
        why = f"it had {checkpoint.target_offset} offsets and ends at {end}: records are gone"
    else:
        expected = sequence_after(checkpoint.sequence, end - checkpoint.target_offset - 1)
        why = (
            f"it ends at {end}, where this mirror's sequence would be {expected}, not {last}: "
            "somebody else has written to it, or its replicas do not come in sync"
        )
    return ConfigError(
        f"the target's partition {tp} is not as this mirror left it: {why}",
        remedy="compare both with `shoal mirror verify`; mirror into a new topic if they differ",
    )
