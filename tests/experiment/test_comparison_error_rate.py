"""How often pages say "differs": where nothing does, and where a latency has doubled.

Pages are simulated: seconds with a latency each, independent or like their neighbours, runs with
noise of their own of 5 %, losses in bursts. They go through `compare`, as real runs do.
"""

import math
import random
from pathlib import Path

import pytest

from shoal.experiment.compare.comparison import JudgedRun, compare
from shoal.model.comparison import DIFFERS
from shoal.model.findings import Verdict
from shoal.model.result import GroupResult, Latency, Metrics, Result, Series, Throughput

PAGES = 2_000
SECONDS = 20
RUN_NOISE = 0.05


def simulate_run(
    name: str, k: str, chance: random.Random, *, likeness: float, times: float
) -> JudgedRun:
    """`likeness`: how much a second is like the one before; `times`: factor of p99."""
    level = math.exp(chance.gauss(0, RUN_NOISE))
    drift, wave = 0.0, []
    for _ in range(SECONDS):
        drift = likeness * drift + chance.gauss(0, 0.1) * math.sqrt(1 - likeness**2)
        wave.append(int(2000 * level * math.exp(drift)))
    p50 = sum(wave) // len(wave)
    p99 = int(p50 * 3 * times * math.exp(chance.gauss(0, RUN_NOISE)))
    lost = chance.choice([1, 40, 400]) if chance.random() < 0.2 else 0
    latency = Latency(
        1000 - lost,
        0,
        float(p50),
        p99 * 2,
        {"p50": p50, "p99": p99},
        lost,
        {"p50": p50, "p99": p99},
    )
    metrics = Metrics(
        attempts=1000,
        ok=1000,
        lost=lost,
        yield_=1.0,
        harvest=1 - lost / 1000,
        completeness=1 - lost / 1000,
        latency_us={"e2e_intended": latency, "producer": latency},
    )
    rate = 50 * math.exp(chance.gauss(0, RUN_NOISE))
    group = GroupResult(
        Verdict.VIOLATED if lost else Verdict.PROVEN,
        "",
        metrics=metrics,
        throughput=(Throughput(None, 1000, rate, 1000, rate),),
        series=Series(
            0, [50] * SECONDS, [50] * SECONDS, list(wave), [3 * us for us in wave], list(wave)
        ),
    )
    result = Result(run=name, worst_group="all", groups={"all": group}, promises={})
    return JudgedRun(Path(name), {"experiment": "x", "k": k}, result)


def simulate_page(
    seed: int, *, runs: int, likeness: float, columns: int = 2, times: float = 1.0
) -> list[str]:
    """The measures that a page calls different; `times` is for the last column."""
    chance = random.Random(seed)
    made = [
        simulate_run(
            f"{column}-{number}",
            str(column),
            chance,
            likeness=likeness,
            times=times if column == columns - 1 else 1.0,
        )
        for column in range(columns)
        for number in range(runs)
    ]
    return compare(made).measures_judged(DIFFERS)


def upper_bound(hits: int, trials: int) -> float:
    """The upper end of a one-sided 95 % interval of a rate (Wilson)."""
    z = 1.645
    rate = hits / trials
    middle = rate + z * z / (2 * trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return (middle + half) / (1 + z * z / trials)


# Half of the pages have seconds that are independent, half have seconds like their neighbours.
LIKENESS = (0.0, 0.9)


@pytest.mark.parametrize(
    ("runs", "columns", "pages"),
    [(1, 2, 200), (2, 2, 200), (3, 2, PAGES), (6, 2, PAGES), (4, 3, 500)],
)
@pytest.mark.quick("1-2-200", "2-2-200", "3-2-2000")
def test_pages_where_nothing_differs_rarely_say_so(runs: int, columns: int, pages: int) -> None:
    alarms = sum(
        bool(simulate_page(seed, runs=runs, likeness=LIKENESS[seed % 2], columns=columns))
        for seed in range(pages)
    )
    limit = 0.06 if pages == PAGES else 0.08
    assert upper_bound(alarms, pages) <= limit, f"{alarms} of {pages} pages"
    if runs < 3:
        assert alarms == 0


def test_a_doubled_p99_is_found() -> None:
    pages = 200
    found = sum(
        "end-to-end latency p99"
        in simulate_page(seed, runs=6, likeness=LIKENESS[seed % 2], times=2.0)
        for seed in range(pages)
    )
    assert found >= 0.8 * pages, f"{found} of {pages} pages"
