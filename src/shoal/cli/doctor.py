"""`shoal doctor`: checks whether this machine, or a cluster, has what runs need."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.text import Text

from shoal.cli.shared import console
from shoal.cli.shared.options import output_option
from shoal.model.exit_codes import ExitCode
from shoal.model.serialised import to_plain

if TYPE_CHECKING:
    from shoal.systems.doctor import Check

MARKS = {"ok": ("ok", "green"), "warn": ("note", "yellow"), "missing": ("missing", "bold red")}


@click.command()
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT,…",
    help="Check the permissions of this client on that cluster, instead of this machine.",
)
@click.option(
    "--command-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A .properties file for the client of that cluster.",
)
@click.option(
    "--canary-topic", metavar="NAME", help="The existing topic that a run would write to."
)
@output_option
def doctor(
    *,
    bootstrap_server: str | None,
    command_config: Path | None,
    canary_topic: str | None,
    output: str,
) -> ExitCode:
    """Check this machine (Python, Java, Spark, ports, disk, clock), and show how to fix problems.

    With --bootstrap-server: check the permissions that a run needs on that cluster. Nothing is
    changed there.
    """
    from shoal.systems.doctor import examine

    if bootstrap_server is None and command_config is None:
        checks = examine()
    else:
        checks = _cluster(bootstrap_server, command_config, canary_topic)
    is_incomplete = any(check.state == "missing" for check in checks)
    if output == "json":
        console.print_json([to_plain(check) for check in checks])
        return ExitCode.UNEXPECTED if is_incomplete else ExitCode.PROVEN
    table = console.SafeTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in checks:
        table.add_row(Text(*MARKS[check.state]), check.name, check.found)
        if check.remedy:
            table.add_row("", "", Text(console.one_line(check.remedy), "bold"))
    console.print_table(table)
    console.say("something is missing" if is_incomplete else "nothing is missing")
    return ExitCode.UNEXPECTED if is_incomplete else ExitCode.PROVEN


def _cluster(servers: str | None, file: Path | None, canary: str | None) -> "list[Check]":
    import javaproperties

    from shoal.systems.permissions import examine_cluster

    properties: dict[str, str] = {}
    if file is not None:
        with file.open("rb") as opened:
            properties |= javaproperties.load(opened)
    if servers is not None:
        properties["bootstrap.servers"] = servers
    return asyncio.run(examine_cluster(properties, canary))
