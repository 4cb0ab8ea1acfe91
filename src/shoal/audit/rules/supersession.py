"""What compaction removed: messages absent from a log that holds a later one with the same key.

Each cell returns the latest message of each key of each compacted log (`latest_rows`); the rows of
all cells together are `Knowledge.latest`. The offsets of both messages in that log decide which is
*later*. If the offset of the missing one is unknown there, the offsets in the source decide;
if those are unknown too, the sequence within one stream, else the offsets in the target.

If the log that consumers read was not scanned, it counts as holding what they received.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.audit.arrays import NONE, Bools, Ints, ints, starts_of_groups
from shoal.audit.columns import LatestColumn
from shoal.audit.context import AuditContext, Cluster, Knowledge, Log, Stream
from shoal.audit.read.evidence import offset_of, offset_or_none, partition_of
from shoal.audit.read.view import CellView

_NAME_COLUMNS: Final = LatestColumn.KEY + 1  # the first columns name a row, the others are maxima


def latest_rows(view: CellView, cluster: Cluster) -> Ints:
    """Return rows of `LatestColumn` for the compacted logs of a cluster."""
    if not any(log[0] == cluster for log in view.context.compacted):
        return np.empty((0, len(LatestColumn)), dtype=np.int64)
    slots, places = view.source_scan if cluster == "source" else view.target_scan
    if cluster == view.context.read_cluster and not view.context.has_scans_of(cluster):
        slots, places = view.received
    held = view.key_known[slots]
    slots, places = slots[held], places[held]
    last = view.source_last if cluster == "source" else view.target_last
    source, target = view.source_last[slots], view.target_last[slots]
    sequence = view.index.sequence_of(slots)
    table = np.column_stack(
        [
            view.index.stream_of(slots),
            partition_of(places),
            view.key[slots],
            offset_of(last[slots]),
            offset_or_none(source),
            offset_or_none(target),
            sequence,
            np.where(source == NONE, sequence, NONE),
        ]
    )
    return _highest(table)


def _highest(table: Ints) -> Ints:
    """Return one row per stream, partition and key, with the maxima of the other columns."""
    if not len(table):
        return table
    table = table[np.lexsort(table[:, :_NAME_COLUMNS][:, ::-1].T)]
    names, values = table[:, :_NAME_COLUMNS], table[:, _NAME_COLUMNS:]
    starts = np.flatnonzero(np.append(True, (names[1:] != names[:-1]).any(axis=1)))
    return np.column_stack([names[starts], np.maximum.reduceat(values, starts, axis=0)])


def merge_latest(parts: Iterable[tuple[str, Stream, Ints]]) -> dict[Log, dict[Stream, Ints]]:
    """Merge the rows of `LatestColumn` of all cells by log, stream and key."""
    gathered: dict[Log, dict[Stream, list[Ints]]] = {}
    for cluster, stream, rows in parts:
        partitions = rows[:, LatestColumn.PARTITION]
        for partition in np.unique(partitions).tolist():
            log = (cluster, stream.topic, partition)
            own = rows[partitions == partition]
            gathered.setdefault(log, {}).setdefault(stream, []).append(own)
    return {
        log: {stream: _highest_of_key(np.concatenate(rows)) for stream, rows in streams.items()}
        for log, streams in gathered.items()
    }


def _highest_of_key(rows: Ints) -> Ints:
    rows = rows.copy()
    rows[:, : LatestColumn.KEY] = 0  # one stream and one partition: only the key distinguishes rows
    return _highest(rows)


@dataclass(frozen=True)
class AbsentMessages:
    """Messages absent from the scan of a cluster, by slot. Unknown places are NONE."""

    slots: Ints
    own_place: Ints
    source_place: Ints
    target_place: Ints


def is_candidate(view: CellView, cluster: Cluster, gone: AbsentMessages) -> Bools:
    """Which of the absent messages have a key and belong to a compacted log."""
    if not view.context.compacted:
        return np.zeros(len(gone.slots), dtype=np.bool_)
    logs = view.context.compacted
    streams = view.index.streams
    of_stream = np.array(
        [_log_for(view.context, cluster, s) in logs for s in streams], dtype=np.bool_
    )
    found: Bools = view.key_known[gone.slots] & of_stream[view.index.stream_of(gone.slots)]
    return found


def is_superseded(
    view: CellView, cluster: Cluster, gone: AbsentMessages, knowledge: Knowledge
) -> Bools:
    """Which of the absent messages are superseded by a later one with their key in that log."""
    found = np.zeros(len(gone.slots), dtype=np.bool_)
    candidates = np.flatnonzero(is_candidate(view, cluster, gone))
    stream_of = view.index.stream_of(gone.slots[candidates])
    for number in np.unique(stream_of).tolist():
        stream = view.index.streams[number]
        rivals = knowledge.latest.get(_log_for(view.context, cluster, stream), {})
        rows = candidates[stream_of == number]
        found[rows] = _has_later(view, rivals, stream, _rows_of(gone, rows))
    return found


def _rows_of(gone: AbsentMessages, rows: Ints) -> AbsentMessages:
    return AbsentMessages(
        gone.slots[rows], gone.own_place[rows], gone.source_place[rows], gone.target_place[rows]
    )


def _has_later(
    view: CellView, rivals: Mapping[Stream, Ints], stream: Stream, gone: AbsentMessages
) -> Bools:
    key = view.key[gone.slots]
    places = (gone.own_place, gone.source_place, gone.target_place)
    own, source, target = map(offset_or_none, places)
    later = np.zeros(len(key), dtype=np.bool_)
    for rival, rows in rivals.items():
        latest = _look_up(rows, key)
        by_source = latest[:, LatestColumn.SOURCE] > source
        if rival == stream:
            sequence = view.index.sequence_of(gone.slots)
            unknown = latest[:, LatestColumn.SEQUENCE] > sequence
            by_source |= latest[:, LatestColumn.UNPLACED] > sequence
        else:
            unknown = (target != NONE) & (latest[:, LatestColumn.TARGET] > target)
        later |= np.select(
            [own != NONE, source != NONE], [latest[:, LatestColumn.OWN] > own, by_source], unknown
        )
    return later


def _look_up(rows: Ints, key: Ints) -> Ints:
    """Return the row of each key, or a row of NONE."""
    place = np.minimum(np.searchsorted(rows[:, LatestColumn.KEY], key), len(rows) - 1)
    found = rows[place].copy()
    found[found[:, LatestColumn.KEY] != key] = NONE
    return found


def _log_for(context: AuditContext, cluster: Cluster, stream: Stream) -> Log:
    return cluster, stream.topic, context.partition_for(cluster, stream)


def members_of(transactions: Ints, chosen: Ints) -> Bools:
    """Which of the transactions are among the chosen ones; `chosen` is ascending."""
    if not len(chosen):
        return np.zeros(len(transactions), dtype=np.bool_)
    place = np.minimum(np.searchsorted(chosen, transactions), len(chosen) - 1)
    found: Bools = chosen[place] == transactions
    return found


def distinct(transactions: Ints) -> Ints:
    """Return the distinct transactions, ascending, without NONE."""
    ordered = np.sort(transactions[transactions != NONE])
    return ordered[starts_of_groups(ordered)] if len(ordered) else ints()
