"""What Apache Kafka's VerifiableProducer and VerifiableConsumer print, as lines of a history.

Rules:
- The value of a message, `PREFIX.NUMBER` or `NUMBER`, names it: producer and sequence. Its lane is
  the partition where it was acknowledged, else where it was delivered, else 0; numbers of one lane
  then rise, with gaps that are other lanes' numbers.
- A reported error leaves an attempt `unknown`: the tool does not say whether an earlier try was
  stored. So is every number below the highest one, or below `sent` of the last line, of which
  nothing was reported: a producer that was killed. One that did not print that line may have sent
  more than it reported: what was delivered of it is an attempt, `unknown` too.
- The consumer must have run with `--verbose`, which prints every record. Each time partitions
  are assigned, the assignments of these partitions grow by one, over all files by time.
- Send times are not printed, so there are no latencies; times are milliseconds.
- Both tools mix their log into their output: lines that do not begin with `{` are passed over,
  and so is a last line that was cut.
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

# Numbers that were never reported become attempts one by one; more of them are a mistake.
MOST_UNREPORTED: Final = 10_000_000
_LIMITS: Final = {"partition": LARGEST_PARTITION, "offset": LARGEST_OFFSET}

Event = Mapping[str, Any]
Name = tuple[str, str, int]  # topic, producer, sequence


def read_verifiable(
    producers: Sequence[Path], consumers: Sequence[Path], *, drained: bool
) -> Iterator[tuple[str, Values]]:
    """The lines of the history that these files tell together."""
    sends = _Sends()
    for path in producers:
        sends.read(path)
    receipts = list(_receipts(consumers))
    for topic, _, told, _ in receipts:
        sends.saw((topic, *told))
    lanes = dict(sends.lanes)
    for topic, partition, told, _ in receipts:
        lanes.setdefault((topic, *told), partition)
    for name, (outcome, offset, acked_us) in sends.outcomes():
        topic, producer, sequence = name
        message = (producer, topic, lanes.get(name, 0), sequence)
        transaction = (None, None, None)
        times = (None, NONE, acked_us)
        yield "send", (*message, outcome, offset, None, *transaction, *times)
    for topic, partition, (producer, sequence), (consumer, assignment, offset, at_us) in receipts:
        reader = (consumer, assignment, topic, partition, offset)
        yield "receive", (*reader, producer, sequence, at_us, None)
    yield "end", (drained,)


def _events(path: Path) -> Iterator[tuple[str, Event]]:
    """Where each event stands, and what it says."""
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
        return None  # whoever wrote it was killed
    if not isinstance(event, dict):
        raise UsageError(f"{where} is not a JSON object")
    return event


def _number(where: str, event: Event, name: str) -> int:
    value = event.get(name)
    most = _LIMITS.get(name, LARGEST_SEQUENCE)
    if type(value) is not int or not 0 <= value <= most:
        raise UsageError(f"{where}: `{name}` is no whole number from 0 to {most}")
    return value


def _time_us(where: str, event: Event) -> int:
    return 1000 * _number(where, event, "timestamp") % TIME_SHIFT_US + TIME_SHIFT_US


def _named(where: str, event: Event) -> tuple[str, tuple[str, int]]:
    """Topic, and producer and sequence of a message, from its value."""
    topic, value = event.get("topic"), event.get("value")
    prefix, _, number = str(value).rpartition(".")
    if not isinstance(topic, str) or not number.isascii() or not number.isdigit():
        raise UsageError(f"{where} names no message of a VerifiableProducer: {value!r:.60}")
    return topic, (prefix, min(int(number[:20]), LARGEST_SEQUENCE))


class _Sends:
    """What producers reported."""

    def __init__(self) -> None:
        self.lanes: dict[Name, int] = {}
        self._told: dict[Name, list[tuple[str, int | None, int | None]]] = defaultdict(list)
        self._ends: dict[tuple[str, str], int] = {}
        self._finished: set[tuple[str, str]] = set()
        self._unfinished: set[tuple[str, str] | None] = set()  # None: it did not say a word

    def read(self, path: Path) -> None:
        streams: set[tuple[str, str]] = set()
        sent = None
        for where, event in _events(path):
            kind = event.get("name")
            if kind == "tool_data":
                sent = _number(where, event, "sent")
            elif kind in ("producer_send_success", "producer_send_error"):
                streams.add(self._take(where, event))
        if len(streams) > 1:
            raise UsageError(f"{path} tells of several producers or topics")
        for stream in streams:
            self._ends[stream] = max(sent or 0, self._ends.get(stream, 0))
        if sent is None:
            self._unfinished |= streams or {None}
        else:
            self._finished |= streams

    def saw(self, name: Name) -> None:
        """A message was delivered: an attempt, if it may be of a producer that was killed."""
        stream, sequence = name[:2], name[2]
        is_killed = stream in self._unfinished
        is_nameless = None in self._unfinished and stream not in self._finished
        if (is_killed or is_nameless) and sequence >= self._ends.get(stream, 0):
            self._told.setdefault(name, [("unknown", None, None)])

    def _take(self, where: str, event: Event) -> tuple[str, str]:
        topic, (producer, sequence) = _named(where, event)
        name = (topic, producer, sequence)
        self._ends[topic, producer] = max(sequence + 1, self._ends.get((topic, producer), 0))
        if event["name"] == "producer_send_error":
            self._told[name].append(("unknown", None, None))
        else:
            offset = _number(where, event, "offset")
            self.lanes[name] = _number(where, event, "partition")
            self._told[name].append(("ok", offset, _time_us(where, event)))
        return topic, producer

    def outcomes(self) -> Iterator[tuple[Name, tuple[str, int | None, int | None]]]:
        for name, told in self._told.items():
            yield from ((name, outcome) for outcome in told)
        unreported = sum(self._ends.values()) - len(self._told)
        if unreported > MOST_UNREPORTED:
            raise UsageError(f"{unreported:,} numbers were sent of which nothing is reported")
        for (topic, producer), end in self._ends.items():
            for sequence in range(end):
                if (topic, producer, sequence) not in self._told:
                    yield (topic, producer, sequence), ("unknown", None, None)


Receipt = tuple[str, int, tuple[str, int], tuple[str, int, int, int]]


def _receipts(paths: Sequence[Path]) -> Iterator[Receipt]:
    """Deliveries of all consumers by time, each with its assignment."""
    assignments: dict[tuple[str, int], int] = defaultdict(int)
    current: dict[tuple[str, str, int], int] = {}
    for at_us, consumer, (where, event) in _by_time(paths):
        if event["name"] == "partitions_assigned":
            for topic, partition in _partitions(where, event):
                assignments[topic, partition] += 1
                current[consumer, topic, partition] = assignments[topic, partition]
            continue
        topic, name = _named(where, event)
        partition = _number(where, event, "partition")
        assignment = current.get((consumer, topic, partition), 0)
        offset = _number(where, event, "offset")
        yield topic, partition, name, (consumer, assignment, offset, at_us)


def _by_time(paths: Sequence[Path]) -> Iterable[tuple[int, str, tuple[str, Event]]]:
    """What consumers printed. Lines of one file keep their order, though its clock went back."""
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
                f"{path} tells how many records were consumed, but not which",
                remedy="run VerifiableConsumer with --verbose",
            )
    return [item for _, item in sorted(found, key=lambda timed: timed[0])]


def _partitions(where: str, event: Event) -> Iterator[tuple[str, int]]:
    listed = event.get("partitions")
    if not isinstance(listed, list):
        raise UsageError(f"{where}: `partitions` is no list")
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("topic"), str):
            raise UsageError(f"{where}: `partitions` names no topic")
        yield entry["topic"], _number(where, entry, "partition")
