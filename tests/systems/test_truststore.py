"""The trust store for a Java that does not know the machine's certificates."""

import subprocess
from pathlib import Path

import pytest
import trustme

from shoal.runtime.java import find_java
from shoal.systems.apache import truststore


def test_java_reads_the_machines_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    pems = [trustme.CA(organization_name=f"Company {n}").cert_pem.bytes() for n in range(3)]
    bundle.write_bytes(b"# a comment\n" + b"\n".join([*pems, pems[0]]))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    certificates = truststore.system_certificates()
    assert len(certificates) == 3
    store = tmp_path / "trust.jks"
    store.write_bytes(truststore.java_trust_store(certificates))
    keytool = find_java().home / "bin" / "keytool"
    if not keytool.exists():  # a home that we lend shows only java itself
        keytool = (find_java().home / "lib").resolve().parent / "bin" / "keytool"
    command = [str(keytool), "-list", "-keystore", str(store), "-storetype", "JKS"]
    command += ["-storepass", truststore.PASSWORD]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("trustedCertEntry") == 3


def test_a_file_without_certificates_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty.pem").write_text("nothing here")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    monkeypatch.setattr(truststore, "_BUNDLES", ())
    assert truststore.system_certificates() == []
