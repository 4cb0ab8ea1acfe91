"""Reads `run.json` for an audit and refuses every value that the audit does not know.

An unknown value is refused when the folder is opened, with the file, the entry and the allowed
values. It is never replaced by a default: a misspelt promise would not be checked at all, and the
verdict would be `proven`. A missing or null entry has its default; inside `promises` null is
refused too, because no writer puts it there. Entries that an audit does not read are not checked.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from shoal.audit.result import thresholds
from shoal.audit.result.verdict import DEFAULT_FIDELITY
from shoal.model.errors import LedgerError, UsageError
from shoal.model.ledger import read_format
from shoal.model.promises import FIDELITIES, PROMISED_DELIVERIES, PROMISES

Json = Mapping[str, Any]
Problem = tuple[str, str]  # the entry, and what is wrong with its value
Check = Callable[[str, Any], Iterator[Problem]]

LARGEST_BYTES: Final = 64 * 1024 * 1024

_ACKS: Final = ("all", "-1", "0", "1")
_ISOLATIONS: Final = ("read_committed", "read_uncommitted")
_CLUSTERS: Final = ("source", "target")


def read_run_file(path: Path) -> tuple[Json, int]:
    """Return the content of a `run.json` and the format of its ledgers."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise LedgerError(f"{path} is larger than {LARGEST_BYTES:,} bytes")
        plan = json.loads(path.read_bytes(), object_pairs_hook=lambda p: _unique(path, p))
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read: {error.strerror}", remedy="give the folder of a run"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{path} is not JSON") from error
    ledger_format = read_format(plan.get("format") if isinstance(plan, dict) else None, str(path))
    for name, wrong in find_problems(plan):
        raise LedgerError(
            f"{path} is malformed: {name} {wrong}",
            remedy="correct the entry; docs/reference/ledgers.md says what run.json holds",
        )
    return plan, ledger_format


def require_same_promises(plans: Iterable[tuple[Path, Json]]) -> None:
    """Refuse folders of one run that promise different things.

    Without this check the order of the folders would decide. A folder may promise nothing.
    """
    given = [(path, plan["promises"]) for path, plan in plans if plan.get("promises")]
    for path, promises in given[1:]:
        first_path, first = given[0]
        if _with_defaults(promises) != _with_defaults(first):
            raise LedgerError(
                f"{first_path} and {path} promise different things:"
                f" {json.dumps(first)} and {json.dumps(promises)}",
                remedy="audit only folders with the same promises together",
            )


def find_problems(plan: Json) -> Iterator[Problem]:
    """Return the entries whose values an audit does not accept."""
    for name, check in _ENTRIES.items():
        if plan.get(name) is not None:
            yield from check(name, plan[name])


def _with_defaults(promises: Json) -> tuple[Any, ...]:
    fidelity = frozenset(promises.get("fidelity", DEFAULT_FIDELITY))
    return promises.get("delivery", PROMISED_DELIVERIES[0]), promises.get("order", True), fidelity


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse a repeated entry, which would hide one of its values."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise LedgerError(f"{path} is malformed: {name:.80} is present twice")
        found[name] = value
    return found


def _must_be(name: str, value: Any, allowed: str) -> Problem:
    shown = json.dumps(value, ensure_ascii=False)
    return name, f"is {shown:.80}; it must be {allowed}"


def _one_of(*allowed: str) -> Check:
    def check(name: str, value: Any) -> Iterator[Problem]:
        if not isinstance(value, str) or value not in allowed:
            yield _must_be(name, value, f"one of {', '.join(allowed)}")

    return check


def _acks(name: str, value: Any) -> Iterator[Problem]:
    yield from _one_of(*_ACKS)(name, str(value) if type(value) is int else value)


def _flag(name: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, bool):
        yield _must_be(name, value, "one of true, false")


def _text(name: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield _must_be(name, value, "a name")


def _whole(name: str, value: Any) -> Iterator[Problem]:
    if type(value) is not int or value < 0:
        yield _must_be(name, value, "a whole number, 0 or more")


def _object(name: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield _must_be(name, value, "an object")


def _object_of(check: Check, *allowed: str) -> Check:
    """Return a check of an object: its values pass `check` or are null, its names are allowed."""

    def check_all(name: str, value: Any) -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield _must_be(name, value, "an object")
            return
        for inner, inner_value in value.items():
            if allowed and inner not in allowed:
                yield f"{name}.{inner:.80}", f"is unknown; the known names are {', '.join(allowed)}"
            elif inner_value is not None:
                yield from check(f"{name}.{inner:.80}", inner_value)

    return check_all


def _names(name: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        yield _must_be(name, value, "a list of names")


def _groups(name: str, value: Any) -> Iterator[Problem]:
    listed = value if isinstance(value, list) else [None]
    names = [group.get("name") if isinstance(group, dict) else group for group in listed]
    if not all(isinstance(each, str) for each in names):
        yield _must_be(name, value, "a list of names")


def _topic(name: str, value: Any) -> Iterator[Problem]:
    yield from _object(name, value)
    for size in ("lanes", "partitions"):
        if isinstance(value, dict) and value.get(size) is not None:
            yield from _whole(f"{name}.{size}", value[size])


def _fidelity(name: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, list) or not all(part in FIDELITIES for part in value):
        yield _must_be(name, value, f"a list of {', '.join(FIDELITIES)}")


_PROMISED: Final[Mapping[str, Check]] = {
    "delivery": _one_of(*PROMISED_DELIVERIES),
    "order": _flag,
    "fidelity": _fidelity,
}


def _promises(name: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield _must_be(name, value, "an object")
        return
    for promise, promised in value.items():
        if promise in PROMISES:
            yield from _PROMISED[promise](f"{name}.{promise}", promised)
        else:
            yield (
                f"{name}.{promise:.80}",
                f"is unknown; the known promises are {', '.join(PROMISES)}",
            )


def _thresholds(name: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        yield _must_be(name, value, "a list of thresholds, such as 'latency_ms_p99<250'")
        return
    try:
        thresholds.parse(value)
    except UsageError as error:
        yield name, f"cannot be used: {error}; {error.remedy}"


# Every entry that an audit reads.
_ENTRIES: Final[Mapping[str, Check]] = {
    "run": _text,
    "promises": _promises,
    "topics": _object_of(_topic),
    "topic_codes": _object_of(_text),
    "clusters": _object_of(_object, *_CLUSTERS),
    "compacted": _object_of(_names, *_CLUSTERS),
    "groups": _groups,
    "acks": _acks,
    "isolation": _one_of(*_ISOLATIONS),
    "mirror": _object,
    "machine": _object,
    "thresholds": _thresholds,
    "history": _flag,
    "one_clock": _flag,
    "all_drained": _flag,
    "warm_up_us": _whole,
    "started_us": _whole,
    "measure_from_us": _whole,
}
