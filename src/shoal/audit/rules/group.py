"""The judgement on what one group received of the messages of one cell."""

import numpy as np

from shoal.audit.arrays import (
    LARGEST,
    NONE,
    Array,
    Bools,
    Ints,
    ends_of_groups,
    highest_by_pair,
    ints,
)
from shoal.audit.context import Cluster, Knowledge, Stream
from shoal.audit.parts import PartKind
from shoal.audit.read.evidence import NEVER, offset_of, pack_places, partition_of
from shoal.audit.read.view import CellView
from shoal.audit.rules.absence import is_shown_absent
from shoal.audit.rules.batches import batch_rows
from shoal.audit.rules.loss import CAUSES, PENDING, SUPERSEDED, Missing, classify, is_undecided
from shoal.audit.rules.supersession import (
    AbsentMessages,
    distinct,
    is_candidate,
    is_superseded,
    members_of,
)
from shoal.audit.rules.tally import CellRecorder, is_measured, write_order, write_range
from shoal.audit.stages import STAGE_COUNTS, STAGE_OF_CLUSTER, StageCount, StageName
from shoal.audit.times.bins import count_bin_latencies, count_bins
from shoal.audit.times.latency import buckets_per_second, maxima_per_second, per_second
from shoal.audit.times.segments import segments_of, summarise_slots
from shoal.model.findings import Finding
from shoal.model.ledger import ABORTED, FAILED, OK, UNKNOWN


