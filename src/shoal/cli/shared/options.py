"""Options of several commands, with the names that Kafka's own tools use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich_click as click

from shoal.model.errors import UsageError
from shoal.model.units import parse_bytes, parse_count

Command = Callable[..., Any]


class Quantity(click.ParamType[int]):
    """A number with a unit, such as 10k or 64KiB; `parse` is a function of `model.units`."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else self._parse(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


COUNT = Quantity("count", parse_count)
SIZE = Quantity("size", parse_bytes)


def output_option(command: Command) -> Command:
    """`--output text|json`: for people or for programs."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Output format.",
    )(command)


def runs_dir_option(command: Command) -> Command:
    """`--runs-dir`: where runs are kept."""
    return click.option(
        "--runs-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("runs"),
        show_default=True,
        envvar="SHOAL_RUNS_DIR",
        help="Folder of the runs.",
    )(command)


def properties_of(assignments: tuple[str, ...]) -> dict[str, str]:
    """`key=value` pairs of a repeatable option as a mapping."""
    properties = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UsageError(
                f"{assignment!r} is not key=value",
                remedy="write a property as key=value, e.g. acks=all",
            )
        properties[key.strip()] = value.strip()
    return properties


def cluster_options(side: str) -> Callable[[Command], Command]:
    """`--SIDE-bootstrap-server`, `--SIDE-command-config` and `--SIDE-command-property`."""

    def add(command: Command) -> Command:
        options = (
            click.option(
                f"--{side}-bootstrap-server",
                metavar="HOST:PORT,…",
                help=f"Brokers of the {side} cluster.",
            ),
            click.option(
                f"--{side}-command-config",
                type=click.Path(path_type=Path, exists=True, dir_okay=False),
                help=f"A .properties file for the client of the {side} cluster.",
            ),
            click.option(
                f"--{side}-command-property",
                multiple=True,
                metavar="KEY=VALUE",
                help=f"One property for the client of the {side} cluster; may be repeated.",
            ),
        )
        for option in reversed(options):
            command = option(command)
        return command

    return add


def cluster_properties(side: str, values: dict[str, Any]) -> dict[str, str]:
    """The client properties of one side; flags override properties, which override the file."""
    properties: dict[str, str] = {}
    if file := values[f"{side}_command_config"]:
        from shoal.client.properties import load_properties

        properties |= load_properties(file)
    properties |= properties_of(values[f"{side}_command_property"])
    if server := values[f"{side}_bootstrap_server"]:
        properties["bootstrap.servers"] = server
    return properties
