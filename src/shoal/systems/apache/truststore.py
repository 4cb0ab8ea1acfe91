"""A Java trust store with the certificates that the machine trusts.

The Java of a pip wheel has its own certificates, so it lacks the authorities that a company adds
to its machines. The store uses Java's old JKS format: writing it takes twenty lines and no
dependency, and every Java reads it.
"""

import hashlib
import os
import re
import ssl
import struct
from pathlib import Path
from typing import Final

PASSWORD: Final = "changeit"  # noqa: S105  (Java needs one; the certificates are public)

_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS
)
_JKS_MAGIC: Final = 0xFEEDFEED
_JKS_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_PEM: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII
)


def system_certificates() -> list[bytes]:
    """The certificates that this machine trusts, in DER; empty if it has no bundle."""
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    for bundle in (named, *_BUNDLES):
        if bundle and Path(bundle).is_file():
            found = _PEM.findall(Path(bundle).read_text(errors="replace"))
            if found:
                return [ssl.PEM_cert_to_DER_cert(pem) for pem in dict.fromkeys(found)]
    return []


def java_trust_store(certificates: list[bytes]) -> bytes:
    """The bytes of a JKS file that trusts `certificates`."""
    parts = [struct.pack(">IIi", _JKS_MAGIC, _JKS_VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [
            struct.pack(">i", _TRUSTED_CERTIFICATE),
            _utf(f"certificate-{number}"),
            struct.pack(">q", 0),
            _utf("X.509"),
            struct.pack(">i", len(certificate)),
            certificate,
        ]
    content = b"".join(parts)
    # This phrase is part of the JKS format.
    salt = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return content + hashlib.sha1(salt + content, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
