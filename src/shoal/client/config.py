"""The configuration of the client, with Kafka's property names.

Rules of this file:
- A field's declaration is its documentation; `reference()` prints it. Where a default differs
  from Kafka's, the text says so and why.
- A `ClientConfig` is always consistent: contradictions raise a `ConfigError` that names both keys.
- `repr` shows the values that differ from the defaults, with secrets hidden. Pickling keeps all.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from shoal.client.properties import (
    Property,
    load_properties,
    prop,
    properties_of,
    read_fields,
    redact_config,
)
from shoal.model.errors import ConfigError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# A broker remembers this many batches of a producer; with more in flight it cannot distinguish a
# duplicate batch from one that is out of order.
MOST_IN_FLIGHT_IDEMPOTENT = 5

_INT32_MAX = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ClientConfig:
    """The configuration of a client; create it with `ClientConfig.from_properties`."""

    # The cluster and the connections to it.
    bootstrap_servers: tuple[str, ...] = prop(
        "bootstrap.servers",
        (),
        "Addresses host:port, comma-separated; the first that answers is used.",
    )
    client_id: str = prop(
        "client.id", "shoal", "The name of this client in the logs and quotas of brokers."
    )
    client_rack: str = prop(
        "client.rack", "", "The rack of this client: brokers may name a replica there to read from."
    )
    request_timeout_ms: int = prop(
        "request.timeout.ms",
        30_000,
        "Longest wait for a response; after it the connection is closed.",
        low=1,
        high=_INT32_MAX,
    )
    default_api_timeout_ms: int = prop(
        "default.api.timeout.ms",
        60_000,
        "Longest time for one call with all its retries.",
        low=1,
        high=_INT32_MAX,
    )
    connection_setup_timeout_ms: int = prop(
        "socket.connection.setup.timeout.ms",
        10_000,
        "Longest time to connect, TLS and SASL included.",
        low=1,
        high=_INT32_MAX,
    )
    reconnect_backoff_ms: int = prop(
        "reconnect.backoff.ms",
        50,
        "Wait before the second attempt to connect; doubles with each failure, ±20 %.",
        low=0,
        high=_INT32_MAX,
    )
    reconnect_backoff_max_ms: int = prop(
        "reconnect.backoff.max.ms", 1_000, "Upper limit of that wait.", low=0, high=_INT32_MAX
    )
    retry_backoff_ms: int = prop(
        "retry.backoff.ms",
        100,
        "Wait before a request is retried; doubles with each failure, ±20 %.",
        low=0,
        high=_INT32_MAX,
    )
    retry_backoff_max_ms: int = prop(
        "retry.backoff.max.ms", 1_000, "Upper limit of that wait.", low=0, high=_INT32_MAX
    )
    metadata_max_age_ms: int = prop(
        "metadata.max.age.ms",
        300_000,
        "Metadata older than this is refreshed before it is used.",
        low=0,
        high=_INT32_MAX,
    )
    connections_max_idle_ms: int = prop(
        "connections.max.idle.ms",
        540_000,
        "An idle connection is replaced after this time: brokers close idle ones after 10 min.",
        low=1,
        high=_INT32_MAX,
    )
    max_in_flight: int = prop(
        "max.in.flight.requests.per.connection",
        5,
        "Unanswered requests on one connection.",
        low=1,
        high=1_000,
    )
    send_buffer_bytes: int = prop(
        "send.buffer.bytes",
        -1,
        "Socket send buffer; -1 leaves it to the system (Kafka's default is 128 KiB).",
        low=-1,
        high=_INT32_MAX,
    )
    receive_buffer_bytes: int = prop(
        "receive.buffer.bytes",
        -1,
        "Socket receive buffer; -1 leaves it to the system (Kafka's default is 64 KiB).",
        low=-1,
        high=_INT32_MAX,
    )
    receive_message_max_bytes: int = prop(
        "receive.message.max.bytes",
        256 * 1024 * 1024,
        "Largest response; the connection is closed if a broker announces more (librdkafka's key).",
        low=1_024,
        high=_INT32_MAX,
    )
    receive_spares: int = prop(
        "shoal.receive.spares",
        1,
        "Buffers of large responses kept for reuse; more if responses are held for long.",
        low=1,
        high=64,
    )
    allow_auto_create_topics: bool = prop(
        "allow.auto.create.topics",
        False,
        "Let a metadata request create an unknown topic. Off, unlike Kafka: reading metadata must"
        " not change the cluster under test.",
    )

    # Security.
    security_protocol: str = prop(
        "security.protocol",
        "PLAINTEXT",
        "Whether to use TLS and SASL.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    sasl_mechanism: str = prop(
        "sasl.mechanism",
        "",
        f"One of {', '.join(MECHANISMS)}; required with SASL (Kafka's default is GSSAPI).",
        aliases=("sasl.mechanisms",),
    )
    sasl_jaas_config: str = prop(
        "sasl.jaas.config",
        "",
        'Login module with user and password, as for Java: … required username="…" password="…";',
        is_secret=True,
    )
    sasl_username: str = prop("sasl.username", "", "User, instead of sasl.jaas.config.")
    sasl_password: str = prop(
        "sasl.password", "", "Password, instead of sasl.jaas.config.", is_secret=True
    )
    ssl_truststore_location: str = prop(
        "ssl.truststore.location",
        "",
        "PEM file of trusted certificates; default: those of the system.",
        aliases=("ssl.ca.location",),
    )
    ssl_truststore_certificates: str = prop(
        "ssl.truststore.certificates",
        "",
        "Trusted certificates, PEM, in the property itself.",
        aliases=("ssl.ca.pem",),
    )
    ssl_truststore_type: str = prop(
        "ssl.truststore.type",
        "PEM",
        "Only PEM (Kafka's default is JKS).",
        choices=("PEM", "JKS", "PKCS12"),
    )
    ssl_keystore_location: str = prop(
        "ssl.keystore.location",
        "",
        "PEM file with the client's certificate chain, and its key unless ssl.key.location has it.",
        aliases=("ssl.certificate.location",),
    )
    ssl_key_location: str = prop(
        "ssl.key.location", "", "PEM file with only the client's key (librdkafka's key)."
    )
    ssl_keystore_certificate_chain: str = prop(
        "ssl.keystore.certificate.chain",
        "",
        "The client's certificate chain, PEM, in the property itself.",
        aliases=("ssl.certificate.pem",),
    )
    ssl_keystore_key: str = prop(
        "ssl.keystore.key",
        "",
        "The client's key, PEM, in the property itself.",
        aliases=("ssl.key.pem",),
        is_secret=True,
    )
    ssl_key_password: str = prop(
        "ssl.key.password",
        "",
        "Password of the client's key.",
        aliases=("ssl.keystore.password",),
        is_secret=True,
    )
    ssl_keystore_type: str = prop(
        "ssl.keystore.type",
        "PEM",
        "Only PEM (Kafka's default is JKS).",
        choices=("PEM", "JKS", "PKCS12"),
    )
    ssl_endpoint_identification: str = prop(
        "ssl.endpoint.identification.algorithm",
        "https",
        "https: the certificate must match the host name; none or empty: no check.",
    )

    # Reading.
    fetch_raw_bytes: bool = prop(
        "fetch.raw.bytes",
        False,
        "A consumer returns whole batches, not decoded, instead of records (KIP-712).",
    )
    fetch_max_wait_ms: int = prop(
        "fetch.max.wait.ms",
        500,
        "How long a broker may hold a fetch until fetch.min.bytes are available.",
        low=0,
        high=_INT32_MAX,
        aliases=("fetch.wait.max.ms",),
    )
    fetch_min_bytes: int = prop(
        "fetch.min.bytes", 1, "See fetch.max.wait.ms.", low=0, high=_INT32_MAX
    )
    fetch_max_bytes: int = prop(
        "fetch.max.bytes",
        50 * 1024 * 1024,
        "Most bytes of one response; a larger first batch is returned anyway.",
        low=1,
        high=_INT32_MAX,
    )
    max_partition_fetch_bytes: int = prop(
        "max.partition.fetch.bytes",
        1024 * 1024,
        "Most bytes of one partition in one response; see fetch.max.bytes.",
        low=1,
        high=_INT32_MAX,
    )
    isolation_level: str = prop(
        "isolation.level",
        "read_uncommitted",
        "read_committed: skip records of open and aborted transactions.",
        choices=("read_uncommitted", "read_committed"),
    )
    check_crcs: bool = prop(
        "check.crcs",
        True,
        "Verify the checksum of each batch before it is returned.",
    )
    auto_offset_reset: str = prop(
        "auto.offset.reset",
        "none",
        "Where to continue if the log does not contain the position. none, unlike Kafka: an error,"
        " because skipping records silently is what this project must detect.",
        choices=("none", "earliest", "latest"),
    )

    # Groups.
    group_id: str = prop("group.id", "", "The group that a group consumer joins.")
    group_instance_id: str = prop(
        "group.instance.id",
        "",
        "Id of a static member: it keeps its partitions if it restarts within the session timeout.",
    )
    session_timeout_ms: int = prop(
        "session.timeout.ms",
        45_000,
        "The coordinator removes a member that sends no heartbeat for this long.",
        low=1,
        high=_INT32_MAX,
    )
    heartbeat_interval_ms: int = prop(
        "heartbeat.interval.ms",
        3_000,
        "How often a member sends a heartbeat to its coordinator, which also signals rebalances.",
        low=1,
        high=_INT32_MAX,
    )
    max_poll_interval_ms: int = prop(
        "max.poll.interval.ms",
        300_000,
        "A member that does not poll for this long leaves the group; also the rebalance timeout.",
        low=1,
        high=_INT32_MAX,
    )
    partition_assignment_strategy: tuple[str, ...] = prop(
        "partition.assignment.strategy",
        ("range", "cooperative-sticky"),
        "Assignors, in order of preference: range, roundrobin, cooperative-sticky. Java's class"
        " names are accepted too. Rebalances are cooperative if all of them are.",
    )

    # Writing.
    send_raw_bytes: bool = prop(
        "send.raw.bytes",
        False,
        "A producer takes whole batches and sends them unchanged (KIP-712).",
    )
    acks: int = prop(
        "acks",
        -1,
        "Replicas that must have a batch before it is acknowledged: all (-1) in-sync ones, 1, 0.",
        choices=("-1", "0", "1"),
    )
    enable_idempotence: bool = prop(
        "enable.idempotence",
        True,
        "Number batches, so that a retried one is not written twice. Off by default with"
        " acks other than all.",
    )
    transactional_id: str = prop(
        "transactional.id",
        "",
        "Id of a transactional producer across restarts; a newer producer fences older ones.",
    )
    transaction_timeout_ms: int = prop(
        "transaction.timeout.ms",
        60_000,
        "The coordinator aborts a transaction that is open for longer.",
        low=1,
        high=_INT32_MAX,
    )
    delivery_timeout_ms: int = prop(
        "delivery.timeout.ms",
        120_000,
        "Longest time from sending a batch to its outcome, with all retries.",
        low=1,
        high=_INT32_MAX,
    )
    compression_type: str = prop(
        "compression.type",
        "none",
        "Codec of batches that the producer builds.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        aliases=("compression.codec",),
    )
    batch_size: int = prop(
        "batch.size",
        16_384,
        "A batch of this size is sent without waiting for more records.",
        low=0,
        high=_INT32_MAX,
    )
    linger_ms: int = prop(
        "linger.ms",
        5,
        "How long a batch waits for more records.",
        low=0,
        high=_INT32_MAX,
        aliases=("queue.buffering.max.ms",),
    )
    max_request_size: int = prop(
        "max.request.size",
        1024 * 1024,
        "Most bytes of batches in one request; a larger batch is sent alone.",
        low=1,
        high=_INT32_MAX,
    )
    buffer_memory: int = prop(
        "buffer.memory",
        32 * 1024 * 1024,
        "Bytes of batches without an outcome; above it, sending waits.",
        low=1,
        high=1 << 40,
    )

    @classmethod
    def from_properties(cls, source: Mapping[str, Any] | str | Path) -> Self:
        """From a mapping or a `.properties` file; unknown keys are ignored with a warning."""
        pairs = source if isinstance(source, Mapping) else load_properties(source)
        fields = read_fields(cls, pairs)
        if fields.get("acks", -1) != -1 or fields.get("max_in_flight", 1) > (
            MOST_IN_FLIGHT_IDEMPOTENT
        ):
            # As in Kafka: only the default is switched off, an explicit true is a conflict.
            fields.setdefault("enable_idempotence", False)
        return cls(**fields)

    @classmethod
    def reference(cls) -> Iterator[Property]:
        """All properties, for the reference page."""
        return iter(properties_of(cls).values())

    def __post_init__(self) -> None:
        _check_addresses(self.bootstrap_servers)
        _check_security(self)
        _check_producing(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in redact_config(self).items())
        return f"ClientConfig({shown})"

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in {"SSL", "SASL_SSL"}

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `PROTOCOL://host:port`."""
    rest = text.rpartition("://")[2]
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(
            f"{text!r} in bootstrap.servers is not a valid address", remedy="write it as host:port"
        )
    return host, int(port)


