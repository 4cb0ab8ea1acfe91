"""Apache Kafka's jars: fetched once, checked against a list.

Rules:
- A folder of jars in the cache is complete and checked, or does not exist: it is filled under
  another name and then renamed. It is checked again before each use (a fifth of a second); a
  damaged one is fetched again.
- One process at a time fills the cache; others wait for it.
- If the jars are in the cache, the network is not used.
- For a version without a list in this package, Ivy resolves the jars and checks each by Maven
  Central's checksum. The sha256 of the first download is the list from then on.
"""

import fcntl
import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.model.errors import ConfigError, SystemFailure
from shoal.runtime import paths
from shoal.runtime.java import find_java
from shoal.systems.apache import ivy

NEWEST_KAFKA: Final = "4.3.1"
MM1_KAFKA: Final = "3.9.2"  # the last line that has MirrorMaker 1

_KAFKA: Final = "org.apache.kafka"
OLDEST_KAFKA: Final = (2, 4, 0)  # the first for Scala 2.13 that a current Java can run
_REPLACED_BY_RELOAD4J: Final = ("log4j-1.2.*.jar", "slf4j-log4j12-*.jar")
_MIRROR: Final = "mirror-"  # lists of the jars that MirrorMaker 2 needs besides Kafka's
_LINE: Final = re.compile(r"([0-9a-f]{64}) ([\w.-]+):([\w.-]+):([\w.-]+)")


@dataclass(frozen=True, slots=True)
class JarList:
    """The jars of a version of Kafka, with their sha256."""

    version: str
    hashes: dict[ivy.Coordinates, str]

    def defects(self, folder: Path) -> list[str]:
        """What is wrong with a folder that should contain exactly these jars; [] if nothing."""
        wrong = []
        for jar, expected in self.hashes.items():
            path = folder / jar.file_name
            if not path.is_file():
                wrong.append(f"{jar.file_name} is missing")
            elif _sha256(path) != expected:
                wrong.append(f"{jar.file_name} is damaged (its sha256 differs from the list)")
        known = {jar.file_name for jar in self.hashes}
        present = {path.name for path in folder.glob("*.jar")}
        return wrong + [f"{name} does not belong there" for name in sorted(present - known)]


def list_versions() -> list[str]:
    """Versions of Kafka for which this package has a list of jars, oldest first."""
    names = [entry.name for entry in _lists().iterdir() if entry.name.endswith(".txt")]
    versions = [name.removesuffix(".txt") for name in names if not name.startswith(_MIRROR)]
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def jar_list(version: str) -> JarList:
    if version not in list_versions():
        raise ConfigError(
            f"shoal has no list of jars for Apache Kafka {version}",
            remedy=f"choose one of {', '.join(list_versions())}",
        )
    return _read_list(_lists() / f"{version}.txt")


def _read_list(file: Path) -> JarList:
    name, hashes = file.stem, {}
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise SystemFailure(
                    f"the list of jars of Kafka {name} has a line without a hash and a jar: {line}",
                    remedy="install shoal again; the list is a part of it",
                )
            hashes[ivy.Coordinates(match[2], match[3], match[4])] = match[1]
    return JarList(name, hashes)


def jars_folder(version: str = NEWEST_KAFKA) -> Path:
    """The cache folder of a version's jars; it may not exist yet."""
    return paths.cache_dir() / "kafka" / version


def fetch_jars(version: str = NEWEST_KAFKA, *, report: ivy.Report = lambda _progress: None) -> Path:
    """The folder with the checked jars of a Kafka version; fetches them if needed."""
    if version in list_versions():
        return _fetch_listed(jar_list(version), report)
    return _fetch_unlisted(version, _main_jars(version), report)


def fetch_mirror_jars(version: str, *, report: ivy.Report) -> Path:
    """The folder with the jars that MirrorMaker 2 needs besides Kafka's; fetches them if needed."""
    name = f"{_MIRROR}{version}"
    listed = _lists() / f"{name}.txt"
    if listed.is_file():
        return _fetch_listed(_read_list(listed), report)
    return _fetch_unlisted(name, [ivy.Coordinates(_KAFKA, "connect-mirror", version)], report)


