"""Reads a run folder: `run.json`, the commit log and the places of the committed segments.

The only reader, for the audit, the workload and experiments; `model/ledger.py` defines the format.

Rules:
- An unknown name or value in `run.json` is refused with the file, the entry and the allowed ones.
  It is never replaced by a default: a misspelt promise would not be checked at all, and the
  verdict would be `proven`.
- A missing or null entry has its default; inside `promises` null is refused too, because no writer
  puts it there. Values that only people read are not checked.
- Every other inconsistency is a `LedgerError` too, which names the file and the problem. An
  incomplete last line of a commit log is not an error.
- From format 3 on every line of the commit log is chained (`commit_chain`), and `run.json` of a run
  that has ended names its last line: what was lost or changed is refused. Lines may follow.
- Only segments in the commit log count; this module does not open them.
- The segments may be elsewhere: then the file `ledger.url` has the URL of the run's folder on
  another file system, and what is in this folder is of that one.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from shoal.model.commit_chain import REMEDY, START, CommitMark, follow_chain
from shoal.model.errors import LedgerError
from shoal.model.ledger import (
    CHAINED_SINCE,
    COMMIT_KINDS,
    COMPACTED,
    FORMAT,
    NO_INCARNATION,
    read_format,
)
from shoal.model.promises import FIDELITIES, PROMISED_DELIVERIES, PROMISES
from shoal.model.segment_footer import is_footer_check

Json = dict[str, Any]
Problem = tuple[str, str]  # the entry, and what is wrong with its value
Check = Callable[[str, Any], Iterator[Problem]]

RUN_FILE: Final = "run.json"
COMMITS_FILE: Final = "commits.jsonl"
LEDGER_FOLDER: Final = "ledger"
URL_FILE: Final = "ledger.url"
COMPACTED_SUFFIX: Final = ".compacted.parquet"  # of segments that stand for others

LARGEST_RUN_FILE_BYTES: Final = 64 * 1024 * 1024
LONGEST_LINE_BYTES: Final = 1024 * 1024
_MOST_REPLACED: Final = 10_000_000  # segments by one

_ACKS: Final = ("all", "-1", "0", "1")
_ISOLATIONS: Final = ("read_committed", "read_uncommitted")
_CLUSTERS: Final = ("source", "target")
_CHECK: Final = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class LedgerSegment:
    """One committed segment; sorted, the segments of a worker are in the order of writing."""

    worker: str
    epoch: int
    number: int
    path: str  # or URL
    rows: int
    table_format: int
    footer_check: str | None = None  # earlier versions did not record it


@dataclass(frozen=True)
class RunFolder:
    """A run folder: its plan (`run.json`) and its commit log.

    `url` is where its segments are, if they are on another file system.
    """

    directory: Path
    plan: Mapping[str, Any]
    commits: Sequence[Json]
    url: str | None = None

    @classmethod
    def open(cls, run_dir: Path) -> Self:
        """Read the plan and the commit log of a run folder; segments are read later."""
        plan = read_plan(run_dir)
        commits = read_commits(run_dir, plan)
        if plan["format"] == 1:
            commits = [_with_incarnation(line) for line in commits]
        return cls(run_dir, plan, commits, read_url(run_dir))

    @property
    def place(self) -> str:
        """The folder of the segments: a path or a URL."""
        return self.url or str(self.directory)

    def place_of(self, path: str) -> str:
        """Return where a segment is, from its path in the commit log."""
        return f"{self.url}/{path}" if self.url else str(self.directory / path)

    def segments(self, table: str) -> list[LedgerSegment]:
        """The committed segments of one table, by worker, epoch and number.

        A compacted segment has the place of the first one that it stands for.
        """
        return self._segments(table)[0]

    def list_replaced_segments(self, table: str) -> list[LedgerSegment]:
        """The segments that compacted ones stand for."""
        return self._segments(table)[1]

    @property
    def is_compacted(self) -> bool:
        return any(line["kind"] == COMPACTED for line in self.commits)

    def _segments(self, table: str) -> tuple[list[LedgerSegment], list[LedgerSegment]]:
        held: dict[tuple[str, int, int], LedgerSegment] = {}
        replaced: list[LedgerSegment] = []
        for line in self.commits:
            if line["kind"] not in ("segment", COMPACTED) or line.get("table") != table:
                continue
            segment = self._segment(line)
            worker, epoch = segment.worker, segment.epoch
            if line["kind"] == COMPACTED:
                numbers = range(segment.number, self._last(line) + 1)
                own = [held.pop((worker, epoch, n)) for n in numbers if (worker, epoch, n) in held]
                if sum(each.rows for each in own) != segment.rows:
                    raise LedgerError(
                        f"{self.directory}: {line['path']!s:.200} does not have as many rows as the"
                        " segments that it stands for"
                    )
                replaced += own
            held[worker, epoch, segment.number] = segment
        return [held[key] for key in sorted(held)], replaced

    def _last(self, line: Json) -> int:
        last = line.get("last")
        if not isinstance(last, int) or last - line["number"] not in range(_MOST_REPLACED):
            raise LedgerError(f"{self.directory}: bad compacted line {line!r:.200}")
        return last

    def _segment(self, line: Json) -> LedgerSegment:
        path = PurePosixPath(str(line.get("path")))
        if path.is_absolute() or ".." in path.parts or path.parts[:1] != (LEDGER_FOLDER,):
            raise LedgerError(
                f"{self.directory}: segment {str(path)!r:.200} is not in its ledger folder"
            )
        try:
            worker, epoch, number = str(line["worker"]), int(line["epoch"]), int(line["number"])
            place, rows = self.place_of(str(path)), int(line["rows"])
            check = line.get("footer")
            if check is None or is_footer_check(check):
                return LedgerSegment(worker, epoch, number, place, rows, self.plan["format"], check)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"{self.directory}: bad segment line {line!r:.200}") from error
        raise LedgerError(f"{self.directory}: bad footer in the segment line {line!r:.200}")


def read_url(run_dir: Path) -> str | None:
    """Return the URL of the segments of a run folder; None if it has them itself."""
    try:
        return (run_dir / URL_FILE).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"{run_dir / URL_FILE} cannot be read: {error}") from error


def read_plan(run_dir: Path) -> Json:
    """Read `run.json`, in any format that this version reads."""
    path = run_dir / RUN_FILE
    try:
        if path.stat().st_size > LARGEST_RUN_FILE_BYTES:
            raise LedgerError(f"{path} is larger than {LARGEST_RUN_FILE_BYTES:,} bytes")
        plan = json.loads(path.read_bytes(), object_pairs_hook=lambda p: _unique(path, p))
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read: {error.strerror}", remedy="give the folder of a run"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{path} is not JSON") from error
    content: Json = plan if isinstance(plan, dict) else {}
    read_format(content.get("format"), str(path))
    for problem in find_problems(content):
        raise describe_malformed_plan(run_dir, problem)
    return content


def describe_malformed_plan(run_dir: Path, problem: Problem) -> LedgerError:
    """The error for an entry of `run.json` that cannot be used."""
    name, wrong = problem
    return LedgerError(
        f"{run_dir / RUN_FILE} is malformed: {name} {wrong}",
        remedy="correct the entry; docs/reference/ledgers.md says what run.json holds",
    )


def read_commits(run_dir: Path, plan: Mapping[str, Any] | None = None) -> list[Json]:
    """All complete lines of the commit log, in order; `LedgerError` if its chain is broken.

    `plan` (`run.json`) says whether it must have one, and which line the run has ended with.
    """
    path = run_dir / COMMITS_FILE
    lines: list[Json] = []
    mark, named = START, _read_last_mark(run_dir, plan or {})
    try:
        with path.open("rb") as file:
            while text := file.readline(LONGEST_LINE_BYTES + 1):
                where = f"{path}: line {len(lines) + 1}"
                if len(text) > LONGEST_LINE_BYTES:
                    raise LedgerError(f"{where} is longer than {LONGEST_LINE_BYTES:,} bytes")
                if text.endswith(b"\n"):
                    line = _read_commit(text, where)
                    mark = follow_chain(text, line, mark, where)
                    lines.append(line)
                    if mark.lines == named.lines and mark != named:
                        raise LedgerError(
                            f"{where} is not the one that {RUN_FILE} names", remedy=REMEDY
                        )
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
    if mark.lines < named.lines:
        raise LedgerError(
            f"{path} has {mark.lines:,} lines, and the run ended with line {named.lines:,}:"
            " its end is missing",
            remedy=REMEDY,
        )
    if lines and not mark.check and plan is not None and plan["format"] >= CHAINED_SINCE:
        raise LedgerError(f"{path} has no checksums, and its ledger format has", remedy=REMEDY)
    return lines


def _read_last_mark(run_dir: Path, plan: Mapping[str, Any]) -> CommitMark:
    """Return the line that `run.json` names as the last of a run that has ended."""
    mark = plan.get("commit_log")
    if mark is not None:
        return CommitMark(mark["lines"], int(mark["check"], 16))
    if plan.get("state") == "finished" and plan["format"] >= CHAINED_SINCE:
        raise describe_malformed_plan(run_dir, ("commit_log", "is missing; the run has finished"))
    return START


def _read_commit(text: bytes, where: str) -> Json:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{where} is not JSON") from error
    if not isinstance(line, dict) or line.get("kind") not in COMMIT_KINDS:
        raise LedgerError(f"{where} has a kind that is not in ledger format {FORMAT}")
    return line


def _with_incarnation(line: Json) -> Json:
    """Convert a line of format 1 to format 2."""
    is_of_stream = line["kind"] in ("reserve", "drained")
    return {**line, "incarnation": NO_INCARNATION} if is_of_stream else line


# The entries of `run.json`


def find_problems(plan: Mapping[str, Any]) -> Iterator[Problem]:
    """Return the entries whose names or values are not known."""
    for name, value in plan.items():
        if name not in _ENTRIES:
            yield f"{name:.80}", f"is unknown; the known names are {', '.join(_ENTRIES)}"
        elif value is not None:
            yield from _ENTRIES[name](name, value)


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> Json:
    """Return a JSON object; refuse a repeated entry, which would hide one of its values."""
    found: Json = {}
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


def _commit_log(name: str, value: Any) -> Iterator[Problem]:
    yield from _object(name, value)
    if isinstance(value, dict):
        yield from _whole(f"{name}.lines", value.get("lines"))
        if not isinstance(check := value.get("check"), str) or not _CHECK.fullmatch(check):
            yield _must_be(f"{name}.check", check, "8 hexadecimal digits")


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


def _anything(_name: str, _value: Any) -> Iterator[Problem]:
    return iter(())


_ENTRIES: Final[Mapping[str, Check]] = {
    "format": _anything,  # checked before the others
    "run": _text,
    "state": _anything,
    "role": _anything,
    "experiment": _anything,
    "variant": _anything,
    "promises": _promises,
    "thresholds": _thresholds,
    "topics": _object_of(_topic),
    "topic_codes": _object_of(_text),
    "clusters": _object_of(_object, *_CLUSTERS),
    "compacted": _object_of(_names, *_CLUSTERS),
    "systems": _anything,
    "mirror": _object,
    "groups": _groups,
    "acks": _acks,
    "isolation": _one_of(*_ISOLATIONS),
    "workload": _anything,
    "faults": _anything,
    "history": _flag,
    "one_clock": _flag,
    "all_drained": _flag,
    "commit_log": _commit_log,
    "started_us": _whole,
    "warm_up_us": _whole,
    "measure_from_us": _whole,
    "command": _anything,
    "driver": _anything,
    "machine": _object,
    "master": _anything,
    "versions": _anything,
}


def hide_cluster_properties(plan: Mapping[str, Any]) -> Json:
    """`run.json` for pages: of a cluster only its address, as its properties hold passwords."""
    clusters = plan.get("clusters")
    shown = {
        role: properties.get("bootstrap.servers")
        for role, properties in (clusters.items() if isinstance(clusters, Mapping) else ())
        if isinstance(properties, Mapping)
    }
    return {**plan, "clusters": shown}
