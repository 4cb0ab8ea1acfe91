"""Prometheus and Grafana for what Shoal exposes: scrape configuration, rules, dashboard."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal.generate.alerts import build_rules, render_rules
from shoal.generate.files import Files, GeneratedFile
from shoal.generate.grafana import build_dashboard
from shoal.generate.plan import METRICS_PORT
from shoal.generate.yaml_text import to_yaml
from shoal.model.errors import UsageError

RULES_FILE: Final = "rules.yml"
_SCRAPE_EVERY: Final = "15s"
_COMMENT: Final = """\
prometheus --config.file={name}
Each address is a --metrics-port of Shoal. For dashboards that expect other names:
metrics_path /metrics/kafka-exporter or /metrics/strimzi."""


@dataclass(frozen=True, slots=True)
class ScrapePlan:
    """The endpoints to scrape, each HOST:PORT, by what they expose."""

    name: str  # of the cluster, as the label `cluster`
    clusters: Sequence[str]
    mirrors: Sequence[str] = ()
    runs: Sequence[str] = ()
    token_file: str = ""

    def __post_init__(self) -> None:
        for address in (*self.clusters, *self.mirrors, *self.runs):
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise UsageError(
                    f"{address!r} is not the address of a metrics port",
                    remedy=f"write it as HOST:PORT, e.g. 127.0.0.1:{METRICS_PORT}",
                )


def generate_prometheus(plan: ScrapePlan) -> Files:
    """prometheus.yml, and the rules that it loads."""
    jobs = [("shoal", plan.clusters), ("shoal-mirrors", plan.mirrors), ("shoal-runs", plan.runs)]
    document = {
        "global": {"scrape_interval": _SCRAPE_EVERY, "evaluation_interval": _SCRAPE_EVERY},
        "rule_files": [RULES_FILE],
        "scrape_configs": [_job(plan, name, targets) for name, targets in jobs if targets],
    }
    text = to_yaml(document, comment=_COMMENT.format(name="prometheus.yml"))
    return {"prometheus.yml": GeneratedFile(text), **generate_alerts()}


def generate_scraping(plan: ScrapePlan) -> Files:
    """The same in a folder, beside the files of the deployment that it scrapes."""
    return {f"prometheus/{name}": file for name, file in generate_prometheus(plan).items()}


def _job(plan: ScrapePlan, name: str, targets: Sequence[str]) -> Mapping[str, Any]:
    labels = {"cluster": plan.name}
    job: dict[str, Any] = {"job_name": name}
    if plan.token_file:
        job["authorization"] = {"credentials_file": plan.token_file}
    return job | {"static_configs": [{"targets": list(targets), "labels": labels}]}


def generate_alerts() -> Files:
    """Recording rules and alerts."""
    return {RULES_FILE: GeneratedFile(render_rules(build_rules()))}


def generate_grafana(prometheus_url: str) -> Files:
    """A dashboard, with the files by which Grafana finds it and its Prometheus at its start."""
    source = {"name": "Prometheus", "type": "prometheus", "url": prometheus_url, "isDefault": True}
    provider = {
        "name": "shoal",
        "type": "file",
        "options": {"path": "/var/lib/grafana/dashboards"},
    }
    return {
        "dashboards/shoal.json": GeneratedFile(json.dumps(build_dashboard(), indent=1) + "\n"),
        "provisioning/datasources/prometheus.yaml": GeneratedFile(
            to_yaml({"apiVersion": 1, "datasources": [source]})
        ),
        "provisioning/dashboards/shoal.yaml": GeneratedFile(
            to_yaml({"apiVersion": 1, "providers": [provider]})
        ),
    }
