"""One real Apache Kafka broker with a listener for each security protocol.

`support.apache.clusters` starts one for a whole test session.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from shoal.client.client import Client
from shoal.net.ports import HOST, free_ports
from shoal.systems.apache import files
from shoal.systems.apache.apache import ApacheCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.messages import request_class
from support.apache.clusters import PROPERTIES, short_lived_jvm

# Everybody may do everything, but with topics of which a test says otherwise.
ACCESS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
USER, PASSWORD = "alice", "alice's secret"
PROTOCOLS = ("SASL_PLAINTEXT", "SSL", "SASL_SSL")
MECHANISMS = {"SCRAM-SHA-256": ("sha256", 1), "SCRAM-SHA-512": ("sha512", 2)}
ITERATIONS = 4096
SALT = b"salt of the test"


@dataclass
class SecureApache:
    """A cluster, the addresses of its secure listeners, and whom to trust."""

    cluster: ApacheCluster
    addresses: Mapping[str, str]
    authority: str

    def properties(self, protocol: str = "PLAINTEXT", **more: Any) -> dict[str, Any]:
        """What a client needs for this protocol."""
        address = self.cluster.bootstrap if protocol == "PLAINTEXT" else self.addresses[protocol]
        properties = {"bootstrap.servers": address, "security.protocol": protocol}
        if protocol.endswith("SSL"):
            properties["ssl.truststore.location"] = self.authority
        if protocol.startswith("SASL"):
            properties |= {"sasl.username": USER, "sasl.password": PASSWORD}
        return properties | {name.replace("_", "."): value for name, value in more.items()}

    def client(self, protocol: str = "PLAINTEXT", **more: Any) -> Client:
        return Client(self.properties(protocol, **more))


@contextlib.contextmanager
def secure_apache(folder: Path) -> Iterator[SecureApache]:
    """A running cluster of one broker."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    _write_key_store(authority, folder / "broker.pem")
    ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
    addresses = {protocol: f"{HOST}:{port}" for protocol, port in ports.items()}
    ordinary = files.server_properties

    def with_listeners(*args: Any, version: str) -> dict[str, str]:
        return _with_listeners(ordinary(*args, version=version), addresses, folder / "broker.pem")

    with pytest.MonkeyPatch.context() as patch:
        short_lived_jvm(patch)
        patch.setattr(files, "server_properties", with_listeners)
        cluster = ApacheCluster(properties=PROPERTIES | ACCESS).start()
    try:
        yield SecureApache(cluster, addresses, str(folder / "ca.pem"))
    finally:
        cluster.stop()


async def create_scram_users(client: Client) -> None:
    """Let the user log in by SCRAM, too."""
    for digest, number in MECHANISMS.values():
        credential = {
            "name": USER,
            "mechanism": number,
            "iterations": ITERATIONS,
            "salt": SALT,
            "salted_password": hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), SALT, ITERATIONS),
        }
        cls = request_class(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0)
        request = build(cls, {"deletions": [], "upsertions": [credential]})
        response = await client.request(request)
        for result in response.results:
            assert result.error_code == 0, result.error_message


def _write_key_store(authority: trustme.CA, path: Path) -> None:
    """Kafka wants the key as PKCS #8, before the certificates."""
    issued = authority.issue_cert(HOST)
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(pem + b"".join(part.bytes() for part in issued.cert_chain_pems))


def _with_listeners(
    properties: dict[str, str], addresses: Mapping[str, str], key_store: Path
) -> dict[str, str]:
    listeners = ",".join(f"{protocol}://{address}" for protocol, address in addresses.items())
    protocols = ",".join(f"{protocol}:{protocol}" for protocol in addresses)
    known = properties["listener.security.protocol.map"]
    plain = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{USER}="{PASSWORD}";'
    )
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    added = {
        "listeners": f"{properties['listeners']},{listeners}",
        "advertised.listeners": f"{properties['advertised.listeners']},{listeners}",
        "listener.security.protocol.map": f"{known},{protocols}",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *MECHANISMS)),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key_store),
        "connections.max.reauth.ms": "600000",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        added[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        for mechanism in MECHANISMS:
            name = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
            added[name] = scram
    return properties | added
