"""The judgement on one cell: a range of sequences of all streams.

Logs are judged here, once; deliveries are judged in `group`, once for each group. A cell returns
what it cannot decide alone (order across its borders, tail loss, offsets with two messages) as
small summaries, which `merge` combines.

A cell whose missing messages depend on other cells returns `undecided` and is judged again with
`Knowledge`; of its first answer only the contributions to `Knowledge` count.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from shoal.audit.arrays import (
    NONE,
    Array,
    Ints,
    ends_of_groups,
    full_ints,
    highest_by_pair,
    ints,
    starts_of_groups,
)
from shoal.audit.context import AuditContext, Cluster
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.read.evidence import (
    NEVER,
    find_reused_slots,
    gather_places,
    offset_of,
    pack_places,
    partition_of,
)
from shoal.audit.read.view import CellView
from shoal.audit.rules.fidelity import Alterations, compare_copies
from shoal.audit.rules.group import GroupJudge
from shoal.audit.rules.supersession import distinct, latest_rows
from shoal.audit.rules.tally import CellRecorder, is_measured, spans_of, write_order, write_range
from shoal.audit.stages import StageCount
from shoal.audit.tasks import MessageCell
from shoal.audit.times.bins import count_bins, summarise_stretches
from shoal.audit.times.latency import per_second
from shoal.audit.times.segments import segments_of
from shoal.model.findings import Finding
from shoal.model.ledger import FAILED, OK, UNKNOWN

DOUBTFUL_GAP = 4096  # two doubtful offsets at most this far apart are examined as one range


def judge_cell(cell: MessageCell, context: AuditContext) -> list[TaskPart]:
    view = CellView(cell, context)
    outcome = view.outcome
    recorder = CellRecorder(view, outcome)
    _count_attempts(view, outcome, recorder)
    _count_for_pictures(view, outcome, recorder)
    recorder.find(None, Finding.REUSED_SEQUENCE, _find_reused(view, outcome))
    alterations = compare_copies(view)
    _judge_logs(view, recorder, alterations)
    _judge_unreadable(view, recorder)
    for group in context.groups:
        GroupJudge(view, outcome, group, recorder, explained=alterations.explained).judge()
    return recorder.parts()


# ---------------------------------------------------------------- producers


def _count_attempts(view: CellView, outcome: Array, recorder: CellRecorder) -> None:
    recorder.count(None, "attempts", np.flatnonzero(outcome != NEVER))
    for name, value in (("ok", OK), ("failed", FAILED), ("unknown", UNKNOWN)):
        recorder.count(None, name, np.flatnonzero(outcome == value))
    # With sparse slots, planned sequences without any row have no slot, but are attempts too.
    planned = view.extents("planned")
    used = np.clip(planned - view.cell.low, 0, view.cell.high - view.cell.low)
    traceless = used - view.index.count_per_stream(view.index.first_slots(planned))
    if traceless.any():
        recorder.add(None, "attempts", traceless)
        recorder.add(None, "unknown", traceless)
    times = view.attempts
    sent = times.sent_us[times.sent_us != NONE]
    write_range(recorder, None, "sent", sent)
    recorder.write(PartKind.SECOND, [None, "sent"], per_second(sent))
    recorder.count_times(None, "sent during", segments_of(sent, view.context.edges_us))
    write_range(recorder, None, "published", times.acked_us[times.acked_us != NONE])
    measured = is_measured(view) & (times.sent_us != NONE)
    recorder.count(None, "measured sent", np.flatnonzero(measured))
    write_range(recorder, None, "measured sent", times.sent_us[measured])
    acked = np.flatnonzero(measured & (times.acked_us != NONE))
    recorder.measure(None, "producer", acked, (times.acked_us - times.sent_us)[acked])


def _count_for_pictures(view: CellView, outcome: Array, recorder: CellRecorder) -> None:
    """Write due and acknowledged messages by time, and how many messages each log had."""
    times, bins, index = view.attempts, view.context.bins, view.index
    if bins.count:
        due = np.flatnonzero((outcome != NEVER) & (times.intended_us != NONE))
        recorder.write(PartKind.BINS, [None, "due"], count_bins(bins, times.intended_us[due]))
        acked_us = times.acked_us[outcome == OK]
        recorder.write(PartKind.BINS, [None, "acknowledged"], count_bins(bins, acked_us))
        stretch = index.sequence_of(due) // view.context.stretch
        rows = summarise_stretches(index.stream_of(due), stretch, times.intended_us[due])
        recorder.write(PartKind.STRETCHES, None, rows)
    in_source, in_target = view.reached_source, view.reached_target
    recorder.write(PartKind.REACHED, "source", [np.count_nonzero(in_source)])
    recorder.write(PartKind.REACHED, "target", [np.count_nonzero(in_target)])


def _find_reused(view: CellView, outcome: Array) -> Ints:
    """Find slots with two acknowledged attempts, which the ledgers cannot distinguish.

    A history may repeat a line, so there the offsets must differ. A ledger has one row for each
    attempt; two identical rows are one row of a folder that was given twice.
    """
    if not view.context.acknowledged or not view.attempts.is_repeated:
        return ints()
    columns = ("offset",) if view.context.is_history else ("offset", "sent_us", "acked_us")
    slots = find_reused_slots(view.attempt_rows, view.attempt_slots, columns)
    found: Ints = slots[outcome[slots] == OK]
    return found


# ---------------------------------------------------------------- logs


def _judge_logs(view: CellView, recorder: CellRecorder, alterations: Alterations) -> None:
    context = view.context
    source_copies = view.source_places.copies(view.size)
    _write_source_began(view, recorder)
    recorder.find(None, Finding.DUPLICATE_SOURCE, _repeat_by_copies(source_copies))
    _write_unproven_offsets(view, recorder)
    write_order(view, recorder, kind="source", units=view.log_units("source"))
    recorder.count(None, StageCount.CORRUPTED_SOURCE, np.flatnonzero(view.broken_in_source))
    _write_doubtful(view, recorder, "source")
    if context.has_mirror:
        target_copies = view.target_places.copies(view.size)
        recorder.find(None, Finding.DUPLICATE_TARGET, _repeat_by_copies(target_copies))
        own_copies = _repeat_by_copies(np.maximum(target_copies - source_copies, 0))
        recorder.count(None, StageCount.DUPLICATE_MIRROR, own_copies)
        write_order(view, recorder, kind="target", units=view.log_units("target"))
        broken_by_mirror = view.broken_in_target & ~view.broken_in_source & ~alterations.explained
        for finding, slots in alterations.slots.items():
            recorder.find(None, finding, slots)
        recorder.count(None, StageCount.CORRUPTED_MIRROR, np.flatnonzero(broken_by_mirror))
        _write_doubtful(view, recorder, "target")
        _write_mirror_reach(view, recorder)
        recorder.write(PartKind.LATEST, "target", latest_rows(view, "target"))
        _measure_replication(view, recorder)
    recorder.write(PartKind.LATEST, "source", latest_rows(view, "source"))
    _write_output_range(view, recorder)


def _judge_unreadable(view: CellView, recorder: CellRecorder) -> None:
    """Judge unreadable records in lanes of the run, by log.

    A record that was already unreadable when the mirror copied it is not counted again.
    """
    found: dict[tuple[int, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    names = ("topic", "partition", "offset")
    log, received = view.unreadable_log, view.unreadable_receipts
    places = zip(*(log[name].tolist() for name in names), log["cluster"].tolist(), strict=True)
    for topic, partition, offset, cluster in places:
        found[topic, partition][view.words.names[cluster]].add(offset)
    for topic, partition, offset in zip(*(received[name].tolist() for name in names), strict=True):
        found[topic, partition]["receipts"].add(offset)
    read_cluster = view.context.read_cluster
    for (topic, partition), by_place in sorted(found.items()):
        stages = _unreadable_stages(view.context, view.words.names[topic], partition, by_place)
        by_place[read_cluster] |= by_place.pop("receipts", set())
        cluster = max(by_place, key=lambda name: (len(by_place[name]), name))
        where = {"cluster": cluster, "offset": min(by_place[cluster])}
        label = [view.words.names[topic], partition, where, list(stages)]
        recorder.write(PartKind.UNREADABLE, label, [len(by_place[cluster]), *stages.values()])


def _unreadable_stages(
    context: AuditContext, topic: str, partition: int, by_place: Mapping[str, set[int]]
) -> dict[StageCount, int]:
    """Count the unreadable records of each stage, as far as scans before and after it show."""
    counts = {place: len(offsets) for place, offsets in by_place.items()}
    in_source, in_target = counts.get("source", 0), counts.get("target", 0)
    in_read_log = in_target if context.has_mirror else in_source
    received = counts.get("receipts", 0)
    stages = {StageCount.UNREADABLE_SOURCE: in_source}
    if ("source", topic, partition) in context.scans:
        stages[StageCount.UNREADABLE_MIRROR] = max(in_target - in_source, 0)
    if (context.read_cluster, topic, partition) in context.scans:
        stages[StageCount.UNREADABLE_CONSUMERS] = max(received - in_read_log, 0)
    return stages


def _repeat_by_copies(copies: Ints) -> Ints:
    """Return each slot as often as it has copies."""
    slots = np.flatnonzero(copies)
    return np.repeat(slots, copies[slots])


def _write_doubtful(view: CellView, recorder: CellRecorder, cluster: Cluster) -> None:
    """Write offsets at which indirect evidence has a message that the scan does not have."""
    is_source = cluster == "source"
    scan = view.source_scan if is_source else view.target_scan
    known = view.source_places if is_source else view.target_places
    in_scan = view.in_source if is_source else view.in_target
    # A message with one place in all that is in the scan has it there.
    is_open = ~in_scan
    if not known.is_single:
        is_open |= known.copies(view.size) > 0
    scanned: Ints | None = None
    for slots, places in view.indirect_evidence(cluster):
        rows = np.flatnonzero(is_open[slots])
        if not len(rows):
            continue
        if scanned is None:
            scanned = gather_places([scan], view.size).first(view.size)
        doubtful = offset_of(places[rows][scanned[slots[rows]] != places[rows]])
        if len(doubtful):
            recorder.write(PartKind.DOUBTFUL, cluster, spans_of(doubtful, DOUBTFUL_GAP))


def _write_unproven_offsets(view: CellView, recorder: CellRecorder) -> None:
    """Write offsets that producers reported and that are not evidence, for offset cells."""
    slots, places = view.unproven
    in_doubt = distinct(view.doubtful_transactions)
    if len(in_doubt):
        recorder.write(PartKind.UNSETTLED, None, in_doubt)
    if len(slots):
        index = view.index
        rows = [index.stream_of(slots), index.sequence_of(slots), offset_of(places)]
        recorder.write(PartKind.UNPROVEN, None, np.column_stack(rows))


def _write_mirror_reach(view: CellView, recorder: CellRecorder) -> None:
    """Write per source partition one past the highest source offset that is in the target.

    Also write the first message of each stream whose place in the source is known, and the last
    one that is known to have been in the target.
    """
    source, target = view.source_first, view.target_last
    copied = np.flatnonzero((source != NONE) & (target != NONE))
    places = source[copied]
    topic, partition = view.index.topic_of(copied), partition_of(places)
    rows = highest_by_pair(topic, partition, offset_of(places) + 1)
    recorder.write(PartKind.MIRROR_REACH, [view.index.topics], rows)
    placed = np.flatnonzero(source != NONE)
    streams = view.index.stream_of(placed)
    first = starts_of_groups(streams)
    since = view.index.sequence_of(placed[first])
    recorder.write(PartKind.PLACED_SINCE, None, np.stack([streams[first], since], axis=1))
    known = np.flatnonzero(target != NONE)
    streams = view.index.stream_of(known)
    last = ends_of_groups(streams)
    found = target[known[last]]
    low = np.full(len(last), view.cell.low)
    rows = np.column_stack([streams[last], low, partition_of(found), offset_of(found)])
    recorder.write(PartKind.LAST_IN_TARGET, None, rows)


def _write_source_began(view: CellView, recorder: CellRecorder) -> None:
    """Write per source partition the lowest offset of any known message."""
    known = view.source_places
    topic, partition = view.index.topic_of(known.slots), partition_of(known.places)
    lowest = highest_by_pair(topic, partition, -offset_of(known.places))
    recorder.write(PartKind.BEGAN, ["source", view.index.topics], lowest)


def _measure_replication(view: CellView, recorder: CellRecorder) -> None:
    """Measure target append minus source append of first copies, if both logs have the times."""
    if view.context.is_history or not (view.log["append_us"] != NONE).any():
        return
    appended = []
    for cluster in ("source", "target"):
        own = np.flatnonzero(view.log["cluster"] == view.words.code(cluster))
        places = pack_places(view.log["partition"][own], view.log["offset"][own])
        rows = own[np.argsort(places, kind="stable")[::-1]]  # the first copy is written last
        times_us = full_ints(view.size)
        times_us[view.log_slots[rows]] = view.log["append_us"][rows]
        appended.append(times_us)
    source_us, target_us = appended
    slots = np.flatnonzero(is_measured(view) & (source_us != NONE) & (target_us != NONE))
    recorder.measure(None, "replication", slots, (target_us - source_us)[slots])


def _write_output_range(view: CellView, recorder: CellRecorder) -> None:
    """Write when messages entered the log that consumers read: append times of first copies."""
    slots, places = view.target_scan if view.context.has_mirror else view.source_scan
    own = view.log["cluster"] == view.words.code(view.context.read_cluster)
    appended = view.log["append_us"][own]
    if not (appended != NONE).any():
        return
    first = gather_places([(slots, places)], view.size).first(view.size)
    is_first = places == first[slots]
    write_range(recorder, None, "output", appended[is_first & (appended != NONE)])
