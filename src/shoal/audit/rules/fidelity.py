"""Compares copies with their source records: key, headers, timestamp, partition, bytes.

The checksum of a message covers key and headers, so these are compared only if the checksum of a
copy does not match. A difference then explains the mismatch, and the message is `altered` and not
`corrupted`. The checksum does not cover timestamps (of topics with CreateTime) and partitions: they
are compared if the run promises to keep them; partitions only if both topics have the same number.

Whole batches are compared if the run promises bytes. The source batch of a target batch is the one
that begins with the same message. A target batch that begins with a message from the middle of a
source batch has none and differs. A target batch whose first message is not in the scan of the
source cannot be compared. A batch that the mirror re-encoded is compared record by record only.
"""

from dataclasses import dataclass, field

import numpy as np

from shoal.audit.arrays import NONE, Array, Bools, Ints, full_ints, ints
from shoal.audit.read.evidence import partition_of
from shoal.audit.read.read import PRODUCER_NUMBER, Within
from shoal.audit.read.view import CellView
from shoal.audit.read.walk import number_rows
from shoal.audit.result.verdict import fidelity_to_keep
from shoal.model.findings import Finding

_CHECKS = {Finding.ALTERED_KEY: "key_check", Finding.ALTERED_HEADERS: "headers_check"}

_BATCH_PARTS = ("records", "codec", "records_check")
_BATCH_TIMES = ("base_timestamp_us", "max_timestamp_us")


@dataclass(frozen=True)
class Alterations:
    """Slots of altered messages by finding, and the slots whose broken checksum they explain."""

    explained: Bools
    slots: dict[Finding, Ints] = field(default_factory=dict)


def compare_copies(view: CellView) -> Alterations:
    explained = np.zeros(view.size, dtype=np.bool_)
    slots: dict[Finding, Ints] = {}
    if not view.context.has_mirror:
        return Alterations(explained)
    kept = fidelity_to_keep(view.context.promises)
    rows = _Copies(view)
    broken = ~view.log["intact"][rows.target]
    if broken.any():
        for finding, column in _CHECKS.items():
            differs = rows.differing(column) & broken
            slots[finding] = np.unique(rows.slots[differs])
            explained[slots[finding]] = True
    if "timestamps" in kept:
        stamped = view.log["append_us"][rows.target] == NONE
        slots[Finding.ALTERED_TIMESTAMP] = np.unique(
            rows.slots[rows.differing("timestamp_us") & stamped]
        )
    if "partition" in kept:
        moved = partition_of(view.source_first)[rows.slots] != view.log["partition"][rows.target]
        fixed = np.array([s.topic not in view.context.repartitioned for s in view.index.streams])
        moved &= fixed[view.index.stream_of(rows.slots)] if len(moved) else False
        slots[Finding.ALTERED_PARTITION] = np.unique(rows.slots[moved])
    if "bytes" in kept:
        slots[Finding.BATCH_DIFFERS] = _differing_batches(view)
    return Alterations(explained, slots)


def _differing_batches(view: CellView) -> Ints:
    """Return the slot of the first message of each target batch that differs from its source."""
    rows = view.batches
    of_target = rows["cluster"] == view.words.code("target")
    compared = of_target & view.in_source[view.batch_slots] & ~_is_re_encoded(view)
    # The broker replaces the timestamps in topics with LogAppendTime: do not compare them.
    stamped = rows["stamped"] | np.isin(view.batch_slots, view.batch_slots[rows["stamped"]])
    columns = [view.batch_slots, *(rows[name].astype(np.int64) for name in _BATCH_PARTS)]
    columns += [np.where(stamped, NONE, rows[name]) for name in _BATCH_TIMES]
    number = number_rows(columns) if len(of_target) else ints()
    same = np.isin(number, number[rows["cluster"] == view.words.code("source")])
    slots: Ints = view.batch_slots[compared & ~same]
    return slots


def _is_re_encoded(view: CellView) -> Bools:
    rows = view.batches
    found = np.zeros(len(rows["offset"]), dtype=np.bool_)
    for (topic, partition), offsets in view.context.re_encoded.items():
        own = (rows["topic"] == view.words.code(topic)) & (rows["partition"] == partition)
        found |= own & np.isin(rows["offset"], sorted(offsets))
    return found


class _Copies:
    """Rows of the target log whose message is also in the source log."""

    def __init__(self, view: CellView) -> None:
        self._view = view
        cluster = view.log["cluster"]
        self._source = np.flatnonzero(cluster == view.words.code("source"))
        target = np.flatnonzero(cluster == view.words.code("target"))
        self.target = target[view.in_source[view.log_slots[target]]]
        self.slots = view.log_slots[self.target]

    def differing(self, column: str) -> Bools:
        """Which copies differ in a column from the source record with the lowest offset."""
        view = self._view
        values = self._column(column)
        order = np.argsort(view.log["offset"][self._source], kind="stable")[::-1]
        rows = self._source[order]
        first = full_ints(view.size)
        first[view.log_slots[rows]] = values[rows]
        differs: Bools = first[self.slots] != values[self.target]
        return differs

    def _column(self, name: str) -> Array:
        """Read a rarely needed column on demand, with its rows in the order of `view.log`."""
        cell = self._view.cell
        within = Within("sequence", ((cell.low, cell.high),))
        columns = (PRODUCER_NUMBER, "topic", "lane", "sequence", name)
        rows = self._view.read_rows("log", columns, within)
        return self._view.readable(rows)[name]
