"""The doctor: honest about this machine, and one command for each thing that is missing."""

import importlib.metadata
import importlib.util
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.net import ports
from shoal.runtime import java
from shoal.systems import clocks, doctor
from shoal.systems.doctor import Check


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def run_doctor() -> dict[str, Check]:
    return {check.name: check for check in doctor.examine()}


def test_this_machine_can_run_the_tests() -> None:
    started = time.monotonic()
    checks = run_doctor()
    assert time.monotonic() - started < 30
    needed = {"Python", "Platform", "Java", "Spark", "numba", "confluent-kafka", "Ports", "Disk"}
    assert {name for name in needed if checks[name].state == "missing"} == set()
    assert {"Memory", "Clock", "kcat", "Chromium", "Apache Kafka 4.3.1"} <= checks.keys()
    assert all(check.found for check in checks.values())
    assert all(check.remedy is None for check in checks.values() if check.state == "ok")
    assert "pyspark" not in sys.modules or checks["Spark"].state == "ok"


def test_a_bare_machine_is_told_one_command_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_JVM_FOLDERS", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 10**9, 10**6))
    checks = run_doctor()
    extras = {"Java": "spark", "Spark": "spark", "confluent-kafka": "confluent", "starlette": "web"}
    for name, extra in extras.items():
        assert checks[name].state == "warn"  # an extra is optional
        assert checks[name].remedy == f"{sys.executable} -m pip install 'shoal[{extra}]'"
    assert checks["Disk"].state == "missing"
    assert checks["Apache Kafka 4.3.1"].remedy == "shoal cluster up --engine apache"
    assert checks["kcat"] == Check("kcat", "warn", "not found; only some tests need it", None)


def test_the_installer_of_the_system_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for tool in ("apt-get", "brew"):
        (tmp_path / tool).write_text("")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_doctor()["kcat"].remedy == "sudo apt-get install --yes kcat"
    (tmp_path / "apt-get").unlink()
    assert run_doctor()["Chromium"].remedy == "brew install chromium"


def test_an_old_spark_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "3.5.1")
    check = doctor._check_spark()
    assert (check.state, check.found) == ("missing", "pyspark 3.5.1; needs 4.2 or newer, below 5")


def test_a_clock_that_jumps_or_drifts_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "wall_drift_us", lambda **_: -70_000)
    assert "jumped -70000 us" in doctor._check_clock().found
    monkeypatch.setattr(clocks, "wall_drift_us", lambda **_: 3)
    for answer, state in ((True, "ok"), (None, "ok"), (False, "warn")):
        monkeypatch.setattr(clocks, "is_synchronised", lambda answer=answer: answer)
        assert doctor._check_clock().state == state


def test_the_real_clock_is_steady_enough_to_be_measured() -> None:
    assert abs(clocks.wall_drift_us(duration_s=0.02)) < 1_000_000
    assert clocks.is_synchronised() in (True, False, None)


def test_damaged_jars_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "shoal" / "kafka" / "4.3.1").mkdir(parents=True)
    check = doctor._check_kafka_jars()
    assert check.state == "warn"
    assert check.found.startswith("damaged: ")


def test_no_free_port_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PORTS", "20000-32767")
    monkeypatch.setattr(ports, "_TRIES_PER_PORT", 0)
    assert doctor._check_ports() == Check(
        "Ports",
        "missing",
        "cannot find a free port between 20000 and 32767 on 127.0.0.1",
        ports.LIST_LISTENERS_COMMAND,
    )
