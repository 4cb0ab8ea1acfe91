"""What every task of an audit must know besides its rows. It is small, plain and the same for all.

A stream is (producer, incarnation, topic, lane). Two limits say which sequences are attempts:
- Below `planned`, a sequence is an attempt even if no outcome was recorded. The limit is the count
  in the stream's end manifest, or what was reserved if the producer never ended.
- Below `reserved`, a sequence that appears anywhere is an attempt and not an unexpected message.

`Knowledge` is what only all cells together can show: positions that were not recorded, and how far
each stream was delivered. The first round gathers it for the cells that depend on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from shoal.audit.arrays import NONE, Ints, ints
from shoal.audit.read.buckets import ALL_BUCKETS, bucket_of_streams
from shoal.audit.read.folder import Ledger, read_source_partitions
from shoal.audit.read.read import Vocabulary, read_rows
from shoal.audit.times.bins import Bins, find_bins
from shoal.audit.times.clocks import Skew, compute_skews
from shoal.audit.times.faults import all_faults
from shoal.audit.times.segments import edges_of, slot_width_us
from shoal.model.errors import LedgerError
from shoal.model.ledger import NO_INCARNATION

Cluster = Literal["source", "target"]
Log = tuple[str, str, int]  # cluster, topic, partition

_Key = TypeVar("_Key")

# `positions.reader` of the mirror; any other reader is a group.
MIRROR = "mirror"


class Stream(NamedTuple):
    producer: str
    topic: str
    lane: int
    incarnation: int = NO_INCARNATION

    def to_witness(self) -> dict[str, Any]:
        """Return the stream in the form that witnesses in `result.json` have."""
        return {
            "producer": self.producer,
            "topic": self.topic,
            "lane": self.lane,
            "incarnation": self.incarnation,
        }


class Extent(NamedTuple):
    planned: int
    reserved: int


StreamKey = tuple[str, str, int, int]


def sort_key(stream: Stream) -> StreamKey:
    """Return the sort key of a stream, for reports and for the choice of witnesses."""
    return stream.topic, stream.producer, stream.incarnation, stream.lane


@dataclass(frozen=True)
class AuditContext:
    run: str
    promises: Mapping[str, Any]
    has_mirror: bool
    groups: tuple[str, ...]
    acknowledged: bool = True  # False with acks=0: yield cannot be known
    ordered: bool = True
    uncommitted: frozenset[str] = frozenset()  # groups with isolation level read_uncommitted
    skews_us: Mapping[str, Skew | None] = field(default_factory=dict)  # of each group
    is_history: bool = False  # recorded by another tool: only what its format has is known
    message_bytes: int | None = None  # the size of every message; None if it is not known
    measure_from_us: int = NONE  # messages that were intended earlier are warm-up
    extents: Mapping[Stream, Extent] = field(default_factory=dict)
    all_drained: bool = False
    overdue_us: int = NONE  # a missing message that was intended up to this time is lost
    drained: frozenset[tuple[str, Stream]] = frozenset()
    scans: Mapping[Log, tuple[int, int]] = field(default_factory=dict)
    compacted: frozenset[Log] = frozenset()
    group_positions: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    mirror_positions: Mapping[tuple[str, int], int] = field(default_factory=dict)
    source_partitions: Mapping[str, int] = field(default_factory=dict)
    repartitioned: frozenset[str] = frozenset()  # topics whose number of partitions differs
    re_encoded: Mapping[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    stretch: int = 1  # sequences that share one mark in a strip
    edges_us: tuple[int, ...] = ()  # when faults began or ended, ascending (see `segments`)
    bins: Bins = field(default_factory=Bins)  # of time, for pictures
    slot_us: int = 0  # the width of a time slot of `SlotColumn`; 0 without faults
    # Transactions of which a read-committed group received a message, ascending; None until a
    # cell needs them.
    delivered_transactions: Ints | None = None
    # For cells that are judged again.
    knowledge: "Knowledge | None" = None
    # A folder for what tasks keep beside them; None: they return it.
    scratch: str | None = None
    keeps_answers: bool = False  # tasks keep their answers there until other tasks add them up

    def extents_in(self, buckets: tuple[int, int]) -> Mapping[Stream, Extent]:
        """Return the extents of the streams in [low, high) of the buckets."""
        if buckets == ALL_BUCKETS:
            return self.extents
        ordered, streams = self._streams_by_bucket
        low, high = np.searchsorted(ordered, buckets).tolist()
        return {stream: self.extents[stream] for stream in streams[low:high]}

    @cached_property
    def _streams_by_bucket(self) -> tuple[Ints, list[Stream]]:
        """The buckets of all planned streams, ascending, and these streams."""
        listed = list(self.extents)
        buckets = bucket_of_streams(listed, self.source_partitions)
        order = np.argsort(buckets, kind="stable")
        return buckets[order], [listed[place] for place in order.tolist()]

    @property
    def read_cluster(self) -> Cluster:
        """The cluster whose log the consumers read."""
        return "target" if self.has_mirror else "source"

    def source_partition(self, topic: str, lane: int) -> int:
        """Return the partition to which producers write a lane: the lane modulo the partitions."""
        partitions = self.source_partitions.get(topic, 0)
        return lane % partitions if partitions > 0 else max(lane, 0)

    def partition_for(self, cluster: str, stream: Stream) -> int:
        """Return the partition of a cluster in which a stream belongs."""
        if cluster == "source":
            return self.source_partition(stream.topic, stream.lane)
        return max(stream.lane, 0)

    def has_scans_of(self, cluster: str) -> bool:
        return any(scanned == cluster for scanned, _, _ in self.scans)

    def reads_committed(self, group: str) -> bool:
        return group not in self.uncommitted

    def is_drained(self, group: str, stream: Stream) -> bool:
        return self.all_drained or (group, stream) in self.drained


@dataclass(frozen=True)
class Knowledge:
    """What the answers of all cells of the first round show together."""

    # One past the highest offset that each group received, or that is copied into the target.
    group_reach: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    mirror_reach: Mapping[tuple[str, int], int] = field(default_factory=dict)
    # The highest sequence of a stream that a group received.
    delivered_until: Mapping[tuple[str, Stream], int] = field(default_factory=dict)
    # The lowest sequence of a stream whose place in the source is known; only with a mirror.
    placed_since: Mapping[Stream, int] = field(default_factory=dict)
    # Logs for which an offset below the start of their scan was seen.
    moved: frozenset[Log] = frozenset()
    # Logs in which consumers began to read at or above the start of the scan: it has not moved.
    unmoved: frozenset[Log] = frozenset()
    # Per stream: (first sequence of a cell, partition, offset) of the last message known to
    # have been in the target, for each cell that has one, ascending.
    last_in_target: Mapping[Stream, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)
    # Transactions of which any group received a message, ascending.
    delivered_transactions: Ints = field(default_factory=ints)
    # What compacted logs hold under each key: rows as `LatestColumn` says.
    latest: Mapping[Log, Mapping[Stream, Ints]] = field(default_factory=dict)


def build_context(ledger: Ledger) -> AuditContext:
    plans = [folder.plan for folder in ledger.folders]
    promises: Mapping[str, Any] = next((p["promises"] for p in plans if p.get("promises")), {})
    positions = ledger.small_table("positions")
    scans = ledger.small_table("scans")
    extents = _extents(ledger)
    drained = list(ledger.commits("drained"))
    longest = max([e.planned for e in extents.values()] + [_longest_recorded(ledger)], default=0)
    edges_us = edges_of(all_faults(folder.commits for folder in ledger.folders))
    groups = tuple(sorted(set(_groups(ledger, positions)))) or ("",)
    return AuditContext(
        run=ledger.run,
        promises=promises,
        has_mirror=(any(_has_mirror(plan) for plan in plans) and not _is_one_cluster(plans))
        or any(row["cluster"] == "target" for row in scans),
        groups=groups,
        skews_us=compute_skews(ledger, groups),
        acknowledged=not any(str(plan.get("acks")) == "0" for plan in plans),
        ordered=bool(promises.get("order", True)),
        uncommitted=_find_read_uncommitted(plans, groups),
        measure_from_us=max(_measure_from_us(plan) for plan in plans),
        is_history=any(bool(plan.get("history")) for plan in plans),
        message_bytes=_message_bytes(plans),
        extents=extents,
        all_drained=any(bool(plan.get("all_drained")) for plan in plans),
        overdue_us=_overdue_us(ledger),
        drained=frozenset((str(line.get("group")), _stream(line)) for line in drained),
        scans=_scans(scans),
        compacted=_find_compacted(scans) | _find_compacted_in_plans(plans),
        group_positions=_highest(
            ((row["reader"], row["topic"], row["partition"]), row["offset"])
            for row in positions
            if row["reader"] != MIRROR
        ),
        mirror_positions=_highest(
            ((row["topic"], row["partition"]), row["offset"])
            for row in positions
            if row["reader"] == MIRROR
        ),
        source_partitions=read_source_partitions(plans),
        repartitioned=_find_repartitioned(plans),
        re_encoded=_re_encoded(ledger),
        stretch=_stretch(longest),
        edges_us=edges_us,
        bins=find_bins(ledger),
        slot_us=slot_width_us(edges_us),
    )


def _log(row: Mapping[str, Any]) -> Log:
    return row["cluster"], row["topic"], row["partition"]


def _scans(rows: Iterable[Mapping[str, Any]]) -> dict[Log, tuple[int, int]]:
    """Return the range of each log; of several scans the highest bounds: logs only move up."""
    scans: dict[Log, tuple[int, int]] = {}
    for row in rows:
        start, end = scans.get(_log(row), (0, 0))
        scans[_log(row)] = (max(start, row["start"]), max(end, row["end"]))
    return scans


def _highest(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    found: dict[_Key, int] = {}
    for key, value in pairs:
        found[key] = max(value, found.get(key, value))
    return found


def _extents(ledger: Ledger) -> dict[Stream, Extent]:
    reserved: dict[Stream, int] = {}
    for line in ledger.commits("reserve"):
        stream, until = _stream(line), line.get("until")
        if not isinstance(until, int):
            raise LedgerError(
                f"run {ledger.run}: `until` is not a whole number in the reserve line {line!r:.200}"
            )
        reserved[stream] = max(reserved.get(stream, 0), until)
    ended: dict[Stream, int] = {}
    for row in ledger.small_table("manifests"):
        stream = _stream(row)
        ended[stream] = max(ended.get(stream, 0), row["count"])
    return {
        stream: Extent(
            ended.get(stream, reserved.get(stream, 0)),
            max(ended.get(stream, 0), reserved.get(stream, 0)),
        )
        for stream in reserved.keys() | ended.keys()
    }


def _stream(line: Mapping[str, Any]) -> Stream:
    try:
        name = str(line["producer"]), str(line["topic"])
        return Stream(*name, int(line["lane"]), int(line["incarnation"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"a line does not name a stream: {line!r:.200}") from error


def _has_mirror(plan: Mapping[str, Any]) -> bool:
    clusters = plan.get("clusters") or {}
    return bool(plan.get("mirror")) or clusters.get("target") is not None


def _is_one_cluster(plans: Iterable[Mapping[str, Any]]) -> bool:
    """Whether producers and consumers that ran separately used the same cluster, by its id."""
    ids = {
        side: {
            cluster.get("cluster_id")
            for plan in plans
            if isinstance(cluster := (plan.get("clusters") or {}).get(side), Mapping)
        }
        for side in ("source", "target")
    }
    return None not in ids["source"] and len(ids["source"]) == 1 and ids["source"] == ids["target"]


def _message_bytes(plans: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the size on which all plans that have one agree, else None."""
    workloads = [plan.get("workload") for plan in plans]
    sizes = {w.get("size_bytes") for w in workloads if isinstance(w, Mapping)} - {None}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def _measure_from_us(plan: Mapping[str, Any]) -> int:
    if plan.get("measure_from_us") is not None:
        return int(plan["measure_from_us"])
    warm_up_us = int(plan.get("warm_up_us") or 0)
    return int(plan.get("started_us") or 0) + warm_up_us if warm_up_us else NONE


