"""`shoal runs`: list, show and remove runs, and sweeps with their runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import rich_click as click
from rich.text import Text

from shoal.cli.shared import console
from shoal.cli.shared.browser import open_file, open_option
from shoal.cli.shared.complete import complete_run, complete_run_or_sweep, complete_sweep
from shoal.cli.shared.named_files import refusing_malformed_files
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.experiment.runs import (
    RunSummary,
    find_run,
    list_runs,
    list_sweep_folders,
    remove_run,
    remove_sweep,
)
from shoal.experiment.sweep_list import describe_sweep
from shoal.model.errors import LedgerError, UsageError
from shoal.model.json_files import read_json
from shoal.model.run_folder import read_url
from shoal.storage.places import is_url, read_place

# Of each sweep in the list of everything.
SHOWN_OF_SWEEP: Final = 20
VERDICT_STYLES = {"proven": "bold green", "violated": "bold red", "inconclusive": "bold yellow"}


@click.group()
def runs() -> None:
    """Runs and their verdicts. A run of a sweep is named SWEEP/RUN, here and in other commands.

    \b
    shoal runs list
    shoal runs list SWEEP      all runs of one sweep
    shoal runs show            the newest run
    shoal runs message RUN TOPIC PRODUCER LANE SEQUENCE
    shoal runs rm NAME
    """


@runs.command("list")
@click.argument("sweep", required=False, shell_complete=complete_sweep)
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@refusing_malformed_files()
def list_command(*, sweep: str | None, runs_dir: Path, output: str) -> None:
    """All runs and sweeps, newest first; of a sweep the newest runs, or all with its name."""
    found = list_runs(runs_dir, _report_unreadable)
    if sweep is not None:
        chosen = _find_sweep(runs_dir, sweep)
        found = [run for run in found if run.sweep == chosen.name]
    if output == "json":
        console.print_json([run.to_json() for run in found])
        return
    sweeps = {path.name: path for path in list_sweep_folders(runs_dir)}
    if not found and not sweeps:
        console.say(f"no runs in {runs_dir}; create one with shoal demo")
        return
    listed = sweeps if sweep is None else {chosen.name: chosen}
    _list_runs(found, listed, SHOWN_OF_SWEEP if sweep is None else len(found))


def _report_unreadable(error: LedgerError) -> None:
    """One run that cannot be read must not hide the others."""
    console.say(f"not listed: {error.message}", style="bold yellow")


def _list_runs(found: Sequence[RunSummary], sweeps: dict[str, Path], most: int) -> None:
    """Print runs, and sweeps with at most so many of their runs each."""
    table = console.SafeTable("run", "folder", "started (UTC)", "state", "verdict", box=None)
    rows = [
        (run.started_us, run.run, partial(_add_run, table, run)) for run in found if not run.sweep
    ]
    for name, folder in sweeps.items():
        runs_of = [run for run in found if run.sweep == name]
        newest = max((run.started_us for run in runs_of), default=0)
        rows.append((newest, name, partial(_add_sweep, table, folder, runs_of, most)))
    for _started, _name, add in sorted(rows, key=lambda row: row[:2], reverse=True):
        add()
    console.print_table(table)


def _add_run(table: console.SafeTable, run: RunSummary, indent: str = "") -> None:
    verdict = Text(run.verdict or "-", VERDICT_STYLES.get(run.verdict or "", ""))
    if run.problem:
        verdict = Text("result unreadable", "bold yellow")
    if run.lost_workers:
        verdict.append(f", lost {', '.join(run.lost_workers)}", "bold yellow")
    if run.missed:
        verdict.append(f", {_count_missed(run)}", "bold red")
    table.add_row(f"{indent}{run.run}", run.name, _format_time(run), run.state, verdict)


def _add_sweep(
    table: console.SafeTable, folder: Path, runs_of: Sequence[RunSummary], most: int
) -> None:
    summary = describe_sweep(folder, [_to_row(run) for run in runs_of])
    started = _format_time(runs_of[0]) if runs_of else ""
    table.add_row(
        folder.name, "sweep", started, _format_progress(summary), _count_verdicts(summary)
    )
    for run in runs_of[:most]:
        _add_run(table, run, "  ")
    if len(runs_of) > most:
        left = f"  {len(runs_of) - most} more: shoal runs list {folder.name}"
        table.add_row(left, "", "", "", "")


def _to_row(run: RunSummary) -> dict[str, Any]:
    return run.to_json() | {"started_us": run.started_us}


def _format_progress(summary: dict[str, Any]) -> str:
    return f"{summary['state']}, {summary['done']} of {summary['planned']}"


def _count_verdicts(summary: dict[str, Any]) -> str:
    counts = summary["verdicts"].items()
    return ", ".join(f"{count} {verdict}" for verdict, count in counts if verdict != "none") or "-"


def _format_time(run: RunSummary) -> str:
    return f"{run.started:%Y-%m-%d %H:%M:%S}"


def _find_sweep(runs_dir: Path, name: str) -> Path:
    """The folder of the sweep with that name, or with the only name that begins so."""
    folders = list_sweep_folders(runs_dir)
    names = ", ".join(sorted(path.name for path in folders))
    chosen = [path for path in folders if path.name == name.rstrip("/")]
    chosen = chosen or [path for path in folders if path.name.startswith(name)]
    if len(chosen) != 1:
        raise UsageError(
            f"{len(chosen) or 'no'} sweeps in {runs_dir} have names that begin with {name!r:.80}",
            remedy=f"its sweeps: {names}" if names else "shoal sweep makes one",
        )
    return chosen[0]


@runs.command("show")
@click.argument("name", required=False, shell_complete=complete_run_or_sweep)
@open_option
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@refusing_malformed_files()
def show_command(*, name: str | None, is_opening: bool, runs_dir: Path, output: str) -> None:
    """One run: its verdict, and where its report and ledgers are. The newest by default.

    Of a sweep: what it varies, how far it came, and its page.
    """
    if name and name.rstrip("/") in {path.name for path in list_sweep_folders(runs_dir)}:
        _show_sweep(_find_sweep(runs_dir, name), runs_dir, is_opening=is_opening, output=output)
        return
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
        is_usable = result_file.is_file() and not run.problem
        result = read_json(result_file) if is_usable else None
        console.print_json(run.to_json() | {"result": result})
        return
    _show(run)


def _show_sweep(folder: Path, runs_dir: Path, *, is_opening: bool, output: str) -> None:
    runs_of = [run for run in list_runs(runs_dir) if run.sweep == folder.name]
    summary = describe_sweep(folder, [_to_row(run) for run in runs_of])
    if is_opening:
        if not (folder / "sweep.html").is_file():
            raise UsageError(
                f"sweep {folder.name} has no page yet",
                remedy="the command that started it continues it, and writes one",
            )
        open_file(folder / "sweep.html")
    if output == "json":
        console.print_json(summary | {"runs": [run.to_json() for run in runs_of]})
        return
    console.print_line((folder.name, "bold"), f"  sweep  {_format_progress(summary)}")
    for name, values in summary["parameters"].items():
        console.print_line(f"  {name}: {', '.join(values)}")
    console.print_line(f"{_count_verdicts(summary)}; shoal runs list {folder.name} lists its runs")
    for file in ("sweep.html", "result.json"):
        if (folder / file).exists():
            console.print_line(f"  {folder / file}")


def _show(run: RunSummary) -> None:
    console.print_line((run.name, "bold"), f"  {run.state}  started {_format_time(run)}")
    if run.problem:
        console.print_line(("result unreadable", "bold yellow"), f": {run.problem}")
    elif run.verdict:
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


@contextmanager
def _open_run(name: str, runs_dir: Path) -> Iterator[Path]:
    """Find the folder of a run; of one on another file system only what is needed is read."""
    place = read_place(name)
    if not is_url(place):
        yield find_run(runs_dir, place).path
        return
    from shoal.audit.read.remote import open_remote_run

    with open_remote_run(place) as folder:
        yield folder


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
    """Show what the ledgers of a run (or of a URL) record about one message and its neighbours.

    \b
    shoal runs message 20260101-120000-demo demo producer-1 2 1000
    """
    from shoal.audit.page.life import MessageName, message_life

    name = MessageName(topic, producer, lane, sequence)
    with _open_run(run, runs_dir) as folder:
        life = message_life([folder], name)
    if output == "json":
        console.print_json(life.to_json())
        return
    if life.last_stage == "unknown":
        raise UsageError(
            life.sentence.removesuffix("."),
            remedy=f"take its topic, producer, lane and sequence from shoal runs show {run}",
        )
    console.print_line(life.sentence)
    for near in life.neighbours:
        console.print_line(f"  {near.sequence}: {near.last_stage}")


@runs.command("rm")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_run_or_sweep)
@runs_dir_option
@refusing_malformed_files()
def rm_command(*, names: tuple[str, ...], runs_dir: Path) -> None:
    """Delete runs with all their ledgers, or whole sweeps."""
    sweeps = {path.name: path for path in list_sweep_folders(runs_dir)}
    found = {name: None if name in sweeps else find_run(runs_dir, name) for name in names}
    for name, run in found.items():
        if run is None:
            remove_sweep(sweeps[name], list_runs(runs_dir))
        else:
            url = read_url(run.path)
            remove_run(run)
            if url is not None:
                console.say(f"its ledgers stay in {url}")
        console.say(f"removed {name if run is None else run.name}")
