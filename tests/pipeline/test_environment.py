"""The packed environment runs where neither this checkout nor its packages are."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from shoal.model.errors import ConfigError
from shoal.pipeline.environment import (
    EXTRAS,
    INTERPRETER,
    VARIABLE,
    find_archive,
    make_driver_folder,
    pack,
)

# Everything that is imported must come from the folder that the archive was unpacked into.
FACTS = """
import importlib, json, sys
modules = [importlib.import_module(name) for name in sys.argv[1:]]
print(json.dumps({
    "prefix": sys.prefix,
    "path": sys.path,
    "files": [module.__file__ for module in modules],
    "version": list(sys.version_info[:2]),
}))
"""
OF_THE_BASE = ("shoal.client.client", "json", "ssl", "asyncio")
OF_TASKS = ("shoal.pipeline.scans", "shoal.audit.audit", "pyarrow.parquet", "numpy", "numba")


@pytest.mark.parametrize(
    ("extras", "modules"),
    [
        pytest.param((), OF_THE_BASE, id="small"),
        pytest.param(EXTRAS, OF_TASKS, id="whole", marks=pytest.mark.long),
    ],
)
def test_a_python_of_the_archive_has_all_it_needs(
    tmp_path: Path, extras: tuple[str, ...], modules: tuple[str, ...]
) -> None:
    archive = tmp_path / "environment.tar.gz"
    pack(archive, extras)
    # As Spark does it: into a folder of this name, from which the interpreter is started.
    place = tmp_path / "work" / "environment"
    with tarfile.open(archive) as content:
        content.extractall(place, filter="tar")
    archive.unlink()
    facts = start(place.parent, modules)
    home = str(place.resolve())
    assert Path(facts["prefix"]).resolve() == Path(home)
    assert facts["version"] == list(sys.version_info[:2])
    outside = [path for path in facts["path"] if path and not inside(path, home)]
    assert not outside
    assert [path for path in facts["files"] if not inside(path, home)] == []
    moved = place.parent.with_name("elsewhere")
    place.parent.rename(moved)
    assert Path(start(moved, modules)["prefix"]).parent.name == "elsewhere"


def start(folder: Path, modules: tuple[str, ...]) -> dict[str, Any]:
    """Start the interpreter with nothing of this environment, and ask it."""
    # PySpark is on the machines of a cluster; it is named as Spark names it, by PYTHONPATH.
    done = subprocess.run(
        [INTERPRETER, "-s", "-c", FACTS, *modules],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **spark_path(folder, modules)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def spark_path(folder: Path, modules: tuple[str, ...]) -> dict[str, str]:
    """A folder with PySpark and nothing else, where modules of tasks are imported."""
    if "shoal.pipeline.scans" not in modules:
        return {}
    import py4j
    import pyspark

    packages = folder / "environment" / "of-the-cluster"
    packages.mkdir(exist_ok=True)
    for package in (py4j, pyspark):
        source = Path(str(package.__file__)).parent
        if not (packages / source.name).is_symlink():
            (packages / source.name).symlink_to(source)
    return {"PYTHONPATH": str(packages)}


def inside(path: str, home: str) -> bool:
    return Path(path).resolve().is_relative_to(home) or path.startswith(home)


def test_the_driver_has_the_interpreter_at_the_path_of_executors() -> None:
    folder = make_driver_folder()
    done = subprocess.run(
        [INTERPRETER, "-c", "import sys; print(sys.prefix)"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert os.path.realpath(done.stdout.strip()) == os.path.realpath(sys.prefix)


def test_an_archive_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_archive() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.tar.gz"))
    with pytest.raises(ConfigError, match="which is not a file") as refusal:
        find_archive()
    assert "python -m shoal.pipeline.environment" in (refusal.value.remedy or "")
