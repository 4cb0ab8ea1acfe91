"""The life of one message: every event of it that the ledgers and scans of a run record.

Only row groups whose sequences include the message or its neighbours are read, and the small
tables. This is the record itself, not a judgement: whether a message that did not arrive is lost or
pending is in the result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from shoal.audit.arrays import NONE, Ints
from shoal.audit.context import AuditContext, Cluster, Stream, build_context
from shoal.audit.plan import make_cell
from shoal.audit.read.evidence import NEVER, offset_of, pack_places, partition_of
from shoal.audit.read.folder import Ledger, open_ledger
from shoal.audit.read.view import CellView
from shoal.audit.times.faults import FaultWindow, all_faults
from shoal.model.errors import UsageError
from shoal.model.ledger import OK, OUTCOMES
from shoal.model.pages.life import MOST_EVENTS, LogPlace, MessageLife, Neighbour, ShownPoll, Stage
from shoal.model.units import format_us

_NEIGHBOURS: Final = 3
_LARGEST_SEQUENCE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class MessageName:
    """A message as reports name it: `producer` may end in `#` and its incarnation."""

    topic: str
    producer: str
    lane: int
    sequence: int


def message_life(run_dirs: Sequence[Path], name: MessageName) -> MessageLife:
    """Return what the ledgers of a run record about one message.

    A message that no ledger has gets the last stage `unknown`. `UsageError` if several producers
    had the id, with their names.
    """
    if not 0 <= name.sequence < _LARGEST_SEQUENCE:
        raise UsageError(f"{name.sequence} is not a sequence number", remedy="use 0 or more")
    ledger = open_ledger([folder.absolute() for folder in run_dirs])
    context = build_context(ledger)
    return _Life(ledger, context, name).build()


class _Life:
    """Gathers the events of one message and of its neighbours."""

    def __init__(self, ledger: Ledger, context: AuditContext, name: MessageName) -> None:
        self._name, self._context = name, context
        low = max(name.sequence - _NEIGHBOURS, 0)
        cell = make_cell(ledger, low, name.sequence + _NEIGHBOURS + 1)
        self._view = CellView(cell, context)
        self._faults = all_faults(folder.commits for folder in ledger.folders)

    def build(self) -> MessageLife:
        name, slot = self._name, self._slot_of(self._name.sequence)
        if slot is None:
            return MessageLife(
                *(name.topic, name.producer, name.lane, name.sequence),
                outcome=None,
                last_stage="unknown",
                sentence=f"No ledger of this run has message {name.sequence} of lane {name.lane}.",
                neighbours=self._neighbours(),
            )
        events = self._events(slot)
        return MessageLife(
            *(name.topic, name.producer, name.lane, name.sequence),
            outcome=events.outcome,
            last_stage=events.last_stage,
            sentence=_compose_sentence(name, events, self._active(events), self._context),
            intended_us=events.intended_us,
            sent_us=events.sent_us,
            acknowledged_us=events.acknowledged_us,
            source=events.source,
            target=events.target,
            polls=events.polls,
            neighbours=self._neighbours(),
            faults=tuple(fault.to_json() for fault in self._active(events)),
        )

    @cached_property
    def _stream(self) -> int | None:
        """The number of the stream in the cell."""
        name = self._name
        producer, _, incarnation = name.producer.rpartition("#")
        of_id, of_one = [], []
        for number, stream in enumerate(self._view.index.streams):
            if (stream.topic, stream.lane) != (name.topic, name.lane):
                continue
            if stream.producer == name.producer:
                of_id.append(number)
            elif producer and (stream.producer, f"{stream.incarnation:08x}") == (
                producer,
                incarnation,
            ):
                of_one.append(number)
        if len(of_id) > 1:
            streams = [self._view.index.streams[number] for number in of_id]
            raise _ambiguous(name.producer, streams)
        return next(iter([*of_id, *of_one]), None)

    def _slot_of(self, sequence: int) -> int | None:
        index, number = self._view.index, self._stream
        if number is None or sequence < index.low:
            return None
        slots: Ints = np.arange(index.size)
        own = slots[(index.stream_of(slots) == number) & (index.sequence_of(slots) == sequence)]
        slot = int(own[0]) if len(own) else None
        return slot if slot is not None and self._is_known(slot) else None

    def _is_known(self, slot: int) -> bool:
        view = self._view
        seen = view.in_source[slot] | view.in_target[slot] | view.delivered_to_anyone[slot]
        return bool(seen or view.outcome[slot] != NEVER)

    def _events(self, slot: int) -> "_Events":
        view, times = self._view, self._view.attempts
        outcome = int(view.outcome[slot])
        return _Events(
            outcome=None if outcome == NEVER else str(OUTCOMES[outcome]),
            intended_us=_decode_time(times.intended_us[slot]),
            sent_us=_decode_time(times.sent_us[slot]),
            acknowledged_us=_decode_time(times.acked_us[slot]) if outcome == OK else None,
            source=self._places("source", slot),
            target=self._places("target", slot) if self._context.has_mirror else (),
            polls=self._polls(slot),
        )

    def _places(self, cluster: Cluster, slot: int) -> tuple[LogPlace, ...]:
        view = self._view
        known = (view.source_places if cluster == "source" else view.target_places).of(slot)
        rows = np.flatnonzero(
            (view.log_slots == slot) & (view.log["cluster"] == view.words.code(cluster))
        )
        places = pack_places(view.log["partition"][rows], view.log["offset"][rows]).tolist()
        appended = dict(zip(places, view.log["append_us"][rows].tolist(), strict=True))
        return tuple(
            LogPlace(
                cluster,
                int(partition_of(known[i : i + 1])[0]),
                int(offset_of(known[i : i + 1])[0]),
                append_us=_decode_time(appended.get(place, NONE)),
                is_scanned=place in appended,
            )
            for i, place in enumerate(known.tolist()[:MOST_EVENTS])
        )

    def _polls(self, slot: int) -> tuple[ShownPoll, ...]:
        view = self._view
        rows = np.flatnonzero(view.receipt_slots == slot)
        rows = rows[np.argsort(view.receipts["received_us"][rows], kind="stable")][:MOST_EVENTS]
        intended = _decode_time(view.attempts.intended_us[slot])
        found = []
        for row in rows.tolist():
            received = int(view.receipts["received_us"][row])
            found.append(
                ShownPoll(
                    view.words.names[view.receipts["group"][row]],
                    int(view.receipts["partition"][row]),
                    int(view.receipts["offset"][row]),
                    received,
                    None if intended is None else received - intended,
                )
            )
        return tuple(found)

    def _neighbours(self) -> tuple[Neighbour, ...]:
        here = self._name.sequence
        found = []
        for sequence in range(max(here - _NEIGHBOURS, 0), here + _NEIGHBOURS + 1):
            slot = self._slot_of(sequence)
            if sequence != here and slot is not None:
                events = self._events(slot)
                first = min((poll.received_us for poll in events.polls), default=None)
                found.append(Neighbour(sequence, events.last_stage, events.intended_us, first))
        return tuple(found)

    def _active(self, events: "_Events") -> list[FaultWindow]:
        """Return the faults that were active between the intended send and the last event."""
        times = [time for time in events.times_us() if time is not None]
        if not times:
            return []
        first, last = min(times), max(times)
        found = [
            fault
            for fault in self._faults
            if fault.began_us <= last and (fault.ended_us is None or fault.ended_us > first)
        ]
        return found[:MOST_EVENTS]


@dataclass(frozen=True)
class _Events:
    outcome: str | None
    intended_us: int | None
    sent_us: int | None
    acknowledged_us: int | None
    source: tuple[LogPlace, ...]
    target: tuple[LogPlace, ...]
    polls: tuple[ShownPoll, ...]

    @property
    def last_stage(self) -> Stage:
        stages: tuple[tuple[Stage, bool], ...] = (
            ("received", bool(self.polls)),
            ("target", any(place.is_scanned for place in self.target)),
            ("source", any(place.is_scanned for place in self.source)),
            ("acknowledged", self.acknowledged_us is not None),
            ("sent", self.sent_us is not None),
        )
        return next((stage for stage, is_reached in stages if is_reached), "planned")

    def times_us(self) -> Iterable[int | None]:
        places = (place.append_us for place in (*self.source, *self.target))
        polls = (poll.received_us for poll in self.polls)
        return (self.intended_us, self.sent_us, self.acknowledged_us, *places, *polls)


def _decode_time(time_us: Any) -> int | None:
    return None if int(time_us) == NONE else int(time_us)


def _ambiguous(producer: str, streams: Iterable[Stream]) -> UsageError:
    names = ", ".join(f"{producer}#{stream.incarnation:08x}" for stream in streams)
    return UsageError(f"several producers had the id {producer}", remedy=f"name one of {names}")


# The sentence


def _compose_sentence(
    name: MessageName, events: _Events, faults: Sequence[FaultWindow], context: AuditContext
) -> str:
    """Return one sentence: when it was due, how far it came, and which fault was active."""
    due = "" if events.intended_us is None else f" was due at {_clock(events.intended_us)} and"
    text = f"Message {name.sequence} of lane {name.lane}{due} {_describe_end(events, context)}"
    if faults:
        listed = " and ".join(f"{fault.name} {fault.target}".strip() for fault in faults[:3])
        text += f", while {listed} was active" if len(faults) == 1 else f", during {listed}"
    return text + "."


def _describe_end(events: _Events, context: AuditContext) -> str:
    if events.polls:
        return _describe_arrival(events)
    sending = _describe_sending(events)
    read = "target" if context.has_mirror else "source"
    if events.last_stage == read:
        return f"{sending}, is in the {read} at {_place(events, read)}, but no consumer received it"
    if events.last_stage == "source":
        place = _place(events, "source")
        missing = "is not in the target" if context.has_scans_of("target") else "was not received"
        return f"{sending}, is in the source at {place}, but {missing}"
    scanned = context.has_scans_of("source")
    return f"{sending}, but {'is not in the source' if scanned else 'was not received'}"


def _describe_arrival(events: _Events) -> str:
    first = min(events.polls, key=lambda poll: poll.received_us)
    when = "" if first.latency_us is None else f" {format_us(first.latency_us)} later"
    text = f"was received by group {first.group}{when}"
    again = len(events.polls) - len({poll.group for poll in events.polls})
    if again > 0:
        text += f", and {again} more time{'s' if again > 1 else ''}"
    if events.outcome == "failed":
        text += ", although its send had failed"
    elif events.outcome is None:
        text += ", although it was never sent"
    return text


def _describe_sending(events: _Events) -> str:
    if events.outcome == "failed":
        return "failed to be sent"
    if events.acknowledged_us is not None and events.sent_us is not None:
        return f"was acknowledged after {format_us(events.acknowledged_us - events.sent_us)}"
    if events.outcome == "ok":
        return "was acknowledged"
    return "was sent without an answer" if events.sent_us is not None else "has no recorded send"


def _place(events: _Events, cluster: str) -> str:
    places = events.source if cluster == "source" else events.target
    place = next(place for place in places if place.is_scanned)
    return f"partition {place.partition}, offset {place.offset}"


def _clock(time_us: int) -> str:
    seconds, micros = divmod(time_us, 1_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} µs"
    return f"{moment:%H:%M:%S.%f} UTC"
