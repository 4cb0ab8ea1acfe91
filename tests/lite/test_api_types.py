"""The type checker knows the fields of requests and answers in the API files."""

import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from shoal.lite.api.table import APIS
from shoal.wire.messages import request_class, response_class

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "api_types.py"
FOLDER = ROOT / "src" / "shoal" / "lite" / "api"
# An API file, a part of it, and what a typing mistake makes of that.
MISTAKES = [
    ("api_12_heartbeat.py", "body.group_id", "body.grupo_id"),
    ("api_12_heartbeat.py", '"error_code": code', '"eror_code": code'),
    ("api_02_list_offsets.py", "item.timestamp", "item.timestmp"),
    ("api_02_list_offsets.py", '"leader_epoch": result', '"leader_epok": result'),
    ("api_60_describe_cluster.py", "body.include_fenced_brokers", "body.include_fenced"),
]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_types", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The dataclasses of the script look their module up.
    sys.modules["api_types"] = module
    spec.loader.exec_module(module)
    return module


def test_the_types_are_those_of_the_versions_that_are_served(script: ModuleType) -> None:
    for module in script.MODULES:
        path = script.FOLDER / f"{module}.py"
        assert path.read_text() == script.render(module), "run scripts/api_types.py"
    assert set().union(*script.MODULES.values()) == set(APIS) - script.OWN_CODECS


def test_every_handler_names_the_types_of_its_api(script: ModuleType) -> None:
    for key in set(APIS) - script.OWN_CODECS:
        source = inspect.getsource(sys.modules[APIS[key].handle.__module__])
        assert response_class(key, APIS[key].most).__name__ in source
        # A handler that forwards the bytes needs no type for them.
        needs_body = "request.body()" in source
        assert not needs_body or request_class(key, APIS[key].most).__name__ in source


@pytest.mark.slow
def test_a_misspelt_field_is_a_type_error(tmp_path: Path) -> None:
    files = []
    for number, (name, right, wrong) in enumerate(MISTAKES):
        text = (FOLDER / name).read_text()
        assert right in text
        files.append(tmp_path / f"mistake_{number}.py")
        files[-1].write_text(text.replace(right, wrong, 1))
    sound = tmp_path / "sound.py"
    sound.write_text((FOLDER / "api_12_heartbeat.py").read_text())
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--follow-imports", "silent", *map(str, files), str(sound)],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode == 1, done.stderr
    for path, (_, _, wrong) in zip(files, MISTAKES, strict=True):
        name = wrong.partition(":")[0].strip('"').rpartition(".")[2]
        assert any(path.name in line and f'"{name}"' in line for line in errors), done.stdout
    assert not [line for line in errors if sound.name in line]
