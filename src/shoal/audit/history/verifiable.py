"""Converts the output of Apache Kafka's VerifiableProducer and VerifiableConsumer to a history.

Rules:
- The value of a message, `PREFIX.NUMBER` or `NUMBER`, identifies it: producer and sequence. Its
  lane is the partition where it was acknowledged, else where it was delivered, else 0. The
  sequences of one lane ascend, with gaps where a sequence belongs to another lane.
- A reported error makes an attempt `unknown`: the tool does not say whether an earlier try was
  stored. Unknown, too, is every sequence without a report below the highest one, or below `sent` in
  the last line: the producer was killed. A producer that did not print that line may have sent more
  than it reported: each delivered message of it is an attempt, also `unknown`.
- The consumer must have run with `--verbose`, which prints every record. Each assignment of a
  partition increases its assignment number by one, over all files in order of time.
- Send times are not printed, so there are no latencies. Times have millisecond resolution.
- Both tools mix log lines into their output: lines that do not begin with `{` are skipped, and so
  is an incomplete last line.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shoal.audit.arrays import NONE
from shoal.audit.history.lines import (
    LARGEST_OFFSET,
    LARGEST_PARTITION,
    LARGEST_SEQUENCE,
    LONGEST_LINE_BYTES,
    TIME_SHIFT_US,
    Values,
)
from shoal.model.errors import UsageError

# Each sequence without a report becomes an attempt; more of them than this is a mistake.
MOST_UNREPORTED: Final = 10_000_000
_LIMITS: Final = {"partition": LARGEST_PARTITION, "offset": LARGEST_OFFSET}

Event = Mapping[str, Any]
Name = tuple[str, str, int]  # topic, producer, sequence


def read_verifiable(
    producers: Sequence[Path], consumers: Sequence[Path], *, drained: bool
) -> Iterator[tuple[str, Values]]:
    """Return the lines of the history that these files make up together."""
    sends = _Sends()
    for path in producers:
        sends.read(path)
    receipts = list(_receipts(consumers))
    for topic, _, message, _ in receipts:
        sends.on_delivered((topic, *message))
    lanes = dict(sends.lanes)
    for topic, partition, message, _ in receipts:
        lanes.setdefault((topic, *message), partition)
    for name, (outcome, offset, acked_us) in sends.outcomes():
        topic, producer, sequence = name
        attempt = (producer, topic, lanes.get(name, 0), sequence)
        transaction = (None, None, None)
        times = (None, NONE, acked_us)
        yield "send", (*attempt, outcome, offset, None, *transaction, *times)
    for topic, partition, (producer, sequence), (consumer, assignment, offset, at_us) in receipts:
        reader = (consumer, assignment, topic, partition, offset)
        yield "receive", (*reader, producer, sequence, at_us, None)
    yield "end", (drained,)


def _events(path: Path) -> Iterator[tuple[str, Event]]:
    """Return each event of a file with its position, for error messages."""
    number = 0
    try:
        with path.open("rb") as file:
            while text := file.readline(LONGEST_LINE_BYTES + 1):
                number += 1
                where = f"{path}: line {number}"
                if text.startswith(b"{") and (event := _event(text, where)) is not None:
                    yield where, event
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _event(text: bytes, where: str) -> Event | None:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.endswith(b"\n"):
            raise UsageError(f"{where} is not JSON") from error
        return None  # the tool was killed while it wrote this line
    if not isinstance(event, dict):
        raise UsageError(f"{where} is not a JSON object")
    return event


def _number(where: str, event: Event, name: str) -> int:
    value = event.get(name)
    most = _LIMITS.get(name, LARGEST_SEQUENCE)
    if type(value) is not int or not 0 <= value <= most:
        raise UsageError(f"{where}: `{name}` is not a whole number from 0 to {most}")
    return value


def _time_us(where: str, event: Event) -> int:
    """The time of an event, shifted as all times of histories are (lines.py)."""
    return 1000 * _number(where, event, "timestamp") % TIME_SHIFT_US + TIME_SHIFT_US


def _parse_message(where: str, event: Event) -> tuple[str, tuple[str, int]]:
    """Return the topic, and the producer and sequence of a message, from its value."""
    topic, value = event.get("topic"), event.get("value")
    prefix, _, number = str(value).rpartition(".")
    if not isinstance(topic, str) or not number.isascii() or not number.isdigit():
        raise UsageError(
            f"{where}: `value` is not that of a VerifiableProducer's message: {value!r:.60}"
        )
    return topic, (prefix, min(int(number[:20]), LARGEST_SEQUENCE))


class _Sends:
    """What the producers reported about their sends."""

    def __init__(self) -> None:
        self.lanes: dict[Name, int] = {}
        self._reports: dict[Name, list[tuple[str, int | None, int | None]]] = defaultdict(list)
        self._ends: dict[tuple[str, str], int] = {}
        self._finished: set[tuple[str, str]] = set()
        self._unfinished: set[tuple[str, str] | None] = set()  # None: it reported nothing

    def read(self, path: Path) -> None:
        streams: set[tuple[str, str]] = set()
        sent = None
        for where, event in _events(path):
            kind = event.get("name")
            if kind == "tool_data":
                sent = _number(where, event, "sent")
            elif kind in ("producer_send_success", "producer_send_error"):
                streams.add(self._add_report(where, event))
        if len(streams) > 1:
            raise UsageError(
                f"{path} contains messages of several producers or topics",
                remedy="give the output of each VerifiableProducer as a file of its own",
            )
        for stream in streams:
            self._ends[stream] = max(sent or 0, self._ends.get(stream, 0))
        if sent is None:
            self._unfinished |= streams or {None}
        else:
            self._finished |= streams

    def on_delivered(self, name: Name) -> None:
        """Add an attempt for a delivered message if its producer may have been killed."""
        stream, sequence = name[:2], name[2]
        is_killed = stream in self._unfinished
        is_nameless = None in self._unfinished and stream not in self._finished
        if (is_killed or is_nameless) and sequence >= self._ends.get(stream, 0):
            self._reports.setdefault(name, [("unknown", None, None)])

    def _add_report(self, where: str, event: Event) -> tuple[str, str]:
        topic, (producer, sequence) = _parse_message(where, event)
        name = (topic, producer, sequence)
        self._ends[topic, producer] = max(sequence + 1, self._ends.get((topic, producer), 0))
        if event["name"] == "producer_send_error":
            self._reports[name].append(("unknown", None, None))
        else:
            offset = _number(where, event, "offset")
            self.lanes[name] = _number(where, event, "partition")
            self._reports[name].append(("ok", offset, _time_us(where, event)))
        return topic, producer

    def outcomes(self) -> Iterator[tuple[Name, tuple[str, int | None, int | None]]]:
        for name, reports in self._reports.items():
            yield from ((name, outcome) for outcome in reports)
        unreported = sum(self._ends.values()) - len(self._reports)
        if unreported > MOST_UNREPORTED:
            raise UsageError(
                f"{unreported:,} messages were sent without a report;"
                f" at most {MOST_UNREPORTED:,} are supported"
            )
        for (topic, producer), end in self._ends.items():
            for sequence in range(end):
                if (topic, producer, sequence) not in self._reports:
                    yield (topic, producer, sequence), ("unknown", None, None)


Receipt = tuple[str, int, tuple[str, int], tuple[str, int, int, int]]


def _receipts(paths: Sequence[Path]) -> Iterator[Receipt]:
    """Return the deliveries of all consumers by time, each with its assignment."""
    assignments: dict[tuple[str, int], int] = defaultdict(int)
    current: dict[tuple[str, str, int], int] = {}
    for at_us, consumer, (where, event) in _by_time(paths):
        if event["name"] == "partitions_assigned":
            for topic, partition in _partitions(where, event):
                assignments[topic, partition] += 1
                current[consumer, topic, partition] = assignments[topic, partition]
            continue
        topic, name = _parse_message(where, event)
        partition = _number(where, event, "partition")
        assignment = current.get((consumer, topic, partition), 0)
        offset = _number(where, event, "offset")
        yield topic, partition, name, (consumer, assignment, offset, at_us)


def _by_time(paths: Sequence[Path]) -> Iterable[tuple[int, str, tuple[str, Event]]]:
    """Return what the consumers printed, by time.

    The lines of one file keep their order even if its clock went back.
    """
    found: list[tuple[int, tuple[int, str, tuple[str, Event]]]] = []
    for path in paths:
        has_counts = has_records = False
        latest = 0
        for where, event in _events(path):
            has_counts |= event.get("name") == "records_consumed" and event.get("count") != 0
            if event.get("name") in ("partitions_assigned", "record_data"):
                has_records |= event["name"] == "record_data"
                at_us = _time_us(where, event)
                latest = max(latest, at_us)
                found.append((latest, (at_us, str(path), (where, event))))
        if has_counts and not has_records:
            raise UsageError(
                f"{path} contains how many records were consumed, but not which",
                remedy="run VerifiableConsumer with --verbose",
            )
    return [item for _, item in sorted(found, key=lambda timed: timed[0])]


def _partitions(where: str, event: Event) -> Iterator[tuple[str, int]]:
    listed = event.get("partitions")
    if not isinstance(listed, list):
        raise UsageError(f"{where}: `partitions` is not a list")
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("topic"), str):
            raise UsageError(f"{where}: an entry of `partitions` has no topic")
        yield entry["topic"], _number(where, entry, "partition")
