"""From partitions to copy to machines that stand where the copy goes on.

Each delivery finds its starts in its own way (`resume`, `takeover`, `lane`) and has its own kind
of `PartitionMirror`. How each topic is delivered is chosen here, when it begins.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from shoal.client.client import Client
from shoal.client.errors import UnsupportedByBroker
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorConfig
from shoal.mirror.copy.delivery.at_least_once import NOBODY, RepeatingMirror
from shoal.mirror.copy.delivery.choice import Chooser, Chosen
from shoal.mirror.copy.delivery.compare_and_append import AppendingMirror
from shoal.mirror.copy.delivery.names import AT_LEAST_ONCE, COMPARE_AND_APPEND, TRANSACTIONAL
from shoal.mirror.copy.delivery.transactional import TransactionalMirror
from shoal.mirror.copy.intake import Counts
from shoal.mirror.copy.partition import Declare, PartitionMirror
from shoal.mirror.copy.rebatch import Rebatcher
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.handlers import load_handler
from shoal.mirror.offsets.checkpoints import Checkpoint, CheckpointTopic, NewBlocks
from shoal.mirror.offsets.offset_map import OffsetMap
from shoal.mirror.offsets.re_encoded import ReEncodedFile
from shoal.mirror.routes import Route
from shoal.mirror.run.checkpointer import CheckpointKeeper
from shoal.mirror.run.resume import Divergence, Resume, Start
from shoal.mirror.run.takeover import TakenOver, TakeOver
from shoal.mirror.run.transaction_ids import TransactionLanes
from shoal.mirror.run.transaction_session import TransactionLane
from shoal.mirror.watch.checkpoint_loss import CheckpointLoss
from shoal.mirror.watch.divergence import ReadEpochs
from shoal.mirror.watch.generations import Action, Lineage, lineage_of
from shoal.mirror.watch.leader_epochs import ReadSoFar, find_divergences, no_epochs
from shoal.mirror.watch.source import check_cycles, ways_of
from shoal.model.topics import TopicPartition

Begun = dict[Route, PartitionMirror]

_log = logging.getLogger(__name__)


class Common(TypedDict):
    """What all kinds of `PartitionMirror` are told alike."""

    writes_to: TopicPartition
    epochs: ReadEpochs
    looked_epoch: int
    counts: Counts
    lineage: Lineage
    retries_bad: bool
    rebatcher: Rebatcher | None
    declare: Declare | None
    announced: set[str]


class Starter:
    """Begins the partitions of one mirror, and knows who keeps their checkpoints."""

    def __init__(self, source: Client, target: Client, config: MirrorConfig) -> None:
        self._source = source
        self._target = target
        self._config = config
        self._handler = None if config.handler is None else load_handler(config.handler)
        self._declare: Declare | None = None
        self._announced: set[str] = set()
        if config.re_encoded is not None:
            self._declare = ReEncodedFile(config.re_encoded).declare
        self._topic = CheckpointTopic(target, config.name)
        self._chooser = Chooser(source, target, wanted=config.delivery, start=config.start)
        self._resume = Resume(source, target, {}, delivery=config.delivery, start=config.start)
        self.keeper = CheckpointKeeper(self._topic)
        self.throttle = Throttle(config.limits.max_bytes_per_s)
        self.lane = TransactionLanes(self._make_lane)
        self.loss = CheckpointLoss(self._topic, [self.keeper.restore, self.lane.restore])
        self.deliveries: dict[str, Chosen] = {}  # by topic of the source
        # Under which leader epoch a source partition was last found to have what was copied.
        self._looked: dict[TopicPartition, int] = {}

    def _make_lane(self, spare: int) -> TransactionLane:
        return TransactionLane(
            self._target,
            self._topic,
            self._resume,
            limits=self._config.limits,
            throttle=self.throttle,
            number=self._config.worker,
            spare=spare,
        )

    def begin_new_at(self, start: str) -> None:
        """Where partitions begin that are found from now on."""
        self._chooser.begin_new_at(start)
        self._resume.begin_new_at(start)

    def keep_start(self, routes: Iterable[Route]) -> None:
        """Let these, which could not start yet, begin where the mirror was told to."""
        self._resume.keep_start(routes)

    async def look(
        self, routes: Iterable[Route] = (), *, workers: Iterable[int] | None = None
    ) -> None:
        """Read what there is of earlier starts, of this process or another.

        What those left open is aborted whose place is taken: of these routes, and of the
        processes of these numbers, or of our own.
        """
        await self.lane.end_open(routes, [self._config.worker] if workers is None else workers)
        self._resume.update(await self._topic.read())
        self._resume.ways = await ways_of(self._source)

    async def check(
        self, routes: Sequence[Route], own_ends: Mapping[TopicPartition, int] | None = None
    ) -> bool:
        """Refuse target partitions that are not ours to write to; whether any is ours.

        Below `own_ends` everything in these target partitions was written by this process.
        """
        check_cycles(routes, self._resume.ways, self._target.cluster.cluster_id)
        # What was copied meanwhile counts too, here and in other processes.
        await self._topic.read_decided()
        self._resume.update(dict(self._topic.found))
        with self._resume.knowing_own(own_ends or {}):
            await self._resume.decide(routes, needs_all=False)
        return any(self._resume.found(route) for route in routes)

    async def begin(
        self, routes: Sequence[Route], own_ends: Mapping[TopicPartition, int] | None = None
    ) -> Begun:
        """Claim these partitions, and find out where each goes on; `own_ends` as in `check`."""
        check_cycles(routes, self._resume.ways, self._target.cluster.cluster_id)
        with self._resume.knowing_own(own_ends or {}):
            begun = await self._begin(routes)
        for route, mirror in begun.items():
            self._announce(route, mirror)
        return begun

    async def _begin(self, routes: Sequence[Route]) -> Begun:
        await self._resume.decide(routes)
        await self._compare_epochs(routes)
        await self._choose(routes)
        by_delivery: dict[str, list[Route]] = {}
        for route in routes:
            delivery = self.deliveries[route.source.topic].delivery
            by_delivery.setdefault(delivery, []).append(route)
        begun: Begun = {}
        for delivery, some in by_delivery.items():
            if delivery == TRANSACTIONAL:
                begun |= await self._in_transactions(some)
            else:
                begun |= await self._by_keeper(delivery, some)
        return begun

    async def _compare_epochs(self, routes: Iterable[Route]) -> None:
        """Find out whether the source still has what was copied of these."""
        read: dict[TopicPartition, ReadSoFar] = {}
        known: dict[TopicPartition, tuple[Route, Checkpoint]] = {}
        for route in routes:
            self._resume.diverged.pop(route.target, None)
            checkpoint = self._resume.found(route)
            epochs = () if checkpoint is None else read_epochs(checkpoint).below(1 << 62)
            if checkpoint is not None and epochs:
                known[route.source] = route, checkpoint
                read[route.source] = ReadSoFar(epochs, checkpoint.source_offset)
        try:
            answers = await find_divergences(self._source, read)
        except UnsupportedByBroker:
            return
        for tp, reason in answers.errors.items():
            raise no_epochs(tp, reason)
        self._looked.update(answers.checked)
        for tp, offset in answers.diverged.items():
            target, end = known[tp][0].target, known[tp][1].source_offset
            records = OffsetMap(self._topic.blocks.get(target, {})).records_between(offset, end)
            self._resume.diverged[target] = Divergence(offset, records)

    def _announce(self, route: Route, mirror: PartitionMirror) -> None:
        """Log that a partition begins again, and where."""
        decision = self._resume.decision(route)
        if decision.action is Action.COPY_NEW_SOURCE:
            where = "behind what the target has of the former topic"
        elif decision.action is Action.FILL_NEW_TARGET:
            where = "into the new topic"
        else:
            return
        _log.warning(
            "%s: %s; generation %d is copied from source offset %d on, to target offset %d on, %s",
            route,
            decision.reason,
            mirror.lineage.generation,
            mirror.position,
            mirror.lineage.target_offset,
            where,
        )

    async def _choose(self, routes: Iterable[Route]) -> None:
        new = []
        for route in routes:
            topic, checkpoint = route.source.topic, self._resume.found(route)
            if checkpoint is not None:
                self.deliveries[topic] = self._chooser.going_on(checkpoint.delivery)
            elif topic not in self.deliveries:
                new.append(route.source)
        if new:
            self.deliveries = await self._chooser.choose(new) | self.deliveries

    async def _in_transactions(self, routes: list[Route]) -> Begun:
        claimed = await self.lane.begin(routes)
        mirrors = {route: self._transactional(route, each) for route, each in claimed.items()}
        self.lane.follow(mirrors.values())
        return dict(mirrors)

    async def _by_keeper(self, delivery: str, routes: list[Route]) -> Begun:
        resume = self._resume
        begun: Begun
        if delivery == COMPARE_AND_APPEND:
            taken = await TakeOver(self._target, resume).starts(routes)
            first = {route: each.checkpoint for route, each in taken.items()}
            begun = {route: self._appending(route, each) for route, each in taken.items()}
            for route, mirror in begun.items():
                self._park_truncated(route, mirror)
        elif delivery == AT_LEAST_ONCE:
            first = await resume.known(routes)
            begun = {}
            for route, each in first.items():
                end = await resume.await_written(route.target, each)
                # What an earlier start may have written last is before `end`; what begins now
                # begins where its checkpoint says.
                offset = each.target_offset if resume.begins_map(route) else end
                begun[route] = self._repeating(route, each, offset)
        else:
            starts = await resume.starts(routes)
            first = {route: start.checkpoint for route, start in starts.items()}
            begun = {route: self._sequenced(route, start) for route, start in starts.items()}
            expiration_ms = await self._chooser.expiration_ms()
            if expiration_ms is not None:
                for mirror in begun.values():
                    mirror.forgets_after_ms = expiration_ms
        blocks: dict[TopicPartition, NewBlocks] = {}
        if delivery != COMPARE_AND_APPEND:
            # There offsets are their own map.
            for route, one in first.items():
                is_new = resume.begins_map(route)
                offsets, changed = self._topic.map_end(route.target, one, is_new=is_new)
                begun[route].offsets, blocks[route.target] = offsets, changed
        await self.keeper.claim(
            {route.target: replace(one, delivery=delivery) for route, one in first.items()}, blocks
        )
        self.keeper.follow(begun.values())
        return begun

    def _park_truncated(self, route: Route, mirror: PartitionMirror) -> None:
        """By compare-and-append an offset has one record: another cannot follow there."""
        divergence = self._resume.diverged.get(route.target)
        if divergence is not None and divergence.offset < mirror.target_offset:
            mirror.park(
                f"the source was truncated: of what was copied up to {mirror.target_offset} it "
                f"has lost all from {divergence.offset} on",
                "compare both with `shoal mirror verify`; mirror into a new topic",
            )

    def _common(
        self, route: Route, checkpoint: Checkpoint, *, keeps_offsets: bool = False
    ) -> Common:
        rules = self._config.copy
        is_deep = rules.is_deep(route.source.topic)
        return {
            "writes_to": route.target,
            "epochs": read_epochs(checkpoint),
            "looked_epoch": self._looked.get(route.source, -1),
            "counts": Counts(truncated=checkpoint.truncated),
            "lineage": lineage_of(checkpoint),
            "retries_bad": rules.on_bad_batch == "retry",
            "rebatcher": Rebatcher(rules.deep, keeps_offsets) if is_deep else None,
            "declare": None if is_deep else self._declare,
            "announced": self._announced,
        }

    def _sequenced(self, route: Route, start: Start) -> PartitionMirror:
        checkpoint = start.checkpoint
        return PartitionMirror(
            route.source,
            checkpoint.identity,
            checkpoint.source_offset,
            Backoff(100, 1000),
            self._handler,
            next_sequence=checkpoint.sequence,
            target_offset=checkpoint.target_offset,
            already_there=start.already_there,
            is_known=start.is_known,
            tail=start.tail,
            **self._common(route, checkpoint),
        )

    def _repeating(
        self, route: Route, checkpoint: Checkpoint, target_offset: int
    ) -> PartitionMirror:
        return RepeatingMirror(
            route.source,
            NOBODY,
            checkpoint.source_offset,
            Backoff(100, 1000),
            self._handler,
            target_offset=target_offset,
            **self._common(route, checkpoint),
        )

    def _appending(self, route: Route, taken: TakenOver) -> PartitionMirror:
        checkpoint = taken.checkpoint
        return AppendingMirror(
            route.source,
            checkpoint.identity,
            taken.position,
            Backoff(100, 1000),
            self._handler,
            target_offset=taken.end,
            mirror_epoch=checkpoint.mirror_epoch,
            there_until=taken.end,
            agreed_end=checkpoint.target_offset,
            tail=taken.tail,
            **self._common(route, checkpoint, keeps_offsets=True),
        )

    def _transactional(self, route: Route, checkpoint: Checkpoint) -> TransactionalMirror:
        return TransactionalMirror(
            route.source,
            NOBODY,
            checkpoint.source_offset,
            Backoff(100, 1000),
            self._handler,
            target_offset=checkpoint.target_offset,
            **self._common(route, checkpoint),
        )


def read_epochs(checkpoint: Checkpoint) -> ReadEpochs:
    """The leader epochs of what a checkpoint tells of."""
    if checkpoint.source_epochs:
        return ReadEpochs(checkpoint.source_epochs)
    if checkpoint.source_epoch < 0:
        return ReadEpochs()
    # Written by an older version: an epoch at least as large as that of the last record.
    return ReadEpochs([(checkpoint.source_epoch, checkpoint.source_offset)])
