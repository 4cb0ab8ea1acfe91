"""`shoal audit`: judge ledgers again, later and elsewhere, with no Kafka in reach."""

from pathlib import Path

import rich_click as click

from shoal.cli import console
from shoal.cli.options import output_option, runs_dir_option
from shoal.cli.verdict import EXIT_CODES, show_verdict
from shoal.experiment.runs import find_run
from shoal.model.exit_codes import ExitCode


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@runs_dir_option
@output_option
def audit(*, runs: tuple[str, ...], runs_dir: Path, output: str) -> ExitCode:
    """Judge the ledgers of a run (a name or a folder); several folders are judged as one run."""
    from shoal.experiment.judge import judge
    from shoal.pipeline.session import SessionFuture

    folders = [find_run(runs_dir, run).path for run in runs]
    with SessionFuture() as session:
        result = judge(folders, session=session)
    if output == "json":
        console.print_json(result.to_json())
    else:
        show_verdict(result, folders[0])
    return EXIT_CODES[result.verdict]