def _overdue_us(ledger: Ledger) -> int:
    """Count the deadline back from the last line of the commit logs, the end of observation."""
    if ledger.deadline_us is None:
        return NONE
    times = [line.get("at_us") for folder in ledger.folders for line in folder.commits]
    last_us = max((at_us for at_us in times if isinstance(at_us, int)), default=NONE)
    return max(last_us - ledger.deadline_us, NONE)


def _find_compacted(scans: Iterable[Mapping[str, Any]]) -> frozenset[Log]:
    return frozenset(_log(row) for row in scans if row["compacted"])


def _find_compacted_in_plans(plans: Sequence[Mapping[str, Any]]) -> frozenset[Log]:
    """Find logs that plans name as compacted.

    Producers and consumers that run separately make no scans, so their plans say it.
    """
    sizes = {
        name: max(int(topic.get("partitions") or 0), int(topic.get("lanes") or 0))
        for plan in plans
        for name, topic in (plan.get("topics") or {}).items()
        if isinstance(topic, Mapping)
    }
    compacted = {
        ("source" if _is_one_cluster(plans) else side, str(name))
        for plan in plans
        for side, names in (plan.get("compacted") or {}).items()
        for name in names
    }
    return frozenset(
        (side, name, number) for side, name in compacted for number in range(sizes.get(name, 0))
    )


