"""What README and docs of commit 4ac8f05 name in Python can still be imported and run.

`documented_names.json` has what their texts and code blocks name: imports, members, arguments,
modules for `python -m`, entry points and fixtures. A module that moves leaves one behind under the
old name that imports from the new one.
"""

import importlib
import inspect
import json
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.formats.stored import FORMATS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMED: dict[str, Any] = json.loads((FORMATS / "documented_names.json").read_text())
LIMIT_S = 120


def found(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", NAMED["imports"])
def test_documented_imports_work(module: str) -> None:
    imported = importlib.import_module(module)
    missing = [name for name in NAMED["imports"][module] if not hasattr(imported, name)]
    assert missing == []


@pytest.mark.parametrize("path", NAMED["members"])
def test_documented_members_exist(path: str) -> None:
    cls = found(path)
    # Attributes that pass calls on are seen by an object only.
    known = set(dir(cls)) | ({"kill"} if hasattr(cls, "__getattr__") else set())
    assert set(NAMED["members"][path]) - known == set()


@pytest.mark.parametrize("path", NAMED["arguments"])
def test_documented_arguments_are_taken(path: str) -> None:
    taken = inspect.signature(found(path)).parameters
    assert set(NAMED["arguments"][path]) - taken.keys() == set()


@pytest.mark.parametrize("module", NAMED["modules that run"])
def test_documented_modules_run(module: str) -> None:
    spec = find_spec(module)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        spec = find_spec(f"{module}.__main__")
    assert spec is not None
    assert spec.origin is not None
    if module.startswith("benchmarks."):
        assert '__name__ == "__main__"' in Path(spec.origin).read_text()
        return
    command = [sys.executable, "-m", module, "--help"]
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "usage" in ran.stdout.lower()


@pytest.mark.parametrize("group", NAMED["entry points"])
def test_entry_points_load(group: str) -> None:
    names = {point.name: point for point in entry_points(group=group)}
    for name in NAMED["entry points"][group]:
        assert names[name].load() is not None


def test_documented_fixtures_are_there() -> None:
    [point] = entry_points(group="pytest11", name="shoal")
    assert set(NAMED["pytest fixtures"]) - set(dir(point.load())) == set()
