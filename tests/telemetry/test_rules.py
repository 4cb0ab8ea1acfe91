"""The alert rules, judged by promtool: which alerts fire, and which do not."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

RULES = Path(__file__).parents[2] / "docs" / "prometheus" / "rules.yml"

# Series by name with labels; values in promtool's notation, one for each minute; expected alerts
# after so many minutes.
_CASES: dict[str, tuple[dict[str, str], int, set[str]]] = {
    "healthy": (
        {
            'shoal_broker_up{broker="1"}': "1x100",
            "shoal_offline_partitions": "0x100",
            "shoal_under_replicated_partitions": "0x100",
            "shoal_controller_active": "100x100",
            'shoal_broker_produce_requests_total{broker="1",topic="a"}': "0+600x100",
            'shoal_broker_failed_produce_requests_total{broker="1",topic="a"}': "0x100",
        },
        90,
        set(),
    ),
    "offline": ({"shoal_offline_partitions": "0x10 2x20"}, 15, {"ShoalOfflinePartitions"}),
    "short-outage": ({"shoal_offline_partitions": "0x10 2 0x20"}, 15, set()),
    "broker-down": ({'shoal_broker_up{broker="2"}': "0x10"}, 5, {"ShoalBrokerDown"}),
    "no-controller": ({"shoal_controller_active": "-1x10"}, 5, {"ShoalNoActiveController"}),
    "under-replicated": (
        {"shoal_under_replicated_partitions": "3x20"}, 10, {"ShoalUnderReplicatedPartitions"},
    ),
    "unclean": (
        {"shoal_unclean_leader_elections_total": "0x10 1x5"}, 12, {"ShoalUncleanElection"},
    ),
    # 5 % of the requests fail: 50 times the budget, in both windows of the fast burn.
    "fast-burn": (
        {
            'shoal_broker_produce_requests_total{broker="1",topic="a"}': "0+1000x600",
            'shoal_broker_failed_produce_requests_total{broker="1",topic="a"}': "0+50x600",
        },
        500,
        {"ShoalProduceErrorsBurn1H", "ShoalProduceErrorsBurn6H", "ShoalProduceErrorsBurn3D"},
    ),
    # It has ended: the long windows still show it, the short ones do not.
    "burn-that-ended": (
        {
            'shoal_broker_produce_requests_total{broker="1",topic="a"}': "0+1000x600",
            'shoal_broker_failed_produce_requests_total{broker="1",topic="a"}': "0+50x100 5000x500",
        },
        135,
        {"ShoalProduceErrorsBurn3D"},
    ),
    "group-stuck": (
        {
            'shoal_group_lag_records{group="g",topic="a",partition="0"}': "5x60",
            'shoal_group_committed_offset{group="g",topic="a",partition="0"}': "7x60",
        },
        40,
        {"ShoalGroupStuck"},
    ),
    "group-moves": (
        {
            'shoal_group_lag_records{group="g",topic="a",partition="0"}': "5x60",
            'shoal_group_committed_offset{group="g",topic="a",partition="0"}': "7+1x60",
        },
        40,
        set(),
    ),
    "mirror-lags": (
        {'shoal_mirror_lag_seconds{mirror="m",topic="a",partition="0"}': "400x20"},
        10,
        {"ShoalMirrorLagging"},
    ),
    "mirror-stuck": (
        {
            'shoal_mirror_lag_records{mirror="m",topic="a",partition="0"}': "9x40",
            'shoal_mirror_records_total{mirror="m"}': "100x40",
            'shoal_mirror_paused{mirror="m"}': "0x40",
        },
        30,
        {"ShoalMirrorStuck"},
    ),
    "mirror-parked": (
        {'shoal_mirror_parked_partitions{mirror="m"}': "1x5"}, 2, {"ShoalMirrorParked"},
    ),
    "mirror-lost": (
        {'shoal_mirror_lost_offsets_total{mirror="m"}': "0x5 8x5"}, 7, {"ShoalMirrorLostRecords"},
    ),
    "lost": ({"shoal_records_lost_total": "0x5 1x5"}, 7, {"ShoalRecordsLost"}),
}  # fmt: skip


def _all_alerts() -> list[str]:
    lines = RULES.read_text().splitlines()
    return [line.partition("alert: ")[2] for line in lines if "- alert: " in line]


def _test_file(name: str) -> dict[str, Any]:
    series, minutes, fired = _CASES[name]
    expressions = [
        {
            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
            "eval_time": f"{minutes}m",
            "exp_samples": [{"value": int(alert in fired)}],
        }
        for alert in _all_alerts()
    ]
    return {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": each, "values": values} for each, values in series.items()
                ],
                "promql_expr_test": expressions,
            }
        ],
    }


@pytest.mark.system("promtool")
@pytest.mark.parametrize("name", _CASES)
def test_exactly_the_expected_alerts_fire(name: str, tmp_path: Path) -> None:
    file = tmp_path / "test.yml"
    file.write_text(json.dumps(_test_file(name)))  # YAML reads JSON
    done = subprocess.run(
        [shutil.which("promtool") or "", "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_or_is_listed() -> None:
    fired = set().union(*(alerts for _, _, alerts in _CASES.values()))
    without = {"ShoalUnderMinIsrPartitions", "ShoalBackgroundFailures", "ShoalMirrorDisplaced"}
    assert set(_all_alerts()) - fired == without
