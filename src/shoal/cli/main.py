"""The entry point: finds the command, runs it, and turns errors into exit codes.

Rules: a command returns an `ExitCode`, or None for 0. A `ShoalError` becomes one message and its
exit code, never a traceback (`--verbose` shows it). Ctrl-C is exit code 105.
"""

import importlib
import logging
import sys
from typing import Any

import rich_click as click
from click.exceptions import Exit

from shoal import __version__
from shoal.cli.shared import console
from shoal.model.errors import (
    ConfigError,
    ShoalError,
    SystemFailure,
    UnreachableError,
    UsageError,
)
from shoal.model.exit_codes import ExitCode

COMMANDS = {
    "demo": "shoal.cli.demo:demo",
    "audit": "shoal.cli.audit:audit",
    "cluster": "shoal.cli.cluster:cluster",
    "broker": "shoal.cli.nodes:broker",
    "controller": "shoal.cli.nodes:controller",
    "doctor": "shoal.cli.doctor:doctor",
    "mirror": "shoal.cli.mirror.mirror:mirror",
    "produce": "shoal.cli.produce:produce",
    "consume": "shoal.cli.produce:consume",
    "bench": "shoal.cli.bench:bench",
    "run": "shoal.cli.run:run",
    "clean": "shoal.cli.clean:clean",
    "sweep": "shoal.cli.compare:sweep",
    "compare": "shoal.cli.compare:compare",
    "runs": "shoal.cli.runs:runs",
}


class LazyGroup(click.RichGroup):
    """A group that imports a command when it is called, and suggests names for misspelt ones."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            from difflib import get_close_matches

            if near := get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"no such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shoal")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens; show tracebacks.")
@click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
@click.option("--no-color", is_flag=True, help="No colours (NO_COLOR works too).")
def main(*, verbose: bool, quiet: bool, no_color: bool) -> None:
    """Shoal proves what happens to every message that goes through Kafka and its mirrors.

    \b
    shoal demo                         see it work, in a minute
    shoal cluster up                   a small Kafka on this machine
    shoal mirror run --help            copy topics between clusters, batch by batch
    shoal runs show                    the last run and its verdict
    shoal doctor                       what this machine has, and what is missing
    """
    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    console.err.quiet = quiet
    if no_color:
        console.out.no_color = console.err.no_color = True


def run() -> None:
    """Run the command line of the `shoal` script, and exit."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        outcome: Any = main(arguments, prog_name="shoal", standalone_mode=False)
    except Exit as stop:
        return stop.exit_code
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except (click.Abort, KeyboardInterrupt):
        console.say("interrupted")
        return ExitCode.INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "shoal").partition(".")[0] == "shoal":
            raise  # an internal error, not a missing extra
        missing = SystemFailure(
            f"this command needs the package {error.name}, which is not installed",
            remedy="pip install 'shoal[spark]'",
        )
        console.show_error(missing)
        return exit_code_of(missing)
    except ShoalError as error:
        console.err.quiet = False
        console.show_error(error)
        logging.getLogger(__name__).debug("traceback of the error above", exc_info=True)
        return exit_code_of(error)
    return int(outcome) if isinstance(outcome, int) else ExitCode.PROVEN


def exit_code_of(error: ShoalError) -> ExitCode:
    """The documented exit code of each branch of the error tree."""
    match error:
        case UsageError():
            return ExitCode.USAGE
        case ConfigError():
            return ExitCode.INVALID_CONFIG
        case UnreachableError():
            return ExitCode.UNREACHABLE
        case _:
            return ExitCode.UNEXPECTED
