"""How commands name a cluster: `--name NAME`, which is not needed if only one runs."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import rich_click as click

from shoal.cli.shared.complete import complete_cluster
from shoal.cli.shared.options import Command
from shoal.model.errors import UsageError


def name_option(command: Command) -> Command:
    """Add `--name`."""
    return click.option(
        "--name",
        help="Name of the cluster; not needed if only one runs.",
        shell_complete=complete_cluster,
    )(command)


def name_option_or_argument(command: Command) -> Command:
    """Add `--name`; the name alone, as these commands took it before, still works."""

    @wraps(command)
    def take_name(*, name: str | None, positional_name: str | None, **rest: Any) -> Any:
        if name is not None and positional_name is not None:
            raise UsageError(
                f"two names of clusters are given: {name} and {positional_name}",
                remedy="give one, with --name",
            )
        return command(name=name or positional_name, **rest)

    add_argument: Callable[[Command], Command] = click.argument(
        "positional_name", required=False, metavar="", shell_complete=complete_cluster
    )
    return name_option(add_argument(take_name))
