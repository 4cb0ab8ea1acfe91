"""`shoal compare` and `shoal sweep`: runs side by side, and the effects of settings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.text import Text

from shoal.cli.shared import console
from shoal.cli.shared.browser import open_file, open_option
from shoal.cli.shared.complete import complete_experiment, complete_run
from shoal.cli.shared.named_files import refusing_malformed_files
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.cli.shared.placement import placement_option, placement_sets
from shoal.cli.shared.signals import answers_signals
from shoal.model.comparison import DIFFERS, Comparison, MeasureJudgement, SweepResult
from shoal.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from shoal.experiment.compare.sweep import Sweep, SweepFolder

MAX_COLUMNS = 6


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…", shell_complete=complete_run)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the HTML page.  [default: comparison.html in the folder of runs]",
)
@open_option
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@refusing_malformed_files()
def compare(
    *, runs: tuple[str, ...], page: Path | None, is_opening: bool, runs_dir: Path, output: str
) -> None:
    """Show judged runs side by side, metric by metric, and which differences exceed the noise.

    Runs with the same settings are repeats and share a column.

    \b
    shoal compare 20260101-120000-mm2 20260101-121500-shoal
    """
    from shoal.experiment.compare.comparison import require_different_runs
    from shoal.experiment.runs import find_run

    found = [find_run(runs_dir, run) for run in runs]
    require_different_runs(found)
    target = page or runs_dir / "comparison.html"
    show_side_by_side([run.path for run in found], target, is_json=output == "json")
    if is_opening:
        open_file(target)


def show_side_by_side(run_dirs: Sequence[Path], page: Path, *, is_json: bool = False) -> None:
    """Compare judged runs: write the page, and print a table or JSON."""
    from shoal.experiment.compare.comparison import JudgedRun
    from shoal.experiment.compare.comparison import compare as compare_runs
    from shoal.report.side_by_side import link_reports, render_comparison

    judged = [JudgedRun.read(path) for path in run_dirs]
    comparison = compare_runs(judged)
    page.parent.mkdir(parents=True, exist_ok=True)
    links = link_reports(page, {run.result.run: run.path for run in judged})
    page.write_text(render_comparison(comparison, links), encoding="utf-8")
    if is_json:
        console.print_json(comparison.to_json())
        return
    _show_comparison(comparison)
    console.print_line(f"page  {page}")


def _show_comparison(comparison: Comparison) -> None:
    for column in comparison.columns:
        verdicts = ", ".join(dict.fromkeys(column.verdicts))
        console.print_line(f"{column.label}: {verdicts}; {column.sentence}")
    shown = comparison.columns[:MAX_COLUMNS]
    labels = [column.label for column in shown]
    table = console.SafeTable("metric", *labels, "difference", "could have shown", box=None)
    for row in comparison.rows:
        cells = [row.cell(place) for place in range(len(shown))]
        table.add_row(row.measure.name, *cells, _format_judged(row.judged), row.judged.smallest)
    console.print_table(table)


def _format_judged(judged: MeasureJudgement) -> Text:
    return Text(console.one_line(judged.text), "bold" if judged.judgement == DIFFERS else "")


@click.command()
@click.argument("experiment", metavar="FILE|PRESET", shell_complete=complete_experiment)
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="KEY=VALUE,VALUE…",
    help="A setting and its values; may be repeated.  [default: [sweep] of the file]",
)
@click.option(
    "--repeat", type=click.IntRange(1, 1000), help="Runs of each combination.  [default: 3]"
)
@click.option(
    "--seed", type=click.IntRange(0), help="Seed of the random order of the runs.  [default: 0]"
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the file; may be repeated.",
)
@placement_option
@click.option("--dry-run", is_flag=True, help="Check every combination, show the order, and exit.")
@open_option
@runs_dir_option
@output_option
@console.survive_closed_pipe()
@answers_signals()
def sweep(
    *,
    experiment: str,
    varied: tuple[str, ...],
    repeat: int | None,
    seed: int | None,
    sets: tuple[str, ...],
    placement: str | None,
    dry_run: bool,
    is_opening: bool,
    runs_dir: Path,
    output: str,
) -> ExitCode:
    """Run every combination of some settings, repeated, and show the effect of each setting.

    The same command resumes an interrupted sweep.

    \b
    shoal sweep consistency --vary producer.acks=0,1,all --vary in_flight=1,5 --repeat 3
    """
    from shoal.experiment.compare.sweep import SweepFolder, plan_sweep
    from shoal.experiment.presets import find

    sets += placement_sets(placement)
    plan = plan_sweep(find(experiment), sets, varied, repeats=repeat, seed=seed)
    plan.check()
    if dry_run:
        for planned in plan.order():
            console.print_line(planned.folder)
        return ExitCode.PROVEN
    with SweepFolder(runs_dir / plan.name, plan) as folder:
        _run_remaining(plan, folder)
        code, page = _report(folder, output=output)
    if is_opening:
        open_file(page)
    return code


def _run_remaining(plan: "Sweep", folder: "SweepFolder") -> None:
    from shoal.cli.run import group_by_clusters, run_one
    from shoal.experiment.faults.fault_injection import prepare_environment
    from shoal.experiment.placing import plan_session

    remaining = folder.remaining_runs()
    total = len(plan.order())
    console.say(
        f"{total - len(remaining)} of {total} runs are done; folder of the sweep: {folder.path}"
    )
    specs = [plan.spec(planned) for planned in remaining]
    waiting = enumerate(remaining, total - len(remaining) + 1)
    if not remaining:
        return
    with plan_session(specs) as session:
        for group in group_by_clusters(specs):
            with prepare_environment(group[0]) as environment:
                for spec in group:
                    number, planned = next(waiting)
                    console.say(f"\nrun {number} of {total}: {planned.describe()}", "bold")
                    run_one(spec, environment, session, folder.clear_run_dir(planned))
                    if not folder.is_done(planned):
                        console.say("interrupted; run the same command again to resume the sweep")
                        return


def _report(folder: "SweepFolder", *, output: str) -> tuple[ExitCode, Path]:
    """Write and print the result; returns the page too."""
    from shoal.report.side_by_side import link_reports, render_sweep, sentences

    result = folder.result()
    page = folder.path / "sweep.html"
    runs = [run for column in result.comparison.columns for run in column.runs]
    links = link_reports(page, {run: folder.path / run for run in runs})
    page.write_text(render_sweep(result, links), encoding="utf-8")
    result_text = json.dumps(result.to_json(), indent=2, ensure_ascii=False)
    (folder.path / "result.json").write_text(result_text + "\n", encoding="utf-8")
    if output == "json":
        console.print_json(result.to_json())
    else:
        _show_effects(result)
        for sentence in sentences(result):
            console.print_line(sentence)
        console.print_line(f"page  {page}")
    is_done = result.done == result.planned
    return ExitCode.PROVEN if is_done else ExitCode.INCONCLUSIVE, page


def _show_effects(result: SweepResult) -> None:
    for parameter, levels in result.parameters.items():
        table = console.SafeTable(parameter, *levels, "effect", "could have shown", box=None)
        for effect in result.effects:
            if effect.parameter == parameter:
                means = map(effect.measure.format_value, effect.means())
                said = _format_judged(effect.judged), effect.judged.smallest
                table.add_row(effect.measure.name, *means, *said)
        console.print_table(table)
        console.out.print()
