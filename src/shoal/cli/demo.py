"""`shoal demo`: what acks=1 costs when a leader dies, and what a mirror loses.

First two runs side by side, acks=1 and acks=all: the followers are cut off, the leader is killed.
Then a run through a mirror that copies everything, and one through a mirror that loses a message.
On a terminal a page shows it, with a button. The exit code is 0 if all verdicts are as expected.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from shoal.cli.shared import browser, console
from shoal.cli.shared.options import runs_dir_option
from shoal.cli.shared.placement import placement_option
from shoal.cli.shared.progress import make_runs_dir, new_run_dir, show_progress
from shoal.cli.shared.signals import answers_signals
from shoal.model.exit_codes import ExitCode
from shoal.model.findings import Verdict
from shoal.runtime.interrupts import explain_interrupt

if TYPE_CHECKING:
    from shoal.experiment.demo.sides import AcksDemo
    from shoal.experiment.plan import Addresses
    from shoal.experiment.run import RunProgress
    from shoal.experiment.spec import ExperimentSpec
    from shoal.model.result import Result
    from shoal.pipeline.session import SessionFuture

# Time to read the page before the button presses itself.
PAGE_PRESS_AFTER_S: Final = 10.0
PRESS_AFTER_S: Final = 2.0
EXPECTED: Final = (Verdict.VIOLATED, Verdict.PROVEN, Verdict.PROVEN, Verdict.VIOLATED)


@dataclass
class DemoStep:
    """One run through a mirror, as the page shows it."""

    title: str
    run: str = ""
    doing: str = ""
    sent: int = 0
    received: int = 0
    result: "Result | None" = None

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "run": self.run,
            "doing": self.doing,
            "sent": self.sent,
            "received": self.received,
            "verdict": None if self.result is None else self.result.verdict.value,
            "sentence": "" if self.result is None else self.result.sentence,
        }


@dataclass
class DemoState:
    """What the page shows: the two sides, and what follows them."""

    sides: "AcksDemo"
    steps: list[DemoStep] = field(
        default_factory=lambda: [
            DemoStep("A mirror that copies everything"),
            DemoStep("The same, with a mirror that loses one message"),
        ]
    )

    def snapshot(self) -> dict[str, Any]:
        return {**self.sides.snapshot(), "steps": [step.to_json() for step in self.steps]}

    def press(self) -> None:
        self.sides.button.press()


@click.command()
@click.option(
    "--page/--no-page",
    "wants_page",
    default=None,
    help="Show it on a page too.  [default: on a terminal]",
)
@placement_option
@runs_dir_option
@console.survive_closed_pipe()
@answers_signals()
def demo(*, wants_page: bool | None, placement: str | None, runs_dir: Path) -> ExitCode:
    """See it work: acks=1 loses messages when a leader dies; then mirrors, good and bad.

    On a desktop the page opens in the browser; elsewhere its address is printed.
    """
    from shoal.experiment.demo.sides import start_sides
    from shoal.experiment.demo.specs import lossless_spec, lossy_spec
    from shoal.experiment.placing import plan_session
    from shoal.experiment.spec import WorkersSpec

    workers = WorkersSpec(placement) if placement else WorkersSpec()
    specs = [replace(spec, workers=workers) for spec in (lossless_spec(), lossy_spec())]
    make_runs_dir(runs_dir)
    started = time.monotonic()
    is_page_wanted = console.err.is_terminal if wants_page is None else wants_page
    has_page = is_page_wanted and _can_serve()
    press_after_s = PAGE_PRESS_AFTER_S if has_page else PRESS_AFTER_S
    with (
        plan_session(specs) as session,
        start_sides(lambda name: new_run_dir(runs_dir, name), press_after_s=press_after_s) as sides,
    ):
        console.say(
            f"two clusters of three brokers are up after {time.monotonic() - started:.1f} s"
        )
        state = DemoState(sides)
        with _page(state, runs_dir, is_wanted=has_page) as is_visited:
            results = _run_all(state, specs, runs_dir, session)
            console.say(
                f"\ndone in {time.monotonic() - started:.0f} s; shoal runs list shows all runs"
            )
            if is_visited():
                _wait_for_interrupt()
    is_expected = tuple(result.verdict for result in results) == EXPECTED
    return ExitCode.PROVEN if is_expected else ExitCode.UNEXPECTED


def _run_all(
    state: DemoState, specs: "list[ExperimentSpec]", runs_dir: Path, session: "SessionFuture"
) -> "list[Result]":
    is_on_spark = specs[0].workers.on_spark
    results = _run_sides(state.sides, session if is_on_spark else None)
    with two_clusters() as addresses:
        for number, (step, spec) in enumerate(zip(state.steps, specs, strict=True), 2):
            console.say(f"\n{number}. {step.title[0].lower()}{step.title[1:]}", "bold")
            results.append(
                _run_and_show(spec, addresses, runs_dir=runs_dir, session=session, step=step)
            )
    return results


# acks=1 and acks=all


def _run_sides(sides: "AcksDemo", session: "SessionFuture | None") -> "list[Result]":
    """Run and judge both sides, and show what happened to one lost message."""
    from shoal.cli.shared.verdict import show_verdict
    from shoal.experiment.judge import judge

    console.say("\n1. acks=1 and acks=all side by side, on the same settings", "bold")
    console.say(
        "3 replicas, min.insync.replicas=2, no unclean elections (Kafka's default): the followers "
        "are cut off from the leader, which is then killed"
    )
    with explain_interrupt("nothing new is sent; both runs end"):
        sides.run(lambda sentence: console.say(f"  {sentence}"))
    for side in sides.sides:
        console.say(
            f"  acks={side.acks}: {side.missing.count:,} acknowledged messages are lost so far"
        )
    console.say("  judging" if session is None else "  judging on Spark")
    results = []
    for side in sides.sides:
        side.result = judge([side.run_dir], session=session)
        console.out.print(f"\nacks={side.acks}", style="bold")
        show_verdict(side.result, side.run_dir)
        results.append(side.result)
        for name in side.missing.examples[:1]:
            console.print_line(f"  one of them: {side.life_of(name)}")
    return results


# The page


def _can_serve() -> bool:
    try:
        import shoal.web.server  # noqa: F401
    except ImportError:
        console.say("no page: it needs the extra `web` (pip install 'shoal[web]')")
        return False
    return True


@contextmanager
def _page(state: DemoState, runs_dir: Path, *, is_wanted: bool) -> "Iterator[Any]":
    """Serve the page, open it on a desktop; yields whether somebody has opened it."""
    if not is_wanted:
        yield lambda: False
        return
    from shoal.web.server import serve_demo

    addresses: list[str] = []

    def on_address(address: str) -> None:
        addresses.append(address)
        if len(addresses) > 1:
            return
        page = f"{address}#/demo"
        is_opened = browser.open_address(page)
        console.say(f"page: {page}" if not is_opened else f"the page opens; its address: {page}")

    with serve_demo(runs_dir.absolute(), state, on_address):
        # Each address opens one browser; another one is made when it was used.
        yield lambda: len(addresses) > 1


def _wait_for_interrupt() -> None:
    console.say("the page stays until Ctrl-C")
    with suppress(KeyboardInterrupt), explain_interrupt("closing the page"):
        threading.Event().wait()


# Mirrors


@contextmanager
def two_clusters() -> "Iterator[Addresses]":
    """Start a source and a target with one broker each; stop them afterwards."""
    from shoal.experiment.plan import Addresses
    from shoal.systems.clusters import make_cluster

    with make_cluster("lite") as source, make_cluster("lite") as target:
        console.say(f"\nsource {source.bootstrap} and target {target.bootstrap}, one broker each")
        yield Addresses(source.bootstrap, target.bootstrap)


def _run_and_show(
    experiment: "ExperimentSpec",
    addresses: "Addresses",
    *,
    runs_dir: Path,
    session: "SessionFuture",
    step: DemoStep,
) -> "Result":
    from shoal.cli.shared.verdict import show_verdict
    from shoal.experiment.judge import run_experiment

    run_dir = new_run_dir(runs_dir, experiment.name)
    step.run = run_dir.name
    sent = experiment.producers.settings
    console.say(
        f"{sent['messages']:,} messages of {sent['size_bytes']} B over "
        f"{experiment.topics.partitions} partitions at {sent['rate_per_s']:,.0f}/s"
    )
    with show_progress() as show:

        def watch(progress: "RunProgress") -> None:
            show(progress)
            step.doing = progress.doing
            if progress.total:
                step.sent, step.received = progress.sent, progress.received

        step.result = run_experiment(
            experiment, addresses=addresses, run_dir=run_dir, session=session, watch=watch
        )
    show_verdict(step.result, run_dir)
    return step.result
