"""The lines of a history, read one by one and held to the format.

Rules:
- A line that is not what `docs/history-format.md` says is a `UsageError` that names the file,
  the number of the line and the reason; nothing of such a history is judged.
- Fields that the format does not know are ignored; `null` is the same as leaving out; blank
  lines are skipped.
- What is well-formed and contradicts itself (two outcomes of one attempt) passes: it is for the
  judge.
- Times may be any whole numbers. They are kept shifted by `TIME_SHIFT_US`, so that none of them
  is the -1 that stands for "none" in ledgers.
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

# No real log or run comes near these; beyond them numbers no longer fit together into 64 bits.
LARGEST_OFFSET: Final = (1 << 44) - 2
LARGEST_PARTITION: Final = (1 << 18) - 1
LARGEST_ASSIGNMENT: Final = (1 << 22) - 1
LARGEST_SEQUENCE: Final = (1 << 62) - 1

Values = tuple[Any, ...]
Check = Callable[[Any], Any]


class Malformed(Exception):
    """A value that its field cannot have; the text is the end of a sentence."""


def _whole(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise Malformed("is not a whole number")
        if not low <= value <= high:
            raise Malformed(f"is not between {low} and {high}")
        return value

    return check


def _time(value: Any) -> int:
    return _any_time(value) + TIME_SHIFT_US  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Malformed("is not a text")
    if len(value) > LONGEST_NAME:
        raise Malformed(f"is longer than {LONGEST_NAME} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Malformed("holds half of a character") from error
    return value


def _label(value: Any) -> str:
    """A key or a transaction: a text or a whole number, told apart."""
    return f"#{value}" if type(value) is int else f"'{_text(value)}"


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise Malformed("is neither true nor false")
    return value


def _one_of(*choices: str) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or value not in choices:
            raise Malformed(f"is none of {', '.join(choices)}")
        return value

    return check


def _acks(value: Any) -> str:
    told = str(value) if type(value) is int else value
    if told not in ("all", "-1", "1", "0"):
        raise Malformed("is none of all, 1, 0")
    return str(told)


_any_time = _whole(1 - TIME_SHIFT_US, TIME_SHIFT_US - 1)
_partition = _whole(0, LARGEST_PARTITION)
_offset = _whole(0, LARGEST_OFFSET)
_sequence = _whole(0, LARGEST_SEQUENCE)
_cluster = _one_of("source", "target")

# (name, what it must be, whether it must be there) of each kind of line.
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
    """The kind of each line and its values, in the order of `KINDS`; None for what is absent.

    `path` and the number of the first line are for messages. Where that is 1, a `run` line may
    come first.
    """
    number, is_first = first_line - 1, first_line == 1
    try:
        while text := file.readline(LONGEST_LINE_BYTES + 1):
            number += 1
            if text.strip():
                kind, values = _parse(text, is_first)
                is_first = False
                yield kind, values
    except Malformed as bad:
        raise _malformed(path, number, bad) from None


def _parse(text: bytes, is_first: bool) -> tuple[str, Values]:
    if len(text) > LONGEST_LINE_BYTES:
        raise Malformed(f"is longer than {LONGEST_LINE_BYTES} bytes")
    if is_first:
        return parse_line(text.removeprefix(_BYTE_ORDER_MARK))
    kind, values = parse_line(text)
    if kind == "run":
        raise Malformed("is a `run` line, which may stand only once, and first")
    return kind, values


def _malformed(path: Path, number: int, bad: Malformed) -> UsageError:
    return UsageError(
        f"{path}: line {number} {bad}",
        remedy="mend the line; docs/history-format.md says what each kind of line holds",
    )


def parse_line(text: bytes) -> tuple[str, Values]:
    """One line, held to the format."""
    try:
        line = json.loads(text, parse_constant=_refuse, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise Malformed("is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON: {_reason(error)}") from error
    if type(line) is not dict:
        raise Malformed("is not a JSON object")
    kind = line.get("kind")
    if type(kind) is not str or kind not in KINDS:
        raise Malformed(f"is of no kind that the format knows: {_shown(kind)}")
    values: list[Any] = []
    for name, check, is_needed in KINDS[kind]:
        value = line.get(name)
        if value is None:
            if is_needed:
                raise Malformed(f"is a `{kind}` line without `{name}`")
            values.append(None)
            continue
        try:
            values.append(check(value))
        except Malformed as bad:
            raise Malformed(f"is a `{kind}` line whose `{name}` ({_shown(value)}) {bad}") from None
    if kind == "scan" and values[4] < values[3]:
        raise Malformed("is a `scan` line whose `end` lies before its `start`")
    return kind, tuple(values)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:80]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; one that names a field of ours twice says two things at once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next((name for name in names if name in _NAMES and names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"it names `{twice}` twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _shown(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=True):.60}"
