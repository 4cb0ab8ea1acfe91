"""How far a mirror is: in all, and of each partition.

- Lag counts to the source's last stable offset: what is above it belongs to transactions that
  are open there (`held_back`) and cannot be copied yet.
- Lag in records is in offsets, so markers and compacted records count. Lag in bytes is what is
  fetched and not acknowledged, and for the rest an estimate by what was copied so far. Lag in
  seconds is the age of the oldest record that is not copied, by its own timestamp; where none
  of those was fetched yet, of the last one that was copied.
- -1 stands for what is not known.
- A partition that cannot be copied at the moment (`waiting`) is tried again automatically; one
  that is `parked` is not. Neither holds back others.
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
    """One partition at one moment."""

    route: Annotated[Route, "route"]
    position: Annotated[int, "position"]  # the source offset below which everything is done
    last_stable_offset: Annotated[int, "last_stable_offset"]
    lag: Annotated[int, "lag"]
    lag_bytes: Annotated[int, "lag_bytes"]
    lag_s: Annotated[float, "lag_s"]
    held_back: Annotated[int, "held_back"] = 0  # offsets above the last stable one
    parked: Annotated[str, "parked"] = ""
    remedy: Annotated[str, "remedy"] = ""
    # Why nothing can be copied at the moment: it is tried again without an order.
    waiting: Annotated[str, "waiting"] = ""
    # For a higher max.message.bytes of the target's topic.
    waits_for_limit: Annotated[bool, "waits_for_limit"] = False
    # Which copy this is: a topic that was deleted and created again begins a new one.
    generation: Annotated[int, "generation"] = 1
    generation_reason: Annotated[str, "generation_reason"] = ""
    # Where it begins at the target.
    generation_target_offset: Annotated[int, "generation_target_offset"] = 0

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
    """How far a mirror is."""

    counts: Counts
    positions: Mapping[TopicPartition, int]
    lag: int  # source offsets that may be read and are not done; -1 while that is not known
    parked: tuple[ShoalError, ...]
    refused: tuple[ShoalError, ...] = ()  # why some topics are not copied at all
    deliveries: Mapping[str, Chosen] = field(default_factory=dict)  # by topic of the source
    partitions: tuple[PartitionStatus, ...] = ()
    paused: bool = False
    notices: tuple[str, ...] = ()  # what went wrong and was mended

    @property
    def lag_bytes(self) -> int:
        return total(each.lag_bytes for each in self.partitions)

    @property
    def lag_s(self) -> float:
        """Of the partition that is most behind."""
        return max((each.lag_s for each in self.partitions), default=0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "paused": self.paused,
            "lag": self.lag,
            "lag_bytes": self.lag_bytes,
            "lag_s": self.lag_s,
            "counts": to_plain(self.counts),
            "deliveries": {name: list(one) for name, one in self.deliveries.items()},
            "refused": [[str(error), error.remedy] for error in self.refused],
            "notices": list(self.notices),
            "partitions": [each.to_json() for each in self.partitions],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """What `to_json` told; errors are told by their sentences alone."""
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


def not_started(route: Route, error: ShoalError) -> PartitionStatus:
    """A partition that waits, or was refused."""
    return PartitionStatus(
        route, -1, -1, -1, -1, -1.0, waiting=str(error), remedy=error.remedy or ""
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
        parked="" if mirror.parked is None else str(mirror.parked),
        remedy="" if problem is None else problem.remedy or "",
        waiting=waiting if mirror.parked is None else "",
        waits_for_limit=mirror.waiting is not None,
        generation=mirror.lineage.generation,
        generation_reason=mirror.lineage.reason,
        generation_target_offset=mirror.lineage.target_offset,
    )


def _lag_s(lag: int, oldest_ms: int, now_ms: int) -> float:
    if lag <= 0:
        return float(lag)  # nothing, or not known
    return -1.0 if oldest_ms < 0 else max(0, now_ms - oldest_ms) / 1000


def total(lags: Iterable[int]) -> int:
    """-1 if one of them is not known."""
    known = list(lags)
    return -1 if min(known, default=0) < 0 else sum(known)
