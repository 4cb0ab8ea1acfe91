"""Finds where the idempotent delivery resumes, by the state of the target.

A checkpoint is a point (source offset, sequence, target offset). The records written since then are
the difference between the target's log end and that point: only this mirror writes there, and each
record takes one offset and one sequence. `shoal.mirror.copy.partition` reads the source from that
point, skips as many records, and continues with the **same** producer id, epoch and sequences.

Rules:
- The log end counts only when it is committed (high watermark) and agrees with the last sequence
  that the leader has of the mirror's producer: before that, the last records may still be lost.
- If the leader has no state of the producer (it expires a day after the timestamps of the records),
  only the log end is left. It is read twice, and a warning is logged.
- The last batch at the target must equal the source's (checked by the state machine).
- Where the source has other records than were copied (unclean leader election), the copy continues
  from there behind the target's records. The earlier records stay and are counted (`truncated`).
- A target that is not empty and not written by this mirror is refused, and so is one that has lost
  records or to which another producer wrote.
- `shoal.mirror.watch.generations` decides about recreated topics, for every delivery. A new
  generation keeps the producer id, with the next epoch and sequences from 0. So a second process
  that copies the new topic only sends duplicates, which the target detects. One that still has
  records of the former topic is refused: its sequences would count for other records.
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
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.produce.sessions import new_identity
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.copy.delivery.names import AT_LEAST_ONCE, IDEMPOTENT
from shoal.mirror.offsets.checkpoints import Checkpoint, Checkpoints
from shoal.mirror.routes import Route
from shoal.mirror.run.producers import last_sequence_of
from shoal.mirror.run.start_position import EarlierCopies, choose_start, start_offsets
from shoal.mirror.watch.copies import topic_id
from shoal.mirror.watch.divergence import truncate_epochs
from shoal.mirror.watch.generations import (
    TARGET_CREATED_AGAIN,
    GenerationAction,
    GenerationDecision,
    SourceState,
    TargetState,
    adopt_ids,
    begin_generation,
    decide,
    has_other_id,
    needs_source_end,
)
from shoal.mirror.watch.readiness import PROBE_S, unavailable_error
from shoal.mirror.watch.target_log import inspect_log
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, iter_batches, sequence_after

# How long log end and last sequence may differ; they do until all is replicated.
SETTLE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.2
# Between two reads of a log end that no sequence confirms.
_SECOND_LOOK_S: Final = 2.0

_log = logging.getLogger(__name__)


class Divergence(NamedTuple):
    """From `offset` on, the source's leader has other records than were copied."""

    offset: int
    records: int  # copied from there on, up to the checkpoint


@dataclass(frozen=True, slots=True)
class Start:
    """Where one partition starts or resumes."""

    checkpoint: Checkpoint
    already_there: int = 0  # records after the checkpoint that the target has
    is_producer_known: bool = (
        False  # whether the target's leader has state of the mirror's producer
    )
    tail: Batch | None = None  # the target's last existing batch, as stored


