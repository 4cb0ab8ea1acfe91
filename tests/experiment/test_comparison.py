"""Runs side by side and sweeps: columns, words, order, and going on after a kill."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.experiment.compare.comparison import JudgedRun, compare
from shoal.experiment.compare.sweep import (
    PlannedRun,
    Sweep,
    SweepFolder,
    conclude,
    parse_vary,
    plan_sweep,
)
from shoal.model.comparison import DIFFERS, EQUAL, NOISE_UNKNOWN, WITHIN_NOISE, Comparison
from shoal.model.errors import ConfigError, UsageError
from shoal.model.findings import Verdict
from shoal.model.result import GroupResult, Latency, Metrics, Result, Series
from shoal.report.side_by_side import sentences


def result_of(name: str, *, p50_us: int = 2000, lost: int = 0, seconds: int = 20) -> Result:
    latency = Latency(1000, 0, float(p50_us), p50_us * 9, {"p50": p50_us, "p99": p50_us * 3})
    wave = [p50_us + second % 3 * 10 for second in range(seconds)]
    group = GroupResult(
        Verdict.VIOLATED if lost else Verdict.PROVEN,
        f"{lost} lost.",
        metrics=Metrics(
            attempts=1000,
            ok=1000,
            lost=lost,
            yield_=1.0,
            harvest=1 - lost / 1000,
            latency_us={"e2e_intended": latency},
        ),
        series=Series(
            0, [50] * seconds, [50] * seconds, list(wave), [3 * us for us in wave], list(wave)
        ),
    )
    return Result(run=name, worst_group="consumers", groups={"consumers": group}, promises={})


def run_of(name: str, settings: dict[str, str] | None = None, **values: int) -> JudgedRun:
    return JudgedRun(Path(name), {"experiment": "x"} | (settings or {}), result_of(name, **values))


def said(comparison: Comparison) -> dict[str, str]:
    return {row.measure.name: row.judged.judgement for row in comparison.rows}


def test_runs_that_are_alike_share_a_column() -> None:
    fast = [run_of(f"fast-{n}", {"acks": "0"}, p50_us=2000 + n * 20) for n in range(4)]
    slow = [run_of(f"slow-{n}", {"acks": "1"}, p50_us=4000 + n * 20) for n in range(4)]
    comparison = compare([fast[0], slow[0], *slow[1:], *fast[1:]])
    assert [column.label for column in comparison.columns] == ["acks 0", "acks 1"]
    assert [len(column.runs) for column in comparison.columns] == [4, 4]
    words = said(comparison)
    assert words["end-to-end latency p50"] == DIFFERS
    assert words["lost"] == words["yield"] == EQUAL
    row = next(row for row in comparison.rows if row.measure.name == "end-to-end latency p50")
    assert row.cell(0) == "2.03 ms (2.00 ms … 2.06 ms)"


def test_noise_between_runs_is_no_difference() -> None:
    one = [run_of(f"one-{n}", {"acks": "0"}, p50_us=us) for n, us in enumerate((2000, 2900, 2400))]
    two = [run_of(f"two-{n}", {"acks": "1"}, p50_us=us) for n, us in enumerate((2600, 2100, 2800))]
    assert said(compare([*one, *two]))["end-to-end latency p50"] == WITHIN_NOISE


@pytest.mark.parametrize("runs", [1, 2])
def test_fewer_than_three_runs_a_side_tell_nothing_of_the_noise(runs: int) -> None:
    one = [run_of(f"a{n}", {"k": "1"}, p50_us=9000 + n, lost=3) for n in range(runs)]
    two = [run_of(f"b{n}", {"k": "2"}, p50_us=2000 + n) for n in range(runs)]
    words = said(compare([*one, *two]))
    assert words["end-to-end latency p50"] == NOISE_UNKNOWN
    assert words["lost"] == NOISE_UNKNOWN
    assert words["yield"] == NOISE_UNKNOWN  # one number everywhere, and too few runs to say so


@pytest.mark.parametrize(
    ("ours", "theirs", "expected", "smallest"),
    [
        # One burst in three runs against none: the runs are too few to tell.
        ([40, 0, 0], [0, 0, 0], NOISE_UNKNOWN, "nothing; 5 runs a side could"),
        ([40, 41, 42], [0, 0, 0], NOISE_UNKNOWN, "nothing; 5 runs a side could"),
        ([40, 3, 9, 1, 5, 7], [0] * 6, DIFFERS, "6 of 6 runs against none of 6"),
        ([400, 0, 0, 0, 0, 0], [0] * 6, WITHIN_NOISE, "5 of 6 runs against none of 6"),
        ([1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], WITHIN_NOISE, "6 of 6 runs against none of 6"),
    ],
)
def test_losses_are_compared_run_by_run(
    ours: list[int], theirs: list[int], expected: str, smallest: str
) -> None:
    runs = [run_of(f"a{n}", {"k": "1"}, p50_us=2000 + n, lost=k) for n, k in enumerate(ours)]
    runs += [run_of(f"b{n}", {"k": "2"}, p50_us=2001 + n, lost=k) for n, k in enumerate(theirs)]
    (row,) = [row for row in compare(runs).rows if row.measure.name == "lost"]
    assert (row.judged.judgement, row.judged.smallest) == (expected, smallest)


def test_the_smallest_effect_that_could_have_shown_is_told() -> None:
    one = [run_of(f"one-{n}", {"k": "0"}, p50_us=us) for n, us in enumerate((2000, 2900, 2400))]
    two = [run_of(f"two-{n}", {"k": "1"}, p50_us=us) for n, us in enumerate((2600, 2100, 2800))]
    (row,) = [
        row for row in compare([*one, *two]).rows if row.measure.name == "end-to-end latency p50"
    ]
    times = float(row.judged.smallest.removesuffix(" times"))
    assert 1.5 < times < 5


def test_latencies_are_those_of_messages_owed() -> None:
    def with_losses(name: str, k: str) -> JudgedRun:
        run = run_of(name, {"k": k}, lost=500)
        group = run.result.groups["consumers"]
        late = replace(
            group.metrics.latency_us["e2e_intended"],
            undelivered=500,
            percentiles_owed={"p50": 9000, "p99": None},
        )
        metrics = replace(group.metrics, latency_us={"e2e_intended": late})
        groups = {"consumers": replace(group, metrics=metrics)}
        return replace(run, result=replace(run.result, groups=groups))

    runs = [with_losses(f"a{n}", "1") for n in range(3)]
    runs += [run_of(f"b{n}", {"k": "2"}, p50_us=2000 + n) for n in range(3)]
    comparison = compare(runs)
    cells = {row.measure.name: row.cell(0) for row in comparison.rows}
    assert cells["end-to-end latency p50"] == "9.00 ms"
    assert cells["end-to-end latency p99"] == "never"
    as_text = json.dumps(comparison.to_json())
    assert "Infinity" not in as_text
    assert '"never"' in as_text


FILE = """
[source]
brokers = 3
[producer]
messages = 100
rate = 1000
idempotent = false
[topics]
name = "swept"
[sweep]
repeat = 2
seed = 9
vary = { "producer.acks" = [0, 1] }
"""


def sweep_of(tmp_path: Path, *varied: str, repeats: int | None = 3, seed: int = 4) -> Sweep:
    file = tmp_path / "swept.toml"
    file.write_text(FILE)
    return plan_sweep(file, (), varied, repeats=repeats, seed=seed)


def test_every_combination_comes_equally_often_in_an_order_by_seed(tmp_path: Path) -> None:
    made = sweep_of(tmp_path, "producer.acks=0,1,all", "in_flight=1,5")
    order = made.order()
    assert len(order) == 18
    assert len({planned.folder for planned in order}) == 18
    assert list(made.parameters) == ["producer.acks", "producer.in_flight"]
    for repeat in (1, 2, 3):
        block = order[6 * (repeat - 1) : 6 * repeat]
        assert {planned.repeat for planned in block} == {repeat}
        assert len({planned.combination for planned in block}) == 6
    assert order == sweep_of(tmp_path, "producer.acks=0,1,all", "in_flight=1,5").order()
    other = sweep_of(tmp_path, "producer.acks=0,1,all", "in_flight=1,5", seed=5)
    assert other.order() != order
    assert other.name != made.name
    spec = made.spec(PlannedRun(("all", "5"), 2, made.settings))
    assert spec.producers.settings["acks"] == -1
    assert spec.producers.settings["max_in_flight"] == 5
    assert spec.topics.name.startswith("swept-acks_all-in_flight_5-")
    assert order[0].describe().startswith("acks ")


def test_a_file_may_say_what_is_varied(tmp_path: Path) -> None:
    file = tmp_path / "swept.toml"
    file.write_text(FILE)
    made = plan_sweep(file, (), (), repeats=None, seed=None)
    assert made.parameters == {"producer.acks": ("0", "1")}
    assert (made.repeats, made.seed) == (2, 9)


@pytest.mark.parametrize("text", ["producer.acks", "=1,2", "producer.acks=", "producer.acks=1,1"])
def test_what_varies_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--vary"):
        parse_vary([text])


def test_a_combination_that_cannot_be_is_refused_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="acks"):
        sweep_of(tmp_path, "producer.acks=0,7").check()
    sweep_of(tmp_path, "producer.acks=0,1").check()


def write_run(folder: Path, state: str, result: Result | None) -> None:
    folder.mkdir()
    names = {"run": folder.name, "state": state, "experiment": "swept"}
    manifest: dict[str, Any] = {"format": 1, **names}
    (folder / "run.json").write_text(json.dumps(manifest))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result.to_json()))


def test_a_sweep_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    made = sweep_of(tmp_path, "producer.acks=0,1", repeats=2)
    order = made.order()
    with SweepFolder(tmp_path / "runs" / made.name, made) as folder:
        write_run(folder.run_dir(order[0]), "finished", result_of("done"))
        write_run(folder.run_dir(order[1]), "interrupted", result_of("cut"))
        write_run(folder.run_dir(order[2]), "finished", None)
        with pytest.raises(UsageError, match="already running"):
            SweepFolder(folder.path, made).__enter__()
    with SweepFolder(tmp_path / "runs" / made.name, made) as folder:
        assert folder.remaining_runs() == order[1:]
        assert not folder.clear_run_dir(order[1]).exists()
        assert folder.result().done == 1
        assert folder.result().planned == 4


def test_what_a_parameter_does_is_told_apart_from_noise(tmp_path: Path) -> None:
    made = sweep_of(tmp_path, "producer.acks=0,1,all", "in_flight=1,5")
    runs = {}
    for number, planned in enumerate(made.order()):
        slow = {"0": 1, "1": 1, "all": 3}[planned.combination[0]]
        run = run_of(planned.folder, p50_us=slow * 2000 + number * 7 % 40)
        runs[planned] = replace(run, settings={})
    found = conclude(made, runs)
    words = {(e.parameter, e.measure.name): e.judged.judgement for e in found.effects}
    assert words["producer.acks", "end-to-end latency p50"] == DIFFERS
    assert words["producer.in_flight", "end-to-end latency p50"] == WITHIN_NOISE
    assert words["producer.acks", "yield"] == EQUAL
    assert len(found.comparison.columns) == 6
    assert any("producer.acks: differs in end-to-end" in one for one in sentences(found))
    assert "acks all · in_flight 5" in [column.label for column in found.comparison.columns]
    once = conclude(sweep_of(tmp_path, "producer.acks=0,1", repeats=1), {})
    assert once.done == 0
