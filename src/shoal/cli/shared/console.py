"""How the commands speak: one console for data, one for everything else."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from shoal.model.errors import ShoalError


class _Output(Console):
    """Standard output; `outlives_readers` is whether a command continues without a reader."""

    outlives_readers = False

    def on_broken_pipe(self) -> None:
        if not self.outlives_readers:
            super().on_broken_pipe()
        discard_output()


out = _Output(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def outliving_readers() -> Iterator[None]:
    """Keep the exit code of a command whose reader closes the pipe, such as `head`.

    For commands that end of their own accord: one that prints until it is stopped ends with its
    reader.
    """
    before, out.outlives_readers = out.outlives_readers, True
    try:
        yield
    finally:
        out.outlives_readers = before


def discard_output() -> None:
    """Send what is still printed nowhere: also what Python flushes when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(text: str, style: str | None = None) -> None:
    """A message for the person who watches, on standard error, unless they asked for quiet."""
    if not err.quiet:
        err.print(text, style=style, markup=False)


def print_json(value: Any) -> None:
    """Data for machines, on standard output."""
    try:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        if not out.outlives_readers:
            raise
        discard_output()


def show_error(error: ShoalError) -> None:
    """An error as users see it: what happened, and what to do next."""
    err.print(f"error: {error}", style="bold red", markup=False)
    if error.remedy:
        err.print(f"  what to do: {error.remedy}", markup=False)
