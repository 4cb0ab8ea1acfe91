"""Files that a command line names: one that is malformed is wrong input (exit code 2).

Elsewhere a `LedgerError` is about a ledger that the command itself writes, and stays exit code 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.model.errors import LedgerError, UsageError


@contextmanager
def refusing_malformed_files() -> Iterator[None]:
    """For commands, as a decorator, and for parts of them."""
    try:
        yield
    except LedgerError as error:
        raise UsageError(str(error), remedy=error.remedy) from error
