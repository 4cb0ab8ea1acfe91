"""Checks whether this machine has what shoal needs, and names the command that fixes each gap.

Rules: a check never raises, and changes nothing but the cache. `missing` means that what is
installed cannot run, `warn` that something is optional (an extra that is not installed, say) or may
disturb measurements. No heavy package is imported to find its version.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from shoal.model.errors import ShoalError
from shoal.model.units import format_bytes
from shoal.net import ports
from shoal.runtime import paths
from shoal.runtime.java import find_java
from shoal.systems import clocks
from shoal.systems.apache import jars

CheckState = Literal["ok", "warn", "missing"]

_PYTHONS: Final = ((3, 11), (3, 14))
_SPARKS: Final = ((4, 2), (5, 0))
_DISK_NEEDED_BYTES: Final = 1_000_000_000
_DISK_RECOMMENDED_BYTES: Final = 5_000_000_000
_MEMORY_RECOMMENDED_BYTES: Final = 2_000_000_000
_PORTS_TRIED: Final = 12


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `remedy` is a command that fixes it, None if nothing is wrong."""

    name: Annotated[str, "name"]
    state: Annotated[CheckState, "state"]
    found: Annotated[str, "found"]
    remedy: Annotated[str | None, "remedy"] = None


def examine() -> list[Check]:
    """Run all checks, in the order in which a new user would fix them."""
    checks: tuple[Callable[[], Check], ...] = (
        _check_python,
        _check_platform,
        _check_java,
        _check_spark,
        lambda: _check_package("numba", "workload", "produce, consume and run"),
        lambda: _check_package("pyarrow", "workload", "produce, consume and run"),
        lambda: _check_package("starlette", "web", "serve"),
        lambda: _check_package("confluent-kafka", "confluent", "--driver confluent"),
        _check_kafka_jars,
        _check_ports,
        _check_disk,
        _check_memory,
        _check_clock,
        lambda: _check_tool("kcat", ("kcat", "kafkacat"), "kcat"),
        lambda: _check_tool(
            "Chromium", ("chromium", "chromium-browser", "google-chrome"), "chromium"
        ),
    )
    return [check() for check in checks]


def _check_python() -> Check:
    version = platform.python_version()
    found = f"{version} in {sys.executable}"
    oldest, newest = _PYTHONS
    if oldest <= sys.version_info[:2] <= newest:
        return Check("Python", "ok", found)
    wanted = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    remedy = "make setup PYTHON=python3.13"
    return Check("Python", "warn", f"{found}; tested with {wanted}", remedy)


def _check_platform() -> Check:
    library = " ".join(platform.libc_ver()).strip()
    found = " ".join(filter(None, [platform.system(), platform.machine(), library]))
    cores = f"{found}, {os.cpu_count()} cores"
    if sys.platform == "win32":
        return Check("Platform", "missing", cores, "wsl --install")
    if sys.platform == "linux" and not library.startswith("glibc"):
        return Check(
            "Platform", "missing", f"{cores}, no glibc", "docker run --rm -it python:3.13 bash"
        )
    return Check("Platform", "ok", cores)


def _check_java() -> Check:
    try:
        java = find_java()
    except ShoalError as error:
        state: CheckState = "warn" if _find_version("pyspark") is None else "missing"
        return Check("Java", state, error.message, _install_command("spark"))
    passed = f"; passed over: {', '.join(java.passed_over)}" if java.passed_over else ""
    return Check("Java", "ok", f"{java.version} from {java.origin}, {java.home}{passed}")


def _check_spark() -> Check:
    version = _find_version("pyspark")
    if version is None or importlib.util.find_spec("pyspark") is None:
        found = "not installed; optional, for demo, run, sweep, bench and audit"
        return Check("Spark", "warn", found, _install_command("spark"))
    oldest, limit = _SPARKS
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not oldest <= numbers < limit:
        wanted = f"{oldest[0]}.{oldest[1]} or newer, below {limit[0]}"
        return Check(
            "Spark", "missing", f"pyspark {version}; needs {wanted}", _install_command("spark")
        )
    return Check("Spark", "ok", f"pyspark {version}")


