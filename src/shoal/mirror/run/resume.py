"""Where the idempotent mode goes on, by the truth on the target.

A checkpoint gives a point (source offset, sequence, target offset). What was written since is
the difference between the target's end and that point: only this mirror writes there, and each
record takes one offset and one sequence. `shoal.mirror.copy.partition` walks the source from the
point on,
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
- What a topic is that was created again is decided in `shoal.mirror.watch.generations`, for
  every delivery. A new generation keeps the producer and its sequences, so that a second process
  still only repeats what is there.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import ClientError, error_for
from shoal.client.produce.sequencing import Identity
from shoal.client.produce.sessions import new_identity
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.copy.delivery.names import AT_LEAST_ONCE, IDEMPOTENT
from shoal.mirror.offsets.checkpoints import Checkpoint, Checkpoints
from shoal.mirror.routes import Route
from shoal.mirror.run.producers import last_sequence_of
from shoal.mirror.run.start_position import EarlierCopies, choose_start, start_offsets
from shoal.mirror.watch.copies import topic_id
from shoal.mirror.watch.divergence import cut_epochs
from shoal.mirror.watch.generations import (
    Action,
    Decision,
    SourceNow,
    TargetNow,
    adopt_ids,
    begin_generation,
    decide,
    has_other_id,
    needs_source_end,
)
from shoal.mirror.watch.readiness import PROBE_S, unavailable
from shoal.mirror.watch.target_log import look_into
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
        self._earlier = EarlierCopies.of(found)
        self._delivery = delivery
        self._start = start
        self._created_ms = time.time_ns() // 1_000_000
        # Partitions that were there from the beginning and could not start yet.
        self._kept_starts: dict[TopicPartition, str] = {}
        # By target partition: where the source's log parts from what was copied of it.
        self.diverged: dict[TopicPartition, Divergence] = {}
        self._decisions: dict[Route, Decision] = {}
        self._resolved: dict[Route, Checkpoint | None] = {}
        self._own_ends: dict[TopicPartition, int] = {}
        self._own_data: dict[TopicPartition, int] = {}  # all below is ours, and copied again
        # Of topics of the source that are copies themselves: see `shoal.mirror.watch.source`.
        self.ways: dict[str, set[str]] = {}

    def update(self, found: Checkpoints) -> None:
        """Go by these checkpoints from now on."""
        self._found = found
        self._earlier = EarlierCopies.of(found)

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

    @contextlib.contextmanager
    def knowing_own(self, ends: Mapping[TopicPartition, int]) -> Iterator[None]:
        """While it lasts: below these offsets all in target partitions is of this process."""
        self._own_ends.update(ends)
        try:
            yield
        finally:
            for tp in ends:
                self._own_ends.pop(tp, None)

    async def decide(self, routes: Iterable[Route], *, needs_all: bool = True) -> None:
        """Find out what each partition is now; raises if one may not be written to.

        `found` and `decision` go by it from then on. A target partition that does not answer is
        not looked into, unless all must be.
        """
        wanted = {route.target: route for route in routes}
        spans = await self._spans(wanted, needs_all=needs_all)
        sources = await self._sources_now(wanted.values())
        new_sources: dict[Route, Checkpoint] = {}
        for tp, route in wanted.items():
            known, source = self._found.get(tp), sources[route]
            written = 0 if known is None else known.target_offset
            target = await self._target_now(tp, known, spans.get(tp, (written, written)))
            decision = decide(route, known, source, target, wanted_delivery=self._delivery)
            if decision.action is Action.REFUSE:
                raise ConfigError(decision.reason, remedy=decision.remedy)
            self._decisions[route] = decision
            self._resolved[route] = None
            self._own_data.pop(tp, None)
            if decision.action is Action.FILL_NEW_TARGET and target.holds_data:
                self._own_data[tp] = target.end
            if known is not None and decision.action is Action.CONTINUE:
                self._resolved[route] = adopt_ids(known, source, target)
            elif known is not None and decision.action is Action.COPY_NEW_SOURCE:
                if known.delivery == AT_LEAST_ONCE:
                    known = replace(known, target_offset=target.end)
                new_sources[route] = known
        firsts = await self._firsts(route.source for route in new_sources)
        for route, known in new_sources.items():
            begun = begin_generation(known, sources[route], first=firsts[route.source])
            count = len(self._source.cluster.partitions_of(route.source.topic))
            self._resolved[route] = replace(begun, source_partitions=count)

    async def _spans(
        self, partitions: Iterable[TopicPartition], *, needs_all: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Where the logs of target partitions begin and end."""
        ask = partial(self._target.list_offsets_each, timeout_s=PROBE_S)
        starts = await ask(dict.fromkeys(partitions, EARLIEST))
        ends = await ask(dict.fromkeys(starts.offsets, LATEST))
        for tp, error in (starts.errors | ends.errors).items():
            if needs_all:
                raise unavailable("target", str(tp), error)
        return {tp: (starts.offsets[tp].offset, end.offset) for tp, end in ends.offsets.items()}

    async def _firsts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(partitions, EARLIEST)
        listed = await self._source.list_offsets(asked) if asked else {}
        return {tp: one.offset for tp, one in listed.items()}

    async def _sources_now(self, routes: Iterable[Route]) -> dict[Route, SourceNow]:
        """The source's sides; their ends only where ids do not tell enough."""
        ids = {route: topic_id(self._source, route.source.topic) for route in routes}
        unclear = [r for r in ids if needs_source_end(self._found.get(r.target), ids[r])]
        asked = {route.source: LATEST for route in unclear}
        ends = await self._source.list_offsets(asked) if asked else {}
        cluster = self._source.cluster
        return {
            route: SourceNow(
                cluster.cluster_id,
                ids[route],
                ends[route.source].offset if route.source in ends else None,
                known.leader_epoch if (known := cluster.partition(route.source)) else -1,
            )
            for route in ids
        }

    async def _target_now(
        self, tp: TopicPartition, known: Checkpoint | None, span: tuple[int, int]
    ) -> TargetNow:
        start, end = span
        now = TargetNow(topic_id(self._target, tp.topic), start, end, holds_data=end > start)
        is_ours = known is not None and (
            not has_other_id(known.target_topic_id, now.topic_id) and end >= known.target_offset
        )
        if is_ours or not now.holds_data:
            return now
        producer = None if known is None else known.identity
        held = await look_into(self._target, tp, span, producer)
        is_own = held.is_of_producer or self._own_ends.get(tp) == end
        return replace(now, holds_data=held.holds_data, is_own_data=is_own)

    async def starts(self, routes: Iterable[Route]) -> dict[Route, Start]:
        """Where each partition begins or goes on."""
        old: dict[Route, Checkpoint] = {}
        new: list[Route] = []
        wanted = list(routes)
        await self.decide(wanted)
        for route in wanted:
            checkpoint = self.found(route)
            if checkpoint is not None:
                old[route] = checkpoint
            else:
                new.append(route)
        resumed = await asyncio.gather(*(self._resumed(r, old[r]) for r in old))
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
        wanted = list(routes)
        await self.decide(wanted)
        found = {route: self.found(route) for route in wanted}
        new = [route for route, checkpoint in found.items() if checkpoint is None]
        first = await self._begins(new)
        await self._delete_own_data(new)
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
        kept = self._kept_starts.get(route.source)
        if kept is not None:
            return kept
        source_id = topic_id(self._source, route.source.topic)
        return choose_start(route, self._start, self._earlier, source_id)

    async def _begins(self, routes: Iterable[Route]) -> dict[TopicPartition, int]:
        """The source offsets at which partitions begin."""
        new: list[Route] = []
        again: list[Route] = []
        for route in routes:
            is_again = self.decision(route).action is Action.FILL_NEW_TARGET
            (again if is_again else new).append(route)
        first: dict[TopicPartition, int] = {}
        starts = {route.source: self._start_of(route) for route in new}
        for start in set(starts.values()):
            some = [tp for tp, own in starts.items() if own == start]
            first |= await start_offsets(self._source, some, start)
        firsts = await self._firsts(route.source for route in again)
        for route in again:
            # What was not copied on purpose before is not copied now.
            known = self._found[route.target]
            is_same = known.source_topic_id == topic_id(self._source, route.source.topic)
            begun = known.began_at if is_same else 0
            first[route.source] = max(firsts[route.source], begun)
        return first

    async def _delete_own_data(self, routes: Iterable[Route]) -> None:
        """Delete what this mirror wrote to a target topic before it knew that it is another one.

        It is all that the topic holds, and it is copied again, in order.
        """
        for route in routes:
            end = self._own_data.pop(route.target, None)
            if end is None:
                continue
            try:
                await self._target.admin.delete_records({route.target: end})
            except ClientError as error:
                _log.warning(
                    "%s: batches of this mirror that were on their way when the topic was created "
                    "again stay before the copy, up to offset %d: %s",
                    route.target,
                    end,
                    error,
                )

    def found(self, route: Route) -> Checkpoint | None:
        """The checkpoint from which a partition continues; None if it begins."""
        return self._resolved.get(route)

    def decision(self, route: Route) -> Decision:
        """What `decide` found out last."""
        return self._decisions.get(route, Decision(Action.BEGIN))

    def begins_map(self, route: Route) -> bool:
        """Whether the offset map of a partition begins, too."""
        return self.found(route) is None or self.decision(route).action is Action.COPY_NEW_SOURCE

    def _new_checkpoint(self, route: Route, source_offset: int, target_offset: int) -> Checkpoint:
        source_topic, target_topic = route.source.topic, route.target.topic
        decision, former = self.decision(route), self._found.get(route.target)
        is_again = decision.action is Action.FILL_NEW_TARGET and former is not None
        return Checkpoint(
            source_cluster=self._source.cluster.cluster_id,
            source_topic_id=topic_id(self._source, source_topic),
            target_topic_id=topic_id(self._target, target_topic),
            delivery=self._delivery,
            source_offset=source_offset,
            target_offset=target_offset,
            source_topic=None if source_topic == target_topic else source_topic,
            came_by=tuple(sorted(self.ways.get(source_topic, ()))),
            # Above that of any process which still writes for the former topic.
            mirror_epoch=former.mirror_epoch if former is not None and is_again else 0,
            generation=former.generation + 1 if former is not None and is_again else 1,
            generation_reason=decision.reason,
            generation_target_offset=target_offset,
            began_at=source_offset,
            mirror_began_ms=self._earlier.mirror_began_ms or self._created_ms,
            source_partitions=len(self._source.cluster.partitions_of(source_topic)),
        )

    async def _resumed(self, route: Route, checkpoint: Checkpoint) -> Start:
        tp = route.target
        is_new_source = self.decision(route).action is Action.COPY_NEW_SOURCE
        written, is_known = await self._settled(tp, checkpoint)
        if not is_known and (written or checkpoint.sequence):
            _log.warning(
                "%s: the target no longer remembers this mirror's producer: going on behind its "
                "last record, one batch at a time; a batch of a mirror that still runs under "
                "this name would not be noticed",
                tp,
            )
        if is_new_source:
            # What was written since the checkpoint is of the former generation.
            end = checkpoint.target_offset + written
            checkpoint = replace(
                checkpoint,
                sequence=sequence_after(checkpoint.sequence, written),
                target_offset=end,
                generation_target_offset=end,
            )
            return Start(checkpoint, is_known=is_known)
        if tp in self.diverged:
            return Start(self._rewound(tp, checkpoint, written), is_known=is_known)
        tail = await self.find_tail(tp, checkpoint, checkpoint.target_offset + written)
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

    async def await_written(self, tp: TopicPartition, checkpoint: Checkpoint) -> int:
        """Refuse a target partition that ends below what was written, once it had time to settle.

        For a delivery that has no sequences to compare. Returns where the partition ends.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        while True:
            end = (await self._target.list_offsets({tp: LATEST}))[tp].offset
            if end >= checkpoint.target_offset:
                break
            if loop.time() > deadline:
                raise _strange(tp, checkpoint, end, None)
            await asyncio.sleep(_LOOK_EVERY_S)
        if written := end - checkpoint.target_offset:
            _log.warning(
                "%s has %d offsets behind the checkpoint: records of an earlier start, which are "
                "written again now, or records that somebody else has written",
                tp,
                written,
            )
        return end

    async def _last_sequence(self, tp: TopicPartition, identity: Identity) -> int | None:
        async def attempt() -> int | None:
            return await last_sequence_of(self._target, tp, identity)

        return await self._target.retrying(attempt)

    async def find_tail(self, tp: TopicPartition, checkpoint: Checkpoint, end: int) -> Batch | None:
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
