"""How a command that runs for long answers Ctrl-C and SIGTERM."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.cli.shared import console
from shoal.model.exit_codes import ExitCode
from shoal.runtime.interrupts import answer_signals


@contextmanager
def answers_signals() -> Iterator[None]:
    """Answer both signals at once; the second one ends the command within two seconds.

    Also a decorator of a command.
    """
    with answer_signals(_say, ExitCode.INTERRUPTED):
        yield


def _say(text: str) -> None:
    """Print on standard error without its buffer, which the signal may have interrupted."""
    if not console.err.quiet:
        os.write(2, f"\n{text}\n".encode())
