"""`shoal runs`: list, show and remove runs."""

from pathlib import Path

import rich_click as click
from rich.text import Text

from shoal.cli.shared import console
from shoal.cli.shared.browser import open_file, open_option
from shoal.cli.shared.complete import complete_run
from shoal.cli.shared.named_files import refusing_malformed_files
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.experiment.runs import RunSummary, find_run, list_runs, read_json, remove_run
from shoal.model.errors import UsageError

VERDICT_STYLES = {"proven": "bold green", "violated": "bold red", "inconclusive": "bold yellow"}


@click.group()
def runs() -> None:
    """Runs and their verdicts.

    \b
    shoal runs list
    shoal runs show            the newest one
    shoal runs message RUN TOPIC PRODUCER LANE SEQUENCE
    shoal runs rm NAME
    """


@runs.command("list")
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@refusing_malformed_files()
def list_command(*, runs_dir: Path, output: str) -> None:
    """All runs, newest first."""
    found = list_runs(runs_dir)
    if output == "json":
        console.print_json([run.to_json() for run in found])
        return
    if not found:
        console.say(f"no runs in {runs_dir}; create one with shoal demo")
        return
    table = console.SafeTable("run", "folder", "started (UTC)", "state", "verdict", box=None)
    for run in found:
        verdict = Text(run.verdict or "-", VERDICT_STYLES.get(run.verdict or "", ""))
        if run.missed:
            verdict.append(f", {_count_missed(run)}", "bold red")
        started = f"{run.started:%Y-%m-%d %H:%M:%S}"
        table.add_row(run.run, run.path.name, started, run.state, verdict)
    console.print_table(table)


@runs.command("show")
@click.argument("name", required=False, shell_complete=complete_run)
@open_option
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@refusing_malformed_files()
def show_command(*, name: str | None, is_opening: bool, runs_dir: Path, output: str) -> None:
    """One run: its verdict, and where its report and ledgers are. The newest by default."""
    run = find_run(runs_dir, name)
    if is_opening:
        if not (run.path / "report.html").is_file():
            raise UsageError(
                f"run {run.run} has no report: it is not judged",
                remedy=f"judge it with shoal audit {run.path}",
            )
        open_file(run.path / "report.html")
    result_file = run.path / "result.json"
    if output == "json":
        result = read_json(result_file) if result_file.is_file() else None
        console.print_json(run.to_json() | {"result": result})
        return
    _show(run)


def _show(run: RunSummary) -> None:
    started = f"{run.started:%Y-%m-%d %H:%M:%S}"
    console.print_line((run.run, "bold"), f"  {run.state}  started {started}")
    if run.verdict:
        verdict = run.verdict, VERDICT_STYLES.get(run.verdict, "")
        console.print_line(verdict, f": {run.sentence}")
    else:
        console.print_line(f"not judged yet; judge it with shoal audit {run.path}")
    if run.missed:
        console.print_line((_count_missed(run), "bold red"))
    for sentence in run.missed:
        console.print_line(f"  {sentence}")
    for file in ("report.html", "summary.md", "junit.xml", "result.json", "ledger", "logs"):
        if (run.path / file).exists():
            console.print_line(f"  {run.path / file}")


def _count_missed(run: RunSummary) -> str:
    return f"thresholds missed ({len(run.missed)})"


@runs.command("message")
@click.argument("run", shell_complete=complete_run)
@click.argument("topic")
@click.argument("producer")
@click.argument("lane", type=int)
@click.argument("sequence", type=click.IntRange(min=0))
@runs_dir_option
@output_option
@refusing_malformed_files()
def message_command(
    *,
    run: str,
    topic: str,
    producer: str,
    lane: int,
    sequence: int,
    runs_dir: Path,
    output: str,
) -> None:
    """Show what the ledgers of a run record about one message, and about its neighbours.

    \b
    shoal runs message 20260101-120000-demo demo producer-1 2 1000
    """
    from shoal.audit.page.life import MessageName, message_life

    name = MessageName(topic, producer, lane, sequence)
    life = message_life([find_run(runs_dir, run).path], name)
    if output == "json":
        console.print_json(life.to_json())
        return
    console.print_line(life.sentence)
    for near in life.neighbours:
        console.print_line(f"  {near.sequence}: {near.last_stage}")


@runs.command("rm")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_run)
@runs_dir_option
@refusing_malformed_files()
def rm_command(*, names: tuple[str, ...], runs_dir: Path) -> None:
    """Delete runs with all their ledgers."""
    found = [find_run(runs_dir, name) for name in names]
    for run in found:
        remove_run(run)
        console.say(f"removed {run.run}")
