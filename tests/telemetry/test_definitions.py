"""The table of metrics follows its rules, and what is made from it is current."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.generate.alerts import build_rules
from shoal.generate.grafana import ROWS
from shoal.telemetry.definitions import MAX_BUCKETS, METRICS, Metric
from shoal.telemetry.dialects import kafka_exporter, strimzi, strimzi_mirrors

ROOT = Path(__file__).parents[2]
_BASE_UNITS = ("seconds", "bytes", "ratio")
_NATIVE = re.compile(r"shoal_[a-z_]+")


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_follows_the_rules_of_the_table(metric: Metric) -> None:
    assert re.fullmatch("shoal_[a-z0-9_]+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert "millisecond" not in metric.unit
    assert metric.help.endswith(".")
    stem = metric.name.removesuffix("_total")
    assert metric.unit not in _BASE_UNITS or stem.endswith(f"_{metric.unit}") or "bytes_" in stem
    if metric.kind == "histogram":
        assert len(metric.buckets) + 1 <= MAX_BUCKETS
        assert "partition" not in metric.labels


def test_generated_files_are_current() -> None:
    script = ROOT / "scripts" / "prometheus_files.py"
    checked = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout) == (0, ""), f"run python {script.name}"


def test_rules_and_panels_name_metrics_of_the_table_only() -> None:
    expressions = [rule.expression for rule in build_rules()]
    expressions += [panel.expression for panels in ROWS.values() for panel in panels]
    named = {name for text in expressions for name in _NATIVE.findall(text)}
    histogram_parts = {
        f"{metric.name}_{part}"
        for metric in METRICS.values()
        if metric.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    assert named - set(METRICS) - histogram_parts == set()


def test_a_dialect_has_no_native_name() -> None:
    for metrics in (kafka_exporter.METRICS, strimzi.METRICS, strimzi_mirrors.METRICS):
        assert not any(name.startswith("shoal_") for name in metrics)
