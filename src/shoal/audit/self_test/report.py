"""Runs the self-test and reports it, for the terminal and for `docs/proofs/audit.md`."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from typing import Final

from shoal.audit.self_test.plantings import PLANTINGS
from shoal.audit.self_test.trial import TrialTally, run_trials

TRIALS_PER_PROCESS: Final = 2000  # with fewer trials another process does not pay off


def self_test(
    count: int, seed: int, *, initializer: Callable[[], None] | None = None
) -> TrialTally:
    """Run `count` trials, distributed over the cores; each process calls `initializer` first."""
    workers = min(cpu_count() or 1, count // TRIALS_PER_PROCESS)
    if workers < 2:
        return run_trials(count, seed)
    tally = TrialTally()
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=initializer) as pool:
        futures = [
            pool.submit(run_trials, count, seed, first=first, step=workers)
            for first in range(workers)
        ]
        for future in futures:
            tally.add(future.result())
    return tally


def summary(tally: TrialTally) -> str:
    verdict = "passed" if tally.passed else f"{tally.failed:,} failures"
    planted, alone = sum(tally.planted.values()), sum(tally.alone.values())
    missed, alarms = sum(tally.missed.values()), sum(tally.false_alarms.values())
    recall = f"{100 * (1 - missed / alone):.4g} %" if alone else "unknowable"
    return (
        f"{verdict}: {tally.trials:,} histories, {planted:,} plantings, {alone:,} of them alone; "
        f"recall {recall}, {alarms:,} false alarms"
    )


def table(tally: TrialTally) -> Iterator[str]:
    """Return how often each defect was planted, as a Markdown table."""
    yield "| planted | times | of these alone |"
    yield "|---|---:|---:|"
    for planting in PLANTINGS:
        name = planting.__name__
        yield f"| {name.replace('_', ' ')} | {tally.planted[name]:,} | {tally.alone[name]:,} |"


def page(tally: TrialTally, *, conditions: str) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Each history is a clean run with nothing, one thing or several things planted in it, at "
        "random places. It is judged by the audit and by a second judge of a few pages that shares "
        "no code with it; both must agree on the verdict, every count, every smallest witness and "
        "every metric. Of things planted alone it is also known what must be found (recall) and "
        "what cannot be there (false alarms); clean histories must be proven."
    )
    rows = "\n".join(table(tally))
    found = "\n".join(f"- {name}: {count:,}" for name, count in sorted(tally.findings.items()))
    failures = "".join(f"- {failure}\n" for failure in tally.failures)
    return (
        f"# The audit judged\n\n**{summary(tally)}**\n\n{text}\n\n{rows}\n\n"
        f"Histories in which each finding was there:\n\n{found}\n\n{failures}{conditions}\n"
    )
