"""Events as lines of JSON, and back. Pure.

A line begins with the kind and the time, so that most lines need not be decoded to be sorted out.
"""

import json
import re
from typing import Any, Final

from shoal.model.errors import LedgerError
from shoal.model.events import KINDS, VERSION, Event, Meta
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain

# This project writes no longer line.
LONGEST_LINE: Final = 4 * 1024 * 1024
_NAMES: Final = {kind: name for name, kind in KINDS.items()}
_BEGIN: Final = re.compile(rb'\{"kind":"(\w+)","t":(\d+)')


class DamagedLine(ValueError):
    """A line that is not an event; readers leave it out."""


def encode_event(event: Event) -> bytes:
    """The line of an event, with its end."""
    body = {"kind": _NAMES[type(event)], **to_plain(event)}
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"


def decode_event(line: bytes) -> Event:
    """The event of a line; `DamagedLine` if it is not one."""
    try:
        body = json.loads(line)
        return from_plain(KINDS[body.pop("kind")], body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedLine(f"not an event: {line[:80]!r} ({error})") from error


def decode_meta(line: bytes, where: object) -> Meta:
    """The first event of a file; `LedgerError` if it is not one that this version can read."""
    remedy = "read it with the version of shoal that wrote it"
    try:
        body: dict[str, Any] = json.loads(line)
        _check_kind(body.pop("kind"))
        check_version(body.get("version"), (VERSION,))
        return from_plain(Meta, body)
    except FormatMismatch as error:
        raise LedgerError(f"the event stream {where} {error}", remedy=remedy) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError(f"{where} is not an event stream", remedy=remedy) from error


def _check_kind(kind: object) -> None:
    if kind != "meta":
        raise FormatMismatch("does not begin with a meta event")


def kind_and_time(line: bytes) -> tuple[str, int]:
    """Kind and time of a line, without decoding it; empty and 0 if it has none."""
    found = _BEGIN.match(line)
    return (found[1].decode(), int(found[2])) if found else ("", 0)