def _find_repartitioned(plans: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Find topics whose target has another number of partitions; it has one for each lane."""
    return frozenset(
        name
        for plan in plans
        for name, topic in (plan.get("topics") or {}).items()
        if isinstance(topic, Mapping)
        and topic.get("partitions")
        and topic.get("lanes")
        and int(topic["partitions"]) != int(topic["lanes"])
    )


def _re_encoded(ledger: Ledger) -> dict[tuple[str, int], frozenset[int]]:
    """Return by log the first offsets of target batches that the mirror re-encoded."""
    found: dict[tuple[str, int], set[int]] = {}
    for row in ledger.small_table("re_encoded"):
        found.setdefault((row["topic"], row["partition"]), set()).add(row["offset"])
    return {log: frozenset(offsets) for log, offsets in found.items()}


def _find_read_uncommitted(
    plans: Iterable[Mapping[str, Any]], groups: Iterable[str]
) -> frozenset[str]:
    """Find the groups with isolation level read_uncommitted; all, if a plan names no group."""
    found: set[str] = set()
    for plan in plans:
        if plan.get("isolation") == "read_uncommitted":
            found.update(_groups_in_plan(plan) or groups)
    return frozenset(found)


def _groups_in_plan(plan: Mapping[str, Any]) -> list[str]:
    groups = plan.get("groups") or ()
    return [str(group["name"] if isinstance(group, Mapping) else group) for group in groups]


def _groups(ledger: Ledger, positions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return every group that is in a plan or in a row of the ledgers."""
    for folder in ledger.folders:
        yield from _groups_in_plan(folder.plan)
    yield from (str(row["reader"]) for row in positions if row["reader"] != MIRROR)
    for table in ("assignments", "receipts"):
        yield from (part.group for part in ledger.tables[table] if part.group is not None)
        mixed = [part.piece for part in ledger.tables[table] if part.group is None]
        vocabulary = Vocabulary()
        read_rows(table, mixed, ["group"], vocabulary=vocabulary)
        yield from vocabulary.names


def _longest_recorded(ledger: Ledger) -> int:
    return max((g.ranges["sequence"][1] + 1 for g in ledger.tables["attempts"]), default=0)


def _stretch(longest: int) -> int:
    """Return a power of two that cuts the longest stream into at most 256 stretches."""
    return 1 << max(0, (longest - 1).bit_length() - 8)