def _main_jars(version: str) -> list[ivy.Coordinates]:
    """The jars to ask Ivy for; it finds their dependencies."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ConfigError(
            f"{version!r:.40} is not a version of Apache Kafka", remedy="write it like 3.9.2"
        )
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < OLDEST_KAFKA:
        oldest = ".".join(map(str, OLDEST_KAFKA))
        raise ConfigError(f"Apache Kafka {version} is too old", remedy=f"use {oldest} or newer")
    parts = [ivy.Coordinates(_KAFKA, name, version) for name in ("kafka_2.13", "kafka-tools")]
    if numbers >= (4, 0):
        logging = ivy.Coordinates("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
        return [*parts, logging]
    parts.append(ivy.Coordinates("org.slf4j", "slf4j-reload4j", "1.7.36"))
    if numbers < (3, 3):  # the ZooKeeper server needs these too
        parts.append(ivy.Coordinates("io.dropwizard.metrics", "metrics-core", "3.2.5"))
        parts.append(ivy.Coordinates("org.xerial.snappy", "snappy-java", "1.1.10.7"))
    return parts


def _fetch_unlisted(name: str, parts: list[ivy.Coordinates], report: ivy.Report) -> Path:
    """Fetch a version without a list in this package; the first download becomes the list."""
    folder = jars_folder(name)
    listed = folder.with_name(f"{name}.sha256")
    if _has_listed_jars(folder, listed):
        return folder
    with _exclusive_lock(paths.make_folder(folder.parent) / f"{name}.lock"):
        if _has_listed_jars(folder, listed):
            return folder
        scratch = folder.with_name(f"{name}.download")
        filled = folder.with_name(f"{name}.unchecked")
        shutil.rmtree(filled, ignore_errors=True)
        ivy.resolve(parts, filled, java=find_java(), scratch=scratch, report=report)
        for pattern in _REPLACED_BY_RELOAD4J:
            for jar in filled.glob(pattern):
                jar.unlink()
        lines = [f"{_sha256(jar)} {jar.name}\n" for jar in sorted(filled.glob("*.jar"))]
        listed.write_text("".join(lines))
        shutil.rmtree(folder, ignore_errors=True)
        filled.rename(folder)
        shutil.rmtree(scratch)
    return folder


def _has_listed_jars(folder: Path, listed: Path) -> bool:
    if not folder.is_dir() or not listed.is_file():
        return False
    present = [f"{_sha256(jar)} {jar.name}" for jar in sorted(folder.glob("*.jar"))]
    return bool(present) and present == listed.read_text().splitlines()


def _fetch_listed(wanted: JarList, report: ivy.Report) -> Path:
    folder = jars_folder(wanted.version)
    if folder.is_dir() and not wanted.defects(folder):
        return folder
    with _exclusive_lock(paths.make_folder(folder.parent) / f"{wanted.version}.lock"):
        if folder.is_dir() and not wanted.defects(folder):
            return folder  # another process fetched it while this one waited
        _download(wanted, folder, report)
    return folder


def _download(wanted: JarList, folder: Path, report: ivy.Report) -> None:
    scratch = folder.with_name(f"{wanted.version}.download")
    filled = folder.with_name(f"{wanted.version}.unchecked")
    shutil.rmtree(filled, ignore_errors=True)  # left by a process that was killed
    ivy.fetch(list(wanted.hashes), filled, java=find_java(), scratch=scratch, report=report)
    defects = wanted.defects(filled)
    if defects:
        shutil.rmtree(scratch)  # the next attempt must download again
        raise SystemFailure(
            f"the download of Apache Kafka {wanted.version} is damaged: {'; '.join(defects[:3])}",
            remedy="run the same command again; if it persists, something between you and "
            "Maven Central changes files",
        )
    shutil.rmtree(folder, ignore_errors=True)
    filled.rename(folder)
    shutil.rmtree(scratch)


@contextmanager
def _exclusive_lock(lock: Path) -> Iterator[None]:
    """Hold a file lock; the kernel releases it if the process dies."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lists() -> Path:
    return Path(__file__).with_name("kafka_jars")
