"""The life of one message, as the ledgers and scans of a run record it."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from shoal.model.serialised import to_plain

# How far a message came, in this order; `unknown` if no ledger of the run has it.
Stage = Literal["unknown", "planned", "sent", "acknowledged", "source", "target", "received"]


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A copy of the message in a log; `append_us` is None unless the topic stamps append times.

    `is_scanned` is false if only an acknowledgement or a delivery shows the copy.
    """

    cluster: Annotated[str, "cluster"]
    partition: Annotated[int, "partition"]
    offset: Annotated[int, "offset"]
    append_us: Annotated[int | None, "append_us"] = None
    is_scanned: Annotated[bool, "is_scanned"] = True


@dataclass(frozen=True, slots=True)
class ShownPoll:
    """One delivery of the message."""

    group: Annotated[str, "group"]
    partition: Annotated[int, "partition"]
    offset: Annotated[int, "offset"]
    received_us: Annotated[int, "received_us"]
    latency_us: Annotated[int | None, "latency_us"] = None  # from the intended send


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A message of the same lane nearby, and how far it came."""

    sequence: Annotated[int, "sequence"]
    last_stage: Annotated[Stage, "last_stage"]
    intended_us: Annotated[int | None, "intended_us"] = None
    received_us: Annotated[int | None, "received_us"] = None


@dataclass(frozen=True, slots=True)
class MessageLife:
    """Every recorded event of one message; times are None where nothing was recorded.

    Lists have at most `MOST_EVENTS` entries. `faults` are those active between the intended send
    and the last event. `sentence` says in plain English what happened.
    """

    topic: Annotated[str, "topic"]
    producer: Annotated[str, "producer"]
    lane: Annotated[int, "lane"]
    sequence: Annotated[int, "sequence"]
    outcome: Annotated[str | None, "outcome"]  # ok, failed, unknown
    last_stage: Annotated[Stage, "last_stage"]
    sentence: Annotated[str, "sentence"]
    intended_us: Annotated[int | None, "intended_us"] = None
    sent_us: Annotated[int | None, "sent_us"] = None
    acknowledged_us: Annotated[int | None, "acknowledged_us"] = None
    source: Annotated[tuple[LogPlace, ...], "source"] = ()
    target: Annotated[tuple[LogPlace, ...], "target"] = ()
    polls: Annotated[tuple[ShownPoll, ...], "polls"] = ()
    neighbours: Annotated[tuple[Neighbour, ...], "neighbours"] = ()
    faults: Annotated[tuple[dict[str, Any], ...], "faults"] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain


MOST_EVENTS = 20
