"""`shoal audit`: judge ledgers again, later and elsewhere, with no Kafka in reach.

Runs are judged on Spark; small ones in this process, unless a master is named. Histories of other
tools are judged in this process, one after another, each as a run of its own. The exit code is that
of the worst verdict, or of a missed threshold.
"""

import functools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rich_click as click

from shoal.audit.result.thresholds import Threshold, hold, parse
from shoal.cli.shared import console
from shoal.cli.shared.browser import open_file, open_option
from shoal.cli.shared.complete import complete_run
from shoal.cli.shared.named_files import refusing_malformed_files
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.cli.shared.progress import show_progress
from shoal.cli.shared.signals import answers_signals
from shoal.cli.shared.verdict import exit_code, show_numbers, show_verdict
from shoal.experiment.runs import find_run
from shoal.model.errors import UsageError
from shoal.model.exit_codes import ExitCode
from shoal.model.result import Result
from shoal.model.units import parse_duration_s
from shoal.runtime.interrupts import explain_interrupt
from shoal.storage.places import is_url, read_place

if TYPE_CHECKING:
    from shoal.cli.shared.follow import StartSpark
    from shoal.pipeline.session import SessionFuture


class _SparkOptions(NamedTuple):
    master: str | None
    verbose: bool
    is_opening: bool
    follow: bool
    early_only: bool
    is_compacting: bool


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN…]", shell_complete=complete_run)
@click.option(
    "--history",
    "histories",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE.jsonl",
    help="Judge a run that another tool recorded (docs/reference/history-format.md);"
    " may be repeated.",
)
@click.option(
    "--verifiable-producer",
    "producers",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="What Apache Kafka's VerifiableProducer printed; may be repeated.",
)
@click.option(
    "--verifiable-consumer",
    "consumers",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="What VerifiableConsumer --verbose printed; may be repeated.",
)
@click.option(
    "--drained",
    is_flag=True,
    help="The verifiable consumers reached the end of every log.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="METRIC<NUMBER",
    help="A limit of a metric, e.g. 'latency_ms_p99<250' (docs/reference/metrics.md);"
    " may be repeated.",
)
@click.option(
    "--clock-skew",
    metavar="TIME",
    help="The most by which clocks of different machines differ, e.g. 5ms; unknown if not given.",
)
@click.option(
    "--deadline",
    metavar="TIME",
    help="A message missing this long after its intended send time is lost, not pending; e.g. 5m.",
)
@click.option("--verbose", is_flag=True, help="Print what the driver received from tasks, by kind.")
@click.option(
    "--follow",
    is_flag=True,
    help="Judge a run while it runs: print each finding as soon as it is certain"
    " (docs/guides/follow.md), and judge the whole run at its end.",
)
@click.option(
    "--compact",
    "is_compacting",
    is_flag=True,
    help="First group the ledgers of a long run by streams, if it has many: later audits are faster"
    " (docs/reference/ledgers.md).",
)
@click.option("--early-only", is_flag=True, hidden=True)
@click.option(
    "--master",
    help="Spark master of the audit of runs."
    "  [default: this process for a small run, else Spark here]",
)
@click.option(
    "--self-test",
    "is_self_test",
    is_flag=True,
    help="Test the audit itself on generated histories.",
)
@click.option(
    "--plantings",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Number of histories of a self-test.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of a self-test.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the page of a self-test.  [default: none]",
)
@open_option
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@refusing_malformed_files()
@answers_signals()
def audit(
    *,
    runs: tuple[str, ...],
    histories: tuple[str, ...],
    producers: tuple[str, ...],
    consumers: tuple[str, ...],
    drained: bool,
    thresholds: tuple[str, ...],
    clock_skew: str | None,
    deadline: str | None,
    master: str | None,
    is_self_test: bool,
    runs_dir: Path,
    output: str,
    **others: Any,
) -> ExitCode:
    """Judge the ledgers of a run (an id, a folder or a URL); several are judged as one run.

    URLs are s3a://BUCKET/RUN, s3://, hdfs:// and file://.
    """
    names = ("verbose", "is_opening", "follow", "early_only", "is_compacting")
    spark = _SparkOptions(master, **{name: others.pop(name) for name in names})
    if is_self_test:
        return _self_test(**others)
    if sum(map(bool, (runs, histories, producers))) != 1:
        raise UsageError(
            "give either runs, histories or files of a VerifiableProducer to judge",
            remedy="shoal audit RUN, or shoal audit --history FILE.jsonl",
        )
    _require_possible(runs, spark)
    if spark.early_only:
        from shoal.cli.shared.follow import follow_to_the_end

        with _offer_spark(master) as start_spark:
            follow_to_the_end(Path(runs[0]), start_spark, is_child=True)
        return ExitCode.PROVEN
    if master and not runs:
        raise UsageError(
            "--master is for runs: histories of other tools are judged in this process",
            remedy="leave out --master",
        )
    wanted = parse(thresholds)
    if histories:
        return _audit_histories(histories, wanted, output)
    if producers:
        return _audit_verifiable(producers, consumers, wanted, output=output, drained=drained)
    durations = {"clock_skew_us": clock_skew, "deadline_us": deadline}
    given = {n: round(parse_duration_s(text) * 1_000_000) for n, text in durations.items() if text}
    with _open_folders(runs, runs_dir, master) as homes, _offer_spark(master) as start_spark:
        if spark.follow:
            from shoal.cli.shared.follow import follow_to_the_end

            follow_to_the_end(homes[0].folder, start_spark, is_child=False, output=output)
        return _audit_runs(homes, wanted, output, given=given, spark=spark, start_spark=start_spark)