def _check_addresses(addresses: tuple[str, ...]) -> None:
    if not addresses:
        raise ConfigError("bootstrap.servers is missing", remedy="set it to host:port,host:port")
    for address in addresses:
        parse_address(address)


def _check_security(config: ClientConfig) -> None:
    for store, kind in (
        ("truststore", config.ssl_truststore_type),
        ("keystore", config.ssl_keystore_type),
    ):
        if kind != "PEM":
            raise ConfigError(
                f"ssl.{store}.type={kind} is not supported; only PEM is",
                remedy=f"openssl pkcs12 -in STORE.p12 -out {store}.pem (JKS: keytool "
                "-importkeystore … -deststoretype PKCS12 first)",
            )
    if config.ssl_endpoint_identification.lower() not in {"https", "none", ""}:
        raise ConfigError("ssl.endpoint.identification.algorithm must be https, none or empty")
    if not config.uses_sasl:
        return
    if config.sasl_mechanism not in MECHANISMS:
        raise ConfigError(
            f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, "
            f"not {config.sasl_mechanism or 'empty'}"
        )
    if config.sasl_jaas_config and config.sasl_username:
        raise ConfigError("sasl.jaas.config and sasl.username both set a user; remove one of them")
    if not config.sasl_jaas_config and not config.sasl_username:
        raise ConfigError(
            f"{config.security_protocol} requires a user",
            remedy="set sasl.jaas.config, or sasl.username and sasl.password",
        )


def _check_producing(config: ClientConfig) -> None:
    if config.send_raw_bytes and config.compression_type != "none":
        raise ConfigError(
            f"send.raw.bytes sends batches unchanged; compression.type="
            f"{config.compression_type} cannot be applied to them",
            remedy="remove compression.type, or set send.raw.bytes=false",
        )
    if config.transactional_id and not config.enable_idempotence:
        raise ConfigError("transactional.id requires enable.idempotence=true and acks=all")
    if not config.enable_idempotence:
        return
    if config.acks != -1:
        raise ConfigError("enable.idempotence=true requires acks=all")
    if config.max_in_flight > MOST_IN_FLIGHT_IDEMPOTENT:
        raise ConfigError(
            "enable.idempotence=true allows at most 5 "
            f"max.in.flight.requests.per.connection, not {config.max_in_flight}"
        )
