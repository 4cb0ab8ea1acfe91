"""The result of an audit: the format of `result.json`.

Rules:
- Every number is defined in `docs/reference/definitions.md`, under the same name.
- A ratio with a denominator of 0 is `None`, and so is the yield of a run without acknowledgements;
  numbers are not rounded.
- Everything is per consumer group. The top level of `result.json` (verdict, sentence, stages,
  findings, metrics) has the values of the worst group, whose name is `worst_group`.
- `to_json` returns plain dictionaries and lists; `from_json` reads them. Fields have the names
  that are declared beside their types (`shoal.model.serialised`) or spelt out here. Fields may be
  added within a format: those that older results lack are marked, all others are required.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Self

from shoal.model.errors import LedgerError
from shoal.model.findings import Verdict
from shoal.model.serialised import (
    AbsentUpTo,
    FormatMismatch,
    all_arguments_of,
    check_version,
    from_plain,
    names_of,
    to_plain,
)

RESULT_FORMAT: Final = 1
# Marks fields that were added later: results of format 1 may lack them.
_ADDED: Final = AbsentUpTo(1)

# An infinite latency, because messages were lost: JSON has no infinity.
NEVER = "never"

Json = dict[str, Any]

# (name in JSON, numerator, denominator): the smallest sample that at least this share of
# the samples do not exceed.
PERCENTILES: Final = (
    ("p50", 50, 100),
    ("p75", 75, 100),
    ("p90", 90, 100),
    ("p95", 95, 100),
    ("p99", 99, 100),
    ("p99.9", 999, 1000),
    ("p99.99", 9999, 10000),
)

STAGES: Final = ("producer_to_source", "source_to_target", "log_to_consumers")


@dataclass(frozen=True, slots=True)
class FindingResult:
    """The number of cases of a finding, in how many streams, and the smallest case.

    For findings about offsets (inconsistent offset, poll skip, non-monotonic poll) `streams`
    counts partitions.
    """

    count: int
    streams: int = 0
    witness: Json | None = None

    def to_json(self) -> Json:
        return {"count": self.count, "streams": self.streams, "witness": self.witness}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["count"], data.get("streams", 0), data.get("witness"))


@dataclass(frozen=True, slots=True)
class Latency:
    """Exact statistics of latencies in microseconds.

    `undelivered` is the number of messages that were lost or are pending; `percentiles_owed` are
    the percentiles with each of them counted as infinitely late, None where that is infinite.
    `skew_us` bounds how far the clock at the end was ahead of the clock at the begin (None: not
    known); the true value of each statistic lies in its `interval`.
    """

    count: int = 0
    negative: int = 0
    mean: float | None = None
    max: int | None = None
    percentiles: dict[str, int] = field(default_factory=dict)
    undelivered: int = 0
    percentiles_owed: dict[str, int | None] = field(default_factory=dict)
    skew_us: tuple[int, int] | None = (0, 0)

    def interval(self, value: float) -> tuple[float, float] | None:
        """The bounds of the true value behind a measured one; None if they are not known."""
        return None if self.skew_us is None else (value - self.skew_us[1], value - self.skew_us[0])

    def _intervals(self) -> Json:
        """The bounds for JSON; empty if all processes used the same clock."""
        if self.skew_us == (0, 0):
            return {}
        if self.skew_us is None:
            return {"skew_us": None, "interval": None}
        measured = {"mean": self.mean, **self.percentiles, "max": self.max}
        known = {name: value for name, value in measured.items() if value is not None}
        intervals = {name: list(self.interval(value) or ()) for name, value in known.items()}
        return {"skew_us": list(self.skew_us), "interval": intervals}

    def owed(self) -> dict[str, float | None]:
        """The statistics for thresholds: an undelivered message is infinitely late."""
        if not self.undelivered:
            return {**self.percentiles, "mean": self.mean, "max": self.max}
        owed = {name: self.percentiles_owed.get(name) for name, _, _ in PERCENTILES}
        finite = {name: math.inf if value is None else value for name, value in owed.items()}
        return {**finite, "mean": math.inf, "max": math.inf}

    def to_json(self) -> Json:
        head = {"count": self.count, "negative": self.negative, "mean": self.mean}
        names = [name for name, _, _ in PERCENTILES]
        plain: Json = {
            **head,
            **{name: self.percentiles.get(name) for name in names},
            "max": self.max,
        }
        if self.undelivered:
            owed = {name: self.percentiles_owed.get(name) for name in names}
            plain |= {"undelivered": self.undelivered, "owed": owed}
        return plain | self._intervals()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        names = [name for name, _, _ in PERCENTILES if data.get(name) is not None]
        skew = data.get("skew_us", (0, 0))
        return cls(
            data["count"],
            data["negative"],
            data["mean"],
            data["max"],
            percentiles={name: data[name] for name in names},
            undelivered=data.get("undelivered", 0),
            percentiles_owed=dict(data.get("owed", {})),
            skew_us=None if skew is None else (skew[0], skew[1]),
        )


@dataclass(frozen=True, slots=True)
class Metrics:
    """The numbers of one group. `order` is F divided by its greatest possible value."""

    attempts: Annotated[int, "attempts"] = 0
    ok: Annotated[int, "ok"] = 0
    failed: Annotated[int, "failed"] = 0
    unknown: Annotated[int, "unknown"] = 0
    deliveries: Annotated[int, "deliveries"] = 0
    delivered: Annotated[int, "delivered"] = 0
    delivered_attempts: Annotated[int, "delivered_attempts"] = 0
    delivered_ok: Annotated[int, "delivered_ok"] = 0
    re_reads: Annotated[int, "re_reads", _ADDED] = 0
    recovered: Annotated[int, "recovered"] = 0
    lost: Annotated[int, "lost"] = 0
    lost_ok: Annotated[int, "lost_ok"] = 0
    pending: Annotated[int, "pending"] = 0
    pending_ok: Annotated[int, "pending_ok"] = 0
    yield_: Annotated[float | None, "yield"] = None
    harvest: Annotated[float | None, "harvest"] = None
    completeness: Annotated[float | None, "completeness"] = None
    duplication: Annotated[float | None, "duplication"] = None
    re_read_rate: Annotated[float | None, "re_read_rate", _ADDED] = None
    order: Annotated[float | None, "order"] = None
    loss_rate_bound_95: Annotated[float | None, "loss_rate_bound_95", _ADDED] = (
        None  # if messages were lost independently of each other
    )
    batch_loss_rate_bound_95: Annotated[float | None, "batch_loss_rate_bound_95", _ADDED] = (
        None  # if batches were
    )
    batches: Annotated[int, "batches", _ADDED] = (
        0  # that held the acknowledged and delivered messages
    )
    F: Annotated[int, "F"] = 0
    F_limit: Annotated[int, "F_limit"] = 0
    K: Annotated[int, "K"] = 0
    latency_us: Annotated[dict[str, Latency], "latency_us"] = field(default_factory=dict)
    range_us: Annotated[dict[str, int | None], "range_us", _ADDED] = field(default_factory=dict)
    clock_skew_us: Annotated[tuple[int, int] | None, "clock_skew_us", _ADDED] = (
        None  # consumers' clocks minus producers'
    )

    def to_json(self) -> Json:
        plain = {name.serialised_name: getattr(self, name.attribute) for name in names_of(Metrics)}
        plain["latency_us"] = {name: value.to_json() for name, value in self.latency_us.items()}
        plain["clock_skew_us"] = None if self.clock_skew_us is None else list(self.clock_skew_us)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any], version: int) -> Self:
        latencies = {n: Latency.from_json(each) for n, each in data["latency_us"].items()}
        skew = data.get("clock_skew_us")
        own = {"latency_us": latencies, "clock_skew_us": skew and (skew[0], skew[1])}
        return cls(**all_arguments_of(cls, {**data, **own}, version=version))


@dataclass(frozen=True, slots=True)
class Ratios:
    """The ratios, computed from their counts."""

    yield_: Annotated[float | None, "yield"] = None
    harvest: Annotated[float | None, "harvest"] = None
    completeness: Annotated[float | None, "completeness"] = None
    duplication: Annotated[float | None, "duplication"] = None
    re_read_rate: Annotated[float | None, "re_read_rate"] = None

    @classmethod
    def of(cls, counts: Mapping[str, int], *, acknowledged: bool) -> Self:
        """`acknowledged` is False with acks=0: then the yield is not known."""
        attempts, ok, deliveries = (counts[name] for name in ("attempts", "ok", "deliveries"))
        copies = deliveries - counts["re_reads"] - counts["delivered"]
        return cls(
            yield_=_ratio(ok, attempts) if acknowledged else None,
            harvest=_ratio(counts["delivered_attempts"], attempts),
            completeness=_ratio(counts["delivered_ok"], ok),
            duplication=_ratio(copies, deliveries),
            re_read_rate=_ratio(counts["re_reads"], deliveries),
        )


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


@dataclass(frozen=True, slots=True)
class Window:
    """The messages whose intended send was during one fault, or outside of all faults (None).

    `sent` and `received` count all messages sent and received in that time. A fault without a
    visible effect has no times to detect and recover; one whose effect lasts to the end of the
    run has none to recover; one that did not end has none to drain.
    """

    fault: int | None
    counts: dict[str, int]
    ratios: Ratios = field(default_factory=Ratios)
    findings: dict[str, int] = field(default_factory=dict)
    latency_us: dict[str, Latency] = field(default_factory=dict)
    sent: int = 0
    received: int = 0
    time_to_detect_us: int | None = None
    time_to_recover_us: int | None = None
    time_to_drain_us: int | None = None

    def to_json(self) -> Json:
        latencies = {name: value.to_json() for name, value in self.latency_us.items()}
        return {
            "fault": self.fault,
            "time_to_detect_us": self.time_to_detect_us,
            "time_to_recover_us": self.time_to_recover_us,
            "time_to_drain_us": self.time_to_drain_us,
            "sent": self.sent,
            "received": self.received,
            "findings": dict(self.findings),
            "metrics": {**self.counts, **to_plain(self.ratios), "latency_us": latencies},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        metrics = dict(data["metrics"])
        latencies = metrics.pop("latency_us")
        ratios = {
            name.serialised_name: metrics.pop(name.serialised_name) for name in names_of(Ratios)
        }
        return cls(
            fault=data["fault"],
            counts=metrics,
            ratios=from_plain(Ratios, ratios),
            findings=dict(data["findings"]),
            latency_us={name: Latency.from_json(each) for name, each in latencies.items()},
            sent=data["sent"],
            received=data["received"],
            time_to_detect_us=data["time_to_detect_us"],
            time_to_recover_us=data["time_to_recover_us"],
            time_to_drain_us=data["time_to_drain_us"],
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """The verdict on one stage, and the findings behind it."""

    verdict: Verdict
    findings: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {"verdict": self.verdict.value, "findings": list(self.findings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(Verdict(data["verdict"]), tuple(data["findings"]))


@dataclass(frozen=True, slots=True)
class Throughput:
    """Messages and bytes per second over the measured window; `topic` None is all topics together.

    Warm-up is excluded. `sent` counts attempts by actual send, `delivered` messages by first
    delivery. A rate is None if the window is empty, and a rate of bytes also if the size of the
    messages was not recorded.
    """

    topic: Annotated[str | None, "topic"]
    sent: Annotated[int, "sent"]
    sent_per_s: Annotated[float | None, "sent_per_s"]
    delivered: Annotated[int, "delivered"]
    delivered_per_s: Annotated[float | None, "delivered_per_s"]
    sent_bytes_per_s: Annotated[float | None, "sent_bytes_per_s", _ADDED] = None
    delivered_bytes_per_s: Annotated[float | None, "delivered_bytes_per_s", _ADDED] = None

    def to_json(self) -> Json:
        plain: Json = to_plain(self)
        return plain


@dataclass(frozen=True, slots=True)
class Series:
    """Values for each second from `start_s` (Unix time), for charts.

    All lists have one entry per second. `sent` counts by actual send, `received` counts all
    deliveries; latencies are those of messages with an intended send in that second, from
    that time, percentiles rounded up by at most 1/32, maxima exact; None where no message
    arrived.
    """

    start_s: Annotated[int, "start_s"] = 0
    sent: Annotated[list[int], "sent"] = field(default_factory=list)
    received: Annotated[list[int], "received"] = field(default_factory=list)
    latency_us_p50: Annotated[list[int | None], "latency_us_p50"] = field(default_factory=list)
    latency_us_p99: Annotated[list[int | None], "latency_us_p99"] = field(default_factory=list)
    latency_us_max: Annotated[list[int | None], "latency_us_max"] = field(default_factory=list)

    def to_json(self) -> Json:
        plain: Json = to_plain(self)
        return plain


@dataclass(frozen=True, slots=True)
class Strip:
    """One lane from sequence 0 to `length` with its findings, for charts.

    `marks` are (first sequence of a stretch of `stretch` sequences, finding, count).
    """

    topic: Annotated[str, "topic"]
    lane: Annotated[int, "lane"]
    length: Annotated[int, "length"]
    stretch: Annotated[int, "stretch"]
    marks: Annotated[tuple[tuple[int, str, int], ...], "marks"] = ()

    def to_json(self) -> Json:
        plain: Json = to_plain(self)
        return plain


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The audit of one consumer group.

    `lanes` are rows of counts: `topic`, `lane`, and each count of `Metrics` and each finding
    that is not zero. `histogram` is the end-to-end latency from the intended send, as
    (lower bound, upper bound, count) of buckets that grow by at most 1/32, for charts.
    """

    verdict: Verdict
    sentence: str
    stages: dict[str, Stage] = field(default_factory=dict)
    findings: dict[str, FindingResult] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    throughput: tuple[Throughput, ...] = ()
    lanes: tuple[Json, ...] = ()
    series: Series = field(default_factory=Series)
    strips: tuple[Strip, ...] = ()
    windows: tuple[Window, ...] = ()  # one for each fault, then one for the time outside of all
    histogram: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def empty(cls) -> Self:
        """The result of a run without messages."""
        return cls(Verdict.INCONCLUSIVE, "")

    def to_json(self) -> Json:
        return {
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "stages": {name: stage.to_json() for name, stage in self.stages.items()},
            "findings": {name: found.to_json() for name, found in self.findings.items()},
            "metrics": self.metrics.to_json(),
            "throughput": [row.to_json() for row in self.throughput],
            "lanes": [dict(row) for row in self.lanes],
            "series": self.series.to_json(),
            "strips": [strip.to_json() for strip in self.strips],
            "windows": [window.to_json() for window in self.windows],
            "histogram": [list(bucket) for bucket in self.histogram],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], version: int) -> Self:
        return cls(
            verdict=Verdict(data["verdict"]),
            sentence=data["sentence"],
            stages={name: Stage.from_json(stage) for name, stage in data["stages"].items()},
            findings={n: FindingResult.from_json(found) for n, found in data["findings"].items()},
            metrics=Metrics.from_json(data["metrics"], version),
            throughput=tuple(
                from_plain(Throughput, row, version=version) for row in data["throughput"]
            ),
            lanes=tuple(data["lanes"]),
            series=from_plain(Series, data["series"]),
            strips=tuple(from_plain(Strip, strip) for strip in data["strips"]),
            windows=tuple(Window.from_json(window) for window in data["windows"]),
            histogram=tuple((b[0], b[1], b[2]) for b in data["histogram"]),
        )


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """A threshold, and the value of its metric for each consumer group.

    A value is infinite if losses reach the percentile, None if the metric does not exist.
    """

    text: str
    metric: str
    values: dict[str, float | None]
    missed_by: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        return not self.missed_by

    def sentences(self) -> list[str]:
        """One for each group that misses it, with the group's name if there are several."""
        return [
            f"{self.text}: {self.metric} is {_number(self.values[group])}"
            + (f" in group {group}" if len(self.values) > 1 else "")
            for group in self.missed_by
        ]

    def to_json(self) -> Json:
        values = {
            group: NEVER if value is not None and math.isinf(value) else value
            for group, value in self.values.items()
        }
        return {
            "threshold": self.text,
            "metric": self.metric,
            "met": self.is_met,
            "values": values,
            "missed_by": list(self.missed_by),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        values = {
            group: math.inf if value == NEVER else value for group, value in data["values"].items()
        }
        return cls(data["threshold"], data["metric"], values, tuple(data["missed_by"]))


def _number(value: float | None) -> str:
    if value is None:
        return "unknowable"
    return NEVER if math.isinf(value) else f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class Result:
    """The audit of one run."""

    run: str
    worst_group: str
    groups: dict[str, GroupResult]
    promises: Json = field(default_factory=dict)
    foreign: dict[str, int] = field(
        default_factory=dict
    )  # records of other runs or programs, by cluster
    faults: tuple[Json, ...] = ()  # fault, name, target, began_us, ended_us, detail
    missing_scans: tuple[str, ...] = ()  # logs without a scan: the stage of a loss may be unknown
    mirror: Json | None = None  # its kind and settings, and its CPU and memory usage
    thresholds: tuple[ThresholdResult, ...] = ()
    # Producers and consumers that ended unplanned: worker, reason, error, at_us, attempts.
    lost_workers: tuple[Json, ...] = ()

    @property
    def missed(self) -> list[ThresholdResult]:
        """The thresholds that some group does not meet."""
        return [each for each in self.thresholds if not each.is_met]

    @property
    def worst(self) -> GroupResult:
        return self.groups[self.worst_group]

    @property
    def verdict(self) -> Verdict:
        return self.worst.verdict

    @property
    def sentence(self) -> str:
        return self.worst.sentence

    @property
    def findings(self) -> dict[str, FindingResult]:
        return self.worst.findings

    @property
    def metrics(self) -> Metrics:
        return self.worst.metrics

    def to_json(self) -> Json:
        worst = self.worst.to_json()
        top = ("verdict", "sentence", "stages", "findings", "metrics", "throughput", "windows")
        return {
            "format": RESULT_FORMAT,
            "run": self.run,
            **{name: worst[name] for name in top},
            "worst_group": self.worst_group,
            "thresholds": [each.to_json() for each in self.thresholds],
            "promises": dict(self.promises),
            "foreign": dict(self.foreign),
            "faults": [dict(fault) for fault in self.faults],
            "missing_scans": list(self.missing_scans),
            "lost_workers": [dict(worker) for worker in self.lost_workers],
            "mirror": self.mirror,
            "groups": {name: group.to_json() for name, group in self.groups.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        try:
            version = check_version(data.get("format"), (RESULT_FORMAT,))
            groups = data["groups"].items()
            # Thresholds were added later; older results lack them.
            thresholds = data.get("thresholds", ())
            return cls(
                run=data["run"],
                worst_group=data["worst_group"],
                groups={name: GroupResult.from_json(group, version) for name, group in groups},
                promises=dict(data["promises"]),
                foreign=dict(data["foreign"]),
                faults=tuple(data["faults"]),
                missing_scans=tuple(data["missing_scans"]),
                mirror=data["mirror"],
                thresholds=tuple(map(ThresholdResult.from_json, thresholds)),
                lost_workers=tuple(data.get("lost_workers", ())),  # added later, too
            )
        except FormatMismatch as error:
            raise LedgerError(
                f"result.json {error}",
                remedy="audit the run again with this version: shoal audit RUN",
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise LedgerError(f"not a valid result.json: {error!r:.200}") from error
