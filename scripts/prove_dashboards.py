"""Judges the metrics by public dashboards: a real Prometheus evaluates all their expressions.

    python scripts/prove_dashboards.py FOLDER [--report docs/proofs/dashboards.md]

FOLDER has Grafana dashboards as JSON. A cluster of three brokers, a mirror and consumer groups
work under load; Prometheus (package `prometheus` of Debian) scrapes them with the labels that the
guide on dashboards describes. An expression has data if its result is not empty. A template
variable without a value would blank a page, so variables are evaluated too.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from shoal.lite.cluster import LiteCluster
from shoal.net.ports import reserve_port
from shoal.telemetry.http_port import EndpointSpec

NAME = "east"
TOPICS = ("orders", "payments")
BROKERS = 3
SCRAPE_EVERY_S = 2
PATIENCE_S = 60.0
_LABELS = {"namespace": "shoal", "strimzi_io_cluster": NAME, "strimzi_io_name": f"{NAME}-kafka"}
# Why expressions have no data, by what they name.
_REASONS = {
    "jvm_": "there is no JVM",
    "container_": "comes from a container runtime",
    "kubelet_": "comes from a kubelet",
    "commit_latency_avg": "controllers do not measure it",
    "mirrorcheckpointconnector": "the mirror does not measure the latency of offset syncs",
    "kafka_producer_buffer_available_bytes": "the mirror has no producer with a buffer",
    "offset_commit_avg_time_ms": "the mirror commits no offsets of Kafka Connect",
    "source_record_active_count": "the mirror has no queue of Kafka Connect",
}


@dataclass(slots=True)
class Judged:
    """What one dashboard gave."""

    name: str
    variables: dict[str, list[str]] = field(default_factory=dict)
    with_data: int = 0
    without: list[tuple[str, str]] = field(default_factory=list)  # title, expression

    @property
    def total(self) -> int:
        return self.with_data + len(self.without)


# What is scraped


@contextmanager
def run_process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def keep_sending(bootstrap: str, ended: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    while not ended.wait(0.05):
        for topic in TOPICS:
            for number in range(20):
                producer.produce(topic, b"x" * 200, key=str(number))
        producer.poll(0)
    producer.flush(PATIENCE_S)


def keep_reading(bootstrap: str, ended: threading.Event) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(list(TOPICS))
    while not ended.is_set():
        consumer.consume(500, 0.2)
    consumer.close()


@contextmanager
def under_load(bootstrap: str) -> Iterator[None]:
    ended = threading.Event()
    threads = [
        threading.Thread(target=work, args=(bootstrap, ended))
        for work in (keep_sending, keep_reading)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def wait_for_url(log: Path) -> str:
    """The address of the metrics that a command has printed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = re.search(r"http://[\d.]+:(\d+)/metrics", log.read_text(errors="replace"))
        if found:
            return f"127.0.0.1:{found[1]}"
        time.sleep(0.2)
    raise SystemExit(f"the mirror did not start: {log.read_text(errors='replace')}")


def scrape_configuration(cluster: str, mirror: str) -> dict[str, Any]:
    def job(name: str, path: str, *targets: tuple[str, dict[str, str]]) -> dict[str, Any]:
        static = [{"targets": [address], "labels": labels} for address, labels in targets]
        return {"job_name": name, "metrics_path": path, "static_configs": static}

    brokers = [
        (
            cluster,
            {
                **_LABELS,
                "__param_node": str(broker),
                "kubernetes_pod_name": f"{NAME}-{broker}",
                "strimzi_io_kind": "Kafka",
                "container": "kafka",
            },
        )
        for broker in range(1, BROKERS + 1)
    ]
    mirrored = {
        **_LABELS,
        "strimzi_io_kind": "KafkaMirrorMaker2",
        "kubernetes_pod_name": f"{NAME}-mirrormaker2-0",
    }
    return {
        "global": {"scrape_interval": f"{SCRAPE_EVERY_S}s", "scrape_timeout": f"{SCRAPE_EVERY_S}s"},
        "scrape_configs": [
            job("shoal", "/metrics", (cluster, {}), (mirror, {})),
            job("kafka-exporter", "/metrics/kafka-exporter", (cluster, _LABELS)),
            job("strimzi", "/metrics/strimzi", *brokers, (mirror, mirrored)),
        ],
    }


# Prometheus


