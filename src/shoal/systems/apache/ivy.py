"""Fetching jars with Apache Ivy, which lies in the pip package of PySpark.

Rules:
- No address of a registry stands here: Ivy knows Maven Central by itself.
- Where there is a checked list, every jar is named with its exact version and Ivy resolves
  nothing on its own, so that it cannot choose other versions, and reads no descriptors
  (`fetch`). Where there is none it finds out what belongs to a version (`resolve`).
- The result is not trusted: whoever calls this checks every file by its sha256.
- A network that is silent or absent ends the attempt after a minute, not after an hour.
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
_TLS_TROUBLE: Final = re.compile(r"SSL\w*Exception|PKIX|KeyStore|trustAnchors|CertificateException")
_AGAIN: Final = "then run the same command again: what has arrived is kept"
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
class Progress:
    """How far a download is; a jar counts twice: when found, and when fetched."""

    step: int
    steps: int
    doing: str


Report = Callable[[Progress], None]


def fetch(
    jars: Sequence[Coordinates], folder: Path, *, java: Java, scratch: Path, report: Report
) -> None:
    """Fetches `jars` into `folder`; `scratch` keeps what arrived, for another attempt."""
    settings = _SETTINGS.format(poms="false", checksums="none")
    said = _attempt(settings, _wish_list(jars), folder, java=java, scratch=scratch, report=report)
    if not all((folder / jar.file_name).is_file() for jar in jars):
        raise _explained(said, jars)


def resolve(
    jars: Sequence[Coordinates], folder: Path, *, java: Java, scratch: Path, report: Report
) -> None:
    """Fetches `jars` and all that they need to run, each checked by the registry's checksum."""
    settings = _SETTINGS.format(poms="true", checksums="sha1")
    wishes = _wish_list(jars, configuration='conf="default-&gt;default"')
    said = _attempt(settings, wishes, folder, java=java, scratch=scratch, report=report)
    is_complete = all((folder / jar.file_name).is_file() for jar in jars)
    if not is_complete or "UNRESOLVED DEPENDENCIES" in said or "FAILED DOWNLOADS" in said:
        raise _explained(said, jars)


def _attempt(
    settings: str, wishes: str, folder: Path, *, java: Java, scratch: Path, report: Report
) -> str:
    """Lets Ivy do it, once for each way to trust the other side; returns what it said."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "settings.xml").write_text(settings)
    (scratch / "ivy.xml").write_text(wishes)
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
    said = ""
    for trust in _trust_options(java, scratch):
        whole = [str(java.executable), *trust, *_network_options(), *command]
        said = _run(whole, wishes.count("<dependency "), report)
        if not _TLS_TROUBLE.search(said):
            break
    return said


def find_ivy() -> Path:
    """Ivy's jar inside the pip package of PySpark, which is not imported for this."""
    package = importlib.util.find_spec("pyspark")
    if package is not None and package.origin is not None:
        for jar in sorted((Path(package.origin).parent / "jars").glob("ivy-*.jar")):
            return jar
    raise SystemFailure(
        "Apache Kafka is fetched by the Ivy that comes with PySpark, which is not installed",
        remedy="pip install 'shoal[spark]'",
    )


def _wish_list(jars: Sequence[Coordinates], configuration: str = 'transitive="false"') -> str:
    wishes = "".join(
        f"    <dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} "
        f"rev={quoteattr(jar.version)} {configuration}/>\n"
        for jar in jars
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="shoal" module="jars"/>\n'
        f"  <dependencies>\n{wishes}  </dependencies>\n</ivy-module>\n"
    )


def _trust_options(java: Java, scratch: Path) -> Iterator[list[str]]:
    """Ways to trust the other side, the likeliest first: Java's own store, and the system's."""
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
    """Time limits, and the proxy that pip uses too: Java does not look for it by itself."""
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
    """Runs Ivy to its end, or until it is plainly lost; returns what it said."""
    said = bytearray()
    found = fetched = 0
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        for line in _lines(process):
            if len(said) < _OUTPUT_KEPT_BYTES:
                said += line + b"\n"
            found += line.startswith(b"\tfound ")
            fetched += b"[SUCCESSFUL ]" in line
            if line.startswith(_UNKNOWN_HOST.encode()):
                break
            doing = "fetching jars" if fetched else "looking for jars"
            report(Progress(found + fetched, max(2 * count, found + fetched + 1), doing))
    finally:
        process.kill()
        process.communicate()
    return said.decode(errors="replace")


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The lines that a process prints, until it ends or is silent for too long."""
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
        f"the download of jars stood still for {SILENCE_LIMIT_S:.0f} s",
        remedy=f"check the network; {_AGAIN}",
    )


def _explained(said: str, jars: Sequence[Coordinates]) -> SystemFailure:
    remedy = f"wait a little, {_AGAIN}"
    refused = re.search(r"Server access error at url \S+ \((.{1,300}?)\)\s", said)
    missing = re.findall(r"module not found: \S+#(\S+)", said)
    if _UNKNOWN_HOST in said:
        why = "Maven Central cannot be found from here"
        remedy = f"check the network (HTTPS_PROXY names a proxy if you need one); {_AGAIN}"
    elif _TLS_TROUBLE.search(said):
        why = "the certificate of the other side is not trusted"
        remedy = f"set SSL_CERT_FILE to a file with your company's certificates; {_AGAIN}"
    elif refused is not None:
        why = refused[1]
        remedy = f"check the network and the proxy in HTTPS_PROXY; {_AGAIN}"
    elif missing:
        why = f"not there: {', '.join(missing[:3])}"
        remedy = f"if there is such a version, wait a little; {_AGAIN}"
    else:
        why = f"Ivy said: {said.strip()[-300:] or 'nothing'}"
    return SystemFailure(f"{len(jars)} jars could not be downloaded: {why}", remedy=remedy)
