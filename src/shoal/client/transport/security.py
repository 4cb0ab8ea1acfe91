"""TLS contexts and SASL exchanges. No sockets.

Rules of this file:
- Only `Credentials` and `ClientConfig` hold secrets; neither prints them, and no error quotes the
  value of a secret property.
- A SASL exchange is a generator: it yields the bytes to send and receives the broker's answers. It
  ends when the broker has proven what the mechanism allows it to prove, and raises
  `AuthenticationFailed` otherwise.
"""

import contextlib
import re
import ssl
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shoal.client.config import ClientConfig
from shoal.client.errors import AuthenticationFailed
from shoal.model.errors import ConfigError

SaslExchange = Generator[bytes, bytes, None]

# Each iteration costs a hash before the broker has proven its identity. Kafka's default is 4,096
# and its maximum 16,384; this limit takes about a third of a second.
_MOST_SCRAM_ITERATIONS: Final = 1_000_000
_ITERATIONS: Final = re.compile(rb"(?:^|,)i=(\d{1,12})(?:,|$)")
_JAAS_OPTION: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_JAAS_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
}


class Credentials(NamedTuple):
    """A user name and password; `repr` hides the password."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.username!r}, [hidden])"


def credentials_of(config: ClientConfig) -> Credentials:
    """From sasl.jaas.config, or from sasl.username and sasl.password."""
    if not config.sasl_jaas_config:
        return Credentials(config.sasl_username, config.sasl_password)
    module = _JAAS_MODULES[config.sasl_mechanism]
    if module not in config.sasl_jaas_config:
        raise ConfigError(
            f"sasl.jaas.config must name {module} for sasl.mechanism={config.sasl_mechanism}"
        )
    options = {
        name: re.sub(r"\\(.)", r"\1", value)
        for name, value in _JAAS_OPTION.findall(config.sasl_jaas_config)
    }
    if "username" not in options or "password" not in options:
        raise ConfigError('sasl.jaas.config must contain username="…" and password="…"')
    return Credentials(options["username"], options["password"])


def sasl_exchange(mechanism: str, credentials: Credentials) -> SaslExchange:
    """The client's side of a mechanism."""
    if mechanism == "PLAIN":
        return _plain(credentials)
    return _scram(mechanism, credentials)


def _plain(credentials: Credentials) -> SaslExchange:
    yield b"\0".join((b"", credentials.username.encode(), credentials.password.encode()))


def _scram(mechanism: str, credentials: Credentials) -> SaslExchange:
    import scramp

    client = scramp.ScramClient([mechanism], credentials.username, credentials.password)
    try:
        challenge = yield client.get_client_first().encode()
        iterations = _ITERATIONS.search(challenge)
        if iterations is not None and int(iterations[1]) > _MOST_SCRAM_ITERATIONS:
            raise AuthenticationFailed(
                f"the broker requests {int(iterations[1])} {mechanism} iterations, "
                f"more than the limit of {_MOST_SCRAM_ITERATIONS}"
            )
        client.set_server_first(challenge.decode())
        proof = yield client.get_client_final().encode()
        client.set_server_final(proof.decode())
    except (scramp.ScramException, UnicodeDecodeError) as error:
        # Do not use the text of the exception: it may quote the exchange.
        raise AuthenticationFailed(
            f"{mechanism} failed: the broker's answer is not valid"
        ) from error


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The TLS context, or None without TLS."""
    if not config.uses_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.ssl_endpoint_identification.lower() == "https"
    _trust(context, config)
    _load_certificate(context, config)
    return context


def _trust(context: ssl.SSLContext, config: ClientConfig) -> None:
    location, inline = config.ssl_truststore_location, config.ssl_truststore_certificates
    if location and inline:
        raise ConfigError(
            "ssl.truststore.location and ssl.truststore.certificates are both set;"
            " remove one of them"
        )
    if not location and not inline:
        context.load_default_certs()
        return
    try:
        if location:
            context.load_verify_locations(cafile=location)
        else:
            context.load_verify_locations(cadata=inline)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot load certificates from {location or 'ssl.truststore.certificates'}: "
            f"{_why(error)}",
            remedy="it must be PEM: -----BEGIN CERTIFICATE-----",
        ) from error


def _load_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    """Load the client's certificate and key, for brokers that require them."""
    password = config.ssl_key_password or None

    def give_password() -> str:
        # Without this OpenSSL would ask on the terminal.
        if password is None:
            raise ConfigError("the key is encrypted; set ssl.key.password")
        return password

    try:
        with _certificate_files(config) as files:
            if files is not None:
                context.load_cert_chain(files[0], files[1], give_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot load the client's certificate or key: {_why(error)}",
            remedy="ssl.keystore.location must be PEM and contain the key and its certificates",
        ) from error


@contextlib.contextmanager
def _certificate_files(config: ClientConfig) -> Iterator[tuple[Path, Path | None] | None]:
    """Paths of certificate chain and key; inline ones are written to private files."""
    chain, key = config.ssl_keystore_certificate_chain, config.ssl_keystore_key
    if not chain and not key:
        location = config.ssl_keystore_location
        key_path = Path(config.ssl_key_location) if config.ssl_key_location else None
        yield (Path(location), key_path) if location else None
        return
    if not (chain and key):
        raise ConfigError(
            "ssl.keystore.certificate.chain and ssl.keystore.key must be set together"
        )
    with tempfile.TemporaryDirectory(prefix="shoal-tls-") as folder:
        chain_path, key_path = Path(folder, "chain.pem"), Path(folder, "key.pem")
        chain_path.write_text(chain)
        key_path.touch(mode=0o600)
        key_path.write_text(key)
        yield chain_path, key_path


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "invalid content"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "invalid content"
