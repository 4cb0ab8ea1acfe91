"""Options of several commands, with the names that Kafka's own tools use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import rich_click as click

from shoal.model.errors import UsageError
from shoal.model.units import parse_bytes, parse_count
from shoal.storage.places import is_url, read_place

Command = Callable[..., Any]
LOCAL_RUNS: Final = Path("runs")


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


class RunsPlace(click.Path):
    """A folder of runs, as a `Path`; of a command that takes URLs it may be one, as text."""

    def __init__(self, *, takes_urls: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=False)
        self._takes_urls = takes_urls

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or not is_url(value):
            return super().convert(value, param, ctx)
        place = read_place(value)
        if not is_url(place):
            return super().convert(place, param, ctx)
        if not self._takes_urls:
            raise UsageError(
                f"{value} is on another file system, and this command keeps runs in a folder",
                remedy=f"give a folder (--runs-dir, SHOAL_RUNS_DIR); {LOCAL_RUNS} has the local"
                " part of runs whose ledgers are elsewhere",
            )
        return place


def runs_dir_option(command: Command) -> Command:
    """`--runs-dir`: where runs are kept."""
    return _runs_dir_option(command, RunsPlace(), "Folder of the runs.")


def runs_place_option(command: Command) -> Command:
    """`--runs-dir`: where runs are kept, or the URL of a folder for their ledgers."""
    text = "Folder of the runs, or a URL for their ledgers (s3a://, s3://, hdfs://)."
    return _runs_dir_option(command, RunsPlace(takes_urls=True), text)


def _runs_dir_option(command: Command, kind: RunsPlace, text: str) -> Command:
    return click.option(
        "--runs-dir",
        type=kind,
        default=LOCAL_RUNS,
        show_default=True,
        envvar="SHOAL_RUNS_DIR",
        help=text,
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
