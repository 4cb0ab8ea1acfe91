"""What a mirror is told: two clusters, topics, and what happens on the way.

A `MirrorConfig` that exists makes sense by itself; whether the clusters and topics are there is
found out at the start (`shoal.mirror.topics`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from shoal.mirror.checkpoints import check_name
from shoal.model.errors import ConfigError

DELIVERIES: Final = ("auto", "idempotent", "compare-and-append")
BOOTSTRAP: Final = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class MirrorLimits:
    """Sizes and times of the copying itself."""

    # One answer to a fetch; a larger batch still comes whole.
    fetch_bytes: int = 8 << 20
    # One partition's part of it, and the most that a partition keeps waiting before it is
    # left out of the next fetch.
    partition_bytes: int = 1 << 20
    # All that was fetched and is not yet acknowledged; nothing is fetched above it.
    queue_bytes: int = 32 << 20
    # One request to the target; brokers accept 100 MiB by default.
    request_bytes: int = 8 << 20
    # What is sent to the target in a second, on average; 0 for no limit.
    max_bytes_per_s: int = 0
    # How long the source may wait for data before it answers with nothing.
    fetch_wait_ms: int = 500
    # After the order to stop: how long to wait for what is in flight.
    stop_s: float = 10.0

    @property
    def append_room_bytes(self) -> int:
        """One compare-and-append request; less under a throttle, which must not come in jolts."""
        if not self.max_bytes_per_s:
            return self.request_bytes
        return min(self.request_bytes, max(1, self.max_bytes_per_s // 8))


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """One mirror. `source` and `target` are clients' properties, by Kafka's names."""

    source: Mapping[str, Any] = field(repr=False)
    target: Mapping[str, Any] = field(repr=False)
    topics: tuple[str, ...]
    # Under which a mirror finds its own work again on the target.
    name: str = "default"
    delivery: str = "idempotent"  # or auto, compare-and-append: see `shoal.mirror.takeover`
    handler: str | None = None
    # Where to write down, now and then and at the end, how far it came.
    positions: Path | None = None
    # End when the process that started this one ends.
    stop_with_parent: bool = False
    limits: MirrorLimits = field(default_factory=MirrorLimits)

    def __post_init__(self) -> None:
        for name, properties in (("source", self.source), ("target", self.target)):
            if not properties.get(BOOTSTRAP):
                raise ConfigError(
                    f"the {name} cluster has no {BOOTSTRAP}",
                    remedy=f"give --{name}-bootstrap-server host:port",
                )
        check_name(self.name)
        if self.delivery not in DELIVERIES:
            raise ConfigError(
                f"{self.delivery!r} is no delivery", remedy=f"one of {', '.join(DELIVERIES)}"
            )
        if not self.topics or not all(self.topics):
            raise ConfigError("a mirror needs topics", remedy="give --topics a,b")
        if len(set(self.topics)) != len(self.topics):
            raise ConfigError("a topic is named twice", remedy="name each topic once")
        if self.source.get(BOOTSTRAP) == self.target.get(BOOTSTRAP):
            raise ConfigError(
                "source and target are the same cluster, and topics keep their names",
                remedy="mirror into another cluster",
            )

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        body["positions"] = None if self.positions is None else str(self.positions)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        try:
            return cls(
                **{
                    **body,
                    "topics": tuple(body["topics"]),
                    "positions": Path(body["positions"]) if body.get("positions") else None,
                    "limits": MirrorLimits(**body.get("limits", {})),
                }
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"this is no mirror's configuration: {error}") from error
