"""Creates the state machines of partitions at the positions where their copy starts or resumes.

Each delivery finds these positions in its own way (`resume`, `takeover`, `transaction_session`).
The delivery of each topic is chosen here, when its copy starts.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from shoal.client.client import Client
from shoal.client.errors import UnsupportedByBroker
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorConfig
from shoal.mirror.copy.delivery.at_least_once import AtLeastOnceDelivery
from shoal.mirror.copy.delivery.choice import Chooser, Chosen
from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.delivery.names import AT_LEAST_ONCE, COMPARE_AND_APPEND, TRANSACTIONAL
from shoal.mirror.copy.delivery.transactional import TransactionalDelivery
from shoal.mirror.copy.depth import AUTO_DEPTH, DEEP, RAW, DepthGauge
from shoal.mirror.copy.intake import Counts, Intake
from shoal.mirror.copy.partition import Declare, Delivery, PartitionCopier, PartitionMirror
from shoal.mirror.copy.rebatch import Rebatcher
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.handlers import load_handler
from shoal.mirror.offsets.checkpoints import Checkpoint, CheckpointTopic, NewBlocks
from shoal.mirror.offsets.offset_map import OffsetMap
from shoal.mirror.offsets.re_encoded import ReEncodedFile
from shoal.mirror.routes import Route
from shoal.mirror.run.checkpointer import Checkpointer
from shoal.mirror.run.resume import Divergence, Start, StartFinder
from shoal.mirror.run.takeover import AppendStart, AppendTakeover
from shoal.mirror.run.transaction_ids import TransactionWriters
from shoal.mirror.run.transaction_session import TransactionWriter
from shoal.mirror.watch.checkpoint_loss import CheckpointLoss
from shoal.mirror.watch.divergence import ReadEpochs
from shoal.mirror.watch.generations import GenerationAction, lineage_of
from shoal.mirror.watch.leader_epochs import ReadSoFar, epochs_unavailable, find_divergences
from shoal.mirror.watch.source import check_cycles, find_origins
from shoal.model.topics import TopicPartition

Begun = dict[Route, PartitionMirror]
DeliveryT = TypeVar("DeliveryT", bound=Delivery)

_log = logging.getLogger(__name__)


class PartitionStarter:
    """Starts the partitions of one mirror; owns the writers of their checkpoints."""

    def __init__(self, source: Client, target: Client, config: MirrorConfig) -> None:
        self._source = source
        self._target = target
        self._config = config
        self._handler = None if config.handler is None else load_handler(config.handler)
        self._declare: Declare | None = None
        self._announced: set[str] = set()
        if config.re_encoded is not None:
            self._declare = ReEncodedFile(config.re_encoded).declare
        self._topic = CheckpointTopic(
            target, config.name, replication_factor=config.rules.replication_factor
        )
        self._chooser = Chooser(source, target, wanted=config.delivery, start=config.start)
        self._resume = StartFinder(source, target, {}, delivery=config.delivery, start=config.start)
        self.checkpointer = Checkpointer(self._topic)
        self.throttle = Throttle(config.limits.max_bytes_per_s)
        limits = config.limits.topic_max_bytes_per_s
        self.topic_throttles = {topic: Throttle(limit) for topic, limit in limits.items()}
        self.transaction_writers = TransactionWriters(self._make_writer)
        self.loss = CheckpointLoss(
            self._topic, [self.checkpointer.restore, self.transaction_writers.restore]
        )
        self.deliveries: dict[str, Chosen] = {}  # by topic of the source
        # The leader epoch for which a source partition was last checked for divergence.
        self._checked_epochs: dict[TopicPartition, int] = {}

    def _make_writer(self, spare: int) -> TransactionWriter:
        return TransactionWriter(
            self._target,
            self._topic,
            self._resume,
            limits=self._config.limits,
            throttle=self.throttle,
            number=self._config.worker,
            spare=spare,
            old_before_ms=self._chooser.old_before_ms if self._chooser.hands_over else None,
        )

    def begin_new_at(self, start: str) -> None:
        """Set where partitions start that are found from now on."""
        self._chooser.begin_new_at(start)
        self._resume.begin_new_at(start)

    def keep_start(self, routes: Iterable[Route]) -> None:
        """Apply the configured start to these, which could not be started yet."""
        self._resume.keep_start(routes)

    async def load_state(
        self, routes: Iterable[Route] = (), *, workers: Iterable[int] | None = None
    ) -> None:
        """Read the checkpoints of earlier starts, of this process or another.

        Open transactions that would block the read are aborted first: those of the last writers of
        `routes`, and of the processes with the numbers `workers`, by default this one.
        """
        await self.transaction_writers.abort_open(
            routes, [self._config.worker] if workers is None else workers
        )
        self._resume.update(await self._topic.read())
        self._resume.origins = await find_origins(self._source)

    async def check(
        self, routes: Sequence[Route], own_ends: Mapping[TopicPartition, int] | None = None
    ) -> bool:
        """Raise if this mirror must not write to a target partition; whether it wrote to any.

        Below `own_ends` all records of these target partitions are from this process.
        """
        check_cycles(routes, self._resume.origins, self._target.cluster.cluster_id)
        # Includes checkpoints written in the meantime, here and in other processes.
        await self._topic.read_decided()
        self._resume.update(dict(self._topic.found))
        with self._resume.assume_own_data(own_ends or {}):
            await self._resume.decide(routes, needs_all=False)
        return any(self._resume.checkpoint_of(route) for route in routes)

    async def begin(
        self, routes: Sequence[Route], own_ends: Mapping[TopicPartition, int] | None = None
    ) -> Begun:
        """Claim partitions and find where each starts or resumes; `own_ends` as in `check`."""
        check_cycles(routes, self._resume.origins, self._target.cluster.cluster_id)
        with self._resume.assume_own_data(own_ends or {}):
            begun = await self._begin(routes)
        for route, mirror in begun.items():
            self._announce(route, mirror)
        return begun

    async def _begin(self, routes: Sequence[Route]) -> Begun:
        await self._resume.decide(routes)
        await self._compare_epochs(routes)
        chosen = await self._choose(routes)
        by_delivery: dict[str, list[Route]] = {}
        for route in routes:
            by_delivery.setdefault(chosen[route], []).append(route)
        begun: Begun = {}
        for delivery, some in by_delivery.items():
            if delivery == TRANSACTIONAL:
                begun |= await self._begin_transactional(some)
            else:
                begun |= await self._begin_with_checkpointer(delivery, some)
        return begun

    async def _compare_epochs(self, routes: Iterable[Route]) -> None:
        """Find out whether the source still has the records that were copied."""
        read: dict[TopicPartition, ReadSoFar] = {}
        known: dict[TopicPartition, tuple[Route, Checkpoint]] = {}
        for route in routes:
            self._resume.diverged.pop(route.target, None)
            checkpoint = self._resume.checkpoint_of(route)
            epochs = () if checkpoint is None else read_epochs(checkpoint).below(1 << 62)
            if checkpoint is not None and epochs:
                known[route.source] = route, checkpoint
                read[route.source] = ReadSoFar(epochs, checkpoint.source_offset)
        try:
            answers = await find_divergences(self._source, read)
        except UnsupportedByBroker:
            return
        for tp, reason in answers.errors.items():
            raise epochs_unavailable(tp, reason)
        self._checked_epochs.update(answers.checked)
        for tp, offset in answers.diverged.items():
            target, end = known[tp][0].target, known[tp][1].source_offset
            records = OffsetMap(self._topic.blocks.get(target, {})).count_records(offset, end)
            self._resume.diverged[target] = Divergence(offset, records)

    def _announce(self, route: Route, mirror: PartitionMirror) -> None:
        """Log that a new generation of a partition starts, and where."""
        decision = self._resume.decision(route)
        if decision.action is GenerationAction.COPY_NEW_SOURCE:
            where = "after the records of the earlier topic"
        elif decision.action is GenerationAction.FILL_NEW_TARGET:
            where = "into the new topic"
        else:
            return
        _log.warning(
            "%s: %s; generation %d is copied from source offset %d to target offset %d, %s",
            route,
            decision.reason,
            mirror.lineage.generation,
            mirror.position,
            mirror.lineage.target_offset,
            where,
        )

    async def _choose(self, routes: Sequence[Route]) -> dict[Route, str]:
        """Choose the delivery of each partition: some of a topic may be handed over already."""
        kept: dict[Route, str] = {}
        new = []
        for route in routes:
            topic, checkpoint = route.source.topic, self._resume.checkpoint_of(route)
            if checkpoint is not None:
                self.deliveries[topic] = self._chooser.keep_delivery(checkpoint.delivery)
                kept[route] = checkpoint.delivery
            elif topic not in self.deliveries:
                new.append(route.source)
        if new:
            self.deliveries = await self._chooser.choose(new) | self.deliveries
        chosen = {route: self.deliveries[route.source.topic].delivery for route in routes}
        return chosen | kept

    async def _begin_transactional(self, routes: list[Route]) -> Begun:
        claimed = await self.transaction_writers.begin(routes)
        mirrors = {
            route: self._make_mirror(route, each, TransactionalDelivery())
            for route, each in claimed.items()
        }
        self.transaction_writers.follow(mirrors.values())
        return dict(mirrors)

    async def _begin_with_checkpointer(self, delivery: str, routes: list[Route]) -> Begun:
        """Begin partitions with the checkpointer of their delivery; none are transactional."""
        resume = self._resume
        begun: Begun
        if delivery == COMPARE_AND_APPEND:
            taken = await AppendTakeover(self._target, resume).find_starts(routes)
            first = {route: each.checkpoint for route, each in taken.items()}
            begun = {
                route: self._make_mirror(
                    route,
                    each.checkpoint,
                    _append_delivery(each),
                    position=each.position,
                    target_offset=each.end,
                )
                for route, each in taken.items()
            }
            for route, mirror in begun.items():
                self._park_truncated(route, mirror)
        elif delivery == AT_LEAST_ONCE:
            first = await resume.resolve_checkpoints(routes)
            begun = {}
            for route, each in first.items():
                end = await resume.await_written(route.target, each)
                # Records of an earlier start are below `end`. A new copy has none.
                offset = each.target_offset if resume.needs_new_map(route) else end
                begun[route] = self._make_mirror(
                    route, each, AtLeastOnceDelivery(), target_offset=offset
                )
        else:
            starts = await resume.find_starts(routes)
            first = {route: start.checkpoint for route, start in starts.items()}
            expiration_ms = await self._chooser.expiration_ms() or 0
            begun = {
                route: self._make_mirror(
                    route, start.checkpoint, _idempotent_delivery(start, expiration_ms)
                )
                for route, start in starts.items()
            }
        blocks: dict[TopicPartition, NewBlocks] = {}
        if delivery != COMPARE_AND_APPEND:
            # Compare-and-append keeps offsets, so it needs no map.
            for route, one in first.items():
                is_new = resume.needs_new_map(route)
                offsets, changed = self._topic.resume_map(route.target, one, is_new=is_new)
                begun[route].offsets, blocks[route.target] = offsets, changed
        await self.checkpointer.claim(
            {route.target: replace(one, delivery=delivery) for route, one in first.items()}, blocks
        )
        self.checkpointer.follow(begun.values())
        return begun

    def _park_truncated(self, route: Route, mirror: PartitionMirror) -> None:
        """Park a truncated partition: compare-and-append cannot write an offset twice."""
        divergence = self._resume.diverged.get(route.target)
        if divergence is not None and divergence.offset < mirror.target_offset:
            mirror.park(
                f"the source was truncated: it lost the records from offset {divergence.offset} "
                f"on, which are copied up to {mirror.target_offset}",
                "compare both topics with `shoal mirror verify`; mirror into a new topic",
            )

    def _make_mirror(
        self,
        route: Route,
        checkpoint: Checkpoint,
        delivery: DeliveryT,
        *,
        position: int | None = None,
        target_offset: int | None = None,
    ) -> PartitionCopier[DeliveryT]:
        """Create a partition that starts at its checkpoint, unless another position is given."""
        rules = self._config.copy
        keeps_offsets = delivery.keeps_offsets
        needs_bytes = keeps_offsets or self._handler is not None
        depth = rules.depth_of(route.source.topic, needs_bytes=needs_bytes)
        is_auto = depth == AUTO_DEPTH
        rebatcher = Rebatcher(rules.deep, keeps_offsets, keeps_whole=is_auto)
        intake = Intake(
            route.source,
            self._handler,
            None if depth == RAW else rebatcher,
            DepthGauge() if is_auto else None,
            keeps_offsets=keeps_offsets,
            announced=self._announced,
            counts=Counts(truncated=checkpoint.truncated, lost=checkpoint.lost),
        )
        return PartitionCopier(
            intake,
            delivery,
            checkpoint.source_offset if position is None else position,
            Backoff(100, 1000),
            target_offset=checkpoint.target_offset if target_offset is None else target_offset,
            writes_to=route.target,
            epochs=read_epochs(checkpoint),
            checked_epoch=self._checked_epochs.get(route.source, -1),
            lineage=lineage_of(checkpoint),
            retries_bad=rules.on_bad_batch == "retry",
            # Of a mirror that is deep everywhere no batch is promised to stay as it is.
            declare=None if rules.demanded_depth == DEEP else self._declare,
        )


def _idempotent_delivery(start: Start, expiration_ms: int) -> IdempotentDelivery:
    return IdempotentDelivery(
        start.checkpoint.identity,
        first_sequence=start.checkpoint.sequence,
        already_there=start.already_there,
        tail=start.tail,
        is_known_at_start=start.is_producer_known,
        producer_expiration_ms=expiration_ms,
    )


def _append_delivery(taken: AppendStart) -> AppendDelivery:
    return AppendDelivery(
        mirror_epoch=taken.checkpoint.mirror_epoch,
        existing_until=taken.end,
        agreed_end=taken.checkpoint.target_offset,
        tail=taken.tail,
    )


def read_epochs(checkpoint: Checkpoint) -> ReadEpochs:
    """The leader epochs of the records below a checkpoint."""
    if checkpoint.source_epochs:
        return ReadEpochs(checkpoint.source_epochs)
    if checkpoint.source_epoch < 0:
        return ReadEpochs()
    # An older version wrote only this: an epoch not below that of the last record.
    return ReadEpochs([(checkpoint.source_epoch, checkpoint.source_offset)])
