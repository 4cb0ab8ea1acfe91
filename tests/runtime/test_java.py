"""Finding a Java: order of places, versions, wrappers, and the wheel's Java for Spark."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.model.errors import SystemFailure
from shoal.runtime import java
from support.apache.java_homes import make_executable, make_java_home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java but the wheel's, and an empty cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_JVM_FOLDERS", (str(tmp_path / "jvm"),))


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


def put_on_path(tmp_path: Path, target: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(target)


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_java_home(tmp_path / "named", "21.0.3")
    put_on_path(tmp_path, make_java_home(tmp_path / "other", "17.0.1") / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java.find_java()
    assert (found.home, found.version, found.major) == (home, "21.0.3", 21)
    assert found.origin == "JAVA_HOME"


def spark_java() -> Path:
    return Path(java.spark_environment()["JAVA_HOME"], "bin", "java")


@pytest.mark.parametrize(("version", "major"), [("11.0.20", 11), ("1.8.0_402", 8)])
def test_an_old_java_home_is_passed_over_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, major: int
) -> None:
    old = make_java_home(tmp_path / "old", version)
    good = make_java_home(tmp_path / "good", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(old))
    put_on_path(tmp_path, good / "bin" / "java")
    found = java.find_java()
    assert (found.home, found.origin) == (good, "PATH")
    assert found.passed_over == (f"JAVA_HOME: Java {version} in {old}",)
    assert java._major(version) == major


def test_a_wrapper_on_the_path_is_asked_for_its_home(tmp_path: Path) -> None:
    home = make_java_home(tmp_path / "real", "17.0.9")
    wrapper = make_executable(tmp_path / "tools" / "bin" / "java", f'echo "  java.home = {home}"')
    put_on_path(tmp_path, wrapper)
    assert java.find_java().home == home


def test_a_home_without_release_file_is_asked_for_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_executable(tmp_path / "plain" / "bin" / "java", 'echo "    java.version = 17.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "plain"))
    assert java.find_java().version == "17.0.2"


def test_the_oldest_sufficient_java_of_a_folder_is_taken(tmp_path: Path) -> None:
    for version in ("25.0.1", "11.0.2", "21.0.3"):
        make_java_home(tmp_path / "jvm" / f"jdk-{version}", version)
    assert java.find_java().version == "21.0.3"


def test_a_java_newer_than_tested_yields_to_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java_home(tmp_path / "new", "99.0.1")))
    assert java.find_java().origin == java.WHEEL


@pytest.mark.usefixtures("no_wheel")
def test_a_java_newer_than_tested_is_better_than_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java_home(tmp_path / "new", "99.0.1")))
    assert java.find_java().version == "99.0.1"


@pytest.mark.usefixtures("no_wheel")
def test_no_java_is_one_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(SystemFailure, match="no Java 17 or newer found; found only JAVA_HOME") as e:
        java.find_java()
    assert e.value.remedy is not None
    assert "shoal[spark]" in e.value.remedy


def test_the_wheel_serves_a_machine_without_java() -> None:
    found = java.find_java()
    assert (found.origin, found.major >= java.OLDEST) == (java.WHEEL, True)
    command = [str(spark_java()), "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 0, answer.stderr
    assert found.version in answer.stderr


def test_a_lent_home_is_found_again_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lent = java.spark_environment()
    monkeypatch.setenv("JAVA_HOME", lent["JAVA_HOME"])
    assert java.spark_environment() == lent


def test_a_lent_java_drops_one_argument_and_keeps_all_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    echo = f'exec {sys.executable} -c "import sys; print(sys.argv[1:])" "$@"'
    home = make_java_home(tmp_path / "a home", "17.0.1", modules="java.base", script=echo)
    monkeypatch.setenv("JAVA_HOME", str(home))
    odd = ["-Dx=a b", "", "*", "--add-modules=other", "$HOME", "line\nbreak", "--"]
    command = [str(spark_java()), "--add-modules=jdk.incubator.vector", *odd]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert answer.stdout.strip() == repr(odd)


def test_an_unwritable_cache_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SystemFailure, match="cannot create the folder") as failure:
        java.spark_environment()
    assert failure.value.remedy is not None
    assert "XDG_CACHE_HOME" in failure.value.remedy
    assert os.environ["XDG_CACHE_HOME"] in str(failure.value)
