"""The judgement on one cell: a range of sequences of all streams.

What concerns logs is judged here, once; what concerns deliveries in `group`, once for each
group. Whatever a cell cannot know alone (order across its borders, tail loss, offsets with
two messages) it hands on as small summaries, which `merge` puts together.

A cell whose missing messages depend on what other cells hold says `undecided`, and is asked
again with `Knowledge`; its first answer then counts only for what it contributes to that.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from shoal.audit.arrays import (
    NONE,
    Array,
    Ints,
    ends_of_groups,
    filled,
    highest_by_pair,
    ints,
    starts_of_groups,
)
from shoal.audit.context import Cluster, Setting
from shoal.audit.parts import Part
from shoal.audit.read.evidence import (
    NEVER,
    gather_places,
    offset_of,
    pack_places,
    partition_of,
    reused_slots,
)
from shoal.audit.read.view import CellView
from shoal.audit.rules.fidelity import Alterations, compare_copies
from shoal.audit.rules.group import GroupJudge
from shoal.audit.rules.supersession import latest_rows
from shoal.audit.rules.tally import Book, is_measured, spans_of, write_order, write_range
from shoal.audit.tasks import MessageCell
from shoal.audit.times.latency import per_second
from shoal.audit.times.segments import segments_of
from shoal.model.findings import Finding
from shoal.model.ledger import FAILED, OK, UNKNOWN

DOUBTFUL_GAP = 4096  # offsets between two doubtful ones that are looked at along with them


def judge_cell(cell: MessageCell, setting: Setting) -> list[Part]:
    view = CellView(cell, setting)
    outcome = view.outcome
    book = Book(view, outcome)
    _count_attempts(view, outcome, book)
    book.find(None, Finding.REUSED_SEQUENCE, _reused(view, outcome))
    alterations = compare_copies(view)
    _judge_logs(view, book, alterations)
    _judge_unreadable(view, book)
    for group in setting.groups:
        GroupJudge(view, outcome, group, book, explained=alterations.explained).judge()
    return book.parts()


# ---------------------------------------------------------------- producers


def _count_attempts(view: CellView, outcome: Array, book: Book) -> None:
    book.count(None, "attempts", np.flatnonzero(outcome != NEVER))
    for name, value in (("ok", OK), ("failed", FAILED), ("unknown", UNKNOWN)):
        book.count(None, name, np.flatnonzero(outcome == value))
    # Where slots are not dense, numbers that left no trace have none, but are attempts too.
    planned = view.extents("planned")
    used = np.clip(planned - view.cell.low, 0, view.cell.high - view.cell.low)
    traceless = used - view.index.per_stream(view.index.first_slots(planned))
    if traceless.any():
        book.add(None, "attempts", traceless)
        book.add(None, "unknown", traceless)
    times = view.attempts
    sent = times.sent_us[times.sent_us != NONE]
    write_range(book, None, "sent", sent)
    book.write("second", [None, "sent"], per_second(sent))
    book.count_times(None, "sent during", segments_of(sent, view.setting.edges_us))
    write_range(book, None, "published", times.acked_us[times.acked_us != NONE])
    measured = is_measured(view) & (times.sent_us != NONE)
    book.count(None, "measured sent", np.flatnonzero(measured))
    write_range(book, None, "measured sent", times.sent_us[measured])
    acked = np.flatnonzero(measured & (times.acked_us != NONE))
    book.measure(None, "producer", acked, (times.acked_us - times.sent_us)[acked])


def _reused(view: CellView, outcome: Array) -> Ints:
    """Slots of two acknowledged attempts, which no ledger can tell apart.

    A history may repeat a line, so there it takes two offsets. A ledger has one row for each
    attempt; two rows that differ in nothing are one, of a folder that was named twice.
    """
    if not view.setting.acknowledged:
        return ints()
    columns = ("offset",) if view.setting.is_history else ("offset", "sent_us", "acked_us")
    slots = reused_slots(view.attempt_rows, view.attempt_slots, columns)
    found: Ints = slots[outcome[slots] == OK]
    return found


# ---------------------------------------------------------------- logs


def _judge_logs(view: CellView, book: Book, alterations: Alterations) -> None:
    setting = view.setting
    source_copies = view.source_places.copies(view.size)
    _write_source_began(view, book)
    book.find(None, Finding.DUPLICATE_SOURCE, _repeated(source_copies))
    _write_unproven_offsets(view, book)
    write_order(view, book, kind="source", units=view.log_units("source"))
    book.count(None, "corrupted@source", np.flatnonzero(view.broken_in_source))
    _write_doubtful(view, book, "source")
    if setting.has_mirror:
        target_copies = view.target_places.copies(view.size)
        book.find(None, Finding.DUPLICATE_TARGET, _repeated(target_copies))
        own_copies = _repeated(np.maximum(target_copies - source_copies, 0))
        book.count(None, "duplicate@mirror", own_copies)
        write_order(view, book, kind="target", units=view.log_units("target"))
        broken_by_mirror = view.broken_in_target & ~view.broken_in_source & ~alterations.explained
        for finding, slots in alterations.slots.items():
            book.find(None, finding, slots)
        book.count(None, "corrupted@mirror", np.flatnonzero(broken_by_mirror))
        _write_doubtful(view, book, "target")
        _write_mirror_reach(view, book)
        book.write("latest", "target", latest_rows(view, "target"))
        _measure_replication(view, book)
    book.write("latest", "source", latest_rows(view, "source"))
    _write_output_range(view, book)


def _judge_unreadable(view: CellView, book: Book) -> None:
    """Records of ours that cannot be read, by log: what a mirror copied so is not counted again."""
    found: dict[tuple[int, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    names = ("topic", "partition", "offset")
    log, received = view.unreadable_log, view.unreadable_receipts
    places = zip(*(log[name].tolist() for name in names), log["cluster"].tolist(), strict=True)
    for topic, partition, offset, cluster in places:
        found[topic, partition][view.words.names[cluster]].add(offset)
    for topic, partition, offset in zip(*(received[name].tolist() for name in names), strict=True):
        found[topic, partition]["receipts"].add(offset)
    read_cluster = view.setting.read_cluster
    for (topic, partition), by_place in sorted(found.items()):
        stages = _unreadable_stages(view.setting, view.words.names[topic], partition, by_place)
        by_place[read_cluster] |= by_place.pop("receipts", set())
        cluster = max(by_place, key=lambda name: (len(by_place[name]), name))
        where = {"cluster": cluster, "offset": min(by_place[cluster])}
        label = [view.words.names[topic], partition, where, list(stages)]
        book.write("unreadable", label, [len(by_place[cluster]), *stages.values()])


def _unreadable_stages(
    setting: Setting, topic: str, partition: int, by_place: Mapping[str, set[int]]
) -> dict[str, int]:
    """How many each stage made, as far as scans of the logs before and after it tell."""
    counts = {place: len(offsets) for place, offsets in by_place.items()}
    in_source, in_target = counts.get("source", 0), counts.get("target", 0)
    in_read_log = in_target if setting.has_mirror else in_source
    received = counts.get("receipts", 0)
    stages = {"unreadable@source": in_source}
    if ("source", topic, partition) in setting.scans:
        stages["unreadable@mirror"] = max(in_target - in_source, 0)
    if (setting.read_cluster, topic, partition) in setting.scans:
        stages["unreadable@consumers"] = max(received - in_read_log, 0)
    return stages


def _repeated(copies: Ints) -> Ints:
    """Each slot as often as it has copies."""
    slots = np.flatnonzero(copies)
    return np.repeat(slots, copies[slots])


def _write_doubtful(view: CellView, book: Book, cluster: Cluster) -> None:
    """Offsets at which something besides the scan puts a message, and the scan does not."""
    slots, places = view.source_scan if cluster == "source" else view.target_scan
    scanned = gather_places(slots, places, view.size).first(view.size)
    for told_slots, told_places in view.hearsay(cluster):
        doubtful = offset_of(told_places[scanned[told_slots] != told_places])
        if len(doubtful):
            book.write("doubtful", cluster, spans_of(doubtful, DOUBTFUL_GAP))


def _write_unproven_offsets(view: CellView, book: Book) -> None:
    """Offsets that producers named and that are no evidence, for those who look at offsets."""
    slots, places = view.unproven
    if view.is_unsettled:
        book.write("unsettled", None)
    if len(slots):
        index = view.index
        rows = [index.stream_of(slots), index.sequence_of(slots), offset_of(places)]
        book.write("unproven", None, np.column_stack(rows))


def _write_mirror_reach(view: CellView, book: Book) -> None:
    """Per source partition one past the highest source offset that is in the target.

    And the first message of each stream whose place in the source is known, and the last that
    is known to have been in the target.
    """
    source, target = view.source_first, view.target_last
    copied = np.flatnonzero((source != NONE) & (target != NONE))
    places = source[copied]
    stream, partition = view.index.stream_of(copied), partition_of(places)
    rows = highest_by_pair(stream, partition, offset_of(places) + 1)
    book.write("mirror reach", None, rows)
    placed = np.flatnonzero(source != NONE)
    streams = view.index.stream_of(placed)
    first = starts_of_groups(streams)
    since = view.index.sequence_of(placed[first])
    book.write("placed since", None, np.stack([streams[first], since], axis=1))
    known = np.flatnonzero(target != NONE)
    streams = view.index.stream_of(known)
    last = ends_of_groups(streams)
    found = target[known[last]]
    low = np.full(len(last), view.cell.low)
    rows = np.column_stack([streams[last], low, partition_of(found), offset_of(found)])
    book.write("last in target", None, rows)


def _write_source_began(view: CellView, book: Book) -> None:
    """Per source partition the lowest offset that anything is known to have had."""
    known = view.source_places
    stream, partition = view.index.stream_of(known.slots), partition_of(known.places)
    lowest = highest_by_pair(stream, partition, -offset_of(known.places))
    book.write("began", ["source"], lowest)


def _measure_replication(view: CellView, book: Book) -> None:
    """Target append less source append of the first copies, where both logs tell."""
    if view.setting.is_history or not (view.log["append_us"] != NONE).any():
        return
    appended = []
    for cluster in ("source", "target"):
        own = np.flatnonzero(view.log["cluster"] == view.words.code(cluster))
        places = pack_places(view.log["partition"][own], view.log["offset"][own])
        rows = own[np.argsort(places, kind="stable")[::-1]]  # the first copy is written last
        times_us = filled(view.size)
        times_us[view.log_slots[rows]] = view.log["append_us"][rows]
        appended.append(times_us)
    source_us, target_us = appended
    slots = np.flatnonzero(is_measured(view) & (source_us != NONE) & (target_us != NONE))
    book.measure(None, "replication", slots, (target_us - source_us)[slots])


def _write_output_range(view: CellView, book: Book) -> None:
    """When messages entered the log that consumers read: the append time of the first copy."""
    slots, places = view.target_scan if view.setting.has_mirror else view.source_scan
    own = view.log["cluster"] == view.words.code(view.setting.read_cluster)
    appended = view.log["append_us"][own]
    first = gather_places(slots, places, view.size).first(view.size)
    is_first = places == first[slots]
    write_range(book, None, "output", appended[is_first & (appended != NONE)])
