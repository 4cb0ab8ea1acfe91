"""The root of the error tree.

    ShoalError                      every error that this project raises on purpose
    ├── UsageError                  the command line or a call is wrong
    ├── ConfigError                 a property, spec or file is wrong
    ├── UnreachableError            a cluster or process does not answer
    ├── LedgerError                 a ledger folder cannot be read as what it claims to be
    ├── SystemFailure               a system under test did not start, stop or obey
    ├── WireError                   bad bytes; the rest of this branch is in `shoal.wire.errors`
    └── ClientError                 the rest of this branch is in `shoal.client.errors`

An error says what happened, where, why if known, and what to do next (`remedy`).
`blame` says which side caused it: this process (`local`) or its peer (`remote`).
"""

from typing import Literal

Blame = Literal["local", "remote"]


class ShoalError(Exception):
    """Base class of all errors. `str(error)` is for users: the message, and the remedy if any.

    Where the remedy is passed on or shown separately, use `message`.
    """

    blame: Blame = "local"
    retriable: bool = False

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy

    @property
    def message(self) -> str:
        """What happened, to what and why, in one sentence."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class UsageError(ShoalError):
    """A command or call got an argument that it cannot accept."""


class ConfigError(ShoalError):
    """A property, specification or file has an illegal value."""


class UnreachableError(ShoalError):
    """A cluster or process does not answer."""

    blame: Blame = "remote"
    retriable = True


class LedgerError(ShoalError):
    """A ledger is truncated, belongs to another run, or has another format."""


class SystemFailure(ShoalError):
    """A cluster, mirror or worker did not start, stop or obey."""


class WireError(ShoalError):
    """Bytes that violate the protocol or format; `position` is the offset of the first one."""

    blame: Blame = "remote"

    def __init__(self, message: str, *, position: int | None = None) -> None:
        where = "" if position is None else f" at byte {position}"
        super().__init__(f"{message}{where}")
        self.position = position


class ClientError(ShoalError):
    """An error of the Kafka client."""
