"""The import contracts hold, and they can fail: a planted import is refused."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# An import, and the contract that it breaks. The first ones point upwards in the layers.
LAYERS = "the layers of the project, highest first"
LITE_LAYERS = "the layers of lite, highest first"
PLANTS = [
    ("model", "shoal.runtime", LAYERS),
    ("runtime", "shoal.telemetry", LAYERS),
    ("storage", "shoal.audit", LAYERS),
    ("wire", "shoal.client", LAYERS),
    ("telemetry", "shoal.systems.registry", LAYERS),
    ("net", "shoal.faults", LAYERS),
    ("client", "shoal.generate", LAYERS),
    ("audit", "shoal.pipeline", LAYERS),
    ("generate", "shoal.cli", LAYERS),
    ("lite", "shoal.control", LAYERS),
    ("lite", "shoal.mirror", LAYERS),
    ("workload", "shoal.workers", LAYERS),
    ("workers", "shoal.systems", LAYERS),
    ("faults", "shoal.experiment", LAYERS),
    ("report", "shoal.web", LAYERS),
    ("control", "shoal.experiment", LAYERS),
    ("web", "shoal.control", "the page reads files and knows no running system"),
    ("control", "shoal.cli", LAYERS),
    ("audit", "shoal.wire", "the leaves do not import each other"),
    ("web", "shoal.mirror", "the page reads files and knows no running system"),
    ("workers", "pyspark.sql", "only the pipeline imports pyspark"),
    ("client", "numpy", "brokers, the client and the mirror need no numpy, Arrow or compiler"),
    ("lite.base", "shoal.lite.storage", LITE_LAYERS),
    ("lite.storage", "shoal.lite.partitions.partition", LITE_LAYERS),
    ("lite.broker", "shoal.lite.api.table", LITE_LAYERS),
    (
        "lite.api",
        "shoal.lite.partitions.admission.batch_rules",
        "writers ask admission for its decisions, not for single rules",
    ),
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


def plant(source: Path, package: str, number: int, imported: str) -> str:
    """Add a module with one import, and return how it is reported."""
    folder = source.joinpath("shoal", *package.split("."))
    (folder / f"planted_{number}.py").write_text(f'"""Planted."""\n\nimport {imported}\n')
    # External packages are reported by their first name.
    named = imported if imported.startswith("shoal") else imported.partition(".")[0]
    return f"shoal.{package}.planted_{number} -> {named} "


def test_each_planted_import_is_refused_by_its_contract(copied_source: Path) -> None:
    expected = [
        (contract, plant(copied_source, package, number, imported))
        for number, (package, imported, contract) in enumerate(PLANTS)
    ]
    outcome = lint_imports(copied_source)
    assert outcome.returncode == 1
    # Below its heading, underlined, each broken contract has the imports that break it.
    sections = re.split(r"\n([^\n]+)\n-+\n", outcome.stdout.partition("Broken contracts")[2])
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    missing = [(contract, line) for contract, line in expected if line not in found[contract]]
    assert missing == []


@pytest.mark.parametrize("parent", ["", "lite"])
def test_a_package_without_a_layer_is_refused(copied_source: Path, parent: str) -> None:
    folder = copied_source / "shoal" / parent / "planted"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Planted."""\n')
    outcome = lint_imports(copied_source)
    assert outcome.returncode == 1
    assert "planted" in outcome.stdout
