"""`shoal doctor`: what this machine has, and the one command for each thing missing."""

from dataclasses import asdict

import rich_click as click
from rich.table import Table

from shoal.cli import console
from shoal.cli.options import output_option
from shoal.model.exit_codes import ExitCode
from shoal.systems.doctor import examine

MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]note[/]", "missing": "[bold red]missing[/]"}


@click.command()
@output_option
def doctor(*, output: str) -> ExitCode:
    """What was found here (Python, Java, Spark, ports, disk, clock) and how to mend the rest."""
    checks = examine()
    sick = any(check.state == "missing" for check in checks)
    if output == "json":
        console.print_json([asdict(check) for check in checks])
        return ExitCode.UNEXPECTED if sick else ExitCode.PROVEN
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for check in checks:
        table.add_row(MARKS[check.state], check.name, check.found)
        if check.remedy:
            table.add_row("", "", f"[bold]{check.remedy}[/]")
    console.out.print(table)
    console.say("something is missing" if sick else "nothing is missing")
    return ExitCode.UNEXPECTED if sick else ExitCode.PROVEN
