"""What takes a log offline: I/O errors, and bytes that differ from what was written.

Rules of this file:
- A failed log affects its own partition only. Its callers get `LogOffline`, which clients see as
  KAFKA_STORAGE_ERROR, and never any other error of the files.
- Damage is recorded in the log's folder until the whole log was checked: after a clean shutdown the
  next process would trust the log. It checks only where another replica has everything, because the
  check truncates the log at the damage.
"""

import logging
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.storage.files import DamagedFile
from shoal.lite.storage.scan import DamagedLog
from shoal.wire.errors import WireError

P = ParamSpec("P")
T = TypeVar("T")
# An empty file in the folder of a damaged log.
DAMAGE_MARK = "is-damaged"
# What reading and writing the files of a log raises if they are damaged.
DAMAGE = (DamagedLog, DamagedFile, WireError, struct.error)
FILE_ERRORS = (OSError, *DAMAGE)
_logger = logging.getLogger(__name__)


class LogOffline(ApiError):
    """The log of this partition is offline after an error of its disk or files."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.KAFKA_STORAGE_ERROR, message)


class CanGoOffline(Protocol):
    """A log that an error can take offline."""

    def go_offline(self, verb: str, error: Exception) -> LogOffline: ...


LogT = TypeVar("LogT", bound=CanGoOffline)


def offline_on_error(
    verb: str,
) -> Callable[[Callable[Concatenate[LogT, P], T]], Callable[Concatenate[LogT, P], T]]:
    """Decorates a method of a log: an error of its files takes the log offline.

    `verb` completes the message: the log could not be `verb`.
    """

    def decorate(method: Callable[Concatenate[LogT, P], T]) -> Callable[Concatenate[LogT, P], T]:
        @wraps(method)
        def wrapper(log: LogT, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(log, *args, **kwargs)
            except FILE_ERRORS as error:
                raise log.go_offline(verb, error) from error

        return wrapper

    return decorate


def describe_failure(folder: Path, verb: str, error: Exception) -> str:
    """Why a log is offline, for log, status and clients; marks the folder if it is damaged."""
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
