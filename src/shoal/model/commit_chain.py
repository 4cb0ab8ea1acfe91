"""The chain of a commit log: each line names its number and a checksum over it and all before it.

A line that was changed, left out, repeated or moved breaks the chain; only lines that are missing
at the end do not, so `run.json` names the last line of a run that has ended (`commit_log`).

Rules:
- `line` counts from 1. `check` is the last entry: 8 hexadecimal digits of the CRC-32 of the line
  as it would be without it, which continues that of the line before.
- Lines of the formats 1 and 2 have neither. After a line that has them, every line has.
"""

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from shoal.model.errors import LedgerError

Json = dict[str, Any]

_CHAINED: Final = re.compile(rb'(.*),"check":"([0-9a-f]{8})"\}\n', re.DOTALL)
REMEDY: Final = (
    "copy the folder again from where the run wrote it; if it is the original, it is damaged and"
    " proves nothing"
)


class CommitMark(NamedTuple):
    """How many lines a commit log has, and the checksum of the last."""

    lines: int = 0
    check: int = 0

    def to_json(self) -> Json:
        return {"lines": self.lines, "check": f"{self.check:08x}"}


START: Final = CommitMark()


def chain_line(line: Mapping[str, Any], after: CommitMark) -> tuple[bytes, CommitMark]:
    """Return the text of the line that follows, and the mark after it."""
    number = after.lines + 1
    numbered = {**line, "line": number}
    text = json.dumps(numbered, separators=(",", ":"), ensure_ascii=True).encode()
    check = zlib.crc32(text, after.check)
    return b'%b,"check":"%08x"}\n' % (text[:-1], check), CommitMark(number, check)


def is_chained(text: bytes) -> bool:
    return _CHAINED.fullmatch(text) is not None


def follow_chain(text: bytes, line: Json, after: CommitMark, where: str) -> CommitMark:
    """Return the mark after this line, and remove the entries of the chain from it.

    `LedgerError` if the line does not follow the one before.
    """
    found = _CHAINED.fullmatch(text)
    if found is None:
        if after.check:
            raise LedgerError(f"{where} has no checksum, and the line before has", remedy=REMEDY)
        return CommitMark(after.lines + 1)
    number, _ = line.pop("line", None), line.pop("check", None)
    if number != after.lines + 1:
        raise LedgerError(
            f"{where} says that it is line {number}: lines are missing or were moved", remedy=REMEDY
        )
    check = zlib.crc32(found[1] + b"}", after.check)
    if check != int(found[2], 16):
        raise LedgerError(
            f"{where} does not have its checksum: it or a line before it was changed", remedy=REMEDY
        )
    return CommitMark(number, check)


def read_mark(text: bytes, where: str) -> CommitMark:
    """Return the mark that the last line of a log names, without a look at the others."""
    found = _CHAINED.fullmatch(text)
    if found is None:
        raise LedgerError(f"{where} ends with a line that has no checksum", remedy=REMEDY)
    return CommitMark(int(json.loads(text)["line"]), int(found[2], 16))