class GroupJudge:
    """Records the counts and findings of one group in one cell."""

    def __init__(
        self,
        view: CellView,
        outcome: Array,
        group: str,
        recorder: CellRecorder,
        *,
        explained: Bools,
    ) -> None:
        self.view, self.outcome, self.group, self.recorder = view, outcome, group, recorder
        self._explained = explained  # slots whose checksum is broken because they were altered
        self.deliveries = view.deliveries(group)
        self.delivered = self.deliveries.delivered
        self.is_undecided = False  # whether the judgement needs knowledge from other cells

    def judge(self) -> None:
        self._count()
        self._judge_unexpected_and_aborted()
        self._judge_transactions()
        self._judge_corruption()
        self._judge_vanished()
        units = self.view.arrival_units(self.deliveries)
        received_by = (self.group, self.deliveries)
        write_order(self.view, self.recorder, kind="consumers", units=units, by=received_by)
        self._measure()
        self._write_reach()
        self._judge_missing()

    def _count(self) -> None:
        delivered, outcome = self.delivered, self.outcome
        counts = {
            "deliveries": self.deliveries.slots,
            "re_reads": self.deliveries.re_read_slots,
            "delivered": np.flatnonzero(delivered),
            "delivered_attempts": np.flatnonzero(delivered & (outcome != NEVER)),
            "delivered_ok": np.flatnonzero(delivered & (outcome == OK)),
            "recovered": np.flatnonzero(delivered & (outcome == UNKNOWN)),
        }
        for name, slots in counts.items():
            self.recorder.count(self.group, name, slots)
        slots, view = counts["delivered_ok"], self.view
        times = (view.attempts.sent_us[slots], view.attempts.acked_us[slots])
        rows = batch_rows(view.index.stream_of(slots), times, view.cell.low)
        self.recorder.write(PartKind.BATCHES, self.group, rows)

    def _find(self, finding: Finding, found: Bools) -> None:
        slots = np.flatnonzero(found)
        self.recorder.find(self.group, finding, slots, deliveries=self.deliveries)

    def _judge_unexpected_and_aborted(self) -> None:
        """Find deliveries that were never attempted, and deliveries of failed attempts."""
        unexpected = self.delivered & (self.outcome == NEVER)
        self._find(Finding.UNEXPECTED, unexpected)
        aborted = self._is_aborted_read()
        self._find(Finding.ABORTED_READ, aborted)
        self._blame_aborted(aborted)
        # The first log with an unexpected message shows which stage made it.
        in_source, in_target = self.view.in_source, self.view.in_target
        at_source = np.flatnonzero(unexpected & in_source)
        at_mirror = np.flatnonzero(unexpected & in_target & ~in_source)
        self.recorder.count(self.group, StageCount.UNEXPECTED_SOURCE, at_source)
        self.recorder.count(self.group, StageCount.UNEXPECTED_MIRROR, at_mirror)

    def _blame_aborted(self, aborted: Bools) -> None:
        """Blame the source for storing a refused message, else the stage that exposed an abort."""
        refused = self.view.refused
        self.recorder.count(
            self.group, StageCount.ABORTED_SOURCE, np.flatnonzero(aborted & refused)
        )
        self._blame_for_exposure(Finding.ABORTED_READ, aborted & (~refused | self._is_withheld()))

    def _blame_for_exposure(self, finding: Finding, found: Bools) -> None:
        """Blame the stage that exposes uncommitted messages: the mirror if the run has one."""
        stage = StageName.MIRROR if self.view.context.has_mirror else StageName.CONSUMERS
        self.recorder.count(self.group, STAGE_COUNTS[stage, finding], np.flatnonzero(found))

    def _is_aborted_read(self) -> Bools:
        """Which deliveries are of a failed attempt or of a transaction to be withheld."""
        failed = (self.outcome == FAILED) & self._is_withheld()
        found: Bools = self.delivered & (failed | self.view.refused)
        return found

    def _is_withheld(self) -> Bools:
        """Which slots belong to aborted transactions that this group must not receive."""
        members = self.view.memberships
        if members is None or not self.view.context.reads_committed(self.group):
            return np.zeros(self.view.size, dtype=np.bool_)
        withheld: Bools = members.fate == ABORTED
        return withheld

    def _judge_transactions(self) -> None:
        """Find reads before the commit was requested; record which transactions were delivered."""
        view, members = self.view, self.view.memberships
        if members is None or not view.context.reads_committed(self.group):
            return
        slots = self.deliveries.slots
        received = view.receipts["received_us"][self.deliveries.rows]
        requested = members.requested_us[slots]
        ahead = np.where(requested == NONE, -LARGEST, requested - received)
        early = np.zeros(view.size, dtype=np.bool_)
        undecided = np.zeros(view.size, dtype=np.bool_)
        skew = view.context.skews_us.get(self.group)
        if skew is not None:  # the true lead is the measured lead plus the skew
            early[slots[ahead > -skew[0]]] = True
        undecided[slots[ahead > (-skew[1] if skew else 0)]] = True
        self._find(Finding.UNCOMMITTED_READ, early)
        self._blame_for_exposure(Finding.UNCOMMITTED_READ, early)
        self.recorder.count(self.group, "undecided_reads", np.flatnonzero(undecided & ~early))
        if not view.cell.is_again:  # the first judgement has recorded them
            self.recorder.record_seen(self.group, distinct(members.transaction[self.delivered]))

    def _judge_corruption(self) -> None:
        view = self.view
        received = np.zeros(view.size, dtype=np.bool_)
        broken_rows = ~view.receipts["intact"][self.deliveries.rows]
        received[self.deliveries.slots[broken_rows]] = True
        broken = (received | view.broken_in_target) & ~self._explained
        self._find(Finding.CORRUPTED, broken | view.broken_in_source)
        in_log = view.broken_in_target if view.context.has_mirror else view.broken_in_source
        by_consumers = np.flatnonzero(received & view.in_read_log & ~in_log)
        self.recorder.count(self.group, StageCount.CORRUPTED_CONSUMERS, by_consumers)

    # ------------------------------------------------------------ vanished

    def _judge_vanished(self) -> None:
        """Find messages that were delivered or mirrored, but are absent from their scanned log."""
        view, read_cluster = self.view, self.view.context.read_cluster
        gone = np.zeros(view.size, dtype=np.bool_)
        absent = ~view.in_read_log[self.deliveries.slots]
        slots = self.deliveries.slots[absent]
        places = view.receipts["place"][self.deliveries.rows[absent]]
        gone[slots[self._is_covered(read_cluster, slots, places)]] = True
        gone[self._find_superseded(np.flatnonzero(gone), read_cluster)] = False
        name = STAGE_COUNTS[STAGE_OF_CLUSTER[read_cluster], Finding.VANISHED]
        self.recorder.count(self.group, name, np.flatnonzero(gone))
        if view.context.has_mirror:
            mirrored = (view.in_target | self.delivered) & ~view.in_source
            reported = view.attempts.outcome
            known = (self.outcome != NEVER) & (reported != FAILED)
            slots = np.flatnonzero(mirrored & known)
            slots = slots[self._is_covered("source", slots, view.source_last[slots])]
            slots = np.setdiff1d(slots, self._find_superseded(slots, "source"), assume_unique=True)
            self.recorder.count(self.group, StageCount.VANISHED_SOURCE, slots)
            gone[slots] = True
        self._find(Finding.VANISHED, gone)

    def _find_superseded(self, slots: Ints, cluster: Cluster) -> Ints:
        """Return which of the slots, all absent from a log, a later message has superseded."""
        view = self.view
        own = view.source_last if cluster == "source" else view.target_last
        gone = AbsentMessages(slots, own[slots], view.source_last[slots], view.target_last[slots])
        if view.cell.knowledge is None:
            if is_candidate(view, cluster, gone).any():
                self.is_undecided = True
            return ints()
        return slots[is_superseded(view, cluster, gone, view.cell.knowledge)]

    def _is_covered(self, cluster: Cluster, slots: Ints, places: Ints) -> Bools:
        """Whether a scan would show these messages if they were still at these places.

        An unknown place counts as inside the scan of the lane's own partition if that log begins at
        0, or if an earlier message of the stream was there and the log start never moved.
        """
        view, context = self.view, self.view.context
        covered = np.zeros(len(slots), dtype=np.bool_)
        if not context.has_scans_of(cluster):
            return covered
        placed, unplaced = np.flatnonzero(places != NONE), np.flatnonzero(places == NONE)
        own = slots[placed]
        covered[placed] = is_shown_absent(
            context,
            cluster,
            (view.index.streams, view.index.stream_of(own), places[placed]),
            acknowledged=view.is_acknowledged[own],
            is_drained=lambda stream: context.is_drained(self.group, stream),
        )
        streams, inverse = np.unique(view.index.stream_of(slots[unplaced]), return_inverse=True)
        since = ints([self._coverage_start(cluster, view.index.streams[n]) for n in streams])
        if len(unplaced):
            covered[unplaced] = view.index.sequence_of(slots[unplaced]) > since[inverse]
        return covered

    def _coverage_start(self, cluster: Cluster, stream: Stream) -> int:
        """Return the sequence above which unplaced messages of a stream are inside a scan."""
        partition = self.view.context.partition_for(cluster, stream)
        log, knowledge = (cluster, stream.topic, partition), self.view.cell.knowledge
        start, _ = self.view.context.scans.get(log, (LARGEST, 0))
        if start in {0, LARGEST}:
            return start or NONE
        if knowledge is None:
            self.is_undecided = True
            return LARGEST
        return LARGEST if log in knowledge.moved else knowledge.placed_since.get(stream, LARGEST)

    # ------------------------------------------------------------ times

    def _measure(self) -> None:
        view, recorder, group = self.view, self.recorder, self.group
        slots = np.flatnonzero(self.delivered)
        received = view.receipts["received_us"][self.deliveries.first[slots]]
        write_range(recorder, group, "consumed", received)
        every_time, rows = view.receipts["received_us"], self.deliveries.rows
        if len(rows) < len(every_time):
            every_time = every_time[rows]
        recorder.write(PartKind.SECOND, [group, "received"], per_second(every_time))
        self._write_bins(slots, received)
        edges_us = view.context.edges_us
        recorder.count_times(group, "received during", segments_of(every_time, edges_us))
        if edges_us:
            self._write_slot_stats()
        times = view.attempts
        timed = (times.sent_us[slots] != NONE) & is_measured(view)[slots]
        if not timed.all():
            slots, received = slots[timed], received[timed]
        recorder.count(group, "measured delivered", slots)
        write_range(recorder, group, "measured delivered", received)
        intended, sent = times.intended_us[slots], times.sent_us[slots]
        waited = received - intended
        recorder.measure(group, "e2e_intended", slots, waited)
        recorder.measure(group, "e2e_actual", slots, received - sent)
        recorder.write(PartKind.LATENCY_SECOND, group, buckets_per_second(intended, waited))
        recorder.write(PartKind.LATENCY_MAX, group, maxima_per_second(intended, waited))

    def _write_bins(self, slots: Ints, received: Ints) -> None:
        """Write first deliveries by time, and their latency by intended send."""
        bins, intended = self.view.context.bins, self.view.attempts.intended_us[slots]
        if not bins.count:
            return
        self.recorder.write(PartKind.BINS, [self.group, "received"], count_bins(bins, received))
        timed = intended != NONE
        waits = (received - intended)[timed]
        rows = count_bin_latencies(bins, intended[timed], waits)
        self.recorder.write(PartKind.BIN_LATENCY, self.group, rows)

    def _write_missing_bins(self, lost: Ints, never: Ints) -> None:
        """Write lost messages, and all that did not arrive, by intended send."""
        bins, intended = self.view.context.bins, self.view.attempts.intended_us
        if bins.count:
            for name, slots in (("lost", lost), ("never", never)):
                rows = count_bins(bins, intended[slots])
                self.recorder.write(PartKind.BINS, [self.group, name], rows)

    def _write_slot_stats(self) -> None:
        """Write statistics of messages by their intended send time (`SlotColumn`)."""
        view, outcome, delivered = self.view, self.outcome, self.delivered
        received = np.full(view.size, NONE)
        rows = self.deliveries.first[delivered]
        received[delivered] = view.receipts["received_us"][rows]
        unanswered = (outcome == UNKNOWN) & view.context.acknowledged
        worse = (outcome == FAILED) | unanswered
        if not view.context.compacted:  # in a compacted topic a message may be superseded
            worse |= ~delivered
        attempted = np.flatnonzero((outcome != NEVER) & (view.segment != NONE))
        segments = view.segment[attempted]
        for segment in np.unique(segments).tolist():
            slots = attempted[segments == segment]
            columns = (view.attempts.intended_us[slots], worse[slots], received[slots])
            rows = summarise_slots(*columns, slot_us=view.context.slot_us)
            self.recorder.write(
                PartKind.SLOT_STATS, self.group, np.insert(rows, 0, segment, axis=1)
            )

    def _write_reach(self) -> None:
        """Write how far the group read each partition and stream, and its lowest offsets."""
        view, recorder = self.view, self.recorder
        places = view.receipts["place"][self.deliveries.rows]
        topic, topics = view.index.topic_of(self.deliveries.slots), view.index.topics
        partition, offset = partition_of(places), offset_of(places)
        reach = highest_by_pair(topic, partition, offset + 1)
        recorder.write(PartKind.GROUP_REACH, [self.group, topics], reach)
        lowest = highest_by_pair(topic, partition, -offset)
        recorder.write(PartKind.BEGAN, [view.context.read_cluster, topics], lowest)
        slots = np.flatnonzero(self.delivered)
        streams = view.index.stream_of(slots)
        last = ends_of_groups(streams)
        until = view.index.sequence_of(slots[last])
        recorder.write(
            PartKind.DELIVERED_UNTIL, self.group, np.stack([streams[last], until], axis=1)
        )

    # ------------------------------------------------------------ missing

    def _judge_missing(self) -> None:
        view, outcome, recorder, group = self.view, self.outcome, self.recorder, self.group
        possible = (outcome == UNKNOWN) & ~view.refused
        committed = (outcome == OK) | (possible & view.delivered_to_anyone)
        committed |= self._is_committed_by_others(committed)
        owed = committed | ((view.in_source | view.in_target) & ~view.hidden)
        slots = np.flatnonzero(owed & ~self.delivered)
        missing = self._missing(slots)
        superseded = self._find_superseded_losses(slots)
        knowledge = view.cell.knowledge
        if knowledge is None and (self.is_undecided or is_undecided(missing, group, view.context)):
            recorder.write(PartKind.UNDECIDED, group)
            return
        cause = classify(missing, group, view.context, knowledge or Knowledge())
        cause[np.isin(slots, superseded, assume_unique=True)] = SUPERSEDED
        for number, finding in enumerate(CAUSES):
            recorder.find(group, finding, slots[cause == number])
        is_ok, is_pending, is_lost = outcome[slots] == OK, cause == PENDING, cause < PENDING
        recorder.count(group, "lost_ok", slots[is_lost & is_ok])
        recorder.count(group, "pending_ok", slots[is_pending & is_ok])
        recorder.count(group, "superseded_ok", slots[(cause == SUPERSEDED) & is_ok])
        before_mirror = view.context.has_mirror & (missing.read_place == NONE)
        recorder.count(group, StageCount.PENDING_MIRROR, slots[is_pending & before_mirror])
        self._write_tails(slots[is_lost])
        self._write_missing_bins(slots[is_lost], slots[is_lost | is_pending])
        self._write_lost_transactions(slots[is_lost], cause[is_lost])

    def _is_committed_by_others(self, committed: Bools) -> Bools:
        """Which unknown attempts are of a transaction of which another message was delivered."""
        view, members = self.view, self.view.memberships
        found = np.zeros(view.size, dtype=np.bool_)
        if members is None or not view.context.reads_committed(self.group):
            return found
        possible = (self.outcome == UNKNOWN) & ~view.refused
        waiting = np.flatnonzero(possible & ~committed & (members.transaction != NONE))
        if view.cell.knowledge is None:
            self.is_undecided |= bool(len(waiting))
            wanted = distinct(members.transaction[waiting])
            self.recorder.write(PartKind.WANTED_TRANSACTIONS, None, wanted)
            return found
        seen = view.cell.knowledge.delivered_transactions
        found[waiting[members_of(members.transaction[waiting], seen)]] = True
        return found

    def _find_superseded_losses(self, slots: Ints) -> Ints:
        """Return the slots that compaction removed from the read log, or from the source."""
        view = self.view
        absent = slots[~view.in_read_log[slots]]
        superseded = self._find_superseded(absent, view.context.read_cluster)
        if view.context.has_mirror:
            before = self._find_superseded(absent[~view.in_source[absent]], "source")
            superseded = np.union1d(superseded, before)
        return superseded

    def _write_lost_transactions(self, lost: Ints, cause: Ints) -> None:
        """Write the transactions that lost a message, each with the first one and its cause."""
        members, index = self.view.memberships, self.view.index
        if members is None or not self.view.context.reads_committed(self.group):
            return
        own = members.transaction[lost] != NONE
        lost, cause = lost[own], cause[own]
        transactions, first = np.unique(members.transaction[lost], return_index=True)
        slots = lost[first]
        rows = [transactions, index.stream_of(slots), index.sequence_of(slots), cause[first]]
        self.recorder.write(PartKind.LOST_TRANSACTIONS, self.group, np.column_stack(rows))

    def _missing(self, slots: Ints) -> Missing:
        view = self.view
        read = view.target_last if view.context.has_mirror else view.source_last
        intended = view.attempts.intended_us[slots]
        return Missing(
            streams=view.index.streams,
            stream=view.index.stream_of(slots),
            sequence=view.index.sequence_of(slots),
            in_source=view.in_source[slots],
            in_target=view.in_target[slots],
            source_place=view.source_last[slots],
            read_place=read[slots],
            neighbour=self._neighbours(slots),
            overdue=(intended != NONE) & (intended <= view.context.overdue_us),
            acknowledged=view.is_acknowledged[slots],
        )

    def _neighbours(self, slots: Ints) -> Ints:
        """Return the target place of the nearest lower message of the stream, in any cell."""
        index, target = self.view.index, self.view.target_last
        stream = index.stream_of(slots)
        below = ints([self._place_below(number) for number in range(len(index.streams))])[stream]
        known = np.flatnonzero(target != NONE)
        if not len(known):
            return below
        nearest = np.searchsorted(known, slots) - 1
        found = known[np.maximum(nearest, 0)]
        is_own = (nearest >= 0) & (index.stream_of(found) == stream)
        return np.where(is_own, target[found], below)

    def _place_below(self, stream: int) -> int:
        cell = self.view.cell
        last_in_target = (cell.knowledge or Knowledge()).last_in_target
        rows = last_in_target.get(self.view.index.streams[stream], ())
        lower = [row for row in rows if row[0] < cell.low]
        if not lower:
            return NONE
        _, partition, offset = lower[-1]
        return int(pack_places(ints([partition]), ints([offset]))[0])

    def _write_tails(self, lost: Ints) -> None:
        """Write per stream the lost messages of this cell, in all and above all deliveries."""
        index = self.view.index
        found = np.flatnonzero(self.delivered)
        count = len(index.streams)
        highest = np.full(count, NONE)
        np.maximum.at(highest, index.stream_of(found), index.sequence_of(found))
        stream, sequence = index.stream_of(lost), index.sequence_of(lost)
        above = sequence > highest[stream]
        lost_here = np.bincount(stream, minlength=count)
        columns = [
            np.arange(count),
            np.full(count, self.view.cell.low),
            highest,
            lost_here,
            np.bincount(stream[above], minlength=count),
            _lowest(stream, sequence, count),
            _lowest(stream[above], sequence[above], count),
        ]
        rows = np.column_stack(columns)[(highest != NONE) | (lost_here > 0)]
        self.recorder.write(PartKind.TAIL, self.group, rows)


def _lowest(stream: Ints, sequence: Ints, count: int) -> Ints:
    lowest = np.full(count, LARGEST)
    np.minimum.at(lowest, stream, sequence)
    return lowest
