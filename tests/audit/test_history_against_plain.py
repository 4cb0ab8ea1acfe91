"""Histories in which anything may have happened: the kernels and the second judge agree."""

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.audit import Sizes
from shoal.audit.history.verdict import to_json
from shoal.audit.self_test.plain_judge import PlainJudge
from support.audit.history_chaos import Chaos
from support.audit.history_files import counts, cut_up
from support.sizes import size_cases

pytestmark = pytest.mark.slow

SIZES = [Sizes(), Sizes(rows_per_cell=1, rows_per_walk=1, offsets_per_cell=1), Sizes(5, 4, 3)]


def judge_lines(
    lines: list[dict[str, Any]], sizes: Sizes, block_bytes: int | None = None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return to_json("h", cut_up(Path(folder), lines, sizes, block_bytes=block_bytes))


def check(lines: list[dict[str, Any]], found: dict[str, Any]) -> None:
    plain = PlainJudge(lines)
    assert counts(found) == {name: count for name, (count, _) in plain.findings().items()}
    wanted = plain.metrics()
    assert {name: found["metrics"][name] for name in wanted} == wanted
    assert found["verdict"] == plain.verdict()
    metrics = found["metrics"]
    assert metrics["K"] <= metrics["F"] <= 2 * metrics["K"]


@size_cases("histories", quick=120, long=240)
def test_histories_of_fixed_seeds(histories: int) -> None:
    for seed in range(histories):
        lines = Chaos(Random(seed)).history()
        check(lines, judge_lines(lines, SIZES[seed % 4 % 3], (None, 400, 9000)[seed % 3]))


@size_cases("histories", quick=30, long=60)
def test_long_histories_are_read_as_short_ones_are(histories: int) -> None:
    """Their results are equal, down to every witness."""
    for seed in range(240, 240 + histories):
        lines = Chaos(Random(seed)).history()
        assert judge_lines(lines, SIZES[0], 600) == judge_lines(lines, SIZES[0])


@given(seed=st.integers(min_value=1000), sizes=st.sampled_from(SIZES))
def test_any_history(seed: int, sizes: Sizes) -> None:
    lines = Chaos(Random(seed)).history()
    check(lines, judge_lines(lines, sizes))


@given(seed=st.integers(min_value=0))
def test_only_the_order_of_receipts_matters(seed: int) -> None:
    random = Random(seed)
    lines = [line for line in Chaos(random).history() if not line.get("txn")]
    ahead = [line for line in lines if line["kind"] == "run"]
    receipts = [line for line in lines if line["kind"] == "receive"]
    rest = [line for line in lines if line["kind"] not in ("run", "receive")]
    shuffled = [*rest, *receipts]
    random.shuffle(shuffled)
    again = iter(receipts)
    shuffled = [next(again) if line["kind"] == "receive" else line for line in shuffled]
    first, second = ([*ahead, *rest, *receipts], [*ahead, *shuffled])
    keyless = [
        [{k: v for k, v in line.items() if k != "key"} for line in h] for h in (first, second)
    ]
    assert judge_lines(keyless[0], SIZES[0]) == judge_lines(keyless[1], SIZES[0])
