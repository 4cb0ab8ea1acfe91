"""The import contracts hold, and they can fail: a planted import is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLANTS = [
    ("wire/planted.py", "import shoal.client"),
    ("audit/planted.py", "import shoal.wire"),
    ("lite/planted.py", "import shoal.mirror"),
    ("workers/planted.py", "from pyspark.sql import SparkSession"),
    ("client/planted.py", "import numpy"),
    ("web/planted.py", "import shoal.mirror"),
    ("report/planted.py", "import shoal.web"),
    ("telemetry/planted.py", "import shoal.systems.registry"),
    ("lite/base/planted.py", "import shoal.lite.storage"),
    ("lite/storage/planted.py", "import shoal.lite.partitions.partition"),
    ("lite/broker/planted.py", "import shoal.lite.api.table"),
    ("lite/api/planted.py", "import shoal.lite.partitions.admission.batch_rules"),
]


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    command += ["--config", str(ROOT / "pyproject.toml")]
    environment = os.environ | {"PYTHONPATH": str(source)}
    return subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copied_source(tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "shoal", tmp_path / "shoal", ignore=ignore)
    return tmp_path


def test_contracts_hold_as_the_source_stands(copied_source: Path) -> None:
    outcome = lint_imports(copied_source)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.parametrize(("file", "line"), PLANTS)
def test_a_planted_import_is_refused(copied_source: Path, file: str, line: str) -> None:
    (copied_source / "shoal" / file).write_text(f'"""Planted."""\n\n{line}\n')
    outcome = lint_imports(copied_source)
    assert outcome.returncode == 1
    assert "planted" in outcome.stdout
