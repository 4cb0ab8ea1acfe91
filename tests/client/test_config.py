"""Configuration by Kafka's names: parsed, checked, documented, and silent about secrets."""

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from shoal.client.config import ClientConfig, parse_address
from shoal.client.transport.backoff import Backoff
from shoal.model.errors import ConfigError

BASE = {"bootstrap.servers": "localhost:9092"}
JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="alice" password="s3cret \\"quoted\\"";'
)


def config(**changes: Any) -> ClientConfig:
    return ClientConfig.from_properties(
        BASE | {name.replace("_", "."): value for name, value in changes.items()}
    )


def test_defaults() -> None:
    made = config()
    assert made.bootstrap_servers == ("localhost:9092",)
    assert made.request_timeout_ms == 30_000
    assert made.acks == -1
    assert made.enable_idempotence
    assert not made.fetch_raw_bytes
    assert made.max_in_flight == 5


def test_values_from_text_and_from_python() -> None:
    made = ClientConfig.from_properties(
        {
            "bootstrap.servers": " a:1 , b:2 ",
            "request.timeout.ms": "1500",
            "acks": "all",
            "fetch.raw.bytes": "True",
            "fetch.min.bytes": 7,
            "check.crcs": False,
            "isolation.level": "READ_COMMITTED",
        }
    )
    assert made.bootstrap_servers == ("a:1", "b:2")
    assert made.request_timeout_ms == 1500
    assert made.acks == -1
    assert made.fetch_raw_bytes
    assert made.fetch_min_bytes == 7
    assert not made.check_crcs
    assert made.isolation_level == "read_committed"


def test_a_properties_file_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "# a comment\nbootstrap.servers=a:1,\\\n  b:2\nclient.id : caf\\u00e9\nlinger.ms 7\n"
    )
    made = ClientConfig.from_properties(path)
    assert made.bootstrap_servers == ("a:1", "b:2")
    assert made.client_id == "café"
    assert made.linger_ms == 7
    assert ClientConfig.from_properties(str(path)) == made


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.properties: No such file"):
        ClientConfig.from_properties(tmp_path / "nowhere.properties")


def test_an_unknown_key_is_named_with_the_nearest_known_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="shoal.client"):
        config(request_timout_ms="5", zzz="1")
    assert caplog.messages == [
        "ignoring the unknown property request.timout.ms; did you mean request.timeout.ms?",
        "ignoring the unknown property zzz",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bootstrap.servers": ""}, "bootstrap.servers is missing"),
        ({"bootstrap.servers": "host"}, "'host' in bootstrap.servers is not a valid address"),
        ({"bootstrap.servers": "host:70000"}, "is not a valid address"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms must be a whole number, not 'soon'"),
        ({"request.timeout.ms": 0}, "request.timeout.ms must be between 1 and"),
        ({"acks": "2"}, "acks must be one of all, -1, 0, 1, not '2'"),
        ({"fetch.raw.bytes": "maybe"}, "fetch.raw.bytes must be true or false"),
        ({"isolation.level": "serializable"}, "isolation.level must be one of read_uncommitted"),
        ({"security.protocol": "TLS"}, "security.protocol must be one of PLAINTEXT"),
        ({"enable.idempotence": "true", "acks": "1"}, "enable.idempotence=true requires acks=all"),
        (
            {"enable.idempotence": True, "max.in.flight.requests.per.connection": 6},
            "at most 5 max.in.flight.requests.per.connection, not 6",
        ),
        ({"transactional.id": "t", "acks": "1"}, "transactional.id requires enable.idempotence"),
        (
            {"send.raw.bytes": "true", "compression.type": "zstd"},
            "send.raw.bytes sends batches unchanged; compression.type=zstd cannot be",
        ),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism must be one of PLAIN"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, not GSSAPI",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "SASL_SSL requires a user",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "a",
                "sasl.jaas.config": JAAS,
            },
            "both set a user",
        ),
        ({"ssl.truststore.type": "JKS"}, "ssl.truststore.type=JKS is not supported"),
        ({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"}, "are the same property"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "must be https, none or empty"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_properties(BASE | changes)
    assert message in str(caught.value)


def test_idempotence_gives_way_as_a_default_but_not_as_a_wish() -> None:
    assert not config(acks="1").enable_idempotence
    assert not ClientConfig.from_properties(
        BASE | {"max.in.flight.requests.per.connection": 50}
    ).enable_idempotence


def test_secrets_are_never_shown() -> None:
    made = ClientConfig.from_properties(
        BASE
        | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": JAAS,
            "ssl.key.password": "hunter2",
        }
    )
    shown = repr(made)
    assert "s3cret" not in shown
    assert "hunter2" not in shown
    assert "sasl.jaas.config='[hidden]'" in shown
    assert "sasl.mechanism='SCRAM-SHA-256'" in shown
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own bytes


def test_a_bad_value_of_a_secret_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as caught:
        config(
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="p4ss",  # noqa: S106 - a test
            linger_ms="x",
        )
    assert "p4ss" not in str(caught.value)


def test_the_reference_explains_every_key_once() -> None:
    entries = list(ClientConfig.reference())
    names = [name for entry in entries for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    assert all(entry.doc for entry in entries)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:9092", ("host", 9092)),
        ("[::1]:9092", ("::1", 9092)),
        ("PLAINTEXT://host:9092", ("host", 9092)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def test_waits_double_up_to_the_most_and_are_spread() -> None:
    middle = Backoff(100, 1_000, chance=lambda: 0.5)
    assert [round(middle.next_wait_s(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    middle.reset()
    assert middle.next_wait_s() == pytest.approx(0.1)
    assert Backoff(100, 1_000, chance=lambda: 0.0).next_wait_s() == pytest.approx(0.08)
    assert Backoff(100, 1_000, chance=lambda: 1.0).next_wait_s() == pytest.approx(0.12)
    forever = Backoff(1, 10**9)
    assert all(forever.next_wait_s() >= 0 for _ in range(2_000))
