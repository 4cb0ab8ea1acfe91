"""Malformed files that the user names on the command line are a usage error (exit code 2).

Other `LedgerError`s are about ledgers that the command itself writes: exit code 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.model.errors import LedgerError, UsageError


@contextmanager
def refusing_malformed_files() -> Iterator[None]:
    """Turn a `LedgerError` into a `UsageError`; a decorator for commands, or a `with` block."""
    try:
        yield
    except LedgerError as error:
        raise UsageError(error.message, remedy=error.remedy) from error