class StartFinder:
    """Finds where the partitions of a mirror start or resume."""

    def __init__(
        self,
        source: Client,
        target: Client,
        found: Checkpoints,
        *,
        delivery: str = IDEMPOTENT,
        start: str = "earliest",
    ) -> None:
        """`delivery` is the configured one; `start` applies to partitions without a checkpoint."""
        self._source = source
        self._target = target
        self._found = found
        self._earlier = EarlierCopies.of(found)
        self._delivery = delivery
        self._start = start
        self._created_ms = time.time_ns() // 1_000_000
        # Of partitions that existed at the start and could not be started yet.
        self._kept_starts: dict[TopicPartition, str] = {}
        # By target partition: where the source's log diverges from what was copied.
        self.diverged: dict[TopicPartition, Divergence] = {}
        self._decisions: dict[Route, GenerationDecision] = {}
        self._resolved: dict[Route, Checkpoint | None] = {}
        self._own_ends: dict[TopicPartition, int] = {}
        self._own_data: dict[
            TopicPartition, int
        ] = {}  # all records below are from this process, and are copied again
        # Of source topics that are copies themselves: see `shoal.mirror.watch.source`.
        self.origins: dict[str, set[str]] = {}

    def update(self, found: Checkpoints) -> None:
        """Use these checkpoints from now on."""
        self._found = found
        self._earlier = EarlierCopies.of(found)

    def begin_new_at(self, start: str) -> None:
        """Set where partitions start that are found from now on."""
        self._start = start

    def keep_start(self, routes: Iterable[Route]) -> None:
        """Apply the configured start to these, although `begin_new_at` changes it for others.

        For `latest` that is the time at which the mirror started: records written before such a
        partition becomes available must be copied.
        """
        start = str(self._created_ms) if self._start == "latest" else self._start
        self._kept_starts.update((route.source, start) for route in routes)

    @contextlib.contextmanager
    def assume_own_data(self, ends: Mapping[TopicPartition, int]) -> Iterator[None]:
        """In this context: below these offsets all records of target partitions are our own."""
        self._own_ends.update(ends)
        try:
            yield
        finally:
            for tp in ends:
                self._own_ends.pop(tp, None)

    async def decide(self, routes: Iterable[Route], *, needs_all: bool = True) -> None:
        """Decide how to proceed with each partition; raises if one must not be written to.

        `checkpoint_of` and `decision` return the result. A target partition that does not answer is
        not inspected, unless `needs_all`.
        """
        wanted = {route.target: route for route in routes}
        spans = await self._spans(wanted, needs_all=needs_all)
        sources = await self._read_sources(wanted.values())
        new_sources: dict[Route, Checkpoint] = {}
        for tp, route in wanted.items():
            known, source = self._found.get(tp), sources[route]
            written = 0 if known is None else known.target_offset
            target = await self._read_target(tp, known, spans.get(tp, (written, written)))
            decision = decide(route, known, source, target, wanted_delivery=self._delivery)
            if decision.action is GenerationAction.REFUSE:
                raise ConfigError(decision.reason, remedy=decision.remedy)
            self._decisions[route] = decision
            self._resolved[route] = None
            self._own_data.pop(tp, None)
            if decision.action is GenerationAction.FILL_NEW_TARGET and target.holds_data:
                self._own_data[tp] = target.end
            if known is not None and decision.action is GenerationAction.CONTINUE:
                self._resolved[route] = adopt_ids(known, source, target)
            elif known is not None and decision.action is GenerationAction.COPY_NEW_SOURCE:
                if known.delivery == AT_LEAST_ONCE:
                    known = replace(known, target_offset=target.end)
                new_sources[route] = known
        firsts = await self._find_log_starts(route.source for route in new_sources)
        for route, known in new_sources.items():
            begun = begin_generation(known, sources[route], first=firsts[route.source])
            count = len(self._source.cluster.partitions_of(route.source.topic))
            self._resolved[route] = replace(begun, source_partitions=count)

    async def _spans(
        self, partitions: Iterable[TopicPartition], *, needs_all: bool
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Read the log start and log end offsets of target partitions."""
        ask = partial(self._target.list_offsets_or_errors, timeout_s=PROBE_S)
        starts = await ask(dict.fromkeys(partitions, EARLIEST))
        ends = await ask(dict.fromkeys(starts.offsets, LATEST))
        for tp, error in (starts.errors | ends.errors).items():
            if needs_all:
                raise unavailable_error("target", str(tp), error)
        return {tp: (starts.offsets[tp].offset, end.offset) for tp, end in ends.offsets.items()}

    async def _find_log_starts(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(partitions, EARLIEST)
        listed = await self._source.list_offsets(asked) if asked else {}
        return {tp: one.offset for tp, one in listed.items()}

    async def _read_sources(self, routes: Iterable[Route]) -> dict[Route, SourceState]:
        """Read the state of source partitions; the log end only where topic ids are missing."""
        ids = {route: topic_id(self._source, route.source.topic) for route in routes}
        unclear = [r for r in ids if needs_source_end(self._found.get(r.target), ids[r])]
        asked = {route.source: LATEST for route in unclear}
        ends = await self._source.list_offsets(asked) if asked else {}
        cluster = self._source.cluster
        return {
            route: SourceState(
                cluster.cluster_id,
                ids[route],
                ends[route.source].offset if route.source in ends else None,
                known.leader_epoch if (known := cluster.partition(route.source)) else -1,
            )
            for route in ids
        }

    async def _read_target(
        self, tp: TopicPartition, known: Checkpoint | None, span: tuple[int, int]
    ) -> TargetState:
        start, end = span
        now = TargetState(topic_id(self._target, tp.topic), start, end, holds_data=end > start)
        is_ours = known is not None and (
            not has_other_id(known.target_topic_id, now.topic_id) and end >= known.target_offset
        )
        if is_ours or not now.holds_data:
            return now
        producer = None if known is None else known.identity
        held = await inspect_log(self._target, tp, span, producer)
        is_own = held.is_of_producer or self._own_ends.get(tp) == end
        return replace(now, holds_data=held.holds_data, is_own_data=is_own)

    async def find_starts(self, routes: Iterable[Route]) -> dict[Route, Start]:
        """Find where each partition starts or resumes."""
        old: dict[Route, Checkpoint] = {}
        new: list[Route] = []
        wanted = list(routes)
        await self.decide(wanted)
        for route in wanted:
            checkpoint = self.checkpoint_of(route)
            if checkpoint is not None:
                old[route] = checkpoint
            else:
                new.append(route)
        resumed = await asyncio.gather(*(self._resume_partition(r, old[r]) for r in old))
        return dict(zip(old, resumed, strict=True)) | await self._begin_new(new)

    async def _begin_new(self, routes: list[Route]) -> dict[Route, Start]:
        if not routes:
            return {}
        identity = await new_identity(self._target)
        known = await self.resolve_checkpoints(routes)
        return {
            route: Start(
                replace(one, producer_id=identity.producer_id, producer_epoch=identity.epoch)
            )
            for route, one in known.items()
        }

    async def resolve_checkpoints(self, routes: Iterable[Route]) -> dict[Route, Checkpoint]:
        """Return the checkpoint of each partition, a new one for partitions without."""
        wanted = list(routes)
        await self.decide(wanted)
        found = {route: self.checkpoint_of(route) for route in wanted}
        new = [route for route, checkpoint in found.items() if checkpoint is None]
        first = await self._find_first_offsets(new)
        await self._delete_own_data(new)
        ends = await self._target.list_offsets({r.target: LATEST for r in new}) if new else {}
        return {
            r: self._rewind(r.target, checkpoint)
            if checkpoint is not None
            else self._new_checkpoint(r, first[r.source], ends[r.target].offset)
            for r, checkpoint in found.items()
        }

    def _rewind(self, tp: TopicPartition, checkpoint: Checkpoint, written: int = 0) -> Checkpoint:
        """Move a checkpoint back to where the source diverged, if it did.

        The copy continues there, behind the target's records, with what the source has now.
        `written` counts records at the target that are not in the checkpoint yet.
        """
        divergence = self.diverged.get(tp)
        if divergence is None:
            return checkpoint
        offset, truncated = divergence.offset, divergence.records + written
        epochs = truncate_epochs(checkpoint.source_epochs, offset)
        _log.error(
            "TRUNCATED: %s: the source lost the records from offset %d on after %d of them were "
            "copied; they stay at the target, and the copy continues with the source's new records",
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

    async def _find_first_offsets(self, routes: Iterable[Route]) -> dict[TopicPartition, int]:
        """Find the source offsets at which partitions start."""
        new: list[Route] = []
        again: list[Route] = []
        for route in routes:
            is_again = self.decision(route).action is GenerationAction.FILL_NEW_TARGET
            (again if is_again else new).append(route)
        first: dict[TopicPartition, int] = {}
        starts = {route.source: self._start_of(route) for route in new}
        for start in set(starts.values()):
            some = [tp for tp, own in starts.items() if own == start]
            first |= await start_offsets(self._source, some, start)
        firsts = await self._find_log_starts(route.source for route in again)
        for route in again:
            # Records that were skipped on purpose before are not copied now.
            known = self._found[route.target]
            is_same = known.source_topic_id == topic_id(self._source, route.source.topic)
            begun = known.began_at if is_same else 0
            first[route.source] = max(firsts[route.source], begun)
        return first

    async def _delete_own_data(self, routes: Iterable[Route]) -> None:
        """Delete what this mirror wrote to a recreated target topic before it noticed.

        The topic has no other records, and these are copied again, in order.
        """
        for route in routes:
            end = self._own_data.pop(route.target, None)
            if end is None:
                continue
            try:
                await self._target.admin.delete_records({route.target: end})
            except ClientError as error:
                _log.warning(
                    "%s: cannot delete the batches that were in flight when the topic was created "
                    "again; they stay before the new copy, up to offset %d: %s",
                    route.target,
                    end,
                    error,
                )

    def checkpoint_of(self, route: Route) -> Checkpoint | None:
        """The checkpoint from which a partition resumes; None if it starts."""
        return self._resolved.get(route)

    def decision(self, route: Route) -> GenerationDecision:
        """The last result of `decide`."""
        return self._decisions.get(route, GenerationDecision(GenerationAction.BEGIN))

    def needs_new_map(self, route: Route) -> bool:
        """Whether a partition starts with a new offset map."""
        return (
            self.checkpoint_of(route) is None
            or self.decision(route).action is GenerationAction.COPY_NEW_SOURCE
        )

    def _new_checkpoint(self, route: Route, source_offset: int, target_offset: int) -> Checkpoint:
        source_topic, target_topic = route.source.topic, route.target.topic
        decision, former = self.decision(route), self._found.get(route.target)
        is_again = decision.action is GenerationAction.FILL_NEW_TARGET and former is not None
        return Checkpoint(
            source_cluster=self._source.cluster.cluster_id,
            source_topic_id=topic_id(self._source, source_topic),
            target_topic_id=topic_id(self._target, target_topic),
            delivery=self._delivery,
            source_offset=source_offset,
            target_offset=target_offset,
            source_topic=None if source_topic == target_topic else source_topic,
            came_by=tuple(sorted(self.origins.get(source_topic, ()))),
            # Above the epoch of any process that still writes for the earlier topic.
            mirror_epoch=former.mirror_epoch if former is not None and is_again else 0,
            # What a process that has not noticed writes later is of a former generation.
            generation=1 if former is None else former.generation + 1,
            generation_reason=decision.reason or (TARGET_CREATED_AGAIN if former else ""),
            generation_target_offset=target_offset,
            began_at=source_offset,
            mirror_began_ms=self._earlier.mirror_began_ms or self._created_ms,
            source_partitions=len(self._source.cluster.partitions_of(source_topic)),
        )

    async def _resume_partition(self, route: Route, checkpoint: Checkpoint) -> Start:
        tp = route.target
        is_new_source = self.decision(route).action is GenerationAction.COPY_NEW_SOURCE
        written, is_known = await self._await_settled(tp, checkpoint)
        if not is_known and (written or checkpoint.sequence):
            _log.warning(
                "%s: the target no longer has state of this mirror's producer: resuming after its "
                "last record, one batch at a time; batches of another running mirror with this "
                "name would not be detected",
                tp,
            )
        if is_new_source:
            # Records written since the checkpoint belong to the earlier generation.
            end = checkpoint.target_offset + written
            checkpoint = replace(
                checkpoint,
                producer_epoch=checkpoint.producer_epoch + 1,
                sequence=0,
                target_offset=end,
                generation_target_offset=end,
            )
            return Start(checkpoint)
        if tp in self.diverged:
            return Start(self._rewind(tp, checkpoint, written), is_producer_known=is_known)
        tail = await self.find_tail(tp, checkpoint, checkpoint.target_offset + written)
        _log.info("%s resumes: the target has %d records since the checkpoint", tp, written)
        return Start(checkpoint, written, is_known, tail)

    async def _await_settled(self, tp: TopicPartition, checkpoint: Checkpoint) -> tuple[int, bool]:
        """Count the replicated records since the checkpoint; and whether a sequence confirms it."""
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
                raise _end_mismatch_error(tp, checkpoint, end, last)
            await asyncio.sleep(_SECOND_LOOK_S if last is None and written else _LOOK_EVERY_S)
            seen = end

    async def await_written(self, tp: TopicPartition, checkpoint: Checkpoint) -> int:
        """Wait until the target has all records of the checkpoint; raise if it does not in time.

        For a delivery without sequences. Returns where the partition ends.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        while True:
            end = (await self._target.list_offsets({tp: LATEST}))[tp].offset
            if end >= checkpoint.target_offset:
                break
            if loop.time() > deadline:
                raise _end_mismatch_error(tp, checkpoint, end, None)
            await asyncio.sleep(_LOOK_EVERY_S)
        if written := end - checkpoint.target_offset:
            _log.warning(
                "%s has %d offsets after the checkpoint: records of an earlier start, which are "
                "written again now, or records of another producer",
                tp,
                written,
            )
        return end

    async def _last_sequence(self, tp: TopicPartition, identity: ProducerIdentity) -> int | None:
        async def attempt() -> int | None:
            return await last_sequence_of(self._target, tp, identity)

        return await self._target.with_retries(attempt)

    async def find_tail(self, tp: TopicPartition, checkpoint: Checkpoint, end: int) -> Batch | None:
        """Fetch the last batch below `end`, if it was written since the checkpoint and exists."""
        first = (await self._target.list_offsets({tp: EARLIEST}))[tp].offset
        if end - 1 < max(first, checkpoint.target_offset):
            return None

        async def attempt() -> Batch | None:
            part = (await self._target.fetch({tp: end - 1}))[tp]
            if part.error_code == Code.OFFSET_OUT_OF_RANGE:
                return None  # deleted in the meantime
            if part.error_code != Code.NONE:
                raise error_for(part.error_code, topic=tp.topic, partition=tp.partition)
            found = (b for b in iter_batches(part.records) if b.last_offset == end - 1)
            return next(found, None)

        return await self._target.with_retries(attempt)


def _end_mismatch_error(
    tp: TopicPartition, checkpoint: Checkpoint, end: int, last: int | None
) -> ConfigError:
    if end < checkpoint.target_offset:
        why = f"it had {checkpoint.target_offset} offsets and ends at {end}: records are lost"
    else:
        expected = sequence_after(checkpoint.sequence, end - checkpoint.target_offset - 1)
        why = (
            f"it ends at {end}, where this mirror's sequence would be {expected}, not {last}: "
            "another producer has written to it, or its replicas are not in sync"
        )
    return ConfigError(
        f"the target partition {tp} is not as this mirror left it: {why}",
        remedy="compare both topics with `shoal mirror verify`; if they differ, mirror into a new "
        "topic",
    )
