"""The output of the commands: one console for data, one for everything else."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from shoal.model.errors import ShoalError


class _Output(Console):
    """Standard output; if `survives_closed_pipe`, a command continues without a reader."""

    survives_closed_pipe = False

    def on_broken_pipe(self) -> None:
        if not self.survives_closed_pipe:
            super().on_broken_pipe()
        discard_output()


out = _Output(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def survive_closed_pipe() -> Iterator[None]:
    """Keep the exit code of a command whose reader closes the pipe, such as `head`.

    For commands that end without being stopped. A command that prints until it is stopped must end
    when its reader does.
    """
    before, out.survives_closed_pipe = out.survives_closed_pipe, True
    try:
        yield
    finally:
        out.survives_closed_pipe = before


def discard_output() -> None:
    """Discard all further output, including what Python flushes when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(text: str, style: str | None = None) -> None:
    """Print a message for the user on standard error, unless `--quiet` is set."""
    if not err.quiet:
        err.print(text, style=style, markup=False)


def print_json(value: Any) -> None:
    """Print JSON on standard output."""
    try:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        if not out.survives_closed_pipe:
            raise
        discard_output()


def show_error(error: ShoalError) -> None:
    """Print an error: what happened, and what to do."""
    err.print(f"error: {error}", style="bold red", markup=False)
    if error.remedy:
        err.print(f"  what to do: {error.remedy}", markup=False)
