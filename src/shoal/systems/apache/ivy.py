"""Fetches jars with Apache Ivy, which is part of the pip package of PySpark.

Rules:
- The address of Maven Central is not configured here: it is Ivy's default.
- With a checked list of jars (`fetch`), every jar is named with its exact version. Ivy resolves no
  dependencies and reads no descriptors, so it cannot choose other versions. Without a list
  (`resolve`), Ivy finds the dependencies of a version.
- The result is not trusted: the caller checks every file by its sha256.
- If the network is silent or absent, the attempt fails after a minute.
"""

import importlib.util
import os
import re
import selectors
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple, cast
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from shoal.model.errors import SystemFailure
from shoal.runtime.java import WHEEL, Java
from shoal.systems.apache import truststore

SILENCE_LIMIT_S: Final = 60.0

_CONNECT_TIMEOUT_MS: Final = 15_000
_READ_TIMEOUT_MS: Final = 45_000
_OUTPUT_KEPT_BYTES: Final = 1_000_000
_UNKNOWN_HOST: Final = "You probably access the destination server through a proxy server"
_TLS_ERROR: Final = re.compile(r"SSL\w*Exception|PKIX|KeyStore|trustAnchors|CertificateException")
_RETRY_HINT: Final = "then run the same command again: downloaded jars are kept"
_SETTINGS: Final = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="{poms}" checksums="{checksums}"/>
  </resolvers>
</ivysettings>
"""


class Coordinates(NamedTuple):
    """A jar as Maven names it."""

    group: str
    artifact: str
    version: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class StartProgress:
    """Progress of starting a cluster; in a download each jar counts twice: found, and fetched."""

    step: int
    steps: int
    doing: str


Report = Callable[[StartProgress], None]


def fetch(
    jars: Sequence[Coordinates], folder: Path, *, java: Java, scratch: Path, report: Report
) -> None:
    """Fetch `jars` into `folder`; `scratch` keeps downloaded files for another attempt."""
    settings = _SETTINGS.format(poms="false", checksums="none")
    output = _retrieve(
        settings, _ivy_module(jars), folder, java=java, scratch=scratch, report=report
    )
    if not all((folder / jar.file_name).is_file() for jar in jars):
        raise _download_error(output, jars)


def resolve(
    jars: Sequence[Coordinates], folder: Path, *, java: Java, scratch: Path, report: Report
) -> None:
    """Fetch `jars` and their dependencies; Ivy checks each by Maven Central's checksum."""
    settings = _SETTINGS.format(poms="true", checksums="sha1")
    module = _ivy_module(jars, configuration='conf="default-&gt;default"')
    output = _retrieve(settings, module, folder, java=java, scratch=scratch, report=report)
    is_complete = all((folder / jar.file_name).is_file() for jar in jars)
    if not is_complete or "UNRESOLVED DEPENDENCIES" in output or "FAILED DOWNLOADS" in output:
        raise _download_error(output, jars)


def _retrieve(
    settings: str, module: str, folder: Path, *, java: Java, scratch: Path, report: Report
) -> str:
    """Run Ivy, with each trust store until TLS works; return its output."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "settings.xml").write_text(settings)
    (scratch / "ivy.xml").write_text(module)
    command = [
        "-XX:-UsePerfData",
        "-jar",
        str(find_ivy()),
        "-settings",
        str(scratch / "settings.xml"),
    ]
    command += ["-cache", str(scratch / "cache"), "-ivy", str(scratch / "ivy.xml")]
    command += ["-types", "jar", "bundle"]
    command += ["-retrieve", str(folder / "[artifact]-[revision].[ext]")]
    output = ""
    for trust in _trust_options(java, scratch):
        whole = [str(java.executable), *trust, *_network_options(), *command]
        output = _run(whole, module.count("<dependency "), report)
        if not _TLS_ERROR.search(output):
            break
    return output


def find_ivy() -> Path:
    """Ivy's jar inside the pip package of PySpark; PySpark itself is not imported."""
    package = importlib.util.find_spec("pyspark")
    if package is not None and package.origin is not None:
        for jar in sorted((Path(package.origin).parent / "jars").glob("ivy-*.jar")):
            return jar
    raise SystemFailure(
        "cannot download Apache Kafka: that needs Apache Ivy from PySpark, which is not installed",
        remedy="pip install 'shoal[spark]'",
    )


