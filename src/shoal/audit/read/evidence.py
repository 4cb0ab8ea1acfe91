"""Evidence of where messages were: attempts, places in logs, deliveries.

A place is a partition and an offset, packed into one integer that sorts by partition and then by
offset. All evidence for a message at a place counts alike: a scan, a delivery from that log, an
acknowledgement (never that of a failed send). A message at two places of one cluster has a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.audit.arrays import (
    NONE,
    Array,
    Bools,
    Ints,
    Rows,
    concat_ints,
    full_ints,
    ints,
    starts_of_groups,
)
from shoal.model.errors import LedgerError
from shoal.model.ledger import FAILED, OK, OPEN

NEVER = 3  # the outcome of a message that was never attempted

_OFFSET_BITS = 44
_MOST_PARTITIONS = 1 << 18
_POSITION_BITS = 40
_MOST_ASSIGNMENTS = 1 << 22

# Of several rows of one attempt the best outcome counts: ok, then unknown, then failed.
_RANK = np.array([0, 2, 1], dtype=np.int8)


def pack_places(partition: Array, offset: Array) -> Ints:
    """Pack partitions and offsets into places; none of them may be absent."""
    if len(offset) and (
        int(offset.max()) >> _OFFSET_BITS
        or int(offset.min()) < 0
        or int(partition.max()) >= _MOST_PARTITIONS
        or int(partition.min()) < 0
    ):
        raise LedgerError("a ledger contains an offset or a partition number that no real log has")
    return (partition.astype(np.int64) << _OFFSET_BITS) | offset


def partition_of(places: Ints) -> Ints:
    return places >> _OFFSET_BITS


def offset_of(places: Ints) -> Ints:
    return places & ((1 << _OFFSET_BITS) - 1)


def offset_or_none(places: Ints) -> Ints:
    """Return the offset of each place; NONE for an unknown place."""
    return np.where(places == NONE, NONE, offset_of(places))


def arrival_keys(assignment: Array, position: Ints) -> Ints:
    """Return keys that sort arrivals in one partition: by assignment, then by ledger order."""
    if len(position) and (
        int(position.max()) >> _POSITION_BITS
        or int(assignment.max()) >= _MOST_ASSIGNMENTS
        or int(assignment.min()) < 0
    ):
        raise LedgerError("a ledger contains an assignment number or a row number above the limit")
    return (assignment.astype(np.int64) << _POSITION_BITS) | position


@dataclass(frozen=True)
class Attempts:
    """What producers recorded for each slot; NONE if nothing."""

    outcome: Array  # as in the ledger; NEVER without a row
    intended_us: Ints
    sent_us: Ints
    acked_us: Ints
    is_repeated: bool = False  # whether a slot has several rows


def gather_attempts(rows: Rows, slots: Ints, size: int) -> Attempts:
    """Return one outcome for each slot; of contradictory rows the best, then the earliest."""
    outcome = np.full(size, NEVER, dtype=np.int8)
    outcome[slots] = rows["outcome"]
    is_repeated = int(np.count_nonzero(outcome != NEVER)) < len(slots)
    if is_repeated:
        by_time = (rows["intended_us"], rows["acked_us"], rows["sent_us"])
        order = np.lexsort((*by_time, _RANK[rows["outcome"]], slots))
        best = order[starts_of_groups(slots[order])]
        rows = {name: column[best] for name, column in rows.items()}
        slots = slots[best]
        outcome[slots] = rows["outcome"]
    times = []
    for name in ("intended_us", "sent_us", "acked_us"):
        column = full_ints(size)
        column[slots] = rows[name]
        times.append(column)
    intended, sent, acked = times
    np.copyto(intended, sent, where=intended == NONE)
    acked[outcome == FAILED] = NONE  # an answer, but not an acknowledgement
    return Attempts(outcome, intended, sent, acked, is_repeated)


def find_reused_slots(rows: Rows, slots: Ints, columns: Sequence[str]) -> Ints:
    """Return slots with two acknowledged rows that differ in one of the columns.

    An absent value does not count as different.
    """
    ok = np.flatnonzero(rows["outcome"] == OK)
    again = np.flatnonzero(np.bincount(slots[ok], minlength=1) > 1)
    if not len(again):
        return again
    chosen = ok[np.isin(slots[ok], again)]
    found = [
        _with_several(slots[chosen[known]], rows[name][chosen[known]])
        for name in columns
        for known in (rows[name][chosen] != NONE,)
    ]
    return np.unique(np.concatenate(found))


def _with_several(slots: Ints, values: Array) -> Ints:
    """Return the slots with more than one value."""
    distinct, _ = _distinct_pairs(slots, values)
    several: Ints = distinct[1:][distinct[1:] == distinct[:-1]]
    return several


@dataclass(frozen=True)
class Memberships:
    """The transaction of each slot, its fate and when its commit was requested; else NONE."""

    transaction: Ints
    fate: Array
    requested_us: Ints


def gather_memberships(rows: Rows, slots: Ints, size: int) -> Memberships:
    """Return one transaction for each slot; of several rows the first that has ended."""
    order = np.lexsort((-np.arange(len(slots)), rows["fate"] != OPEN))
    columns = []
    for name in ("transaction", "fate", "requested_us"):
        column = full_ints(size)
        column[slots[order]] = rows[name][order]
        columns.append(column)
    return Memberships(*columns)


@dataclass(frozen=True)
class Places:
    """Distinct places of messages in one cluster, sorted by slot and then by place."""

    slots: Ints
    places: Ints

    @cached_property
    def is_single(self) -> bool:
        """Whether no slot has several places."""
        return bool((self.slots[1:] > self.slots[:-1]).all())

    def first(self, size: int) -> Ints:
        """Return the lowest place of each slot, or NONE."""
        if self.is_single:
            return self.last(size)
        found = full_ints(size)
        found[self.slots[::-1]] = self.places[::-1]
        return found

    def last(self, size: int) -> Ints:
        """Return the highest place of each slot, or NONE."""
        if self.is_single and len(self.slots) == size:
            return self.places
        found = full_ints(size)
        found[self.slots] = self.places
        return found

    def copies(self, size: int) -> Ints:
        """Return how many places beyond the first each slot has."""
        if self.is_single:
            return np.zeros(size, dtype=np.int64)
        return np.maximum(np.bincount(self.slots, minlength=size) - 1, 0)

    def of(self, slot: int) -> Ints:
        low, high = np.searchsorted(self.slots, [slot, slot + 1])
        return self.places[low:high]


def gather_places(evidence: Sequence[tuple[Ints, Ints]], size: int) -> Places:
    """Return each distinct (slot, place) once. Sorts only the slots with several places."""
    (slots, places), *others = evidence
    one = full_ints(size)
    one[slots] = places
    is_simple = int(np.count_nonzero(one != NONE)) == len(slots)
    # Usually all evidence has a message at the one place where the scan has it.
    if is_simple and all(bool((one[s] == p).all()) for s, p in others):
        found = np.flatnonzero(one != NONE)
        return Places(found, one if len(found) == size else one[found])
    slots, places = (concat_ints([each[column] for each in evidence]) for column in (0, 1))
    one[slots] = places
    odd = one[slots] != places
    if not odd.any():
        found = np.flatnonzero(one != NONE)
        return Places(found, one if len(found) == size else one[found])
    several = np.zeros(size, dtype=np.bool_)
    several[slots[odd]] = True
    single = np.flatnonzero((one != NONE) & ~several)
    among = several[slots]
    many_slots, many_places = _distinct_pairs(slots[among], places[among])
    all_slots = np.concatenate([single, many_slots])
    order = np.argsort(all_slots, kind="stable")
    return Places(all_slots[order], np.concatenate([one[single], many_places])[order])


def _distinct_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    fresh = np.ones(len(first), dtype=np.bool_)
    fresh[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return first[fresh], second[fresh]


@dataclass(frozen=True)
class Deliveries:
    """What one group received. Rows are in order of arrival."""

    rows: Ints  # row numbers in the table of receipts
    slots: Ints
    first: Ints  # for each slot the row of its first delivery, or NONE
    distinct: int  # deliveries without the re-reads
    re_read_slots: Ints  # one entry for each re-read

    @property
    def delivered(self) -> Bools:
        found: Bools = self.first != NONE
        return found


def gather_deliveries(receipts: Rows, slots: Ints, rows: Ints, size: int) -> Deliveries:
    """Return the deliveries of `rows`; `receipts` and `slots` are those of the whole table."""
    is_whole = len(rows) == len(slots)
    keys = receipts["key"] if is_whole else receipts["key"][rows]
    if len(keys) > 1 and not bool((keys[1:] > keys[:-1]).all()):
        rows = rows[np.argsort(keys, kind="stable")]
        is_whole = False
    own = slots if is_whole else slots[rows]
    first = full_ints(size)
    first[own[::-1]] = rows[::-1]
    if np.count_nonzero(first != NONE) == len(own):
        return Deliveries(rows, own, first, len(rows), ints())
    counts = np.bincount(own, minlength=size)
    again = rows[counts[own] > 1]
    order = np.lexsort((receipts["received_us"][again], slots[again]))
    _settle_first(first, receipts, slots, again[order])
    pair_slots, _ = _distinct_pairs(slots[again], receipts["place"][again])
    surplus = np.bincount(slots[again], minlength=1)
    surplus = surplus - np.bincount(pair_slots, minlength=len(surplus))
    re_read = np.repeat(np.arange(len(surplus)), surplus)
    return Deliveries(rows, own, first, len(rows) - len(re_read), re_read)


def _settle_first(first: Ints, receipts: Rows, slots: Ints, again: Ints) -> None:
    """Set the first delivery of messages that came from several partitions: the earliest.

    Arrival keys are comparable within one partition only. `again` is sorted by slot and time.
    """
    partition = receipts["partition"][again]
    same = slots[again][1:] == slots[again][:-1]
    torn = again[1:][same & (partition[1:] != partition[:-1])]
    if len(torn):
        several = np.zeros(len(first), dtype=np.bool_)
        several[slots[torn]] = True
        chosen = again[several[slots[again]]]
        starts = starts_of_groups(slots[chosen])
        first[slots[chosen[starts]]] = chosen[starts]
