"""The metrics of `shoal run`: counters that continue, losses only when they are certain."""

import urllib.request
from dataclasses import replace
from typing import Any
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.experiment.metrics import RunMetrics, serve_run_metrics
from shoal.experiment.run import LatencyExample, RunProgress, sum_latencies
from shoal.model.errors import SystemFailure
from shoal.model.findings import Verdict
from shoal.model.result import GroupResult, Metrics, Result
from shoal.telemetry.definitions import LATENCY_BOUNDS_US, METRICS
from shoal.telemetry.http_port import EndpointSpec
from shoal.telemetry.samples import merge
from shoal.telemetry.text import TextWriter

_BUCKETS = len(LATENCY_BOUNDS_US) + 1


def _progress(sent: int) -> RunProgress:
    latencies = {"produce": [sent] + [0] * (_BUCKETS - 1) + [sent * 500]}
    return RunProgress(
        "sending", sent=sent, received=sent - 3, total=100, acked=sent - 1, failed=1, missing=2,
        latencies=latencies,
    )  # fmt: skip


def _values(metrics: RunMetrics) -> dict[str, float]:
    families = merge({}, metrics.collect())
    assert set(families) <= set(METRICS)
    return {name: samples[0][1] for name, samples in families.items()}


def _result(lost: int) -> Result:
    verdict = Verdict.VIOLATED if lost else Verdict.PROVEN
    return Result("run", "g", {"g": GroupResult(verdict, "", metrics=Metrics(lost_ok=lost))})


def test_counters_continue_over_runs_and_losses_appear_with_a_verdict() -> None:
    metrics = RunMetrics()
    metrics.begin("one")
    metrics.on_progress(RunProgress("starting the workers"))
    metrics.on_progress(_progress(10))
    first = _values(metrics)
    assert (first["shoal_records_produced_total"], first["shoal_records_missing"]) == (10, 2)
    assert "shoal_records_lost_total" not in first
    metrics.end(_result(0))
    assert _values(metrics)["shoal_records_lost_total"] == 0
    metrics.begin("two")
    metrics.on_progress(_progress(20))
    second = _values(metrics)
    assert second["shoal_records_produced_total"] == 30
    assert second["shoal_records_acked_total"] == 28
    metrics.end(_result(5))
    assert _values(metrics)["shoal_records_lost_total"] == 5
    (_, histogram) = merge({}, metrics.collect())["shoal_records_produce_latency_seconds"][0]
    assert sum(histogram.counts) == 30
    assert histogram.total == pytest.approx(0.015)


def test_latencies_of_workers_are_added() -> None:
    reports: list[dict[str, Any]] = [
        {"produce_latency": [1, 2, 30]},
        {"produce_latency": [0, 5, 7]},
        {"group": "g"},
    ]
    assert sum_latencies(reports) == {"produce": [1, 7, 37]}


def test_a_bucket_names_a_message_whose_life_can_be_shown() -> None:
    metrics = RunMetrics()
    metrics.begin("20261118-run")
    counts = [0] * _BUCKETS + [0]
    counts[3] = 7
    example = LatencyExample("orders", "p-1", 2, 1000, 7_500, 1_700_000_000_000_000)
    too_long = example._replace(topic="t" * 120)
    step = RunProgress("sending", total=9, latencies={"end_to_end": counts})
    for named, is_shown in ((example, True), (too_long, False)):
        metrics.on_progress(replace(step, examples={3: named}))
        page = "".join(TextWriter(METRICS).render(merge({}, metrics.collect()), is_open=True))
        wanted = (
            '{run="20261118-run",topic="orders",producer="p-1",lane="2",sequence="1000"} 0.0075'
        )
        assert (f"# {wanted}" in page) == is_shown


def test_metrics_are_served_while_the_block_runs() -> None:
    ports: list[int] = []
    metrics = RunMetrics()
    with serve_run_metrics(EndpointSpec(0), metrics, ports.append):
        url = f"http://127.0.0.1:{ports[0]}/metrics"
        with urllib.request.urlopen(url) as answer:
            text = answer.read().decode()
        names = {family.name for family in text_string_to_metric_families(text)}
        assert "shoal_records_missing" in names
        with (
            pytest.raises(SystemFailure, match="cannot serve"),
            serve_run_metrics(EndpointSpec(ports[0]), metrics, ports.append),
        ):
            pass
    with pytest.raises(URLError):
        urllib.request.urlopen(url)


def test_without_a_port_nothing_is_served() -> None:
    ports: list[int] = []
    with serve_run_metrics(None, RunMetrics(), ports.append):
        assert ports == []
