"""The tables of the page about performance are those of the stored results."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "performance_tables.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance_tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_stored_results(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert page == script.fill_page(page), "run scripts/performance_tables.py"


def test_the_page_has_one_table_for_each_stored_result(script: ModuleType) -> None:
    tables = script.list_tables(script.PAGE.read_text(encoding="utf-8"))
    assert sorted(tables) == sorted(path.stem for path in script.RESULTS.glob("*.json"))
