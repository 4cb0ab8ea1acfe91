"""A Grafana dashboard of the native metrics, as JSON values.

Every panel names metrics of the table (`definitions`), and gets their unit from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from shoal.telemetry.definitions import METRICS

_WIDTH: Final = 24
_UNITS: Final = {"bytes": "bytes", "seconds": "s", "ratio": "percentunit"}
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: `metric` gives its unit, `kind` is stat or timeseries."""

    title: str
    metric: str
    expression: str
    legend: str = ""
    kind: str = "timeseries"
    # A counter is shown as its rate.
    is_rate: bool = False


def _stat(title: str, metric: str, expression: str | None = None) -> Panel:
    return Panel(title, metric, expression or f"sum({metric})", kind="stat")


def _rate(title: str, metric: str, by: str) -> Panel:
    expression = f"sum by ({by}) (rate({metric}[$__rate_interval]))"
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Panel(title, metric, expression, legend, is_rate=True)


def _gauge(title: str, metric: str, by: str) -> Panel:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Panel(title, metric, f"max by ({by}) ({metric})", legend)


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Cluster": (
        _stat("Brokers that serve", "shoal_broker_up"),
        _stat("Offline partitions", "shoal_offline_partitions"),
        _stat("Under-replicated partitions", "shoal_under_replicated_partitions"),
        _stat("Partitions below min.insync.replicas", "shoal_under_min_isr_partitions"),
        _stat("Active controller", "shoal_controller_active", "max(shoal_controller_active)"),
        _stat("Unclean elections", "shoal_unclean_leader_elections_total"),
    ),
    "Traffic": (
        _rate("Bytes in", "shoal_broker_bytes_in_total", "topic"),
        _rate("Bytes out", "shoal_broker_bytes_out_total", "topic"),
        _rate("Records in", "shoal_broker_records_in_total", "topic"),
        _rate("Refused Produce requests", "shoal_broker_failed_produce_requests_total", "topic"),
        _rate("Requests", "shoal_broker_requests_total", "api"),
        _gauge("Connections", "shoal_broker_connections", "broker"),
    ),
    "Consumer groups": (
        Panel("Lag", "shoal_group_lag_records",
              "sum by (group, topic) (shoal_group_lag_records)", "{{group}} {{topic}}"),
        _gauge("Members", "shoal_group_members", "group"),
    ),
    "Mirrors": (
        Panel("Lag", "shoal_mirror_lag_records",
              "sum by (mirror) (shoal_mirror_lag_records)", "{{mirror}}"),
        _gauge("Lag in time", "shoal_mirror_lag_seconds", "mirror"),
        Panel("Replication latency, p99", "shoal_mirror_replication_latency_seconds",
              "histogram_quantile(0.99, sum by (mirror, le) "
              "(rate(shoal_mirror_replication_latency_seconds_bucket[$__rate_interval])))",
              "{{mirror}}"),
        _rate("Records copied", "shoal_mirror_records_total", "mirror"),
        _rate("Bytes copied", "shoal_mirror_bytes_total", "mirror"),
        _gauge("Parked partitions", "shoal_mirror_parked_partitions", "mirror"),
    ),
    "Runs": (
        Panel("Records sent", "shoal_records_produced_total",
              "sum(rate(shoal_records_produced_total[$__rate_interval]))", is_rate=True),
        Panel("Records delivered", "shoal_records_consumed_total",
              "sum(rate(shoal_records_consumed_total[$__rate_interval]))", is_rate=True),
        Panel("Records not delivered yet", "shoal_records_missing", "max(shoal_records_missing)"),
        Panel("Records lost", "shoal_records_lost_total", "sum(shoal_records_lost_total)"),
    ),
    "Brokers": (
        _rate("CPU", "shoal_broker_cpu_seconds_total", "broker"),
        _gauge("Memory", "shoal_broker_resident_memory_bytes", "broker"),
        Panel("Logs", "shoal_broker_log_size_bytes",
              "sum by (broker) (shoal_broker_log_size_bytes)", "{{broker}}"),
        _gauge("Longest hold of the event loop", "shoal_broker_longest_hold_seconds", "broker"),
    ),
}  # fmt: skip


def build_dashboard() -> dict[str, Any]:
    """The dashboard, for Grafana's import."""
    return {
        "title": "Shoal",
        "uid": "shoal",
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    y, number = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield _place(number, "row", title, (0, y, _WIDTH, 1))
        y += 1
        width, height = (4, 4) if panels[0].kind == "stat" else (8, 8)
        for index, panel in enumerate(panels):
            number += 1
            x = index * width % _WIDTH
            place = (x, y + index * width // _WIDTH * height, width, height)
            yield _place(number, panel.kind, panel.title, place) | _content(panel)
        y += -(-len(panels) * width // _WIDTH) * height


def _place(number: int, kind: str, title: str, place: tuple[int, int, int, int]) -> dict[str, Any]:
    grid = dict(zip(("x", "y", "w", "h"), place, strict=True))
    return {"id": number, "type": kind, "title": title, "gridPos": grid}


def _content(panel: Panel) -> dict[str, Any]:
    metric = METRICS[panel.metric]
    unit = _UNITS.get(metric.unit, "short")
    if panel.is_rate:
        unit = {"bytes": "Bps", "s": "percentunit"}.get(unit, "ops")
    target = {"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}
    return {
        "description": metric.help,
        "datasource": _DATASOURCE,
        "targets": [target | {"datasource": _DATASOURCE}],
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
    }
