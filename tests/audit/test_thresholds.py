"""Thresholds: names, signs, what is infinite, what cannot be known, and bad expressions."""

from pathlib import Path

import pytest

from shoal.audit.history.verdict import judge_history
from shoal.audit.thresholds import misses, parse, values_of
from shoal.model.errors import UsageError
from shoal.model.result import GroupResult, Result
from support.history_files import DRAINED, receive, run, send, write

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def result(tmp_path: Path) -> Result:
    """Ten messages, each 5 ms on its way, of which one is lost."""
    sends = [send(n, acked_us=1000 * n + 300) for n in range(10)]
    return judge_history(write(tmp_path, [run(), *sends, *receive(*range(9)), DRAINED]))


MET = [
    "yield==1",
    "completeness>=0.9",
    "latency_ms_p90<=5",
    "latency_us_p90 == 5000",
    "latency_producer_ms_max<0.301",
    "range_sent_ms==9",
    "lost<2",
    "lost_unlocated<=1",
    "duplicate_target<1",
    "F==0",
    "pending!=1",
    "attempts>9.5",
]
MISSED = ["latency_ms_p99<1e300", "latency_ms_max<inf", "lost==0", "range_output_ms>=0"]


@pytest.mark.parametrize("text", MET)
def test_met(text: str, result: Result) -> None:
    assert misses(result, parse([text])) == []


@pytest.mark.parametrize("text", MISSED)
def test_what_is_lost_is_infinitely_late_and_what_is_unknown_meets_nothing(
    text: str, result: Result
) -> None:
    [miss] = misses(result, parse([text]))
    assert text in str(miss)


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("latency_ms_p98<2", "no metric", "latency_ms_p9"),
        ("latency", "is not a threshold", "latency_ms_p99<250"),
        ("", "is not a threshold", "latency_ms_p99<250"),
        ("yield>high", "is not a number", ""),
        ("yield>nan", "is not a number", ""),
        ("yield=>1", "is not a threshold", "latency_ms_p99<250"),
    ],
)
def test_a_bad_expression_gets_one_clear_message(text: str, reason: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse(["yield>0", text])
    assert remedy in (caught.value.remedy or "")


def test_every_name_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    plain = {
        name
        for name in values_of(GroupResult.empty())
        if not name.startswith(("latency_", "range_", "staleness_"))
    }
    assert not {name for name in plain if f"`{name}`" not in text}
