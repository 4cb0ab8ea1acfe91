"""Builds the result of an audit from its counts. Only `verdict` makes a judgement."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from shoal.audit.arrays import Ints
from shoal.audit.context import AuditContext, Stream
from shoal.audit.parts import PartKind
from shoal.audit.read.folder import Ledger
from shoal.audit.result.latencies import Latencies, owed_in_all
from shoal.audit.result.lost_workers import WorkerLosses, find_worker_losses
from shoal.audit.result.merge import Totals, latency_maxima
from shoal.audit.result.producers import ProducerNames
from shoal.audit.result.sentences import compose_sentence, finish_sentences, upper_bound_95
from shoal.audit.result.settle import CountedStep, PollFindings
from shoal.audit.result.streams import Lane, LaneTable
from shoal.audit.result.thresholds import worst_group
from shoal.audit.result.verdict import (
    UNSENT,
    decide,
    decide_stages,
    select_violating_findings,
)
from shoal.audit.stages import STAGE_COUNT_NAMES, STAGE_COUNTS, STAGE_OF_CLUSTER, StageCount
from shoal.audit.times.clocks import skew_of
from shoal.audit.times.faults import FaultWindow, all_faults
from shoal.audit.times.latency import (
    bucket_bounds,
)
from shoal.audit.times.ranks import SampleSet
from shoal.audit.times.segments import MOST_WINDOWS
from shoal.audit.times.windows import judge_windows
from shoal.model.errors import LedgerError
from shoal.model.findings import LOST, Finding
from shoal.model.result import (
    FindingResult,
    GroupResult,
    Metrics,
    Ratios,
    Result,
    Series,
    Strip,
    Throughput,
)

MOST_SECONDS = 100_000  # of a series; a longer run, or one with garbled times, has no series


@dataclass(frozen=True)
class Evidence:
    """Everything that an audit counted."""

    context: AuditContext
    totals: Totals
    polls: PollFindings
    latencies: Latencies

    @cached_property
    def producer_names(self) -> ProducerNames:
        """The names of all producers that planned, sent or occur in a record."""
        planned = ((stream.producer, stream.incarnation) for stream in self.context.extents)
        contested = (
            (producer, incarnation)
            for found in self.polls.contested
            for producer, _, _, incarnation in found.messages
        )
        return ProducerNames(chain(planned, self.totals.producers, contested))


def conclude(ledger: Ledger, evidence: Evidence) -> Result:
    """Return the result of a run: a verdict for each consumer group, and what holds for all."""
    context = evidence.context
    faults = all_faults(folder.commits for folder in ledger.folders)
    losses = find_worker_losses(ledger.folders)
    judged = {group: _GroupConclusion(evidence, group, faults, losses) for group in context.groups}
    sentences = finish_sentences({name: group.clause() for name, group in judged.items()})
    groups = {name: group.result(sentences[name]) for name, group in judged.items()}
    foreign: dict[str, int] = defaultdict(int)
    for line in ledger.commits("foreign"):
        if not isinstance(count := line.get("count"), int):
            raise LedgerError(
                f"run {context.run}: `count` is not a number in the foreign line {line!r:.200}"
            )
        foreign[str(line.get("cluster"))] += count
    result = Result(
        run=context.run,
        worst_group=min(groups),
        groups=groups,
        promises=dict(context.promises),
        foreign=dict(foreign),
        faults=tuple(fault.to_json() for fault in faults),
        lost_workers=tuple(worker.to_json() for worker in losses.workers),
        missing_scans=_missing_scans(context, evidence.totals),
        mirror=next((f.plan["mirror"] for f in ledger.folders if f.plan.get("mirror")), None),
    )
    return replace(result, worst_group=worst_group(result))


def _missing_scans(context: AuditContext, totals: Totals) -> tuple[str, ...]:
    clusters = ("source", "target") if context.has_mirror else ("source",)
    lanes = {(stream.topic, stream.lane) for stream in context.extents} | totals.longest.keys()
    streams = [Stream("", topic, lane) for topic, lane in lanes]
    logs = {(c, s.topic, context.partition_for(c, s)) for c in clusters for s in streams}
    missing = sorted(log for log in logs if log not in context.scans)
    return tuple(f"{cluster} {topic}-{partition}" for cluster, topic, partition in missing)


class _GroupConclusion:
    """Builds the result of one group."""

    def __init__(
        self, evidence: Evidence, group: str, faults: Sequence[FaultWindow], losses: WorkerLosses
    ) -> None:
        self.context, self.totals, self.polls = evidence.context, evidence.totals, evidence.polls
        self.latencies = evidence.latencies
        self.group, self.faults, self.losses = group, faults[:MOST_WINDOWS], losses
        self.skew_us = self.context.skews_us.get(group)
        self.counts = self._all_counts()
        self.names = evidence.producer_names

    def _all_counts(self) -> dict[str, int]:
        """Return all counts of this group and of the logs, and the counts per stage."""
        totals = self.totals
        counts = {**totals.counts[None], **totals.counts[self.group]}
        counts[Finding.POLL_SKIP] = len(self.polls.skips.get(self.group, ()))
        falls = self.polls.falls.get(self.group, ())
        counts[Finding.NON_MONOTONIC_POLL] = sum(count for _, count in falls)
        for (cluster, _, _), _, count, _ in self.polls.contested:
            at_stage = STAGE_COUNTS[STAGE_OF_CLUSTER[cluster], Finding.INCONSISTENT_OFFSET]
            for name in (Finding.INCONSISTENT_OFFSET, at_stage):
                counts[name] = counts.get(name, 0) + count
        counts[StageCount.REORDERED_MIRROR] = totals.excess[None, StageCount.REORDERED_MIRROR]
        by_consumers = totals.excess[self.group, StageCount.REORDERED_CONSUMERS]
        counts[StageCount.REORDERED_CONSUMERS] = by_consumers
        counts["batches"] = totals.batches[self.group]
        counts[UNSENT] = int(self.losses.is_load_unsent)
        return counts

    def clause(self) -> str:
        """Return what happened, as a clause of the verdict sentence."""
        counts, promises = self.counts, self.context.promises
        all_counts = {**counts, "acks_0": int(not self.context.acknowledged)}
        return compose_sentence(
            decide(counts, promises),
            all_counts,
            promises,
            select_violating_findings(promises),
            lost_workers=self.losses.describe(counts.get("attempts", 0)),
        )

    def result(self, sentence: str) -> GroupResult:
        promises = self.context.promises
        return GroupResult(
            verdict=decide(self.counts, promises),
            sentence=sentence,
            stages=decide_stages(self.counts, promises, has_mirror=self.context.has_mirror),
            findings={f.value: found for f in Finding if (found := self._finding(f)).count},
            metrics=self._metrics(),
            throughput=tuple(self._throughput()),
            lanes=tuple(self._lanes()),
            series=self._series(),
            strips=tuple(self._strips()),
            windows=judge_windows(
                self.context, self.totals, self.group, self.faults, latencies=self.latencies
            ),
            histogram=tuple(self._histogram()),
        )

    # ------------------------------------------------------------ findings

    def _finding(self, finding: Finding) -> FindingResult:
        count = self.counts.get(finding, 0)
        if not count:
            return FindingResult(0)
        if finding is Finding.POLL_SKIP:
            return _poll_result(count, self.polls.skips[self.group], "skipped_offset")
        if finding is Finding.NON_MONOTONIC_POLL:
            return _poll_result(count, self.polls.falls[self.group], "falls")
        if finding is Finding.INCONSISTENT_OFFSET:
            return self._inconsistent_offset_result(count)
        streams = sum(self.totals.streams_with(group, finding) for group in (None, self.group))
        held = self.totals.witnesses
        witness = held.get((self.group, finding)) or held.get((None, finding))
        return FindingResult(count, streams, witness and self.names.name_in(witness))

    def _inconsistent_offset_result(self, count: int) -> FindingResult:
        by_log = sorted(self.polls.contested, key=lambda found: (found.log, found.offset))
        (cluster, topic, partition), offset, _, messages = by_log[0]
        names = ("producer", "lane", "sequence", "incarnation")
        witness = {
            "cluster": cluster,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "messages": [
                self.names.name_in(dict(zip(names, message, strict=True))) for message in messages
            ],
        }
        return FindingResult(count, len({found.log for found in by_log}), witness)

    # ------------------------------------------------------------ metrics

    def _metrics(self) -> Metrics:
        counts, totals = self.counts, self.totals
        plain = {
            name: counts.get(name, 0)
            for name in (
                *("attempts", "ok", "failed", "unknown", "deliveries", "delivered"),
                *("delivered_attempts", "delivered_ok", "re_reads", "recovered", "lost_ok"),
                *("pending_ok", "batches", "F", "F_limit", "K"),
            )
        }
        lost = sum(counts.get(finding, 0) for finding in LOST)
        pending = counts.get(Finding.PENDING, 0)
        ratios = Ratios.of(plain, acknowledged=self.context.acknowledged)
        is_complete = bool(plain["ok"]) and not lost and not pending
        ranges = {
            name: totals.ranges.get((None, name), totals.ranges.get((self.group, name)))
            for name in ("sent", "published", "output", "consumed")
        }
        return Metrics(
            **plain,
            lost=lost,
            pending=pending,
            yield_=ratios.yield_,
            harvest=ratios.harvest,
            completeness=ratios.completeness,
            duplication=ratios.duplication,
            re_read_rate=ratios.re_read_rate,
            order=plain["F"] / plain["F_limit"] if plain["F_limit"] else None,
            loss_rate_bound_95=upper_bound_95(plain["delivered_ok"]) if is_complete else None,
            batch_loss_rate_bound_95=upper_bound_95(plain["batches"]) if is_complete else None,
            latency_us={
                name: self.latencies.statistics(
                    SampleSet(of, name),
                    owed_in_all(name, lost + pending),
                    skew_us=skew_of(name, self.skew_us),
                )
                for name, of in self.latencies.names(self.group)
            },
            clock_skew_us=self.skew_us,
            range_us={name: pair and pair[1] - pair[0] for name, pair in ranges.items()},
        )

    def _throughput(self) -> Iterable[Throughput]:
        totals = self.totals
        lanes = self._lane_table
        sent, delivered = lanes.of("measured sent"), lanes.of("measured delivered")
        sent_s = _seconds(totals.ranges.get((None, "measured sent")))
        delivered_s = _seconds(totals.ranges.get((self.group, "measured delivered")))
        topics = [topic for topic, _ in lanes.lanes]
        sending = {topic for topic, count in zip(topics, sent.tolist(), strict=True) if count}
        for topic in [None, *sorted(sending)]:
            own = [topic in (None, each) for each in topics]
            of_sent, of_delivered = int(sent[own].sum()), int(delivered[own].sum())
            sent_per_s = of_sent / sent_s if sent_s else None
            delivered_per_s = of_delivered / delivered_s if delivered_s else None
            size = self.context.message_bytes
            yield Throughput(
                topic,
                of_sent,
                sent_per_s,
                of_delivered,
                delivered_per_s,
                sent_bytes_per_s=None if size is None or sent_per_s is None else sent_per_s * size,
                delivered_bytes_per_s=None
                if size is None or delivered_per_s is None
                else delivered_per_s * size,
            )

    @cached_property
    def _lane_table(self) -> LaneTable:
        return self.totals.lane_table(None, self.group)

    def _lanes(self) -> Iterable[dict[str, Any]]:
        table = self._lane_table
        shown = [(n, name) for n, name in enumerate(table.names) if name not in STAGE_COUNT_NAMES]
        for (topic, lane), counts in zip(table.lanes, table.counts.tolist(), strict=True):
            kept = {name: counts[n] for n, name in shown if counts[n]}
            yield {"topic": topic, "lane": lane, **kept}

    # ------------------------------------------------------------ pictures

    def _series(self) -> Series:
        totals = self.totals
        sent = _as_dict(totals.table(PartKind.SECOND, None, "sent"))
        received = _as_dict(totals.table(PartKind.SECOND, self.group, "received"))
        percentiles = totals.second_percentiles(self.group).tolist()
        p50 = {second: value for second, value, _ in percentiles}
        p99 = {second: value for second, _, value in percentiles}
        seconds = [*sent, *received, *p50]
        if not seconds or max(seconds) - min(seconds) >= MOST_SECONDS:
            return Series()
        start, end = min(seconds), max(seconds) + 1
        highest = latency_maxima(totals, self.group)
        span = range(start, end)
        return Series(
            start_s=start,
            sent=[sent.get(second, 0) for second in span],
            received=[received.get(second, 0) for second in span],
            latency_us_p50=[p50.get(second) for second in span],
            latency_us_p99=[p99.get(second) for second in span],
            latency_us_max=[highest.get(second) for second in span],
        )

    def _strips(self) -> Iterable[Strip]:
        lengths, stretch = self.totals.longest, self.context.stretch
        marks: dict[Lane, dict[tuple[int, str], int]] = defaultdict(lambda: defaultdict(int))
        for (group, finding), by_place in self.totals.marks.items():
            if group in (None, self.group):
                for (place, number), count in by_place.items():
                    marks[place][number * stretch, finding] += count
        for topic, lane in sorted(lengths.keys() | marks.keys()):
            own = sorted(marks[topic, lane].items())
            found = tuple((first, finding, count) for (first, finding), count in own)
            yield Strip(topic, lane, lengths.get((topic, lane), 0), stretch, found)

    def _histogram(self) -> Iterable[tuple[int, int, int]]:
        for bucket, count in self.totals.latency_buckets(self.group).tolist():
            yield (*bucket_bounds(bucket), count)


def _poll_result(count: int, found: list[CountedStep], name: str) -> FindingResult:
    def key(item: CountedStep) -> tuple[Any, ...]:
        step, _ = item
        _, consumer, assignment, topic, partition = step.reader
        return topic, partition, step.origin, step.landing, consumer, assignment

    step, number = min(found, key=key)
    offsets = {"from_offset": step.origin, "to_offset": step.landing}
    witness = {**step.reader._asdict(), **offsets, name: number}
    logs = {(step.reader.topic, step.reader.partition) for step, _ in found}
    return FindingResult(count, len(logs), witness)


def _seconds(times_us: tuple[int, int] | None) -> float:
    return (times_us[1] - times_us[0]) / 1e6 if times_us else 0.0


def _as_dict(table: Ints) -> dict[int, int]:
    return dict(table.tolist())
