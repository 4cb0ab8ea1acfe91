"""Alert and recording rules over the native metrics, as data; `render_rules` writes them as YAML.

Rules:
- Every expression uses metrics of the table (`definitions`) or recorded series only.
- Losses are alerted at once: they are certain.
- Availability is alerted by burn rate over two windows each, as in Google's SRE workbook: the
  longer one says that it matters, the shorter one that it still happens.
"""

from dataclasses import dataclass
from typing import Final

# The share of produce requests that may fail.
_BUDGET: Final = 0.001
_FAILED: Final = "shoal:produce_errors:ratio_rate"
# How much faster than allowed the budget burns; both windows; how urgent.
_BURN_RATES: Final = (
    (14.4, "1h", "5m", "page"),
    (6.0, "6h", "30m", "page"),
    (1.0, "3d", "6h", "ticket"),
)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An alert, or a recorded series if it has no severity."""

    name: str
    expression: str
    summary: str
    severity: str = ""
    for_: str = ""


def build_rules() -> list[AlertRule]:
    return [
        *_list_recording_rules(),
        *_availability(),
        *_cluster(),
        *_groups(),
        *_mirrors(),
        *_runs(),
    ]


def _list_recording_rules() -> list[AlertRule]:
    windows = dict.fromkeys(window for _, *both, _ in _BURN_RATES for window in both)
    failed = "shoal_broker_failed_produce_requests_total"
    attempted = "shoal_broker_produce_requests_total"
    rates = [
        AlertRule(
            f"{_FAILED}{window}",
            f"sum(rate({failed}[{window}])) / (sum(rate({attempted}[{window}])) > 0)",
            f"share of refused partitions in Produce requests over {window}",
        )
        for window in windows
    ]
    return [
        *rates,
        AlertRule(
            "shoal:group_lag_records:sum",
            "sum by (group, topic) (shoal_group_lag_records)",
            "lag of a group in a topic",
        ),
        AlertRule(
            "shoal:mirror_lag_records:sum",
            "sum by (mirror) (shoal_mirror_lag_records)",
            "lag of a mirror",
        ),
    ]


def _availability() -> list[AlertRule]:
    return [
        AlertRule(
            f"ShoalProduceErrorsBurn{long.title()}",
            f"{_FAILED}{long} > {factor * _BUDGET:g} and {_FAILED}{short} > {factor * _BUDGET:g}",
            f"producers are refused at {factor:g} times the error budget of {_BUDGET:.1%}, over "
            f"{long} and {short}",
            severity,
        )
        for factor, long, short, severity in _BURN_RATES
    ]


def _cluster() -> list[AlertRule]:
    return [
        AlertRule(
            "ShoalBrokerDown",
            "shoal_broker_up == 0",
            "a broker does not serve",
            "ticket",
            "1m",
        ),
        AlertRule(
            "ShoalOfflinePartitions",
            "shoal_offline_partitions > 0",
            "partitions have no leader",
            "page",
            "1m",
        ),
        AlertRule(
            "ShoalUnderMinIsrPartitions",
            "shoal_under_min_isr_partitions > 0",
            "partitions refuse acks=all: too few replicas are in sync",
            "page",
            "1m",
        ),
        AlertRule(
            "ShoalUnderReplicatedPartitions",
            "shoal_under_replicated_partitions > 0",
            "partitions lack in-sync replicas",
            "ticket",
            "5m",
        ),
        AlertRule(
            "ShoalUncleanElection",
            "increase(shoal_unclean_leader_elections_total[10m]) > 0",
            "a replica that may lack acknowledged records was elected",
            "page",
        ),
        AlertRule(
            "ShoalNoActiveController",
            "shoal_controller_active < 0",
            "no controller is active: partitions do not fail over",
            "page",
            "1m",
        ),
        AlertRule(
            "ShoalBackgroundFailures",
            "increase(shoal_broker_background_failures_total[10m]) > 0",
            "background work of a broker failed unexpectedly; see its log",
            "ticket",
        ),
    ]


def _groups() -> list[AlertRule]:
    return [
        AlertRule(
            "ShoalGroupStuck",
            "min_over_time(shoal:group_lag_records:sum[15m]) > 0 and "
            "sum by (group, topic) (changes(shoal_group_committed_offset[15m])) == 0",
            "a group has lag and has committed nothing for 15 minutes",
            "ticket",
        ),
    ]


def _mirrors() -> list[AlertRule]:
    return [
        AlertRule(
            "ShoalMirrorLagging",
            "max by (mirror) (shoal_mirror_lag_seconds) > 300",
            "a mirror is more than 5 minutes behind",
            "ticket",
            "5m",
        ),
        AlertRule(
            "ShoalMirrorStuck",
            "min_over_time(shoal:mirror_lag_records:sum[10m]) > 0 and "
            "increase(shoal_mirror_records_total[10m]) == 0 and shoal_mirror_paused == 0",
            "a mirror has lag and has copied nothing for 10 minutes",
            "page",
        ),
        AlertRule(
            "ShoalMirrorParked",
            "shoal_mirror_parked_partitions > 0",
            "partitions of a mirror are not copied until somebody acts",
            "page",
        ),
        AlertRule(
            "ShoalMirrorLostRecords",
            "increase(shoal_mirror_lost_offsets_total[10m]) > 0",
            "the source deleted records before they were copied",
            "page",
        ),
        AlertRule(
            "ShoalMirrorDisplaced",
            "increase(shoal_mirror_displaced_batches_total[10m]) > 0",
            "another producer writes to a target of the mirror",
            "ticket",
        ),
    ]


def _runs() -> list[AlertRule]:
    return [
        AlertRule(
            "ShoalRecordsLost",
            "shoal_records_lost_total > 0",
            "acknowledged records were certainly lost",
            "page",
        ),
    ]


def render_rules(rules: list[AlertRule]) -> str:
    """The rules as a file of Prometheus, in YAML."""
    lines = [
        "# Written by shoal generate alerts.",
        "groups:",
    ]
    for title, is_alert in (("shoal-recorded", False), ("shoal-alerts", True)):
        lines += [f"- name: {title}", "  rules:"]
        for rule in rules:
            if bool(rule.severity) == is_alert:
                lines += _alert(rule) if is_alert else _recording(rule)
    return "\n".join(lines) + "\n"


def _recording(rule: AlertRule) -> list[str]:
    return [f"  - record: {rule.name}", f"    expr: {_quote(rule.expression)}"]


def _alert(rule: AlertRule) -> list[str]:
    lines = [f"  - alert: {rule.name}", f"    expr: {_quote(rule.expression)}"]
    if rule.for_:
        lines.append(f"    for: {rule.for_}")
    lines += ["    labels:", f"      severity: {rule.severity}"]
    return [*lines, "    annotations:", f"      summary: {_quote(rule.summary)}"]


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
