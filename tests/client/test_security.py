"""SASL exchanges and TLS contexts, without a socket; scramp's server is the oracle."""

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
import scramp
import trustme

from shoal.client.config import ClientConfig
from shoal.client.errors import AuthenticationFailed
from shoal.client.transport.security import Credentials, credentials_of, sasl_exchange, tls_context
from shoal.model.errors import ConfigError

BASE = {"bootstrap.servers": "localhost:9092"}
USER = Credentials("alice", "p,w=§")


def sasl(mechanism: str, **more: str) -> ClientConfig:
    values = {name.replace("_", "."): value for name, value in more.items()}
    return ClientConfig.from_properties(
        BASE | {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism} | values
    )


def test_plain_is_one_message() -> None:
    exchange = sasl_exchange("PLAIN", USER)
    assert next(exchange) == "\0alice\0p,w=§".encode()
    with pytest.raises(StopIteration):
        exchange.send(b"")


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_convinces_a_server_and_is_convinced_by_it(name: str) -> None:
    mechanism = scramp.ScramMechanism(name)
    stored = mechanism.make_auth_info(USER.password, iteration_count=4096)
    server = mechanism.make_server(lambda user: stored if user == "alice" else None)
    exchange = sasl_exchange(name, USER)
    server.set_client_first(next(exchange).decode())
    proof = exchange.send(server.get_server_first().encode())
    server.set_client_final(proof.decode())
    with pytest.raises(StopIteration):
        exchange.send(server.get_server_final().encode())


def test_scram_refuses_a_server_that_does_not_know_the_password() -> None:
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
    stored = mechanism.make_auth_info(USER.password)
    server = mechanism.make_server(lambda _: stored)
    exchange = sasl_exchange("SCRAM-SHA-256", USER)
    server.set_client_first(next(exchange).decode())
    exchange.send(server.get_server_first().encode())
    with pytest.raises(AuthenticationFailed, match="answer is not valid"):
        exchange.send(b"v=" + b"A" * 43 + b"=")


@pytest.mark.parametrize("challenge", [b"", b"\xff\xfe", b"r=x,s=!!,i=4096", b"nonsense"])
def test_scram_refuses_rubbish(challenge: bytes) -> None:
    exchange = sasl_exchange("SCRAM-SHA-512", USER)
    next(exchange)
    with pytest.raises(AuthenticationFailed):
        exchange.send(challenge)


def test_scram_does_not_hash_for_minutes_because_a_server_says_so() -> None:
    exchange = sasl_exchange("SCRAM-SHA-256", USER)
    first = next(exchange).decode()
    nonce = first.rpartition("r=")[2]
    with pytest.raises(AuthenticationFailed, match="9999999 SCRAM-SHA-256 iterations"):
        exchange.send(f"r={nonce}x,s=c2FsdHNhbHRzYWx0,i=9999999".encode())


def test_credentials_from_jaas() -> None:
    jaas = 'x.PlainLoginModule required username="bob" password="a\\"b\\\\c" ;'
    assert credentials_of(sasl("PLAIN", sasl_jaas_config=jaas)) == ("bob", 'a"b\\c')
    named = sasl("PLAIN", sasl_username="bob", sasl_password="pw")  # noqa: S106 - a test
    assert credentials_of(named) == ("bob", "pw")


@pytest.mark.parametrize(
    ("jaas", "message"),
    [
        ('x.ScramLoginModule required username="a" password="topsecret";', "PlainLoginModule"),
        ('x.PlainLoginModule required user="a" password="topsecret";', 'username="…"'),
    ],
)
def test_a_jaas_line_that_does_not_fit_is_refused_and_not_quoted(jaas: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        credentials_of(sasl("PLAIN", sasl_jaas_config=jaas))
    assert message in str(caught.value)
    assert "topsecret" not in str(caught.value)


def test_credentials_do_not_print_their_password(caplog: pytest.LogCaptureFixture) -> None:
    secret = Credentials("alice", "topsecret")
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("shoal.client").debug("%s %r", secret, secret)
    assert "topsecret" not in caplog.text
    assert "alice" in caplog.text


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def tls(**values: Any) -> ssl.SSLContext | None:
    named = {name.replace("_", "."): value for name, value in values.items()}
    return tls_context(ClientConfig.from_properties(BASE | {"security.protocol": "SSL"} | named))


def test_no_tls_no_context() -> None:
    assert tls_context(ClientConfig.from_properties(BASE)) is None


def test_a_trust_store_replaces_the_systems(authority: trustme.CA, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    for context in (
        tls(ssl_truststore_location=str(path)),
        tls(ssl_ca_location=str(path)),
        tls(ssl_truststore_certificates=authority.cert_pem.bytes().decode()),
    ):
        assert context is not None
        assert len(context.get_ca_certs()) == 1
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_host_names_can_be_left_unchecked_but_certificates_cannot() -> None:
    context = tls(**{"ssl.endpoint.identification.algorithm": ""})
    assert context is not None
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_our_own_certificate_from_files_and_inline(authority: trustme.CA, tmp_path: Path) -> None:
    ours = authority.issue_cert("client")
    path = tmp_path / "ours.pem"
    ours.private_key_and_cert_chain_pem.write_to_path(str(path))
    chain = "".join(pem.bytes().decode() for pem in ours.cert_chain_pems)
    key = ours.private_key_pem.bytes().decode()
    assert tls(ssl_keystore_location=str(path)) is not None
    assert tls(**{"ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}) is not None
    with pytest.raises(ConfigError, match="must be set together"):
        tls(**{"ssl.keystore.key": key})


def test_stores_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    with pytest.raises(ConfigError, match=r"cannot load certificates from .*empty\.pem"):
        tls(ssl_truststore_location=str(empty))
    with pytest.raises(ConfigError, match=r"cannot load certificates from .*gone: No such file"):
        tls(ssl_truststore_location=str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="cannot load the client's certificate or key"):
        tls(ssl_keystore_location=str(empty))
    with pytest.raises(ConfigError, match="remove one of them"):
        tls(ssl_truststore_location=str(empty), ssl_truststore_certificates="x")
