"""Thresholds: names, signs, what is infinite, what cannot be known, and bad expressions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.audit.history.verdict import judge_history
from shoal.audit.result.thresholds import hold, parse, values_of, worst_group
from shoal.model.errors import UsageError
from shoal.model.findings import Verdict
from shoal.model.result import GroupResult, Latency, Metrics, Result
from support.audit.history_files import DRAINED, receive, run, send, write

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


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
    assert hold(result, parse([text])).missed == []


@pytest.mark.parametrize("text", MISSED)
def test_what_is_lost_is_infinitely_late_and_what_is_unknown_meets_nothing(
    text: str, result: Result
) -> None:
    [miss] = hold(result, parse([text])).missed
    [sentence] = miss.sentences()
    assert sentence.startswith(f"{text}: ")
    assert "inf" not in sentence.removeprefix(text)


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("latency_ms_p98<2", "is not the name of a metric", "latency_ms_p9"),
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


def group_of(p99_us: int, *, verdict: Verdict = Verdict.PROVEN, lost: int = 0) -> GroupResult:
    latency = Latency(
        100, 0, 5.0, p99_us * 2, {"p50": 1000, "p99": p99_us}, lost, {"p50": 1000, "p99": None}
    )
    return GroupResult(
        verdict, "", metrics=Metrics(lost=lost, latency_us={"e2e_intended": latency})
    )


def result_of(**groups: GroupResult) -> Result:
    found = Result(run="r", worst_group=min(groups), groups=groups)
    return replace(found, worst_group=worst_group(found))


@pytest.mark.parametrize(
    ("groups", "worst"),
    [
        ({"a": group_of(10), "b": group_of(20)}, "b"),
        ({"a": group_of(20), "b": group_of(10)}, "a"),
        ({"a": group_of(10), "b": group_of(10)}, "a"),
        ({"a": group_of(99), "b": group_of(1, verdict=Verdict.INCONCLUSIVE)}, "b"),
        (
            {
                "a": group_of(99, verdict=Verdict.VIOLATED, lost=1),
                "b": group_of(1, verdict=Verdict.VIOLATED, lost=2),
            },
            "b",
        ),
        ({"a": GroupResult.empty(), "b": group_of(1)}, "a"),
    ],
)
def test_the_headline_is_the_worst_group(groups: dict[str, GroupResult], worst: str) -> None:
    assert result_of(**groups).worst_group == worst


def test_a_missed_threshold_names_its_group_and_makes_it_the_headline() -> None:
    result = result_of(fast=group_of(10_000), slow=group_of(300_000))
    held = hold(result, parse(["latency_ms_p99<250", "latency_us_p50<2000", "lost<1"]))
    assert [each.text for each in held.missed] == ["latency_ms_p99<250"]
    assert held.missed[0].sentences() == ["latency_ms_p99<250: latency_ms_p99 is 300 in group slow"]
    # The slowest is the headline, unless another one misses more.
    assert held.worst_group == "slow"
    assert hold(result, parse(["latency_us_p99>250000"])).worst_group == "fast"


def test_thresholds_are_written_down_and_read_again() -> None:
    result = result_of(all=group_of(10, verdict=Verdict.VIOLATED, lost=5))
    held = hold(result, parse(["latency_ms_p99<250", "lost<9"]))
    as_json = json.loads(json.dumps(held.to_json(), allow_nan=False))
    assert as_json["thresholds"][0] == {
        "threshold": "latency_ms_p99<250",
        "metric": "latency_ms_p99",
        "met": False,
        "values": {"all": "never"},
        "missed_by": ["all"],
    }
    assert as_json["thresholds"][1]["met"] is True
    assert Result.from_json(as_json).thresholds == held.thresholds
    assert held.missed[0].sentences() == ["latency_ms_p99<250: latency_ms_p99 is never"]
