"""Writes what is made from the table of metrics: reference page, dashboard, rules.

python scripts/prometheus_files.py           writes the files
python scripts/prometheus_files.py --check   says which of them are out of date
"""

import argparse
import json
import sys
from pathlib import Path

from shoal.generate.alerts import build_rules, render_rules
from shoal.generate.grafana import build_dashboard
from shoal.telemetry.definitions import METRICS, Metric
from shoal.telemetry.dialects import kafka_exporter, strimzi, strimzi_mirrors

ROOT = Path(__file__).resolve().parents[1]
_HEADER = "<!-- Written by scripts/prometheus_files.py; change the table instead. -->"
_INTRODUCTION = (
    "How to use them: [dashboards](../guides/dashboards.md). A counter starts at 0 when its "
    "process starts. Histograms are classic ones, with at most 16 buckets."
)
_SUBJECTS = {
    "cluster": "Cluster: once for each cluster",
    "broker": "Brokers",
    "group": "Consumer groups",
    "mirror": "Mirrors: `shoal mirror run --metrics-port`",
    "run": "Runs: `shoal run --metrics-port`",
}
_DIALECTS = {
    "/metrics/kafka-exporter` of a cluster": kafka_exporter.METRICS,
    "/metrics/strimzi` of a cluster": strimzi.METRICS,
    "/metrics/strimzi` of a mirror": strimzi_mirrors.METRICS,
}


def render_page() -> str:
    lines = [
        "# Prometheus metrics",
        "",
        _HEADER,
        "",
        _INTRODUCTION,
    ]
    for subject, title in _SUBJECTS.items():
        metrics = [each for each in METRICS.values() if each.subject == subject]
        if metrics:
            lines += ["", f"## {title}", "", *_table(metrics)]
    lines += [
        "",
        "## Alerts and recording rules",
        "",
        "| name | severity | when |",
        "|---|---|---|",
    ]
    for rule in build_rules():
        severity = rule.severity or "recording"
        lines.append(f"| `{rule.name}` | {severity} | {rule.summary} |")
    for path, metrics_by_name in _DIALECTS.items():
        lines += ["", f"## Dialect `{path}", ""]
        lines.append(", ".join(f"`{name}`" for name in metrics_by_name) + ".")
    return "\n".join(lines) + "\n"


def _table(metrics: list[Metric]) -> list[str]:
    lines = ["| name | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    for each in metrics:
        labels = ", ".join(each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {each.unit} | {labels} | {each.help} |")
    return lines


def render_all() -> dict[Path, str]:
    """The content of every generated file."""
    return {
        ROOT / "docs/reference/prometheus.md": render_page(),
        ROOT / "docs/prometheus/dashboard.json": json.dumps(build_dashboard(), indent=1) + "\n",
        ROOT / "docs/prometheus/rules.yml": render_rules(build_rules()),
    }


def find_outdated() -> list[Path]:
    return [
        path
        for path, text in render_all().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    outdated = find_outdated()
    for path in outdated:
        print(f"{'out of date' if is_check else 'wrote'}: {path.relative_to(ROOT)}")
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render_all()[path], encoding="utf-8")
    return 1 if is_check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
