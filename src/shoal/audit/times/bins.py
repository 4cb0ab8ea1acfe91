"""Bins of time for pictures: what a cell counts by intended send, acknowledgement and delivery.

The bins cover the run from its first send to its last delivery, as the footers of the ledgers say,
so they are known before any row is read. A run whose footers have no times has no bins. Times
outside (of messages without an intended send, from other clocks) count in the first or last bin.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.audit.arrays import NONE, Array, Ints, counts_of_values, starts_of_groups
from shoal.audit.times.latency import look_up_buckets
from shoal.model.events import BUCKETS_PER_OCTAVE
from shoal.model.pages.run import MOST_BINS, NARROWEST_BIN_US

if TYPE_CHECKING:
    from shoal.audit.read.folder import Ledger

BIN_BUCKET_BITS: Final = 12  # 16 * 63 buckets at most


@dataclass(frozen=True, slots=True)
class Bins:
    """`count` bins of `width_us` from `start_us`; none if `count` is 0."""

    start_us: int = 0
    width_us: int = NARROWEST_BIN_US
    count: int = 0

    def numbers_of(self, times_us: Array) -> Ints:
        """Return the bin of each time; all times are known."""
        found: Ints = np.clip((times_us - self.start_us) // self.width_us, 0, self.count - 1)
        return found


def find_bins(ledger: "Ledger") -> Bins:
    """Return the bins of a run, from the footers of its ledgers."""
    lows, highs = [], []
    for table, columns in (
        ("attempts", ("intended_us", "sent_us")),
        ("receipts", ("received_us",)),
    ):
        for group in ledger.tables[table]:
            ranges = [group.ranges[name] for name in columns if name in group.ranges]
            highs += [high for _, high in ranges if high >= 0]
            if table == "attempts":
                lows += [low for low, high in ranges if 0 <= low <= high]
    if not lows or not highs:
        return Bins()
    start_us = min(lows)
    span_us = max(max(highs) - start_us, 0) + 1
    width_us = max(-(-span_us // MOST_BINS), NARROWEST_BIN_US)
    return Bins(start_us, width_us, -(-span_us // width_us))


def count_bins(bins: Bins, times_us: Array) -> Ints:
    """Return rows of (bin, count); times that are NONE are left out."""
    known = times_us[times_us != NONE]
    return np.stack(counts_of_values(bins.numbers_of(known)), axis=1)


def count_bin_latencies(bins: Bins, times_us: Ints, waits_us: Ints) -> Ints:
    """Return rows of (bin << BIN_BUCKET_BITS | bucket, count)."""
    packed = (bins.numbers_of(times_us) << BIN_BUCKET_BITS) | bucket_numbers(waits_us)
    return np.stack(counts_of_values(packed), axis=1)


def bucket_numbers(values_us: Ints) -> Ints:
    """Return the bucket of each latency: 16 for each doubling, from 1 µs on."""
    return look_up_buckets(values_us, _bucket_of_each)


def _bucket_of_each(values_us: Ints) -> Ints:
    exponents = np.log2(np.maximum(values_us, 1).astype(np.float64))
    found: Ints = np.floor(exponents * BUCKETS_PER_OCTAVE).astype(np.int64)
    return found


def summarise_stretches(stream: Ints, stretch: Ints, intended_us: Ints) -> Ints:
    """Return rows of (stream, stretch, due, first and last intended send).

    The messages are in the order of streams and then of sequences, and all have a time.
    """
    same = np.append(True, (stream[1:] != stream[:-1]) | (stretch[1:] != stretch[:-1]))
    starts = np.flatnonzero(same[: len(stream)])
    if not len(starts):
        return np.empty((0, 5), dtype=np.int64)
    return np.column_stack(
        [
            stream[starts],
            stretch[starts],
            np.diff(np.append(starts, len(stream))),
            np.minimum.reduceat(intended_us, starts),
            np.maximum.reduceat(intended_us, starts),
        ]
    )


def rows_by_bin(table: Ints) -> list[Ints]:
    """Split the rows of a table of latencies by their bins."""
    starts = starts_of_groups(table[:, 0] >> BIN_BUCKET_BITS)
    return np.split(table, starts[1:]) if len(starts) else []
