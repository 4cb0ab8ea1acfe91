"""`shoal audit`: judge ledgers again, later and elsewhere, with no Kafka in reach.

Runs are judged on Spark. Histories of other tools are judged in this process, one after another,
each as a run of its own. The exit code is that of the worst verdict, or of a missed threshold.
"""

import time
from pathlib import Path
from typing import Any

import rich_click as click

from shoal.audit.result.thresholds import Threshold, hold, parse
from shoal.cli.named_files import refusing_malformed_files
from shoal.cli.shared import console
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.cli.shared.verdict import exit_code, show_numbers, show_verdict
from shoal.experiment.runs import find_run
from shoal.model.errors import UsageError
from shoal.model.exit_codes import ExitCode
from shoal.model.result import Result
from shoal.model.units import parse_duration_s


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN…]")
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
@click.option("--master", help="Spark master of the audit.  [default: Spark on this machine]")
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
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@refusing_malformed_files()
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
    **of_self_test: Any,
) -> ExitCode:
    """Judge the ledgers of a run (an id or a folder); several folders are judged as one run."""
    if is_self_test:
        return _self_test(**of_self_test)
    if sum(map(bool, (runs, histories, producers))) != 1:
        raise UsageError(
            "give either runs, histories or files of a VerifiableProducer to judge",
            remedy="shoal audit RUN, or shoal audit --history FILE.jsonl",
        )
    wanted = parse(thresholds)
    if histories:
        return _audit_histories(histories, wanted, output)
    if producers:
        return _audit_verifiable(producers, consumers, wanted, output=output, drained=drained)
    folders = [find_run(runs_dir, run).path for run in runs]
    durations = {"clock_skew_us": clock_skew, "deadline_us": deadline}
    given = {n: round(parse_duration_s(text) * 1_000_000) for n, text in durations.items() if text}
    return _audit_runs(folders, wanted, output, given=given, master=master)


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
    folders: list[Path],
    wanted: list[Threshold],
    output: str,
    *,
    given: dict[str, int],
    master: str | None,
) -> ExitCode:
    from shoal.audit.read.folder import open_ledger
    from shoal.experiment.judge import judge
    from shoal.pipeline.session import SessionFuture

    open_ledger(folders, **given)  # reports unreadable ledgers before Spark is started
    with SessionFuture(master) as session:
        texts = [threshold.text for threshold in wanted]
        result = judge(folders, session=session, given=given, thresholds=texts)
    if output == "json":
        console.print_json(result.to_json())
    else:
        show_verdict(result, folders[0])
    return exit_code([(str(folders[0]), result)])


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
