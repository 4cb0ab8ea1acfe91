"""Finds the first records of one log in another one, of which retention has deleted less.

Rules:
- Records that are equal may follow each other. So a sequence of records is searched, which is long
  enough to have two that differ, or ends where its log ends.
- Timestamps are part of a record, except where the target sets its own.
- If only the first records of the sequence are found, the logs differ behind them, or one may
  still grow: the comparison continues from there.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shoal.mirror.proof.log import Log
from shoal.wire.records.records import Header, Record

# How many records are searched, and how many at most if the first ones are all equal.
_FEW: Final = 100
_MOST: Final = 10_000

_Content = tuple[bytes | None, bytes | None, tuple[Header, ...], int]
_Read = Callable[[Record], _Content]


class FoundStart(NamedTuple):
    """Where the first records of one log are in the other."""

    is_whole: bool  # all records that were searched are there
    matched: int  # how many of them
    offset: int
    before: int  # records before that place


async def find_start(ahead: Log, behind: Log) -> FoundStart | None:
    """Find the first records of `ahead` in `behind`; both are at their first records, and again."""
    first, other = await ahead.peek_record(), await behind.peek_record()
    if first is None or other is None:
        return None
    found: FoundStart | None = None
    for read in (_content, _content_without_time):
        wanted = await _read_first(ahead, read)
        takes_last = await ahead.peek_record() is None
        found = await _search(behind, wanted, read, takes_last=takes_last)
        ahead.read_again(first.offset)
        behind.read_again(other.offset)
        if found is not None or not (ahead.saw_append_times or behind.saw_append_times):
            break
    return found


async def _read_first(log: Log, read: _Read) -> list[_Content]:
    """Read the first records: some more than those that are equal."""
    wanted: list[_Content] = []
    equal = 0
    while len(wanted) < min(equal + _FEW, _MOST) and (record := await log.peek_record()):
        wanted.append(read(record))
        equal += equal == len(wanted) - 1 and wanted[-1] == wanted[0]
        log.skip_record()
    return wanted


async def _search(
    log: Log, wanted: Sequence[_Content], read: _Read, *, takes_last: bool
) -> FoundStart | None:
    """Search a sequence (Knuth, Morris and Pratt).

    With `takes_last` the last place is meant: the other log has nothing behind the sequence.
    Otherwise the first one, or where most of its first records are.
    """
    shorter = _find_borders(wanted)
    offsets: deque[int] = deque(maxlen=len(wanted))
    matched = count = most = 0
    found: FoundStart | None = None
    while (record := await log.peek_record()) is not None:
        content = read(record)
        while matched and (matched == len(wanted) or content != wanted[matched]):
            matched = shorter[matched - 1]
        matched += content == wanted[matched]
        offsets.append(record.offset)
        count += 1
        log.skip_record()
        is_whole = matched == len(wanted)
        if matched and matched >= most:
            most, found = matched, FoundStart(is_whole, matched, offsets[-matched], count - matched)
        if is_whole and not takes_last:
            break
    return found


def _find_borders(wanted: Sequence[_Content]) -> list[int]:
    """For each prefix, the length of the longest shorter one with which it ends."""
    borders, length = [0], 0
    for content in wanted[1:]:
        while length and content != wanted[length]:
            length = borders[length - 1]
        length += content == wanted[length]
        borders.append(length)
    return borders


def _content(record: Record) -> _Content:
    return record.key, record.value, record.headers, record.timestamp


def _content_without_time(record: Record) -> _Content:
    return record.key, record.value, record.headers, 0
