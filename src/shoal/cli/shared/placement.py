"""Options that say where workers run."""

import rich_click as click

# As in `shoal.experiment.spec`, which is not imported for `--help`.
PLACEMENTS = ("spark", "processes")

placement_option = click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    help="Run producers, consumers and scans as tasks of Spark, or as processes, with no JVM "
    "at all.  [default: as in the file, or else spark]",
)


def placement_sets(placement: str | None, master: str | None = None) -> tuple[str, ...]:
    """The options as changes of the experiment's file."""
    wanted = {"placement": placement, "master": master}
    return tuple(f"workers.{key}={value!r}" for key, value in wanted.items() if value is not None)
