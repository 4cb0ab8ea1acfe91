"""The table of the lifecycle matrix: its cells, which are valid, and what may come of each; pure.

A cell is (event, when, how the topic is matched, delivery). Rules:
- Every cell ends in one of the four good outcomes of `Outcome`, and in one that its event allows.
  All others are defects; `SILENT` is the one that the matrix exists to find.
- A healthy topic in the same mirror is copied in every cell. Where the event is about the whole
  mirror or cluster (`Event.concerns_all`), it may have any outcome that the event allows.
- Compare-and-append keeps offsets, so it parks where the other deliveries can only announce what
  differs; it needs Kafka Lite as the target.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Outcome(StrEnum):
    # Everything that the source has (or had when it was copied) is at the target, in order.
    COPIED = "copied"
    # Copied, and what differs is counted in the status: records that the source lost, or that
    # somebody else wrote.
    ANNOUNCED = "announced"
    PARKED = "parked"  # the status shows a reason for the partition, with a remedy
    REFUSED = "refused"  # the topic, or the start, with a message and a remedy
    # Defects.
    SILENT = "silent"  # records are missing, or too many, and nothing is said
    STUCK = "stuck"  # records are missing, the status shows lag and no reason
    DUPLICATED = "duplicated"  # although the delivery promises that it does not
    DISORDERED = "disordered"
    MISTIMED = "mistimed"  # timestamps differ
    HELD_BACK = "held back"  # the healthy topic was not copied
    WRONG = "wrong"  # anything else: judges that disagree, a reason without a remedy, a crash


GOOD: Final = frozenset({Outcome.COPIED, Outcome.ANNOUNCED, Outcome.PARKED, Outcome.REFUSED})
_LOUD: Final = frozenset({Outcome.PARKED, Outcome.REFUSED})
_COPIED: Final = frozenset({Outcome.COPIED})
_ANY: Final = GOOD


class When(StrEnum):
    # Each step of the event is seen by a refresh of the mirror's topics.
    RUNNING = "running"
    STOPPED = "stopped"
    # The mirror runs, and the whole event happens between two refreshes.
    BETWEEN = "between refreshes"


class Match(StrEnum):
    NAME = "name"
    PATTERN = "pattern"


class Delivery(StrEnum):
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"
    AT_LEAST_ONCE = "at-least-once"
    COMPARE_AND_APPEND = "compare-and-append"


ENGINES: Final = ("lite", "apache")


class Subject(StrEnum):
    SOURCE_TOPIC = "source topic"
    TARGET_TOPIC = "target topic"
    CHECKPOINT_TOPIC = "checkpoint topic"
    SOURCE_CLUSTER = "source cluster"
    TARGET_CLUSTER = "target cluster"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens, and what may come of it."""

    name: str
    subject: Subject
    what: str
    allowed: frozenset[Outcome]
    # Where they are others for a delivery.
    by_delivery: tuple[tuple[Delivery, frozenset[Outcome]], ...] = ()
    # Where they are others for a mirror that is started after the event.
    if_stopped: frozenset[Outcome] | None = None
    concerns_all: bool = False  # also the healthy topic


class Cell(NamedTuple):
    """One row of the matrix."""

    event: str
    when: When
    match: Match
    delivery: Delivery

    def __str__(self) -> str:
        return " / ".join(self)


_CAA: Final = Delivery.COMPARE_AND_APPEND
_TRUNCATED: Final = _LOUD | {Outcome.ANNOUNCED}
_PARKS: Final = ((_CAA, _LOUD),)
_S, _T, _C = Subject.SOURCE_TOPIC, Subject.TARGET_TOPIC, Subject.CHECKPOINT_TOPIC