def ask(server: str, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    url = f"http://{server}/api/v1/query?{query}"
    with urllib.request.urlopen(url) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def wait_for_scrapes(server: str, targets: int, seconds: float) -> None:
    """Wait until all targets are up, and then for some more scrapes."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if int(ask(server, "sum(up)")[0]["value"][1]) == targets:
                time.sleep(seconds)
                return
        except (OSError, IndexError):
            pass
        time.sleep(0.5)
    raise SystemExit("Prometheus did not scrape all targets")


# Dashboards


def list_targets(panels: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for panel in panels:
        for target in panel.get("targets", ()):
            if target.get("expr"):
                yield panel.get("title", ""), target["expr"]
        yield from list_targets(panel.get("panels", []))


def fill_in(text: str, variables: dict[str, str]) -> str:
    for name in sorted(variables, key=len, reverse=True):
        text = re.sub(rf"\$\{{{name}\}}|\${name}\b", lambda _, n=name: variables[n], text)
    return re.sub(r"\$__(rate_)?interval", "1m", text)


def find_values(server: str, variable: dict[str, Any], known: dict[str, str]) -> list[str]:
    """The values that Grafana would offer for a template variable."""
    query = variable.get("query")
    text = fill_in(query["query"] if isinstance(query, dict) else str(query), known)
    regex = fill_in((variable.get("regex") or "").strip("/"), known)
    if labels := re.fullmatch(r"label_values\((.*),\s*(\w+)\)", text):
        found = [each["metric"].get(labels[2], "") for each in ask(server, labels[1])]
    else:
        inner = re.fullmatch(r"query_result\((.*)\)", text)
        rows = ask(server, inner[1] if inner else text)
        found = [_as_grafana(row) for row in rows]
    if regex:
        found = [match[1] for each in found if (match := re.search(regex, each))]
    return sorted({each for each in found if each})


def _as_grafana(row: dict[str, Any]) -> str:
    metric = dict(row["metric"])
    name = metric.pop("__name__", "")
    labels = ",".join(f'{label}="{value}"' for label, value in metric.items())
    return f"{name}{{{labels}}} {row['value'][1]}"


def judge(server: str, path: Path) -> Judged:
    dashboard = json.loads(path.read_text())
    judged, chosen = Judged(path.name), {}
    for variable in dashboard.get("templating", {}).get("list", []):
        if variable.get("type") != "query":
            continue
        values = find_values(server, variable, chosen)
        judged.variables[variable["name"]] = values
        is_several = variable.get("multi") or variable.get("includeAll")
        chosen[variable["name"]] = "|".join(values) if is_several else "".join(values[:1])
    panels = dashboard.get("panels", []) + [
        panel for row in dashboard.get("rows", []) for panel in row.get("panels", [])
    ]
    for title, expression in list_targets(panels):
        if ask(server, fill_in(expression, chosen)):
            judged.with_data += 1
        else:
            judged.without.append((title, expression))
    return judged


def explain(expression: str) -> str:
    return next((why for part, why in _REASONS.items() if part in expression), "UNEXPLAINED")


def render(judged: list[Judged], version: str) -> str:
    total = sum(each.total for each in judged)
    good = sum(each.with_data for each in judged)
    conditions = (
        f"`make prove-dashboards DASHBOARDS=FOLDER`, {datetime.now(UTC):%Y-%m-%d}: a cluster of "
        f"{BROKERS} brokers, a mirror and a consumer group under load, scraped by {version}; "
        f"Python {platform.python_version()}. Of {total} expressions of {len(judged)} dashboards, "
        f"{good} give data."
    )
    lines = ["# Public dashboards", "", conditions, ""]
    lines += ["| dashboard | variables with values | expressions with data |", "|---|---|---|"]
    for each in judged:
        filled = sum(bool(values) for values in each.variables.values())
        of_variables = f"{filled} of {len(each.variables)}"
        lines.append(f"| {each.name} | {of_variables} | {each.with_data} of {each.total} |")
    lines += [
        "",
        "## Without data",
        "",
        "| dashboard | panel | metric | why |",
        "|---|---|---|---|",
    ]
    for each in judged:
        for title, expression in each.without:
            metric = re.search(r"[a-z]+_[a-z_]+(?=\{)", expression)
            shown = metric.group() if metric else expression
            lines.append(f"| {each.name} | {title} | `{shown}` | {explain(expression)} |")
    return "\n".join(lines) + "\n"


def prove(folder: Path, seconds: float) -> list[Judged]:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise SystemExit("prometheus is missing; install it: apt-get install prometheus")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source = stack.enter_context(LiteCluster(BROKERS, name=NAME, metrics=EndpointSpec(0)))
        target = stack.enter_context(LiteCluster(name="west"))
        stack.enter_context(under_load(source.bootstrap))
        command = [sys.executable, "-m", "shoal", "mirror", "run", "--topics", ",".join(TOPICS)]
        command += ["--source-bootstrap-server", source.bootstrap]
        command += ["--target-bootstrap-server", target.bootstrap, "--metrics-port", "0"]
        stack.enter_context(run_process(command, work / "mirror.log"))
        mirror = wait_for_url(work / "mirror.log")
        config = work / "prometheus.yml"
        cluster = f"127.0.0.1:{source.metrics_port}"
        config.write_text(json.dumps(scrape_configuration(cluster, mirror)))  # YAML reads JSON
        with reserve_port("127.0.0.1") as reserved:
            server = f"127.0.0.1:{reserved.getsockname()[1]}"
        command = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={work / 'data'}"]
        command.append(f"--web.listen-address={server}")
        stack.enter_context(run_process(command, work / "prometheus.log"))
        wait_for_scrapes(server, 2 + 1 + BROKERS + 1, seconds)
        return [judge(server, path) for path in sorted(folder.glob("*.json"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to scrape")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    judged = prove(given.folder, given.seconds)
    version = subprocess.run(
        [shutil.which("promtool") or "promtool", "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n", 1)[0]
    number = re.search(r"version ([\w.+~-]+)", version)
    text = render(judged, f"Prometheus {number[1]}" if number else "Prometheus")
    print(text)
    if given.report is not None:
        given.report.write_text(text, encoding="utf-8")
    is_unexplained = any(
        explain(expr) == "UNEXPLAINED" for one in judged for _, expr in one.without
    )
    is_blank = any(not values for one in judged for values in one.variables.values())
    return 1 if is_unexplained or is_blank or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