def _ivy_module(jars: Sequence[Coordinates], configuration: str = 'transitive="false"') -> str:
    module = "".join(
        f"    <dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} "
        f"rev={quoteattr(jar.version)} {configuration}/>\n"
        for jar in jars
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="shoal" module="jars"/>\n'
        f"  <dependencies>\n{module}  </dependencies>\n</ivy-module>\n"
    )


def _trust_options(java: Java, scratch: Path) -> Iterator[list[str]]:
    """Java options for each trust store, the likeliest first: Java's own, and the system's."""
    if java.origin != WHEEL:
        yield []
    certificates = truststore.system_certificates()
    if certificates:
        store = scratch / "trust.jks"
        store.write_bytes(truststore.java_trust_store(certificates))
        yield [
            f"-Djavax.net.ssl.trustStore={store}",
            "-Djavax.net.ssl.trustStoreType=JKS",
            f"-Djavax.net.ssl.trustStorePassword={truststore.PASSWORD}",
        ]
    if java.origin == WHEEL:
        yield []


def _network_options() -> list[str]:
    """Timeouts, and the proxy from HTTPS_PROXY, which Java does not read."""
    options = [
        f"-Dsun.net.client.defaultConnectTimeout={_CONNECT_TIMEOUT_MS}",
        f"-Dsun.net.client.defaultReadTimeout={_READ_TIMEOUT_MS}",
    ]
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or ""
    address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    if address.hostname:
        options.append(f"-Dhttps.proxyHost={address.hostname}")
        options.append(f"-Dhttps.proxyPort={address.port or 80}")
    return options


def _run(command: list[str], count: int, report: Report) -> str:
    """Run Ivy until it exits or cannot find the host; return its output."""
    output = bytearray()
    found = fetched = 0
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        for line in _lines(process):
            if len(output) < _OUTPUT_KEPT_BYTES:
                output += line + b"\n"
            found += line.startswith(b"\tfound ")
            fetched += b"[SUCCESSFUL ]" in line
            if line.startswith(_UNKNOWN_HOST.encode()):
                break
            doing = "fetching jars" if fetched else "looking for jars"
            report(StartProgress(found + fetched, max(2 * count, found + fetched + 1), doing))
    finally:
        process.kill()
        process.communicate()
    return output.decode(errors="replace")


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The lines that a process prints, until it exits; raise if it is silent for too long."""
    descriptor = cast("IO[bytes]", process.stdout).fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(SILENCE_LIMIT_S):
            chunk = os.read(descriptor, 65536)
            if not chunk:
                process.wait()
                yield pending
                return
            *lines, pending = (pending + chunk).split(b"\n")
            yield from lines
    raise SystemFailure(
        f"the download of jars made no progress for {SILENCE_LIMIT_S:.0f} s",
        remedy=f"check the network; {_RETRY_HINT}",
    )


def _download_error(output: str, jars: Sequence[Coordinates]) -> SystemFailure:
    remedy = f"wait a little, {_RETRY_HINT}"
    refused = re.search(r"Server access error at url \S+ \((.{1,300}?)\)\s", output)
    missing = re.findall(r"module not found: \S+#(\S+)", output)
    if _UNKNOWN_HOST in output:
        why = "the host name of Maven Central cannot be resolved"
        remedy = f"check the network (HTTPS_PROXY names a proxy if you need one); {_RETRY_HINT}"
    elif _TLS_ERROR.search(output):
        why = "the TLS certificate of the server is not trusted"
        remedy = f"set SSL_CERT_FILE to a file with your company's certificates; {_RETRY_HINT}"
    elif refused is not None:
        why = refused[1]
        remedy = f"check the network and the proxy in HTTPS_PROXY; {_RETRY_HINT}"
    elif missing:
        why = f"not found on Maven Central: {', '.join(missing[:3])}"
        remedy = f"check the version; if it exists, wait a little; {_RETRY_HINT}"
    else:
        why = f"output of Ivy: {output.strip()[-300:] or 'none'}"
    return SystemFailure(f"cannot download {len(jars)} jars: {why}", remedy=remedy)