EVENTS: Final = {
    event.name: event
    for event in (
        Event(
            "source-recreated",
            _S,
            "deleted and created again with more records",
            _COPIED,
            _PARKS,
        ),
        Event(
            "both-recreated", _S, "deleted and created again, and the target's too", _COPIED | _LOUD
        ),
        Event("source-deleted", _S, "deleted after it was copied", _LOUD | _COPIED),
        Event("source-grown", _S, "a partition is added", _COPIED),
        Event("source-start-moved", _S, "copied records are deleted at its start", _COPIED),
        Event(
            "source-start-passed",
            _S,
            "records are deleted before they are copied",
            frozenset({Outcome.ANNOUNCED}),
        ),
        Event(
            "source-truncated",
            _S,
            "the disk loses copied records, others follow",
            _TRUNCATED,
            _PARKS,
        ),
        Event(
            "source-unclean",
            _S,
            "an unclean election drops copied records, others follow",
            _TRUNCATED,
            _PARKS,
        ),
        Event(
            "source-unclean-lagging",
            _S,
            "an unclean election drops records that are fetched and not yet written",
            _TRUNCATED | _COPIED,
            ((_CAA, _LOUD | _COPIED),),
        ),
        Event("source-leader-away", _S, "its leader is gone, and comes back", _COPIED),
        Event(
            "source-message-size",
            _S,
            "max.message.bytes is raised, a large record follows",
            _COPIED,
        ),
        Event("source-compression", _S, "compression.type is changed", _COPIED),
        Event("source-retention", _S, "retention.ms is changed", _COPIED),
        Event("source-timestamps", _S, "CreateTime becomes LogAppendTime", _COPIED),
        Event("source-ids-appear", _S, "upgraded so that topic ids appear", _COPIED),
        Event("target-recreated", _T, "deleted and created again", _LOUD | _COPIED),
        Event(
            "target-recreated-foreign",
            _T,
            "deleted and created again with records of somebody else",
            _LOUD | {Outcome.ANNOUNCED},
            _PARKS,
        ),
        Event("target-deleted", _T, "deleted", _COPIED),
        Event("target-grown", _T, "a partition is added", _COPIED),
        Event("target-start-moved", _T, "records are deleted at its start", _COPIED),
        Event("target-truncated", _T, "the disk loses copied records", _LOUD | _COPIED),
        Event("target-unclean", _T, "an unclean election drops copied records", _LOUD | _COPIED),
        Event("target-leader-away", _T, "its leader is gone, and comes back", _COPIED),
        Event(
            "target-message-size",
            _T,
            "max.message.bytes is lowered, a larger batch follows",
            _LOUD | _COPIED,
        ),
        Event("target-compression", _T, "compression.type is changed", _LOUD | _COPIED),
        Event("target-retention", _T, "retention.ms is changed", _COPIED),
        Event("target-timestamps", _T, "CreateTime becomes LogAppendTime", _LOUD | _COPIED),
        Event("target-ids-appear", _T, "upgraded so that topic ids appear", _COPIED),
        Event(
            "checkpoint-recreated",
            _C,
            "deleted and created again",
            _LOUD | _COPIED,
            concerns_all=True,
        ),
        Event("checkpoint-deleted", _C, "deleted", _LOUD | _COPIED, concerns_all=True),
        Event("checkpoint-grown", _C, "a partition is added", _LOUD | _COPIED, concerns_all=True),
        Event(
            "checkpoint-start-moved",
            _C,
            "all its records are deleted",
            _LOUD | _COPIED,
            concerns_all=True,
        ),
        Event(
            "checkpoint-truncated",
            _C,
            "the disk loses its last records",
            _LOUD | _COPIED,
            concerns_all=True,
        ),
        Event("checkpoint-leader-away", _C, "its leader is gone, and comes back", _COPIED),
        Event("checkpoint-cleanup", _C, "cleanup.policy becomes delete", _COPIED),
        Event(
            "checkpoint-renamed",
            _C,
            "the mirror is started under another name",
            _LOUD,
            concerns_all=True,
        ),
        Event(
            "source-moved",
            Subject.SOURCE_CLUSTER,
            "restarted under other addresses, then the mirror too",
            _COPIED,
            concerns_all=True,
        ),
        Event(
            "source-replaced",
            Subject.SOURCE_CLUSTER,
            "another cluster with the same topics answers at its address",
            _LOUD,
            concerns_all=True,
        ),
        Event(
            "target-moved",
            Subject.TARGET_CLUSTER,
            "restarted under other addresses, then the mirror too",
            _COPIED,
            concerns_all=True,
        ),
        Event(
            "target-replaced",
            Subject.TARGET_CLUSTER,
            "an empty cluster answers at its address",
            _LOUD | _COPIED,
            concerns_all=True,
        ),
    )
}


def is_valid(cell: Cell, engine: str = "lite") -> bool:
    """Whether a cell can be played on an engine."""
    return engine == "lite" or cell.delivery is not Delivery.COMPARE_AND_APPEND


def all_cells(engine: str = "lite") -> list[Cell]:
    """Every valid cell, in the order of the table."""
    cells = (
        Cell(event, when, match, delivery)
        for event in EVENTS
        for when in When
        for match in Match
        for delivery in Delivery
    )
    return [cell for cell in cells if is_valid(cell, engine)]


def list_allowed_outcomes(cell: Cell) -> frozenset[Outcome]:
    """What may come of a cell."""
    event = EVENTS[cell.event]
    if cell.when is When.STOPPED and event.if_stopped is not None:
        return event.if_stopped
    return dict(event.by_delivery).get(cell.delivery, event.allowed)


def select_cells(cells: Iterable[Cell], filters: Iterable[str]) -> list[Cell]:
    """Those that match one of the filters: words, all of which a cell has (`event, stopped`)."""
    wanted = [[word.strip() for word in text.split(",") if word.strip()] for text in filters]
    if not wanted:
        return list(cells)
    return [
        cell for cell in cells if any(all(_has(cell, word) for word in words) for words in wanted)
    ]


def _has(cell: Cell, word: str) -> bool:
    return any(part == word or (word.endswith("*") and part.startswith(word[:-1])) for part in cell)


class PlayKey(NamedTuple):
    """Cells of one event at one time are played at once, each by a mirror and topics of its own."""

    event: str
    when: When


def group_plays(cells: Iterable[Cell]) -> Iterator[tuple[PlayKey, list[Cell]]]:
    """The cells of each play, in the order of the first of them."""
    plays: dict[PlayKey, list[Cell]] = {}
    for cell in cells:
        plays.setdefault(PlayKey(cell.event, cell.when), []).append(cell)
    yield from plays.items()
