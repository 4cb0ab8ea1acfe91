"""`shoal run`: one experiment, from its file to its verdict."""

from pathlib import Path

import rich_click as click

from shoal.cli import console
from shoal.model.exit_codes import ExitCode


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="As if it were in FILE.")
def run(*, file: Path, sets: tuple[str, ...]) -> ExitCode:
    """Check an experiment file."""
    from shoal.experiment.spec import load

    spec = load(file, sets)
    console.out.print(f"{spec.name}: {spec.description}")
    return ExitCode.PROVEN