class _Home(NamedTuple):
    """A folder to judge, the URL of the run if it is on another file system, and its name."""

    folder: Path
    url: str | None
    shown: str


def _require_possible(runs: tuple[str, ...], spark: _SparkOptions) -> None:
    """Refuse options that do not fit the number of runs, or runs on another file system."""
    if spark.follow and len(runs) != 1:
        raise UsageError("--follow takes one run", remedy="shoal audit --follow RUN")
    if spark.is_compacting and len(runs) != 1:
        raise UsageError(
            "--compact takes one run", remedy="compact each: shoal audit --compact RUN"
        )
    if not runs or not is_url(read_place(runs[0])):
        return
    if spark.follow:
        raise UsageError(
            f"{runs[0]} cannot be followed: it is on another file system",
            remedy="follow the run by its folder on the machine of its driver, or judge it when it"
            " has ended",
        )
    if spark.is_opening:
        raise UsageError(
            f"--open cannot open the report of {runs[0]}: it is on another file system",
            remedy="leave out --open, and fetch report.html from there",
        )


@contextmanager
def _open_folders(
    runs: tuple[str, ...], runs_dir: Path, master: str | None
) -> Iterator[list[_Home]]:
    """Find the folders of runs; of those on other file systems only small ones are fetched."""
    from shoal.audit.read.remote import open_remote_run
    from shoal.pipeline.audit_job import MOST_MESSAGES_HERE

    fetch_below = 0 if master else MOST_MESSAGES_HERE
    homes = []
    with ExitStack() as stack:
        for run, place in [(run, read_place(run)) for run in runs]:
            if is_url(place):
                opened = open_remote_run(place, fetch_below=fetch_below)
                homes.append(_Home(stack.enter_context(opened), place, place))
            else:
                path = find_run(runs_dir, place).path
                homes.append(_Home(path, None, run.rstrip("/") if is_url(run) else str(path)))
        yield homes


def _self_test(plantings: int, seed: int, report: Path | None) -> ExitCode:
    from shoal.audit.self_test.report import page, self_test, summary
    from shoal.runtime.conditions import conditions
    from shoal.runtime.pools import end_with_parent

    began_s = time.monotonic()
    tally = self_test(plantings, seed, initializer=end_with_parent)
    for failure in tally.failures:
        console.out.print(failure, markup=False)
    console.out.print(summary(tally), style="bold green" if tally.passed else "bold red")
    if report is not None:
        command = f"shoal audit --self-test --plantings {plantings} --seed {seed}"
        shown = conditions(command, elapsed_s=time.monotonic() - began_s, packages=["numpy"])
        report.write_text(page(tally, conditions=shown), encoding="utf-8")
    return ExitCode.PROVEN if tally.passed else ExitCode.UNEXPECTED


