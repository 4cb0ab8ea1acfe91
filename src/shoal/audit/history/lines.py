"""Reads the lines of a history one by one and checks them against the format.

Rules:
- A line that is not what `docs/reference/history-format.md` says is a `UsageError` that names the
  file, the number of the line and the reason; nothing of such a history is judged.
- Fields that the format does not know are ignored; a `null` field is an absent field; blank lines
  are skipped.
- Well-formed lines that contradict each other (two outcomes of one attempt) are accepted: the
  audit judges them.
- Times may be any whole numbers. They are stored shifted by `TIME_SHIFT_US`, so that none of them
  is -1, which means "none" in ledgers.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from shoal.model.errors import UsageError
from shoal.model.promises import PROMISED_DELIVERIES

FORMAT: Final = 1
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
LONGEST_LINE_BYTES: Final = 1 << 20
LONGEST_NAME: Final = 32_768
TIME_SHIFT_US: Final = 1 << 60

# No real log or run comes near these limits. Larger numbers could not be packed into 64 bits.
LARGEST_OFFSET: Final = (1 << 44) - 2
LARGEST_EXACT_FLOAT: Final = 1 << 53
LARGEST_PARTITION: Final = (1 << 18) - 1
LARGEST_ASSIGNMENT: Final = (1 << 22) - 1
LARGEST_SEQUENCE: Final = (1 << 62) - 1

Values = tuple[Any, ...]
Check = Callable[[Any], Any]


class MalformedLine(Exception):
    """A value that its field does not allow; the text is the end of a sentence."""

    remedy = "correct the line; docs/reference/history-format.md has the fields of each kind"

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy or self.remedy


class _NotJson(MalformedLine):
    """The line is not JSON, perhaps because it was cut."""


# How files begin that are no text in UTF-8: what the first line is instead, and what to do.
_UNPACK: Final = "unpack the file first"
_CONVERT: Final = "convert the file to UTF-8"
_OTHER_FORMATS: Final = (
    (b"\x1f\x8b", "is compressed with gzip", _UNPACK),
    (b"BZh", "is compressed with bzip2", _UNPACK),
    (b"\xfd7zXZ", "is compressed with xz", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", _UNPACK),
    (b"\x04\x22\x4d\x18", "is compressed with LZ4", _UNPACK),
    (b"PK\x03\x04", "is an archive (zip)", _UNPACK),
    (b"\xff\xfe", "is UTF-16 or UTF-32, not UTF-8", _CONVERT),
    (b"\xfe\xff", "is UTF-16, not UTF-8", _CONVERT),
)
_CUT: Final = "the last line of the file was cut: remove it, and leave out `end` if it was the end"


def _whole(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is float and value.is_integer():
            if LARGEST_EXACT_FLOAT < abs(value) <= high:
                raise MalformedLine("is too large to be exact with a point or an exponent")
            value = int(value)
        if type(value) is not int:
            raise MalformedLine("is not a whole number")
        if not low <= value <= high:
            raise MalformedLine(f"is not between {low} and {high}")
        return value

    return check


def _time(value: Any) -> int:
    return _any_time(value) + TIME_SHIFT_US  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise MalformedLine("is not a string")
    if len(value) > LONGEST_NAME:
        raise MalformedLine(f"is longer than {LONGEST_NAME} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedLine("contains an unpaired surrogate") from error
    return value


def _label(value: Any) -> str:
    """Return a key or a transaction; the prefix distinguishes a string from a whole number."""
    return f"#{value}" if type(value) is int else f"'{_text(value)}"


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise MalformedLine("is neither true nor false")
    return value


def _one_of(*choices: str) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise MalformedLine(f"is not one of {', '.join(choices)}")
        return value

    return check


def _acks(value: Any) -> str:
    acks = str(value) if type(value) is int else value
    if acks not in ("all", "-1", "1", "0"):
        raise MalformedLine("is not one of all, 1, 0")
    return str(acks)


_any_time = _whole(1 - TIME_SHIFT_US, TIME_SHIFT_US - 1)
_partition = _whole(0, LARGEST_PARTITION)
_offset = _whole(0, LARGEST_OFFSET)
_sequence = _whole(0, LARGEST_SEQUENCE)
_cluster = _one_of("source", "target")

# The fields of each kind of line: (name, check, whether the field is required).
KINDS: Final[dict[str, tuple[tuple[str, Check, bool], ...]]] = {
    "run": (
        ("format", _whole(FORMAT, FORMAT), False),
        ("delivery", _one_of(*PROMISED_DELIVERIES), False),
        ("ordered", _flag, False),
        ("isolation", _one_of("read_committed", "read_uncommitted"), False),
        ("acks", _acks, False),
        ("mirror", _flag, False),
    ),
    "send": (
        ("producer", _text, True),
        ("topic", _text, True),
        ("partition", _partition, True),
        ("seq", _sequence, True),
        ("outcome", _one_of("ok", "failed", "unknown"), True),
        ("offset", _offset, False),
        ("key", _label, False),
        ("txn", _label, False),
        ("fate", _one_of("committed", "aborted", "open"), False),
        ("committed_us", _time, False),
        ("intended_us", _time, False),
        ("sent_us", _time, True),
        ("acked_us", _time, False),
    ),
    "manifest": (
        ("producer", _text, True),
        ("topic", _text, True),
        ("partition", _partition, True),
        ("count", _sequence, True),
    ),
    "scan": (
        ("cluster", _cluster, True),
        ("topic", _text, True),
        ("partition", _partition, True),
        ("start", _offset, True),
        ("end", _offset, True),
        ("compacted", _flag, False),
    ),
    "log": (
        ("cluster", _cluster, True),
        ("topic", _text, True),
        ("partition", _partition, True),
        ("offset", _offset, True),
        ("producer", _text, True),
        ("seq", _sequence, True),
        ("append_us", _time, False),
        ("intact", _flag, False),
    ),
    "assign": (
        ("consumer", _text, True),
        ("assignment", _whole(0, LARGEST_ASSIGNMENT), True),
        ("topic", _text, True),
        ("partition", _partition, True),
        ("offset", _offset, True),
    ),
    "receive": (
        ("consumer", _text, True),
        ("assignment", _whole(0, LARGEST_ASSIGNMENT), True),
        ("topic", _text, True),
        ("partition", _partition, True),
        ("offset", _offset, True),
        ("producer", _text, True),
        ("seq", _sequence, True),
        ("received_us", _time, True),
        ("intact", _flag, False),
    ),
    "position": (
        ("reader", _one_of("mirror", "consumers"), True),
        ("topic", _text, True),
        ("partition", _partition, True),
        ("offset", _offset, True),
    ),
    "end": (("drained", _flag, True),),
}
_NAMES: Final = {"kind", *(name for fields in KINDS.values() for name, _, _ in fields)}


def read_lines(file: BinaryIO, path: Path, *, first_line: int = 1) -> Iterator[tuple[str, Values]]:
    """Return the kind of each line and its values, in the order of `KINDS`; None if absent.

    `path` and the number of the first line are for messages. If that number is 1, the first line
    may be a `run` line.
    """
    number, is_first = first_line - 1, first_line == 1
    try:
        while text := file.readline(LONGEST_LINE_BYTES + 1):
            number += 1
            if text.strip():
                kind, values = _parse(text, is_first)
                is_first = False
                yield kind, values
    except MalformedLine as bad:
        is_cut = isinstance(bad, _NotJson) and not text.endswith(b"\n")
        raise UsageError(
            f"{path}: line {number} {bad}", remedy=_CUT if is_cut else bad.remedy
        ) from None


def _parse(text: bytes, is_first: bool) -> tuple[str, Values]:
    if len(text) > LONGEST_LINE_BYTES:
        raise MalformedLine(f"is longer than {LONGEST_LINE_BYTES} bytes")
    if is_first:
        for magic, what, remedy in _OTHER_FORMATS:
            if text.startswith(magic):
                raise MalformedLine(what, remedy)
        return parse_line(text.removeprefix(_BYTE_ORDER_MARK))
    kind, values = parse_line(text)
    if kind == "run":
        raise MalformedLine("is a `run` line, but only the first line of a history may be one")
    return kind, values


def parse_line(text: bytes) -> tuple[str, Values]:
    """Parse one line and check it against the format."""
    try:
        line = json.loads(text, parse_constant=_refuse, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise MalformedLine("is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise _NotJson(f"is not JSON: {_reason(error)}") from error
    if type(line) is not dict:
        raise MalformedLine("is not a JSON object")
    kind = line.get("kind")
    if type(kind) is not str or kind not in KINDS:
        raise MalformedLine(f"has a `kind` that the format does not know: {_quote(kind)}")
    values: list[Any] = []
    for name, check, is_required in KINDS[kind]:
        value = line.get(name)
        if value is None:
            if is_required:
                raise MalformedLine(f"is a `{kind}` line without `{name}`")
            values.append(None)
            continue
        try:
            values.append(check(value))
        except MalformedLine as bad:
            raise MalformedLine(
                f"is a `{kind}` line whose `{name}` ({_quote(value)}) {bad}"
            ) from None
    if kind == "scan" and values[4] < values[3]:
        raise MalformedLine("is a `scan` line whose `end` is below its `start`")
    return kind, tuple(values)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:80]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse one that repeats a field of the format: it is ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next((name for name in names if name in _NAMES and names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"the field `{twice}` is present twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _quote(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=True):.60}"
