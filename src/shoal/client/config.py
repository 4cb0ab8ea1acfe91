"""The client's configuration, by Kafka's own property names.

Rules of this file:
- A field's declaration is its documentation; `reference()` prints it. Where a default is not
  Kafka's, the text says so and why.
- A `ClientConfig` that exists is consistent; what contradicts itself is a `ConfigError` that
  names both keys.
- `repr` shows what differs from the defaults, with secrets hidden. It pickles in full.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from shoal.client.properties import (
    Property,
    declared_properties,
    load_properties,
    prop,
    read_fields,
    redacted,
)
from shoal.model.errors import ConfigError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# A broker remembers this many batches of a producer; with more in flight it cannot tell a
# repeated one from one that is out of order.
MOST_IN_FLIGHT_IDEMPOTENT = 5

_INT32_MAX = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ClientConfig:
    """What a client needs to know; make it with `ClientConfig.from_properties`."""

    # The cluster, and how to talk to it.
    bootstrap_servers: tuple[str, ...] = prop(
        "bootstrap.servers", (), "Addresses host:port, comma-separated; the first answer wins."
    )
    client_id: str = prop("client.id", "shoal", "How brokers name this client in logs and quotas.")
    client_rack: str = prop(
        "client.rack", "", "Where this client is: brokers may name a replica there to read from."
    )
    request_timeout_ms: int = prop(
        "request.timeout.ms",
        30_000,
        "Longest wait for an answer; after it the connection is closed.",
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
        "Longest time to connect, with TLS and SASL.",
        low=1,
        high=_INT32_MAX,
    )
    reconnect_backoff_ms: int = prop(
        "reconnect.backoff.ms",
        50,
        "Wait before the second try to connect; doubles with each failure, ±20 %.",
        low=0,
        high=_INT32_MAX,
    )
    reconnect_backoff_max_ms: int = prop(
        "reconnect.backoff.max.ms", 1_000, "Longest such wait.", low=0, high=_INT32_MAX
    )
    retry_backoff_ms: int = prop(
        "retry.backoff.ms",
        100,
        "Wait before a request is repeated; doubles with each failure, ±20 %.",
        low=0,
        high=_INT32_MAX,
    )
    retry_backoff_max_ms: int = prop(
        "retry.backoff.max.ms", 1_000, "Longest such wait.", low=0, high=_INT32_MAX
    )
    metadata_max_age_ms: int = prop(
        "metadata.max.age.ms",
        300_000,
        "Metadata older than this is asked for again before it is used.",
        low=0,
        high=_INT32_MAX,
    )
    connections_max_idle_ms: int = prop(
        "connections.max.idle.ms",
        540_000,
        "A connection unused for this long is replaced: brokers close idle ones after 10 min.",
        low=1,
        high=_INT32_MAX,
    )
    max_in_flight: int = prop(
        "max.in.flight.requests.per.connection",
        5,
        "Requests sent on a connection and not yet answered.",
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
        "Largest answer accepted; a broker that announces more is cut off (librdkafka's key).",
        low=1_024,
        high=_INT32_MAX,
    )
    receive_spares: int = prop(
        "shoal.receive.spares",
        1,
        "Memory of large answers that is kept for later ones; more where answers are held long.",
        low=1,
        high=64,
    )
    allow_auto_create_topics: bool = prop(
        "allow.auto.create.topics",
        False,
        "Let a question about an unknown topic create it. Off, unlike Kafka: asking must not"
        " change the cluster under test.",
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
        f"One of {', '.join(MECHANISMS)}; needed with SASL (Kafka's default is GSSAPI).",
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
        "PEM file of trusted certificates; without it the system's are trusted.",
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
        "PEM file with our certificate chain, and our key unless ssl.key.location has it.",
        aliases=("ssl.certificate.location",),
    )
    ssl_key_location: str = prop(
        "ssl.key.location", "", "PEM file with our key alone (librdkafka's key)."
    )
    ssl_keystore_certificate_chain: str = prop(
        "ssl.keystore.certificate.chain",
        "",
        "Our certificate chain, PEM, in the property itself.",
        aliases=("ssl.certificate.pem",),
    )
    ssl_keystore_key: str = prop(
        "ssl.keystore.key",
        "",
        "Our key, PEM, in the property itself.",
        aliases=("ssl.key.pem",),
        is_secret=True,
    )
    ssl_key_password: str = prop(
        "ssl.key.password",
        "",
        "Password of our key.",
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
        "https: the certificate must name the host; none or empty: it need not.",
    )

    # Reading.
    fetch_raw_bytes: bool = prop(
        "fetch.raw.bytes",
        False,
        "A consumer's poll returns whole batches, unread, instead of records (KIP-712).",
    )
    fetch_max_wait_ms: int = prop(
        "fetch.max.wait.ms",
        500,
        "How long a broker may hold a fetch until fetch.min.bytes are there.",
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
        "Most bytes of one answer; a first batch that is larger comes all the same.",
        low=1,
        high=_INT32_MAX,
    )
    max_partition_fetch_bytes: int = prop(
        "max.partition.fetch.bytes",
        1024 * 1024,
        "Most bytes of one partition in one answer; see fetch.max.bytes.",
        low=1,
        high=_INT32_MAX,
    )
    isolation_level: str = prop(
        "isolation.level",
        "read_uncommitted",
        "read_committed: only what is not in an open or aborted transaction.",
        choices=("read_uncommitted", "read_committed"),
    )
    check_crcs: bool = prop(
        "check.crcs",
        True,
        "Check each batch against its checksum before it is handed out.",
    )
    auto_offset_reset: str = prop(
        "auto.offset.reset",
        "none",
        "Where to go on when the log does not hold the position. none, unlike Kafka: an error,"
        " because skipping in silence is what this project exists to find.",
        choices=("none", "earliest", "latest"),
    )

    # Groups.
    group_id: str = prop("group.id", "", "The group that a group consumer is a member of.")
    group_instance_id: str = prop(
        "group.instance.id",
        "",
        "Name of a member across restarts: it gets its partitions again if it is back in time.",
    )
    session_timeout_ms: int = prop(
        "session.timeout.ms",
        45_000,
        "A member that is not heard of for longer is out of its group.",
        low=1,
        high=_INT32_MAX,
    )
    heartbeat_interval_ms: int = prop(
        "heartbeat.interval.ms",
        3_000,
        "How often a member tells its coordinator that it lives, and hears of rebalances.",
        low=1,
        high=_INT32_MAX,
    )
    max_poll_interval_ms: int = prop(
        "max.poll.interval.ms",
        300_000,
        "A member that does not poll for longer leaves; and how long others wait for it to join.",
        low=1,
        high=_INT32_MAX,
    )
    partition_assignment_strategy: tuple[str, ...] = prop(
        "partition.assignment.strategy",
        ("range", "cooperative-sticky"),
        "Ways to share partitions, the best first: range, roundrobin, cooperative-sticky. Java's"
        " class names are understood too. Rebalances are cooperative if all of them are.",
    )

    # Writing.
    send_raw_bytes: bool = prop(
        "send.raw.bytes",
        False,
        "A producer takes whole batches and passes them on unread (KIP-712).",
    )
    acks: int = prop(
        "acks",
        -1,
        "Who must have a batch before it is acknowledged: all (-1) in-sync replicas, 1, 0.",
        choices=("-1", "0", "1"),
    )
    enable_idempotence: bool = prop(
        "enable.idempotence",
        True,
        "Number batches, so that a repeated one is not written twice. Off by itself with"
        " acks other than all.",
    )
    transactional_id: str = prop(
        "transactional.id", "", "Name of a producer across restarts; a newer one fences the older."
    )
    transaction_timeout_ms: int = prop(
        "transaction.timeout.ms",
        60_000,
        "The broker aborts a transaction that is open for longer.",
        low=1,
        high=_INT32_MAX,
    )
    delivery_timeout_ms: int = prop(
        "delivery.timeout.ms",
        120_000,
        "Longest time from handing over a batch to its outcome, with all retries.",
        low=1,
        high=_INT32_MAX,
    )
    compression_type: str = prop(
        "compression.type",
        "none",
        "Codec of batches made here.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        aliases=("compression.codec",),
    )
    batch_size: int = prop(
        "batch.size", 16_384, "A batch this large is not waited for.", low=0, high=_INT32_MAX
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
        "Most bytes of batches in one request; a single larger batch goes alone.",
        low=1,
        high=_INT32_MAX,
    )
    buffer_memory: int = prop(
        "buffer.memory",
        32 * 1024 * 1024,
        "Bytes of batches without an outcome; above it, handing over waits.",
        low=1,
        high=1 << 40,
    )

    @classmethod
    def from_properties(cls, source: Mapping[str, Any] | str | Path) -> Self:
        """From a mapping or a `.properties` file; unknown keys are warned about."""
        pairs = source if isinstance(source, Mapping) else load_properties(source)
        fields = read_fields(cls, pairs)
        if fields.get("acks", -1) != -1 or fields.get("max_in_flight", 1) > (
            MOST_IN_FLIGHT_IDEMPOTENT
        ):
            # As in Kafka: idempotence is a default that gives way, but not a wish that does.
            fields.setdefault("enable_idempotence", False)
        return cls(**fields)

    @classmethod
    def reference(cls) -> Iterator[Property]:
        """All properties, for the reference page."""
        return iter(declared_properties(cls).values())

    def __post_init__(self) -> None:
        _check_addresses(self.bootstrap_servers)
        _check_security(self)
        _check_producing(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in redacted(self).items())
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
            f"{text!r} in bootstrap.servers is not an address", remedy="write it as host:port"
        )
    return host, int(port)


def _check_addresses(addresses: tuple[str, ...]) -> None:
    if not addresses:
        raise ConfigError("bootstrap.servers is missing", remedy="give it as host:port,host:port")
    for address in addresses:
        parse_address(address)


def _check_security(config: ClientConfig) -> None:
    for store, kind in (
        ("truststore", config.ssl_truststore_type),
        ("keystore", config.ssl_keystore_type),
    ):
        if kind != "PEM":
            raise ConfigError(
                f"ssl.{store}.type={kind} cannot be read; only PEM can",
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
        raise ConfigError("sasl.jaas.config and sasl.username both name a user; give one")
    if not config.sasl_jaas_config and not config.sasl_username:
        raise ConfigError(
            f"{config.security_protocol} needs a user",
            remedy="give sasl.jaas.config, or sasl.username and sasl.password",
        )


def _check_producing(config: ClientConfig) -> None:
    if config.send_raw_bytes and config.compression_type != "none":
        raise ConfigError(
            f"send.raw.bytes passes batches on as they are; compression.type="
            f"{config.compression_type} cannot be applied to them",
            remedy="leave compression.type out, or set send.raw.bytes=false",
        )
    if config.transactional_id and not config.enable_idempotence:
        raise ConfigError("transactional.id needs enable.idempotence=true and acks=all")
    if not config.enable_idempotence:
        return
    if config.acks != -1:
        raise ConfigError("enable.idempotence=true needs acks=all")
    if config.max_in_flight > MOST_IN_FLIGHT_IDEMPOTENT:
        raise ConfigError(
            "enable.idempotence=true allows at most 5 "
            f"max.in.flight.requests.per.connection, not {config.max_in_flight}"
        )
