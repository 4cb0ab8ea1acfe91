"""The specs of a producer, a consumer and a scan: plain data that is sent as JSON.

Rules:
- A spec says what to do, never where: addresses and secrets are properties of the client.
- The serialised name of a field is beside its type (`shoal.model.serialised`). For unknown, missing
  and mistyped fields `from_json` raises a `ConfigError` that names them.
- Defaults are defined here and nowhere else.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from shoal.model.errors import ConfigError
from shoal.model.serialised import FormatMismatch, from_plain, to_plain
from shoal.model.topics import TopicPartition

Json = dict[str, Any]


class JsonSpec:
    """Converts a frozen dataclass of plain fields to JSON and back."""

    def to_json(self) -> Json:
        body: Json = to_plain(self)
        return body

    @classmethod
    def from_json(cls, body: Any) -> Self:
        try:
            return from_plain(cls, body)
        except FormatMismatch as error:
            raise ConfigError(
                f"a {cls.__name__} {error}", remedy="use one version of shoal for both sides"
            ) from error


@dataclass(frozen=True)
class ProducedTopic(JsonSpec):
    """A topic to write to. Lane `l` goes to source partition `l mod partitions`."""

    name: Annotated[str, "name"]
    partitions: Annotated[int, "partitions"]
    # One for each partition of the target topic.
    lanes: Annotated[int, "lanes"]
    # Whether it is known to be compacted, on either side; a producer also checks its own cluster.
    compacted: Annotated[bool, "compacted"] = False

    def __post_init__(self) -> None:
        if self.partitions < 1 or self.lanes < 1:
            raise ConfigError(f"topic {self.name} needs at least one partition and one lane")


DRIVERS = ("raw", "confluent")
SHAPES = ("steady", "burst", "ramp")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# A broker keeps only this many batches of an idempotent producer to detect duplicates.
MAX_IN_FLIGHT_IDEMPOTENT = 5


@dataclass(frozen=True)
class ProducerSpec(JsonSpec):
    """One producer: its messages, its pace and its promises."""

    run: Annotated[str, "run"]
    producer: Annotated[str, "producer"]
    topics: Annotated[tuple[ProducedTopic, ...], "topics"]
    rate_per_s: Annotated[float, "rate_per_s"]  # to each topic; a maximum for all shapes
    messages: Annotated[int | None, "messages"] = (
        None  # total, spread evenly over the topics; None: until finishing
    )
    duration_s: Annotated[float | None, "duration_s"] = (
        None  # None: until all messages are sent, or finishing
    )
    start_us: Annotated[int, "start_us"] = 0  # when the first message is due; 0: at once
    size_bytes: Annotated[int, "size_bytes"] = 1024
    use_headers: Annotated[bool, "use_headers"] = False
    codec: Annotated[str, "codec"] = "none"
    acks: Annotated[int, "acks"] = -1
    idempotent: Annotated[bool, "idempotent"] = True
    delivery_timeout_ms: Annotated[int, "delivery_timeout_ms"] = 30_000
    request_timeout_ms: Annotated[int, "request_timeout_ms"] = 10_000
    # Batches in flight to one partition; with librdkafka, requests in flight to one broker.
    max_in_flight: Annotated[int, "max_in_flight"] = 5
    max_batch_bytes: Annotated[int, "max_batch_bytes"] = 512 * 1024
    # How long a message may wait for others that are due soon. The mean pacing error is at least
    # half of it.
    linger_us: Annotated[int, "linger_us"] = 500
    drain_timeout_s: Annotated[float, "drain_timeout_s"] = 600.0  # 0: no markers
    driver: Annotated[str, "driver"] = "raw"  # "raw": shoal's own client; "confluent": librdkafka
    # "steady"; "burst": the rate for `burst_s`, then nothing for `pause_s`, repeated; "ramp": from
    # the fraction `ramp_from` of the rate to the full rate in `ramp_s`, then steady.
    shape: Annotated[str, "shape"] = "steady"
    burst_s: Annotated[float, "burst_s"] = 1.0
    pause_s: Annotated[float, "pause_s"] = 1.0
    ramp_from: Annotated[float, "ramp_from"] = 0.1
    ramp_s: Annotated[float, "ramp_s"] = 10.0
    payload: Annotated[str, "payload"] = (
        "random"  # or "compressible:RATIO", or "file:PATH"; see `payload`
    )
    # Messages to each topic in one transaction; 0: no transactions. Of every `abort_every`
    # transactions the last is aborted on purpose; 0: none.
    transaction_messages: Annotated[int, "transaction_messages"] = 0
    abort_every: Annotated[int, "abort_every"] = 0
    transaction_timeout_ms: Annotated[int, "transaction_timeout_ms"] = 60_000
    # The incarnation of its ledger; 0: the ledger is new, and the producer draws one.
    incarnation: Annotated[int, "incarnation"] = 0
    # The first message number, by topic: where the reservations from before a restart end.
    first_numbers: Annotated[dict[str, int], "first_numbers"] = field(default_factory=dict)

    def _refuse_bad_numbers(self) -> None:
        numbers = {
            "the rate": self.rate_per_s,
            "the rate at the begin of the ramp": self.ramp_from,
            "the duration": self.duration_s,
            "the drain time-out": self.drain_timeout_s,
            "the burst": self.burst_s,
            "the pause": self.pause_s,
            "the ramp": self.ramp_s,
        }
        for name, number in numbers.items():
            if number is not None and not math.isfinite(number):
                raise ConfigError(f"{name} must be a finite number, not {number}")
        if self.rate_per_s <= 0:
            raise ConfigError(f"the rate must be above 0, not {self.rate_per_s}")

    def __post_init__(self) -> None:
        self._refuse_bad_numbers()
        if self.acks not in (-1, 0, 1):
            raise ConfigError(f"acks must be -1 (all), 0 or 1, not {self.acks}")
        if self.idempotent and self.acks != -1:
            raise ConfigError(
                "an idempotent producer needs acks -1 (all)",
                remedy="wait for all replicas, or set idempotent to false",
            )
        if self.idempotent and self.max_in_flight > MAX_IN_FLIGHT_IDEMPOTENT:
            raise ConfigError(
                f"an idempotent producer has at most {MAX_IN_FLIGHT_IDEMPOTENT} batches in"
                f" flight (max_in_flight), not {self.max_in_flight}"
            )
        for name, value, choices in (
            ("driver", self.driver, DRIVERS),
            ("shape", self.shape, SHAPES),
            ("codec", self.codec, CODECS),
        ):
            if value not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r:.40}")
        if self.max_in_flight < 1 or self.transaction_messages < 0 or self.abort_every < 0:
            raise ConfigError(
                "max_in_flight must be 1 or more, transaction_messages and abort_every 0 or more"
            )
        if self.is_transactional and not self.idempotent:
            raise ConfigError("transactions need an idempotent producer (idempotent, acks all)")
        if self.abort_every and not self.is_transactional:
            raise ConfigError("abort_every needs transactions (transaction_messages)")

    @property
    def is_transactional(self) -> bool:
        return self.transaction_messages > 0

    @property
    def transactional_id(self) -> str:
        """The same after a restart, so that the restart ends an open transaction; different for
        each incarnation, so that two producers with one id do not fence each other."""
        own = f".{self.incarnation:08x}" if self.incarnation else ""
        return f"shoal.{self.run}.{self.producer}{own}"

    def messages_to(self, topic: ProducedTopic) -> int | None:
        """How many of the messages go to that topic; the first topics get the remainder."""
        if self.messages is None:
            return None
        share, rest = divmod(self.messages, len(self.topics))
        return share + (self.topics.index(topic) < rest)

    def client_properties(self) -> dict[str, str]:
        """The properties that the client of this producer must have."""
        return {
            "acks": str(self.acks),
            "enable.idempotence": str(self.idempotent).lower(),
            "delivery.timeout.ms": str(self.delivery_timeout_ms),
            "request.timeout.ms": str(self.request_timeout_ms),
            "max.in.flight.requests.per.connection": str(self.max_in_flight),
            "transaction.timeout.ms": str(self.transaction_timeout_ms),
        }


@dataclass(frozen=True)
class StartingPoint(JsonSpec):
    """The offset at which to start reading one partition."""

    topic: Annotated[str, "topic"]  # its name on the cluster that is read
    partition: Annotated[int, "partition"]
    offset: Annotated[int, "offset"]
    # The producers' name of the topic, if a mirror gave it another name; "": `topic`.
    recorded_as: Annotated[str, "recorded_as"] = ""

    @property
    def log(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def recorded_name(self) -> str:
        return self.recorded_as or self.topic


@dataclass(frozen=True)
class FetchSettings(JsonSpec):
    """Settings of fetches."""

    isolation: Annotated[str, "isolation"] = "read_uncommitted"
    max_wait_ms: Annotated[int, "max_wait_ms"] = 250
    max_bytes: Annotated[int, "max_bytes"] = 16 * 1024 * 1024
    partition_max_bytes: Annotated[int, "partition_max_bytes"] = 4 * 1024 * 1024
    rack: Annotated[str, "rack"] = ""  # read from a replica in this rack while it is in sync


@dataclass(frozen=True)
class ConsumerSpec(JsonSpec):
    """One consumer, with a fixed assignment or as a member of a group.

    With a fixed assignment, `group` is only the group under which its receipts are judged. A
    member (`in_group`) shares the topics of `partitions` with all members of Kafka's group
    `group_id`: partitions are assigned and revoked while it runs. Reading starts at the committed
    offset of the group, else at the offset in `partitions`.
    """

    run: Annotated[str, "run"]
    group: Annotated[str, "group"]
    consumer: Annotated[str, "consumer"]
    topics: Annotated[tuple[str, ...], "topics"]  # as the producers call them
    partitions: Annotated[tuple[StartingPoint, ...], "partitions"] = ()
    cluster: Annotated[str, "cluster"] = "target"
    from_start: Annotated[bool, "from_start"] = (
        True  # whether all messages of the run are at or above the starting points
    )
    fetching: Annotated[FetchSettings, "fetching"] = field(default_factory=FetchSettings)
    in_group: Annotated[bool, "in_group"] = False
    group_id: Annotated[str, "group_id"] = ""  # "": as `group`
    # How partitions are shared: range, roundrobin or cooperative-sticky.
    assignor: Annotated[str, "assignor"] = "range"
    session_timeout_ms: Annotated[int, "session_timeout_ms"] = (
        10_000  # after which the coordinator removes a killed member
    )
    # Read from this broker if it has a replica; else, and while it is down, from the leader.
    broker_id: Annotated[int | None, "broker_id"] = None

    def producer_topic_names(self) -> dict[str, str]:
        """The producers' names of the topics that are read."""
        return {start.topic: start.recorded_name for start in self.partitions}

    def client_properties(self) -> dict[str, str]:
        """The properties that the client of this consumer must have."""
        fetching = self.fetching
        properties = {"client.rack": fetching.rack, "isolation.level": fetching.isolation}
        if not self.in_group:
            return properties
        return properties | {
            "group.id": self.group_id or self.group,
            "auto.offset.reset": "earliest" if self.from_start else "latest",
            "partition.assignment.strategy": self.assignor,
            "session.timeout.ms": str(self.session_timeout_ms),
            "heartbeat.interval.ms": str(min(self.session_timeout_ms // 3, 3_000)),
            # A batch with a wrong CRC is a finding, not a reason to stop.
            "check.crcs": "false",
            "fetch.max.wait.ms": str(fetching.max_wait_ms),
            "fetch.max.bytes": str(fetching.max_bytes),
            "max.partition.fetch.bytes": str(fetching.partition_max_bytes),
        }


@dataclass(frozen=True)
class ScanSpec(JsonSpec):
    """Logs to read completely, from these offsets to their current ends."""

    run: Annotated[str, "run"]
    cluster: Annotated[str, "cluster"]  # "source" or "target"
    topics: Annotated[tuple[str, ...], "topics"]  # as the producers call them
    partitions: Annotated[tuple[StartingPoint, ...], "partitions"]
    fetching: Annotated[FetchSettings, "fetching"] = field(default_factory=FetchSettings)
    timeout_s: Annotated[float, "timeout_s"] = 300.0  # in which something must arrive
    batches: Annotated[bool, "batches"] = False  # whether to record the batches too