def _check_package(name: str, extra: str, users: str) -> Check:
    """Whether a package of an extra is installed; `users` are the commands that need it."""
    version = _find_version(name)
    if version is None:
        found = f"not installed; optional, for {users}"
        return Check(name, "warn", found, _install_command(extra))
    return Check(name, "ok", version)


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _install_command(extra: str) -> str:
    # shoal itself is installed, so pip adds only the packages of the extra.
    return f"{sys.executable} -m pip install 'shoal[{extra}]'"


def _check_kafka_jars() -> Check:
    name = f"Apache Kafka {jars.NEWEST_KAFKA}"
    folder = jars.jars_folder()
    remedy = "shoal cluster up --engine apache"
    if not folder.is_dir():
        return Check(name, "warn", "not fetched yet (55 MB on first use)", remedy)
    defects = jars.jar_list(jars.NEWEST_KAFKA).defects(folder)
    if defects:
        return Check(name, "warn", f"damaged: {defects[0]}; the next use fetches it again", remedy)
    return Check(name, "ok", f"in {folder}")


def _check_ports() -> Check:
    try:
        free = ports.free_ports(_PORTS_TRIED)
    except ShoalError as error:
        return Check("Ports", "missing", error.message, ports.LIST_LISTENERS_COMMAND)
    return Check("Ports", "ok", f"free on {ports.HOST} (tried {len(free)})")


def _check_disk() -> Check:
    folders = {
        "cache": _nearest_existing(paths.cache_dir()),
        "temporary": Path(tempfile.gettempdir()),
    }
    free = {what: shutil.disk_usage(folder).free for what, folder in folders.items()}
    least = min(free, key=lambda what: free[what])
    found = ", ".join(
        f"{format_bytes(free[what])} free for {what} files in {folders[what]}" for what in folders
    )
    if free[least] >= _DISK_RECOMMENDED_BYTES:
        return Check("Disk", "ok", found)
    state: CheckState = "warn" if free[least] >= _DISK_NEEDED_BYTES else "missing"
    return Check("Disk", state, found, f"du -xh {folders[least]} | sort -h | tail")


def _nearest_existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _check_memory() -> Check:
    available = _available_memory_bytes()
    found = f"{format_bytes(available)} available"
    if available >= _MEMORY_RECOMMENDED_BYTES:
        return Check("Memory", "ok", found)
    wanted = format_bytes(_MEMORY_RECOMMENDED_BYTES)
    remedy = "ps axo rss,pid,comm | sort -n | tail"
    return Check("Memory", "warn", f"{found}; Spark and Kafka need about {wanted}", remedy)


def _available_memory_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes_kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
        return sizes_kb["MemAvailable"] * 1024
    except (OSError, KeyError):  # macOS has no /proc, only the total
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_clock() -> Check:
    drift_us = clocks.wall_drift_us(duration_s=0.05)
    synchronised = clocks.is_synchronised()
    said = {True: "synchronised", False: "not synchronised", None: "synchronisation unknown"}
    found = f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}, {said[synchronised]}"
    has_systemd = Path("/run/systemd/system").exists()
    remedy = "sudo timedatectl set-ntp true" if has_systemd else _system_install_command("chrony")
    if abs(drift_us) > clocks.TOLERATED_DRIFT_US:
        found += f", jumped {drift_us} us in 50 ms"
        return Check("Clock", "warn", f"{found}: latencies will be wrong", remedy)
    if synchronised is False:
        found += ": latencies between machines will be off, on this machine they are right"
        return Check("Clock", "warn", found, remedy)
    return Check("Clock", "ok", found)


def _check_tool(name: str, commands: tuple[str, ...], package: str) -> Check:
    for command in commands:
        path = shutil.which(command)
        if path is not None:
            return Check(name, "ok", path)
    remedy = _system_install_command(package)
    return Check(name, "warn", "not found; only some tests need it", remedy)


def _system_install_command(package: str) -> str | None:
    """The command that installs a system package; None if the package manager is not known."""
    installers = {
        "apt-get": f"sudo apt-get install --yes {package}",
        "dnf": f"sudo dnf install --assumeyes {package}",
        "brew": f"brew install {package}",
    }
    return next((line for tool, line in installers.items() if shutil.which(tool)), None)