def _audit_runs(
    homes: list[_Home],
    wanted: list[Threshold],
    output: str,
    *,
    given: dict[str, int],
    spark: _SparkOptions,
    start_spark: "StartSpark",
) -> ExitCode:
    from shoal.audit.read.folder import open_ledger
    from shoal.audit.read.remote import store_results
    from shoal.audit.usage import DriverUsage
    from shoal.experiment.judge import compact_ledgers, judge_ledger
    from shoal.pipeline.audit_job import is_small
    from shoal.pipeline.tables import SCHEMAS
    from shoal.report.files import REPORT_FILE

    home, url, shown = homes[0]
    if spark.is_compacting:
        with show_progress() as watch:
            compact_ledgers(home.absolute(), start_spark, watch)
    ledger = open_ledger([each.folder.absolute() for each in homes], **given)
    for each, folder in zip(homes, ledger.folders, strict=False):
        if each.url is not None and folder.plan.get("state") == "running":
            console.say(
                f"{each.url} has not ended, or its driver was killed: what is stored is judged",
                "yellow",
            )
    usage = DriverUsage() if spark.verbose else None
    unchanged = "the ledgers are unchanged; judge them again with the same command"
    with explain_interrupt(unchanged):
        # A small ledger needs no Spark, unless the user named a master.
        has_spark = spark.master is not None or not is_small(ledger)
        session = start_spark() if has_spark else None
        texts = [threshold.text for threshold in wanted]
        with show_progress() as watch:
            result = judge_ledger(
                ledger, session=session, thresholds=texts, usage=usage, watch=watch
            )
    if url is not None and ledger.folders[0].url is None:  # it was fetched
        store_results(home, url, SCHEMAS)
    for line in usage.lines() if usage else ():
        console.err.print(line, markup=False)
    if output == "json":
        console.print_json(result.to_json())
    else:
        show_verdict(result, shown)
    if spark.is_opening:
        open_file(home / REPORT_FILE)
    return exit_code([(shown, result)])


@contextmanager
def _offer_spark(master: str | None) -> "Iterator[StartSpark]":
    """Give what starts the session of this command, when it is first called; stop it at the end.

    A process can have one session: who follows a run and who judges it at its end share it.
    """
    with ExitStack() as stack:

        @functools.cache
        def start() -> "SessionFuture":
            from shoal.pipeline.session import SessionFuture

            return stack.enter_context(SessionFuture(master))

        yield start


def _audit_histories(paths: tuple[str, ...], wanted: list[Threshold], output: str) -> ExitCode:
    from shoal.audit.history.verdict import judge_history

    # All are judged before anything is printed: one malformed line means no verdict at all.
    return _report([(path, judge_history(Path(path))) for path in paths], wanted, output)


def _audit_verifiable(
    producers: tuple[str, ...],
    consumers: tuple[str, ...],
    wanted: list[Threshold],
    *,
    output: str,
    drained: bool,
) -> ExitCode:
    from shoal.audit.history.verdict import judge_verifiable

    files = [[Path(name) for name in names] for names in (producers, consumers)]
    result = judge_verifiable(*files, drained=drained)
    return _report([(producers[0], result)], wanted, output)


def _report(results: list[tuple[str, Result]], wanted: list[Threshold], output: str) -> ExitCode:
    from shoal.audit.history.verdict import to_json

    held = [(path, hold(result, wanted)) for path, result in results]
    if output == "json":
        console.print_json([_as_json(to_json(path, result), result) for path, result in held])
    else:
        for path, result in held:
            console.out.print(path, style="bold", markup=False)
            show_numbers(result)
    return exit_code(held)


def _as_json(line: dict[str, Any], result: Result) -> dict[str, Any]:
    durations = [each.to_json() for each in result.thresholds]
    return line | ({"thresholds": durations} if durations else {})
