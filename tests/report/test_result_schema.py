"""The published schema of `result.json`: current, and true of real results."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from shoal.model.findings import Verdict
from support.formats.stored import unpack
from support.web_runs import build_result

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import result_schema  # type: ignore[import-not-found]  # noqa: E402

PUBLISHED = ROOT / "docs" / "reference" / "result.schema.json"


def problems_of(schema: dict[str, Any], result: Any) -> list[str]:
    Draft202012Validator.check_schema(schema)
    found = Draft202012Validator(schema).iter_errors(result)
    return [f"{error.json_path}: {error.message:.200}" for error in found]


def test_the_published_schema_is_current() -> None:
    script = ROOT / "scripts" / "result_schema.py"
    checked = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", ["run", "sweep"])
def test_stored_results_of_real_runs_match_it(tmp_path: Path, name: str) -> None:
    folder = unpack(name, tmp_path / "stored")
    results = [
        content
        for file in folder.rglob("result.json")
        if "worst_group" in (content := json.loads(file.read_text()))
    ]
    assert results
    published = json.loads(PUBLISHED.read_text())
    for result in results:
        assert problems_of(published, result) == []


@pytest.mark.parametrize("verdict", list(Verdict))
def test_it_has_every_field_that_is_written(verdict: Verdict) -> None:
    result = build_result("r", verdict, "t").to_json()
    assert problems_of(result_schema.describe_result(is_strict=True), result) == []


def test_it_refuses_what_is_not_a_result() -> None:
    published = json.loads(PUBLISHED.read_text())
    result = build_result("r", Verdict.VIOLATED, "t").to_json()
    assert problems_of(published, result | {"added later": 1}) == []
    changes: list[dict[str, Any]] = [
        {"verdict": "fine"},
        {"format": 2},
        {"groups": []},
        {"thresholds": [{}]},
    ]
    for change in changes:
        assert problems_of(published, result | change), change
    del result["metrics"]
    assert problems_of(published, result)
