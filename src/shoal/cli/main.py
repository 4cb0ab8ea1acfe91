"""The entry point: finds the command, runs it, and turns errors into exit codes.

Rules: a command returns an `ExitCode`, or None for 0. A `ShoalError` becomes one message and its
exit code, never a traceback (`--verbose` shows it). Ctrl-C is exit code 105.
"""

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any, Final

import rich_click as click
from click.core import Command
from click.exceptions import Exit
from click.shell_completion import CompletionItem

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
from shoal.runtime.os_errors import describe_os_error

COMMANDS = {
    "demo": "shoal.cli.demo:demo",
    "audit": "shoal.cli.audit:audit",
    "cluster": "shoal.cli.cluster.cluster:cluster",
    "broker": "shoal.cli.cluster.nodes:broker",
    "controller": "shoal.cli.cluster.nodes:controller",
    "ready": "shoal.cli.deploy.ready:ready",
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
    "serve": "shoal.cli.serve:serve",
    "generate": "shoal.cli.deploy.generate:generate",
    "completion": "shoal.cli.completion:completion",
}
# As `shoal --help` shows them; a command that is missing here is shown last.
GROUPS: Final = {
    "Start": ("demo", "doctor", "completion"),
    "Test a pipeline": ("run", "sweep", "bench", "produce", "consume", "audit"),
    "Look at runs": ("runs", "compare", "serve", "clean"),
    "Mirror": ("mirror",),
    "Kafka": ("cluster", "broker", "controller", "ready"),
    "Deploy": ("generate",),
}
# Of the extra `web`; other missing packages belong to `spark`.
WEB_PACKAGES = {"sse_starlette", "starlette", "uvicorn"}


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

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, without importing each of them for its description."""
        names = [CompletionItem(name) for name in COMMANDS if name.startswith(incomplete)]
        return names + Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            from difflib import get_close_matches

            if near := get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"no such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


def _command_panels(group: Callable[..., Any]) -> Callable[..., Any]:
    for title, names in reversed(GROUPS.items()):
        group = click.command_panel(title, commands=list(names))(group)
    return group


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@_command_panels
@click.version_option(__version__, prog_name="shoal")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens; show tracebacks.")
@click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
@click.option("--no-color", is_flag=True, help="No colours (NO_COLOR works too).")
def main(*, verbose: bool, quiet: bool, no_color: bool) -> None:
    """Shoal proves what happens to every message that goes through Kafka and its mirrors.

    \b
    shoal demo                         see it work, in a minute
    shoal cluster up                   a small Kafka on this machine
    shoal mirror run --help            copy topics between clusters
    shoal runs show                    the last run and its verdict
    shoal doctor                       what this machine has, and what is missing
    """
    level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(console.SafeFormatter("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    console.err.quiet = quiet
    if no_color:
        console.out.no_color = console.err.no_color = True


def run() -> None:
    """The entry point of installations that are older than `shoal.__main__.run`."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    console.accept_any_text()
    try:
        outcome: Any = main(arguments, prog_name="shoal", standalone_mode=False)
        sys.stdout.flush()  # a full disk shows here
    except Exit as stop:
        return stop.exit_code
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except (click.Abort, KeyboardInterrupt):
        console.say("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        console.discard_output()
        return ExitCode.UNEXPECTED
    except ModuleNotFoundError as error:
        if (error.name or "shoal").partition(".")[0] == "shoal":
            raise  # an internal error, not a missing extra
        return _fail(_describe_missing(error), error)
    except OSError as error:
        return _fail(describe_os_error(error), error)
    except ShoalError as error:
        return _fail(error, error)
    return int(outcome) if isinstance(outcome, int) else ExitCode.PROVEN


def _describe_missing(error: ModuleNotFoundError) -> SystemFailure:
    extra = "web" if error.name in WEB_PACKAGES else "spark"
    return SystemFailure(
        f"this command needs the package {error.name}, which is not installed",
        remedy=f"pip install 'shoal[{extra}]'",
    )


def _fail(shown: ShoalError, cause: Exception) -> ExitCode:
    """Print an error, and return its exit code."""
    console.flush_or_discard()
    console.err.quiet = False
    console.show_error(shown)
    logging.getLogger(__name__).debug("traceback of the error above", exc_info=cause)
    return exit_code_of(shown)


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
