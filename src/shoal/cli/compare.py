"""`shoal compare` and `shoal sweep`: runs side by side, and what settings do."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.table import Table

from shoal.cli.named_files import refusing_malformed_files
from shoal.cli.shared import console
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.model.comparison import DIFFERS, Comparison, Judged, SweepResult
from shoal.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from shoal.experiment.compare.sweep import Sweep, SweepFolder

MOST_COLUMNS = 6


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…")
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the page goes.  [default: comparison.html beside the runs]",
)
@runs_dir_option
@output_option
@console.outliving_readers()
@refusing_malformed_files()
def compare(*, runs: tuple[str, ...], page: Path | None, runs_dir: Path, output: str) -> None:
    """Show judged runs side by side, metric by metric, and what of it is more than noise.

    Runs that were set up alike are repeats of each other and share a column.

    \b
    shoal compare 20260101-120000-mm2 20260101-121500-shoal
    """
    from shoal.experiment.compare.comparison import require_different_runs
    from shoal.experiment.runs import find_run

    found = [find_run(runs_dir, run) for run in runs]
    require_different_runs(found)
    target = page or runs_dir / "comparison.html"
    show_side_by_side([run.path for run in found], target, is_json=output == "json")


def show_side_by_side(run_dirs: Sequence[Path], page: Path, *, is_json: bool = False) -> None:
    """Compare judged runs: a page, and a table in the terminal."""
    from shoal.experiment.compare.comparison import JudgedRun
    from shoal.experiment.compare.comparison import compare as compared
    from shoal.report.side_by_side import render_comparison

    comparison = compared([JudgedRun.read(path) for path in run_dirs])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render_comparison(comparison), encoding="utf-8")
    if is_json:
        console.print_json(comparison.to_json())
        return
    _show_comparison(comparison)
    console.out.print(f"page  {page}", markup=False, soft_wrap=True)


def _show_comparison(comparison: Comparison) -> None:
    for column in comparison.columns:
        verdicts = ", ".join(dict.fromkeys(column.verdicts))
        console.out.print(f"{column.label}: {verdicts}; {column.sentence}", markup=False)
    shown = comparison.columns[:MOST_COLUMNS]
    labels = [column.label for column in shown]
    table = Table("metric", *labels, "difference", "could have shown", box=None)
    for row in comparison.rows:
        cells = [row.cell(place) for place in range(len(shown))]
        table.add_row(row.measure.name, *cells, _coloured(row.judged), row.judged.smallest)
    console.out.print(table)


def _coloured(judged: Judged) -> str:
    return f"[bold]{judged.shown}[/]" if judged.judgement == DIFFERS else judged.shown


@click.command()
@click.argument("experiment", metavar="FILE|PRESET")
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
@click.option("--seed", type=click.IntRange(0), help="Of the order of the runs.  [default: 0]")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="As if it stood in the file."
)
@click.option("--dry-run", is_flag=True, help="Check every combination, show the order, and end.")
@runs_dir_option
@output_option
@console.outliving_readers()
def sweep(
    *,
    experiment: str,
    varied: tuple[str, ...],
    repeat: int | None,
    seed: int | None,
    sets: tuple[str, ...],
    dry_run: bool,
    runs_dir: Path,
    output: str,
) -> ExitCode:
    """Run every combination of some settings, repeated, and show what each setting does.

    The same command goes on where the last one ended, however it ended.

    \b
    shoal sweep consistency --vary producer.acks=0,1,all --vary in_flight=1,5 --repeat 3
    """
    from shoal.experiment.compare.sweep import SweepFolder, planned_sweep
    from shoal.experiment.presets import find

    plan = planned_sweep(find(experiment), sets, varied, repeats=repeat, seed=seed)
    plan.check()
    if dry_run:
        for planned in plan.order():
            console.out.print(planned.folder, markup=False)
        return ExitCode.PROVEN
    with SweepFolder(runs_dir / plan.name, plan) as folder:
        _run_left(plan, folder)
        return _tell(folder, output=output)


def _run_left(plan: "Sweep", folder: "SweepFolder") -> None:
    from shoal.cli.run import alike, run_one
    from shoal.experiment.faults.fault_injection import prepared
    from shoal.experiment.placing import Placing

    left = folder.left()
    total = len(plan.order())
    console.say(f"{total - len(left)} of {total} runs are done; the sweep is in {folder.path}")
    specs = [plan.spec(planned) for planned in left]
    waiting = iter(left)
    if not left:
        return
    with Placing(specs) as placing:
        for group in alike(specs):
            with prepared(group[0]) as ground:
                for spec in group:
                    planned = next(waiting)
                    console.say(f"\n{planned.folder}", "bold")
                    run_one(spec, ground, placing, folder.cleared(planned))
                    if not folder.is_done(planned):
                        console.say("cut short: the same command goes on from here")
                        return


def _tell(folder: "SweepFolder", *, output: str) -> ExitCode:
    from shoal.report.side_by_side import render_sweep, sentences

    result = folder.result()
    page = folder.path / "sweep.html"
    page.write_text(render_sweep(result), encoding="utf-8")
    told = json.dumps(result.to_json(), indent=2, ensure_ascii=False)
    (folder.path / "result.json").write_text(told + "\n", encoding="utf-8")
    if output == "json":
        console.print_json(result.to_json())
    else:
        _show_effects(result)
        for sentence in sentences(result):
            console.out.print(sentence, markup=False)
        console.out.print(f"page  {page}", markup=False, soft_wrap=True)
    return ExitCode.PROVEN if result.done == result.planned else ExitCode.INCONCLUSIVE


def _show_effects(result: SweepResult) -> None:
    for parameter, levels in result.parameters.items():
        table = Table(parameter, *levels, "effect", "could have shown", box=None)
        for effect in result.effects:
            if effect.parameter == parameter:
                means = map(effect.measure.shown, effect.means())
                said = _coloured(effect.judged), effect.judged.smallest
                table.add_row(effect.measure.name, *means, *said)
        console.out.print(table)
        console.out.print()
