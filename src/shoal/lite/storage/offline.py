"""What takes a log offline: a disk that fails, and bytes that are not what was written.

Rules of this file:
- A log that fails costs its own partition only: whoever uses it gets `LogOffline`, which clients
  see as KAFKA_STORAGE_ERROR, and never any other error of the files.
- Damage is remembered in the log's folder until the log was checked as a whole: the next process
  would trust it after a clean end. It checks only where another replica has everything, because
  it cuts the log at the damage.
"""

import logging
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from shoal.lite.base.codes import Code, Refused
from shoal.lite.storage.files import DamagedFile
from shoal.lite.storage.scan import DamagedLog
from shoal.wire.errors import WireError

P = ParamSpec("P")
T = TypeVar("T")
# A file without content, in the folder of a log that is damaged.
DAMAGE_MARK = "is-damaged"
# What reading and writing the files of a log raises when they, or the disk, are damaged.
DAMAGE = (DamagedLog, DamagedFile, WireError, struct.error)
FILE_ERRORS = (OSError, *DAMAGE)
_logger = logging.getLogger(__name__)


class LogOffline(Refused):
    """The disk failed this partition."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.KAFKA_STORAGE_ERROR, message)


class CanGoOffline(Protocol):
    """A log."""

    def go_offline(self, verb: str, error: Exception) -> LogOffline: ...


LogT = TypeVar("LogT", bound=CanGoOffline)


def offline_if(
    verb: str,
) -> Callable[[Callable[Concatenate[LogT, P], T]], Callable[Concatenate[LogT, P], T]]:
    """For a method of a log: if its files fail, the log goes offline: it could not be `verb`."""

    def decorate(method: Callable[Concatenate[LogT, P], T]) -> Callable[Concatenate[LogT, P], T]:
        @wraps(method)
        def guarded(log: LogT, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(log, *args, **kwargs)
            except FILE_ERRORS as error:
                raise log.go_offline(verb, error) from error

        return guarded

    return decorate


def describe_failure(folder: Path, verb: str, error: Exception) -> str:
    """Why a log is offline, for logs, status and clients; marks the folder if it is damaged."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None or verb == "read":
        mark_damaged(folder)
    reason = str(error) if number is None else os.strerror(number)
    text = f"{folder.name} is offline: it could not be {verb}: {reason}"
    _logger.error("%s", text)
    return text


def mark_damaged(folder: Path) -> None:
    with suppress(OSError):
        (folder / DAMAGE_MARK).touch()


def is_marked_damaged(folder: Path) -> bool:
    return (folder / DAMAGE_MARK).exists()


def clear_damage_mark(folder: Path) -> None:
    (folder / DAMAGE_MARK).unlink(missing_ok=True)
