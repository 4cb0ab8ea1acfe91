"""The status of a mirror: totals, and one entry per partition.

- Lag is measured up to the source's last stable offset. Records above it belong to open
  transactions (`held_back`) and cannot be copied yet.
- Lag in records counts offsets, so transaction markers and compacted records are included. Lag in
  bytes is the data that is fetched and not acknowledged, plus an estimate for the rest from the
  average size of copied records. Lag in seconds is the age of the oldest record that is not
  copied, by its timestamp; if no such record is fetched yet, the age of the last copied one.
- -1 means unknown.
- A partition that cannot be copied at the moment (`waiting`) is retried automatically; a `parked`
  partition is not. Neither delays other partitions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from shoal.mirror.copy.delivery.choice import Chosen
from shoal.mirror.copy.intake import Counts
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.routes import Route
from shoal.model.errors import ShoalError, SystemFailure
from shoal.model.serialised import from_plain, to_plain
from shoal.model.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of one partition."""

    route: Annotated[Route, "route"]
    position: Annotated[int, "position"]  # below this source offset everything is copied
    last_stable_offset: Annotated[int, "last_stable_offset"]
    lag: Annotated[int, "lag"]
    lag_bytes: Annotated[int, "lag_bytes"]
    lag_s: Annotated[float, "lag_s"]
    held_back: Annotated[int, "held_back"] = 0  # offsets above the last stable offset
    parked: Annotated[str, "parked"] = ""
    remedy: Annotated[str, "remedy"] = ""
    # Why nothing can be copied at the moment; retried automatically.
    waiting: Annotated[str, "waiting"] = ""
    # True if it waits for a higher max.message.bytes of the target topic.
    waits_for_limit: Annotated[bool, "waits_for_limit"] = False
    # How batches are copied now: raw, or deep in new batches; "" if it has not started.
    depth: Annotated[str, "depth"] = ""
    # How batches are written: partitions of a topic may differ while old records are copied.
    delivery: Annotated[str, "delivery"] = ""
    # Number of the copy: it increases when a topic is deleted and created again.
    generation: Annotated[int, "generation"] = 1
    generation_reason: Annotated[str, "generation_reason"] = ""
    # The target offset at which this generation begins.
    generation_target_offset: Annotated[int, "generation_target_offset"] = 0
    # Of the topics between which it is copied; None if they have no ids.
    source_topic_id: Annotated[str | None, "source_topic_id"] = None
    target_topic_id: Annotated[str | None, "target_topic_id"] = None

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = to_plain(self)
        source, target = body.pop("route")
        return {"source": source, "target": target, **body}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        rest = {key: value for key, value in body.items() if key not in ("source", "target")}
        return from_plain(cls, {"route": [body["source"], body["target"]], **rest})


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """The status of a mirror."""

    counts: Counts
    positions: Mapping[TopicPartition, int]
    # Source offsets that can be read and are not copied, with those that have no record, as
    # transaction markers; -1 if unknown.
    lag: int
    parked: tuple[ShoalError, ...]
    refused: tuple[ShoalError, ...] = ()  # why some topics are not copied
    deliveries: Mapping[str, Chosen] = field(default_factory=dict)  # by topic of the source
    partitions: tuple[PartitionStatus, ...] = ()
    paused: bool = False
    notices: tuple[str, ...] = ()  # problems that the mirror repaired

    @property
    def lag_bytes(self) -> int:
        return total(each.lag_bytes for each in self.partitions)

    @property
    def lag_s(self) -> float:
        """The lag of the partition that is furthest behind."""
        return max((each.lag_s for each in self.partitions), default=0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "paused": self.paused,
            "lag": self.lag,
            "lag_bytes": self.lag_bytes,
            "lag_s": self.lag_s,
            "counts": to_plain(self.counts),
            "deliveries": {name: list(one) for name, one in self.deliveries.items()},
            "refused": [[error.message, error.remedy] for error in self.refused],
            "notices": list(self.notices),
            "partitions": [each.to_json() for each in self.partitions],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; of errors only message and remedy are kept."""
        partitions = tuple(PartitionStatus.from_json(each) for each in body["partitions"])
        return cls(
            counts=from_plain(Counts, body["counts"]),
            positions={each.route.source: each.position for each in partitions},
            lag=int(body["lag"]),
            parked=tuple(
                SystemFailure(each.parked, remedy=each.remedy or None)
                for each in partitions
                if each.parked
            ),
            refused=tuple(SystemFailure(text, remedy=remedy) for text, remedy in body["refused"]),
            deliveries={name: Chosen(*one) for name, one in body["deliveries"].items()},
            partitions=partitions,
            paused=bool(body["paused"]),
            notices=tuple(body["notices"]),
        )


def status_of_not_started(route: Route, error: ShoalError) -> PartitionStatus:
    """The status of a partition that waits to start or was refused."""
    return PartitionStatus(
        route, -1, -1, -1, -1, -1.0, waiting=error.message, remedy=error.remedy or ""
    )


def partition_status(mirror: PartitionMirror, now_ms: int, waiting: str = "") -> PartitionStatus:
    lag, queued = mirror.lag, mirror.queued_bytes
    not_fetched = max(0, mirror.last_stable_offset - mirror.position)
    copied = mirror.counts.records
    each = mirror.counts.bytes / copied if copied else 0
    oldest_ms = mirror.oldest_timestamp_ms
    problem = mirror.parked or mirror.waiting
    return PartitionStatus(
        route=Route(mirror.partition, mirror.target),
        position=mirror.done,
        last_stable_offset=mirror.last_stable_offset,
        lag=lag,
        lag_bytes=-1 if lag < 0 else queued + round(not_fetched * each),
        lag_s=_lag_s(lag, oldest_ms, now_ms),
        held_back=max(0, mirror.high_watermark - mirror.last_stable_offset),
        parked="" if mirror.parked is None else mirror.parked.message,
        remedy="" if problem is None else problem.remedy or "",
        waiting=waiting if mirror.parked is None else "",
        waits_for_limit=mirror.waiting is not None,
        depth=mirror.intake.depth,
        delivery=mirror.delivery.name,
        generation=mirror.lineage.generation,
        generation_reason=mirror.lineage.reason,
        generation_target_offset=mirror.lineage.target_offset,
        source_topic_id=mirror.lineage.source_topic_id,
        target_topic_id=mirror.lineage.target_topic_id,
    )


def _lag_s(lag: int, oldest_ms: int, now_ms: int) -> float:
    if lag <= 0:
        return float(lag)  # no lag, or unknown
    return -1.0 if oldest_ms < 0 else max(0, now_ms - oldest_ms) / 1000


def total(lags: Iterable[int]) -> int:
    """Sum the lags; -1 if one of them is unknown."""
    known = list(lags)
    return -1 if min(known, default=0) < 0 else sum(known)
