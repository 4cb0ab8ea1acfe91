"""What must be so in a partition, by the names of the specifications of Kafka's replication.

    LogMatching                  one batch before another, everywhere (checked in `log`)
    LeaderCompleteness           the leader has everything that is committed
    LeaderCandidateCompleteness  so has everyone who may lead: in-sync and eligible replicas
    ReplicationQuorumSuperset    the leader waits for all whom the controller counts as in sync
    ConsistentRead               what was read at an offset is read there again, by everyone
    NoCommittedRecordLost        what is acknowledged is committed, and committed once and in
                                 order if its producer is idempotent
    MinIsrRecoveryQuorum         as long as fewer than min.insync.replicas have lost their data,
                                 someone may lead who has everything
    MonotonicEpoch               leader epochs never fall
    SingleLeader                 one process leads in a leader epoch, and writes each offset once
    MonotonicHighWatermark       high watermarks fall only by a restart
    MonotonicLatestOffset        a newer leader never returns a lower latest offset
    AcknowledgedIsServed         if every live in-sync follower fetched within 0.5 s, the last one
                                 of them serves every acknowledged offset: each was sent a high
                                 watermark above it before the producer was acknowledged

A broker that has lost data may be counted as in sync until its next process is registered, and
is not checked until then: that process does nothing before. A damaged log is not checked until a
process has reported all damage that it knows of: nothing relies on the log before.

Records that an unclean election loses are given up, and counted. So is what the last one lacks
that may lead, if it reports damage and too many others had lost their data before.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.replication.leader import MAX_ACK_DELAY_MS, LeaderPartition
from shoal.lite.replication.messages import EpochEndOffset
from shoal.lite.simulation.disk import Key
from shoal.lite.simulation.errors import Violation
from shoal.lite.simulation.log import SimulatedBatch, SimulatedLog
from shoal.lite.simulation.partition import SimulatedPartition
from shoal.lite.simulation.setup import CrashModel
from shoal.lite.storage.header import BatchHeader

if TYPE_CHECKING:
    from shoal.lite.simulation.world import World


class PartitionJudge:
    """Remembers everything about a partition that was ever said to be so."""

    def __init__(self, world: "World", key: Key) -> None:
        self._world = world
        self._key = key
        # As the metadata has it.
        self.record: PartitionRecord | None = None
        self._min_insync = 1
        # By offset: the batch that was committed there first; None where nobody has it,
        # because a leader out of sync had deleted it.
        self.committed: list[SimulatedBatch | None] = []
        self.acknowledged_batches: dict[int, SimulatedBatch] = {}
        # By number of a batch: how many copies were promised when it was committed.
        self._promised_copies: dict[int, int] = {}
        self._start_offset = 0
        self._leaders: dict[int, str] = {}
        self._places: dict[tuple[int, int], SimulatedBatch] = {}
        # By idempotent producer: its last batch that is committed.
        self._last_batches: dict[int, SimulatedBatch] = {}
        self._latest: tuple[int, int] = (-1, 0)
        # By the leader's process and the follower: when it last fetched by the leader's clock, and
        # the high watermark that it was sent.
        self._fetched_ms: dict[tuple[str, int], int] = {}
        self._sent: dict[tuple[str, int], int] = {}
        # Who has lost its data since enough were in sync; None before that was so.
        self._lost: set[int] | None = None
        # How often something was given up, and who may still have it.
        self.given_up = 0
        self._unaligned: set[int] = set()
        self._unclean_epoch = -1

    @property
    def candidates(self) -> tuple[int, ...]:
        record = self.record
        return () if record is None else record.in_sync + record.eligible

    @property
    def may_have_forgotten(self) -> bool:
        """Whether a leader may know nothing of a producer: records were given up, or deleted."""
        return self.given_up > 0 or self._start_offset > 0

    # The metadata

    def on_changed(
        self, before: PartitionRecord | None, after: PartitionRecord, min_insync: int
    ) -> None:
        """The metadata has it otherwise now."""
        self.record = after
        if min_insync > self._min_insync:
            # More is promised, once so many are in sync.
            self._lost = None
        self._min_insync = min_insync
        if before is not None:
            for broker_id in {*before.in_sync, *before.eligible} - set(self.candidates):
                if self._world.brokers[broker_id].has_lost(self._key) and self._lost is not None:
                    self._lost.add(broker_id)
            self._compare(before, after)
        if len(after.in_sync) >= min_insync:
            self._lost = set()
        if not self.candidates and self._lost is not None and len(self._lost) < min_insync:
            detail = f"only {sorted(self._lost)} lost their data, and nobody may lead"
            raise Violation("MinIsrRecoveryQuorum", detail)
        self._check_candidates()
        for process in self._world.live_brokers():
            hosted = process.hosted.get(self._key)
            if hosted is not None and (leader := hosted.replica.leader) is not None:
                self._check_quorum(hosted, leader)

    def _compare(self, before: PartitionRecord, after: PartitionRecord) -> None:
        counters = self._world.counters
        if after.partition_epoch <= before.partition_epoch:
            raise Violation("MonotonicEpoch", f"the partition record {after} follows {before}")
        if after.leader_epoch < before.leader_epoch:
            raise Violation("MonotonicEpoch", f"the partition record {after} follows {before}")
        counters["in-sync changes"] += set(after.in_sync) != set(before.in_sync)
        counters["eligible"] += len(after.eligible) > len(before.eligible)
        counters["reassignments"] += bool(before.adding or before.removing) and not (
            after.adding or after.removing
        )
        if after.leader not in {before.leader, NO_LEADER}:
            counters["elections"] += 1
            if before.recovering and after.leader not in before.in_sync + before.eligible:
                self._accept_unclean_loss(after)
        self._world.trace(
            0,
            f"p{self._key[1]} is led by {after.leader} in epoch {after.leader_epoch}, in sync "
            f"{after.in_sync}, eligible {after.eligible}, partition epoch {after.partition_epoch}",
        )

    def on_replica_lost(self, broker_id: int) -> None:
        """A broker is registered again, after it lost data."""
        if self.given_up:
            # It may have an older copy of its folder, with what was given up.
            self._unaligned.add(broker_id)
        if self._lost is not None and broker_id in self.candidates:
            self._lost.add(broker_id)

    def on_damage_reported(self, broker_id: int) -> None:
        """A broker has reported a damaged log; from now on its log is checked again."""
        record, lost = self.record, self._lost
        if record is None or broker_id not in self.candidates:
            return
        # The promise is for fewer damaged logs than must be in sync, counted while they were.
        is_promised = lost is not None and len(lost | {broker_id}) < self._min_insync
        log = self._world.brokers[broker_id].disk.logs.get(self._key)
        if is_promised or self._holds(log, len(self.committed)):
            self.check_candidate(broker_id)
        else:
            self._give_up(broker_id, record.leader_epoch + 1)

    def _accept_unclean_loss(self, after: PartitionRecord) -> None:
        """Someone accepted that all is lost which the new leader does not have."""
        self._world.counters["unclean elections"] += 1
        self._give_up(after.leader, after.leader_epoch)

    def _give_up(self, leader: int, leader_epoch: int) -> None:
        self._unclean_epoch = leader_epoch
        log = self._world.brokers[leader].disk.logs.get(self._key)
        end_offset = len(self.committed)
        while end_offset > 0 and not self._holds(log, end_offset):
            end_offset -= 1
        del self.committed[end_offset:]
        kept = {
            number: batch
            for number, batch in self.acknowledged_batches.items()
            if batch.end_offset <= end_offset
        }
        self._world.counters["given up"] += len(self.acknowledged_batches) - len(kept)
        self.acknowledged_batches = kept
        self.given_up += 1
        self._unaligned = set(self._world.brokers) - {leader}
        self._last_batches.clear()
        self._latest = (-1, 0)
        self._lost = None
        self._world.consumer.forget(self._key)
        new_leader = self._world.brokers[leader].process
        if new_leader is not None and (hosted := new_leader.hosted.get(self._key)) is not None:
            hosted.seen_high_watermark = 0

    def is_aligned(self, hosted: SimulatedPartition) -> bool:
        """Whether a replica has let go of what was given up: its log begins as the leader's."""
        broker_id, record, log = hosted.broker.id, self.record, hosted.log
        if broker_id not in self._unaligned:
            return True
        if record is None or record.leader == NO_LEADER:
            return False
        if hosted.replica.role.leader_epoch < self._unclean_epoch:
            return False
        node = self._world.brokers[record.leader]
        leaders = node.disk.logs.get(self._key)
        end_offset = log.end_offset
        # A power loss may have brought back to the leader's disk what it had let go of.
        if leaders is None or node.has_lost(self._key) or end_offset > leaders.end_offset:
            return False
        if end_offset == log.start_offset:
            is_aligned = end_offset <= leaders.start_offset
        else:
            # What the leader has deleted cannot be compared, but a replica that has it restarts.
            is_next = end_offset > leaders.start_offset
            is_aligned = is_next and leaders.at(end_offset - 1) is log.at(end_offset - 1)
        if is_aligned:
            self._unaligned.discard(broker_id)
            hosted.seen_high_watermark = 0
        return is_aligned

    # Replicas

    def check_replica(self, hosted: SimulatedPartition) -> None:
        """Check a replica after an event."""
        role = hosted.replica.role
        if role.leader_epoch < hosted.seen_epoch:
            detail = f"{hosted.broker.id} went back from {hosted.seen_epoch} to {role.leader_epoch}"
            raise Violation("MonotonicEpoch", detail)
        hosted.seen_epoch = role.leader_epoch
        if not self.is_aligned(hosted):
            return
        self.advance(hosted)
        if isinstance(role, LeaderPartition):
            incarnation = hosted.broker.incarnation
            known = self._leaders.setdefault(role.leader_epoch, incarnation)
            if known != incarnation:
                detail = f"{known} and {incarnation} lead in epoch {role.leader_epoch}"
                raise Violation("SingleLeader", detail)
            self._check_quorum(hosted, role)
        if hosted.broker.id in self.candidates:
            self.check_candidate(hosted.broker.id)

    def advance(self, hosted: SimulatedPartition) -> None:
        """Take note of what a replica calls committed, and compare."""
        high_watermark = hosted.replica.role.high_watermark
        if high_watermark < hosted.seen_high_watermark:
            known = hosted.seen_high_watermark
            detail = f"that of {hosted.broker.id} went back from {known} to {high_watermark}"
            raise Violation("MonotonicHighWatermark", detail)
        hosted.seen_high_watermark = high_watermark
        log, end_offset = hosted.log, len(self.committed)
        self._start_offset = max(self._start_offset, log.start_offset)
        known = min(high_watermark, end_offset)
        if known > log.start_offset and not self._agrees(log, known - 1):
            detail = (
                f"{hosted.broker.id} has {log.at(known - 1)} at {known - 1}, "
                f"where {self.committed[known - 1]} is committed"
            )
            raise Violation("ConsistentRead", detail)
        if high_watermark > end_offset:
            # A leader that has not heard of a higher number yet goes by the one it knows.
            self._commit(log, high_watermark, min(self._min_insync, hosted.min_insync))
            self._check_candidates()

    def _commit(self, log: SimulatedLog, high_watermark: int, promised: int) -> None:
        offset = len(self.committed)
        if log.base_offset > offset:
            if not self.given_up:
                raise Violation(
                    "ConsistentRead", f"a log begins at {log.base_offset}, above {offset}"
                )
            self.committed += [None] * (log.base_offset - offset)
            offset = log.base_offset
        new = log.entries[offset - log.base_offset : high_watermark - log.base_offset]
        self.committed += new
        while offset < high_watermark:
            batch = new[offset + len(new) - high_watermark]
            # Where a log starts within a batch, so may its high watermark be: it was counted then.
            if batch.base_offset >= offset:
                self._world.counters["committed"] += batch.count
                self._promised_copies[batch.number] = promised
                if batch.header.producer_id >= 0:
                    self._check_sequence(batch)
            offset = batch.end_offset

    def _check_sequence(self, batch: SimulatedBatch) -> None:
        header = batch.header
        last = self._last_batches.get(header.producer_id)
        self._last_batches[header.producer_id] = batch
        if last is None:
            # After an unclean election nobody knows where it was.
            is_next = header.base_sequence == 0 or self.given_up > 0
        else:
            is_next = header.base_sequence == last.header.last_sequence + 1
            # Deleted records leave no trace of their producer with new replicas.
            is_next = is_next or last.end_offset <= self._start_offset
        if not is_next:
            raise Violation("NoCommittedRecordLost", f"{batch} is committed directly after {last}")

    def _holds(self, log: SimulatedLog | None, end_offset: int) -> bool:
        """Whether a log has what was committed below an offset."""
        if end_offset == 0:
            return True
        if log is None or log.end_offset < end_offset:
            return False
        if log.start_offset >= end_offset:
            return True
        return self._agrees(log, end_offset - 1)

    def _agrees(self, log: SimulatedLog, offset: int) -> bool:
        """Whether a log has at an offset what was committed there."""
        committed = self.committed[offset]
        return committed is None or log.at(offset) is committed

    def _check_candidates(self) -> None:
        for broker_id in self.candidates:
            self.check_candidate(broker_id)

    def check_candidate(self, broker_id: int) -> None:
        node = self._world.brokers[broker_id]
        if node.has_lost(self._key):
            return
        log = node.disk.logs.get(self._key)
        if not self._holds(log, len(self.committed)):
            record = self.record
            is_leader = record is not None and record.leader == broker_id
            end_offset = 0 if log is None else log.end_offset
            raise Violation(
                "LeaderCompleteness" if is_leader else "LeaderCandidateCompleteness",
                f"{broker_id} has not all that is committed, up to {len(self.committed)}; "
                f"its log ends at {end_offset}",
            )

    def _check_quorum(self, hosted: SimulatedPartition, leader: LeaderPartition) -> None:
        record = self.record
        if record is None or leader.leader_epoch != record.leader_epoch:
            return
        members = set(record.in_sync)
        if not leader.is_under_min_isr:
            members.update(record.eligible)
        if not members <= leader.maximal_isr:
            detail = (
                f"{hosted.broker.id} waits for {sorted(leader.maximal_isr)}, "
                f"but {sorted(members)} may lead"
            )
            raise Violation("ReplicationQuorumSuperset", detail)

    # Clients

    def will_write(self, hosted: SimulatedPartition, batch: SimulatedBatch) -> None:
        place = batch.epoch, batch.base_offset
        if self._places.setdefault(place, batch) is not batch:
            detail = f"{hosted.broker.id} writes {batch}, where {self._places[place]} was written"
            raise Violation("SingleLeader", detail)

    def on_follower_fetched(self, hosted: SimulatedPartition, follower_id: int) -> None:
        self._fetched_ms[hosted.broker.incarnation, follower_id] = hosted.broker.now_ms

    def on_high_watermark_sent(
        self, hosted: SimulatedPartition, follower_id: int, high_watermark: int
    ) -> None:
        self._sent[hosted.broker.incarnation, follower_id] = high_watermark

    def _check_followers_know(self, hosted: SimulatedPartition, batch: SimulatedBatch) -> None:
        """Check that each live in-sync follower was sent the high watermark of the batch.

        Not for a follower that does not fetch, nor for a leader that is replaced or removed, which
        can send nothing.
        """
        broker, leader = hosted.broker, hosted.replica.leader
        if leader is None or hosted.is_removed:
            return
        for follower_id in leader.isr & broker.live_epochs.keys() - {broker.id}:
            place = broker.incarnation, follower_id
            fetched_ms = self._fetched_ms.get(place)
            if fetched_ms is None or broker.now_ms - fetched_ms >= MAX_ACK_DELAY_MS:
                continue
            sent = self._sent.get(place, 0)
            if sent < batch.end_offset:
                detail = (
                    f"{broker.id} acknowledges {batch}, but {follower_id} was sent the high "
                    f"watermark {sent}"
                )
                raise Violation("AcknowledgedIsServed", detail)

    def on_acknowledged(self, hosted: SimulatedPartition, batch: SimulatedBatch) -> None:
        if not self.is_aligned(hosted):
            self._world.counters["given up"] += 1
            return
        self.advance(hosted)
        if not self._is_committed(batch):
            detail = f"{hosted.broker.id} acknowledges {batch}, which is not committed"
            raise Violation("NoCommittedRecordLost", detail)
        self._check_followers_know(hosted, batch)
        if self._world.setup.crash is CrashModel.PROCESS:
            nodes = self._world.brokers.values()
            logs = [log for node in nodes if (log := node.disk.logs.get(self._key)) is not None]
            count = sum(
                log.start_offset >= batch.end_offset or log.at(batch.base_offset) is batch
                for log in logs
            )
            # What was committed is acknowledged, even if more copies are asked for since then.
            promised = self._promised_copies.get(batch.number, hosted.min_insync)
            if count < min(self._min_insync, hosted.min_insync, promised):
                detail = f"{batch} is acknowledged with {count} copies"
                raise Violation("NoCommittedRecordLost", detail)

    def _is_committed(self, batch: SimulatedBatch) -> bool:
        # By its end: where it begins may be deleted, and before that another one was there.
        last = batch.end_offset - 1
        return last < len(self.committed) and self.committed[last] is batch

    def on_producer_acknowledged(self, batch: SimulatedBatch) -> None:
        if self._is_committed(batch):
            self._world.counters["acknowledged"] += batch.count
            self.acknowledged_batches[batch.number] = batch
        elif not self.given_up:
            raise Violation(
                "NoCommittedRecordLost", f"{batch} was acknowledged and is not committed"
            )

    def on_sequence_refused(self, hosted: SimulatedPartition, header: BatchHeader) -> None:
        """A leader calls a batch out of order."""
        record, last = self.record, self._last_batches.get(header.producer_id)
        is_current = record is not None and record.leader_epoch == hosted.replica.role.leader_epoch
        # Whose batches are all deleted is unknown to replicas that began after that, and may
        # begin anywhere.
        if is_current and last is not None and last.end_offset > self._start_offset:
            next_sequence = last.header.last_sequence + 1
            if header.base_sequence == next_sequence:
                detail = f"{hosted.broker.id} calls sequence {next_sequence} out of order"
                raise Violation("NoCommittedRecordLost", detail)

    def on_consumed(self, hosted: SimulatedPartition, batch: SimulatedBatch) -> None:
        self._world.counters["consumed"] += batch.count
        # A leader from an unclean election may bring back what was given up, and be read.
        self.advance(hosted)
        if not self._is_committed(batch):
            raise Violation(
                "ConsistentRead",
                f"{hosted.broker.id} gives a consumer {batch}, which is not committed",
            )

    def on_consumer_out_of_range(self, hosted: SimulatedPartition, offset: int) -> None:
        """A consumer gets OFFSET_OUT_OF_RANGE at an offset that it has read."""
        if self._is_current_leader(hosted):
            detail = f"{hosted.broker.id} leads, and has no offset {offset}, which was read"
            raise Violation("ConsistentRead", detail)

    def on_consumer_diverged(
        self, hosted: SimulatedPartition, offset: int, diverging: EpochEndOffset
    ) -> None:
        """A consumer gets a diverging epoch: its last record is not in the log."""
        if self._is_current_leader(hosted):
            detail = f"{hosted.broker.id} makes a consumer at {offset} go back to {diverging}"
            raise Violation("ConsistentRead", detail)

    def _is_current_leader(self, hosted: SimulatedPartition) -> bool:
        """Whether a replica is the leader in the metadata. A replaced leader refuses every client
        that knows a later epoch, as a client that read from a later leader does."""
        record, role = self.record, hosted.replica.role
        is_current = record is not None and record.leader_epoch == role.leader_epoch
        return is_current and isinstance(role, LeaderPartition)

    def check_latest_offset(self, hosted: SimulatedPartition) -> None:
        """A client asks a leader for the latest offset."""
        leader = hosted.replica.leader
        if leader is None or leader.leader_epoch < self._unclean_epoch:
            return  # or it is replaced and does not know it; its records are given up
        try:
            answer = leader.leader_epoch, leader.latest_offset()
        except ApiError:
            self._world.counters["ends not available"] += 1
            return
        if answer[0] >= self._latest[0]:
            if answer[1] < self._latest[1]:
                detail = f"{answer} after {self._latest} (leader epoch, offset)"
                raise Violation("MonotonicLatestOffset", detail)
            self._latest = answer
