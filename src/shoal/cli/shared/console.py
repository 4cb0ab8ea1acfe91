"""The output of the commands: one console for data, one for everything else."""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from shoal.model.errors import ShoalError


class _Output(Console):
    """Standard output; if `survives_closed_pipe`, a command continues without a reader."""

    survives_closed_pipe = False

    def on_broken_pipe(self) -> None:
        if not self.survives_closed_pipe:
            super().on_broken_pipe()
        discard_output()


_WIDEST: Final = 100_000  # columns of a table in a pipe

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


def accept_any_text() -> None:
    """Print what the encoding of a stream does not have as an escape sequence, e.g. `\\u2192`.

    Names of files and topics can hold any bytes; a terminal of another language must not end a
    command.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_or_discard() -> None:
    """Write what was printed; if that is impossible, discard it, so that Python exits quietly."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            discard_output()


def discard_output() -> None:
    """Discard all further output, including what Python flushes when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(text: str, style: str | None = None) -> None:
    """Print a message for the user on standard error, unless `--quiet` is set."""
    if not err.quiet:
        err.print(text, style=style, markup=False)


def print_table(table: Table) -> None:
    """Print a table. Names are never shortened: a pipe gets long lines, a terminal folded cells."""
    for column in table.columns:
        column.overflow = "fold"
    if out.is_terminal:
        out.print(table)
        return
    wide = Console(file=io.StringIO(), width=_WIDEST, highlight=False)
    width = Measurement.get(wide, wide.options, table).maximum
    wide.print(table, width=width)
    lines = wide.file.getvalue().splitlines()  # type: ignore[attr-defined]
    out.print("\n".join(line.rstrip() for line in lines), markup=False)


def print_json(value: Any) -> None:
    """Print JSON on standard output."""
    needs_ascii = (getattr(sys.stdout, "encoding", None) or "").lower() not in {"utf-8", "utf8"}
    try:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=needs_ascii) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        if not out.survives_closed_pipe:
            raise
        discard_output()


def show_error(error: ShoalError) -> None:
    """Print an error: what happened, and what to do."""
    err.print(f"error: {error.message}", style="bold red", markup=False)
    if error.remedy:
        err.print(f"  what to do: {error.remedy}", markup=False)
