"""`shoal demo`: sends messages through a source, a mirror and a target, and judges each of them.

It does two runs: one without loss, and one with a mirror that loses one message, to show a
violated verdict. The exit code is 0 if both verdicts are as expected.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import rich_click as click
from rich.progress import BarColumn, Progress, TextColumn

from shoal.cli.shared import console
from shoal.cli.shared.options import runs_dir_option
from shoal.model.exit_codes import ExitCode
from shoal.model.findings import Verdict

if TYPE_CHECKING:
    from shoal.experiment.plan import Addresses
    from shoal.experiment.run import RunProgress, Watch
    from shoal.experiment.spec import ExperimentSpec
    from shoal.model.result import Result
    from shoal.pipeline.session import SessionFuture

PRINT_EVERY_S: Final = 2.0


@click.command()
@runs_dir_option
@console.survive_closed_pipe()
def demo(*, runs_dir: Path) -> ExitCode:
    """See it work: produce, mirror, consume, judge; then again with one message lost."""
    from shoal.experiment import demo as experiments
    from shoal.pipeline.session import SessionFuture

    started = time.monotonic()
    with SessionFuture() as session, two_clusters() as addresses:
        console.say("\n1. a mirror that copies everything", "bold")
        clean = _run_and_show(
            experiments.lossless_spec(), addresses, runs_dir=runs_dir, session=session
        )
        console.say("\n2. the same, with a mirror that loses one message", "bold")
        lossy = _run_and_show(
            experiments.lossy_spec(), addresses, runs_dir=runs_dir, session=session
        )
    has_expected_verdicts = (clean.verdict, lossy.verdict) == (Verdict.PROVEN, Verdict.VIOLATED)
    console.say(f"\ndone in {time.monotonic() - started:.0f} s; shoal runs list shows both runs")
    return ExitCode.PROVEN if has_expected_verdicts else ExitCode.UNEXPECTED


@contextmanager
def two_clusters() -> "Iterator[Addresses]":
    """Start a source and a target with one broker each; stop them afterwards."""
    from shoal.experiment.plan import Addresses
    from shoal.systems.clusters import make_cluster

    started = time.monotonic()
    with make_cluster("lite") as source, make_cluster("lite") as target:
        console.say(
            f"source {source.bootstrap} and target {target.bootstrap} are up after "
            f"{time.monotonic() - started:.1f} s (Kafka Lite, one broker each)"
        )
        yield Addresses(source.bootstrap, target.bootstrap)


def _run_and_show(
    experiment: "ExperimentSpec",
    addresses: "Addresses",
    *,
    runs_dir: Path,
    session: "SessionFuture",
) -> "Result":
    from shoal.cli.shared.verdict import show_verdict
    from shoal.experiment.judge import run_experiment

    run_dir = new_run_dir(runs_dir, experiment.name)
    sent = experiment.producers.settings
    console.say(
        f"{sent['messages']:,} messages of {sent['size_bytes']} B over "
        f"{experiment.topics.partitions} partitions at {sent['rate_per_s']:,.0f}/s"
    )
    with show_progress() as watch:
        result = run_experiment(
            experiment, addresses=addresses, run_dir=run_dir, session=session, watch=watch
        )
    show_verdict(result, run_dir)
    return result


def new_run_dir(runs_dir: Path, name: str) -> Path:
    """A new folder, named by the time; with a number if that folder exists."""
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    candidates = (runs_dir / (f"{stem}-{n}" if n else stem) for n in range(1000))
    return next(path for path in candidates if not path.exists())


@contextmanager
def show_progress() -> "Iterator[Watch]":
    """Show a progress bar on a terminal, or else a line every few seconds."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counts]}"))
    printed_s = 0.0
    last_step = ""
    with Progress(
        *columns, console=console.err, transient=True, disable=not console.err.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, counts="")

        def watch(step: "RunProgress") -> None:
            nonlocal printed_s, last_step
            counts = f"{step.sent:,} sent, {step.received:,} received" if step.total else ""
            bar.update(task, description=step.doing, counts=counts)
            bar.update(task, total=step.total or None, completed=step.received)
            if console.err.is_terminal:
                return
            if step.doing != last_step or time.monotonic() - printed_s > PRINT_EVERY_S:
                last_step, printed_s = step.doing, time.monotonic()
                console.say(f"  {step.doing} {counts}".rstrip())

        yield watch
