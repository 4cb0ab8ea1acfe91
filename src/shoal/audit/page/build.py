"""Builds the data behind the page of a run from the evidence of its audit.

`build_page` is pure; `write_page` puts it into the run folder; `load_page` reads it back, or
examines the ledgers of a run that has none, in this process.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from shoal.audit.audit import examine
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind
from shoal.audit.read.folder import Ledger, open_ledger
from shoal.audit.result.conclude import Evidence, conclude
from shoal.audit.result.latencies import (
    CURVE_PERCENTS,
    CURVE_WHOLE,
    count_never,
    curve_phases,
)
from shoal.audit.result.merge import Totals
from shoal.audit.stages import StageCount
from shoal.audit.times.bins import BIN_BUCKET_BITS, rows_by_bin
from shoal.audit.times.faults import FaultWindow, all_faults
from shoal.audit.times.ranks import SampleSet
from shoal.audit.times.segments import MOST_WINDOWS
from shoal.model.findings import Finding
from shoal.model.pages.run import (
    FILE_NAME,
    MOST_BYTES,
    MOST_LANES,
    Buckets,
    FlowCounts,
    FlowStage,
    GroupPage,
    LaneRow,
    PageData,
    PercentileCurve,
    TimeBins,
    add_buckets,
    read_page,
)

_FEWEST_BINS: Final = 50


def load_page(run_dir: Path) -> PageData:
    """Return the data of a finished run: from its `page.json`, or from its ledgers if it has none.

    `LedgerError` if neither can be read.
    """
    found = read_page(run_dir)
    if found is not None:
        return found
    ledger = open_ledger([run_dir.absolute()])
    evidence = examine(ledger)
    return build_page(ledger, evidence, conclude(ledger, evidence).worst_group)


def write_page(run_dir: Path, page: PageData) -> None:
    """Write `page.json`; a reader never sees an incomplete one."""
    path = run_dir / FILE_NAME
    draft = path.with_name(f"{FILE_NAME}.{os.getpid()}")
    draft.write_bytes(page.to_bytes())
    draft.replace(path)


def build_page(ledger: Ledger, evidence: Evidence, worst_group: str) -> PageData:
    """Return the data of all groups, the worst one first, in at most `MOST_BYTES`."""
    context = evidence.context
    faults = all_faults(folder.commits for folder in ledger.folders)[:MOST_WINDOWS]
    names = sorted(context.groups, key=lambda name: (name != worst_group, name))
    groups = {
        name: GroupPage(
            bins=time_bins(context, evidence.totals, name),
            flow=flow(context, evidence.totals, name),
            lanes=lanes(evidence, name),
            curves=percentile_curves(evidence, name, faults),
        )
        for name in names
    }
    return shrink(PageData(context.run, groups))


def shrink(page: PageData) -> PageData:
    """Return the page with at most `MOST_BYTES`: with wider bins, then without the last groups."""
    while len(page.to_bytes()) > MOST_BYTES:
        most = max((len(group.bins.due) for group in page.groups.values()), default=0)
        if most > _FEWEST_BINS:
            wider = {
                name: replace(group, bins=merge_bins(group.bins))
                for name, group in page.groups.items()
            }
            page = replace(page, groups=wider)
        elif len(page.groups) > 1:
            page = _leave_out_groups(page)
        else:
            ((name, group),) = page.groups.items()
            page = replace(page, groups={name: replace(group, lanes=group.lanes[:-1])})
    return page


def _leave_out_groups(page: PageData) -> PageData:
    """Leave out the last groups, as many as do not fit, and at least one; the first one stays."""
    bare_bytes = len(replace(page, groups={}).to_bytes())
    room_bytes = MOST_BYTES - bare_bytes
    names, kept = list(page.groups), 0
    for name in names[:-1]:
        alone = replace(page, groups={name: page.groups[name]})
        room_bytes -= len(alone.to_bytes()) - bare_bytes
        if room_bytes < 0:
            break
        kept += 1
    kept = max(kept, 1)
    left = {name: page.groups[name] for name in names[:kept]}
    return replace(page, groups=left, left_out=(*names[kept:], *page.left_out))


# Bins


def time_bins(context: AuditContext, totals: Totals, group: str) -> TimeBins:
    """Return what happened in each bin of time."""
    bins = context.bins
    if not bins.count:
        return TimeBins(undated_never=count_never(totals, group, None))

    def counts(of: str | None, name: str) -> list[int]:
        found = np.zeros(bins.count, dtype=np.int64)
        table = totals.table(PartKind.BINS, of, name)
        found[table[:, 0]] = table[:, 1]
        return [int(count) for count in found]

    latency: list[Buckets] = [{} for _ in range(bins.count)]
    mask = (1 << BIN_BUCKET_BITS) - 1
    for rows in rows_by_bin(totals.table(PartKind.BIN_LATENCY, group, "")):
        own = {str(key & mask): count for key, count in rows.tolist()}
        latency[int(rows[0, 0]) >> BIN_BUCKET_BITS] = own
    never = counts(group, "never")
    return TimeBins(
        start_us=bins.start_us,
        bin_us=bins.width_us,
        due=counts(None, "due"),
        acknowledged=counts(None, "acknowledged"),
        received=counts(group, "received"),
        lost=counts(group, "lost"),
        never=never,
        latency=latency,
        undated_never=count_never(totals, group, None) - sum(never),
    )


def merge_bins(bins: TimeBins) -> TimeBins:
    """Return the same counts in bins of twice the width."""

    def pairs(counts: Sequence[int]) -> list[int]:
        return [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]

    latency = [add_buckets(bins.latency[i : i + 2]) for i in range(0, len(bins.latency), 2)]
    return replace(
        bins,
        bin_us=bins.bin_us * 2,
        due=pairs(bins.due),
        acknowledged=pairs(bins.acknowledged),
        received=pairs(bins.received),
        lost=pairs(bins.lost),
        never=pairs(bins.never),
        latency=latency,
    )


# Flow


def flow(context: AuditContext, totals: Totals, group: str) -> FlowCounts:
    """Return how many messages came to each stage, and what was lost and duplicated there."""

    def count_lost(*findings: Finding) -> int:
        return sum(totals.count(group, finding) for finding in findings)

    def both(name: str) -> int:
        return totals.count(None, name) + totals.count(group, name)

    reached, delivered = totals.reached, totals.count(group, "delivered")
    repeated = totals.count(group, "deliveries") - delivered
    sent = FlowStage("sent", totals.count(None, "attempts"))
    source = FlowStage(
        "source",
        reached["source"],
        count_lost(Finding.LOST_NEVER_STORED),
        both(Finding.DUPLICATE_SOURCE),
    )
    before = [Finding.LOST_UNDELIVERED]
    middle: tuple[FlowStage, ...] = ()
    if context.has_mirror:
        at_mirror = count_lost(Finding.LOST_NOT_MIRRORED, Finding.LOST_EXPIRED)
        copies = both(StageCount.DUPLICATE_MIRROR), both(Finding.DUPLICATE_TARGET)
        expired = count_lost(Finding.LOST_EXPIRED_AT_TARGET)
        middle = (
            FlowStage("mirror", reached["target"], at_mirror, copies[0]),
            FlowStage("target", reached["target"], expired, copies[1]),
        )
    else:
        before += [Finding.LOST_EXPIRED]
    return FlowCounts(
        stages=(
            sent,
            source,
            *middle,
            FlowStage("received", delivered, count_lost(*before), repeated),
        ),
        acknowledged=totals.count(None, "ok"),
        failed=totals.count(None, "failed"),
        unlocated=count_lost(Finding.LOST_UNLOCATED),
        pending=count_lost(Finding.PENDING),
    )


# Lanes


def lanes(evidence: Evidence, group: str) -> tuple[LaneRow, ...]:
    """Return the lanes of which findings affect the largest share, at most `MOST_LANES`."""
    start_us = evidence.context.bins.start_us
    chosen = sorted(evidence.totals.affected[group], key=lambda row: row.rank)[:MOST_LANES]
    return tuple(
        LaneRow(
            producer=evidence.producer_names.name(row.stream.producer, row.stream.incarnation),
            topic=row.stream.topic,
            lane=row.stream.lane,
            due=row.due,
            affected=row.affected,
            findings=row.findings,
            stretches=tuple(
                (first - start_us, last - start_us, due, affected)
                for first, last, due, affected in row.stretches
            ),
        )
        for row in chosen
    )


# Percentiles


def percentile_curves(
    evidence: Evidence, group: str, faults: Sequence[FaultWindow]
) -> tuple[PercentileCurve, ...]:
    """Return latency by percentile before, during and after faults, or of the whole run.

    After is all time after the begin of the first fault in which no fault was active. The warm-up
    is left out, as in the metrics.
    """
    return tuple(
        _curve(evidence, phase, SampleSet(group, "e2e_intended", segments))
        for phase, segments in curve_phases(evidence.context, faults)
    )


def _curve(evidence: Evidence, phase: str, samples: SampleSet) -> PercentileCurve:
    summary = evidence.latencies.known.summary(*samples)
    count = summary.size if summary else 0
    never = count_never(evidence.totals, samples.group or "", samples.segments)
    total = count + never
    # A percentile between the last two messages would repeat the largest one.
    shown = [
        percent
        for percent in CURVE_PERCENTS
        if (CURVE_WHOLE - percent) * total >= CURVE_WHOLE or percent == CURVE_WHOLE
    ]
    points = tuple(
        (percent / 1000, evidence.latencies.sample_at(samples, (percent, CURVE_WHOLE), never))
        for percent in shown
    )
    return PercentileCurve(phase, count, never, points if total else ())
