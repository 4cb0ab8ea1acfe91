"""The output of the commands: one console for data, one for everything else.

Names of runs, topics, files and clusters can hold any characters. So text is printed as it is, with
no markup: styles are given beside it. Control characters, and those that change the direction of
text, are printed as escape sequences, e.g. `\\x1b`: they could hide or change what is printed.
"""

import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shoal.model.errors import ShoalError

# All control characters except tab and line feed, marks of direction, invisible spaces, other ends
# of lines.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
_LINE_END: Final = re.compile("[\t\n]")


def escape_controls(text: str) -> str:
    """Text whose control characters are visible; tabs and line feeds stay."""
    return _UNSAFE.sub(_escape_character, text)


def one_line(text: str) -> str:
    """Text without control characters, tabs and line feeds, for a name inside a line or a cell."""
    return _LINE_END.sub(_escape_character, escape_controls(text))


def _escape_character(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


class SafeConsole(Console):
    """Prints text as it is: without markup and emoji codes, and with visible control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Everything that is printed: text, tables and bars of progress."""
        for segment in super().render(renderable, options):
            if segment.control or not _UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(escape_controls(segment.text), segment.style)


class SafeTable(Table):
    """A table; its strings are one line each, and have no markup. Styled cells are `Text`."""

    def add_column(self, header: RenderableType = "", *rest: Any, **options: Any) -> None:
        super().add_column(_as_cell(header), *rest, **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(None if cell is None else _as_cell(cell) for cell in cells), **options)


def _as_cell(cell: RenderableType) -> RenderableType:
    return one_line(cell) if isinstance(cell, str) else cell


class SafeFormatter(logging.Formatter):
    """Formats log messages; names in them cannot control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


class _Output(SafeConsole):
    """Standard output; if `survives_closed_pipe`, a command continues without a reader."""

    survives_closed_pipe = False

    def on_broken_pipe(self) -> None:
        if not self.survives_closed_pipe:
            super().on_broken_pipe()
        discard_output()


_WIDEST: Final = 100_000  # columns of a table in a pipe

out = _Output(soft_wrap=True)
err = SafeConsole(stderr=True, soft_wrap=True)


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
    """Print a line for the user on standard error, unless `--quiet` is set.

    Empty lines before it are kept; other line feeds are part of a name.
    """
    if not err.quiet:
        line = text.lstrip("\n")
        err.print("\n" * (len(text) - len(line)) + one_line(line), style=style)


def print_line(*parts: str | tuple[str, str]) -> None:
    """Print one line on standard output; a part is text, or text and its style."""
    shown = ((part, "") if isinstance(part, str) else part for part in parts)
    out.print(Text.assemble(*((one_line(text), style) for text, style in shown)))


def print_table(table: Table) -> None:
    """Print a table. Names are never shortened: a pipe gets long lines, a terminal folded cells."""
    for column in table.columns:
        column.overflow = "fold"
    if out.is_terminal:
        out.print(table)
        return
    wide = SafeConsole(file=io.StringIO(), width=_WIDEST)
    width = Measurement.get(wide, wide.options, table).maximum
    wide.print(table, width=width)
    lines = wide.file.getvalue().splitlines()  # type: ignore[attr-defined]
    out.print("\n".join(line.rstrip() for line in lines))


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
    err.print(f"error: {error.message}", style="bold red")
    if error.remedy:
        err.print(f"  what to do: {error.remedy}")
