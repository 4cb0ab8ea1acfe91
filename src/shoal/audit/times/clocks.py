"""By how much the clocks of producers and consumers may differ.

The skew of a group is (clock of its consumers) - (clock of producers), bounded from both sides:
- workers of one machine have one clock;
- workers of one run folder had a common coordinator, whose round trips bound each clock (the
  commit lines `clock`); a worker on the coordinator's own machine has its clock;
- between folders there was no coordinator: what the user gave, or else nothing is known.

The true latency of a message is what was measured less the skew. Bounds are taken over the
whole run and over all pairs of a producer's and a consumer's worker, so they hold for each.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shoal.audit.read.folder import Ledger
from shoal.model.errors import LedgerError

Skew = tuple[int, int]  # lowest and highest, in microseconds

ONE_CLOCK: Skew = (0, 0)


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of one incarnation of one worker; `bounds_us` are against its coordinator's."""

    folder: int
    host: str | None = None
    bounds_us: Skew | None = None


class _Writer(NamedTuple):
    folder: int
    worker: str
    epoch: int


def skews(ledger: Ledger, groups: Iterable[str]) -> dict[str, Skew | None]:
    """The skew of each group; None where nobody knows."""
    if any(folder.plan.get("one_clock") for folder in ledger.folders):
        return dict.fromkeys(groups, ONE_CLOCK)
    clocks, writers = _clocks(ledger), _writers(ledger)
    producers = {clocks[writers[path]] for path in _paths(ledger, "attempts", None)}
    found = {}
    for group in groups:
        consumers = {clocks[writers[path]] for path in _paths(ledger, "receipts", group)}
        pairs = [(p, c) for p in producers for c in consumers]
        found[group] = _hull(between(p, c, ledger.clock_skew_us) for p, c in pairs)
    return found


def between(producer: Clock, consumer: Clock, given_us: int | None) -> Skew | None:
    """The consumer's clock less the producer's."""
    if producer.host is not None and producer.host == consumer.host:
        return ONE_CLOCK
    if producer.folder == consumer.folder:
        if producer.bounds_us is None or consumer.bounds_us is None:
            return None if given_us is None else (-given_us, given_us)
        apart_us = 0
    elif given_us is None:
        return None
    else:
        apart_us = given_us
    (low_p, high_p), (low_c, high_c) = (c.bounds_us or ONE_CLOCK for c in (producer, consumer))
    return low_c - high_p - apart_us, high_c - low_p + apart_us


def skew_of(latency: str, skew_us: Skew | None) -> Skew | None:
    """By how much the clocks at both ends of a latency may differ, given a group's skew."""
    if latency in ("producer", "staleness"):
        return ONE_CLOCK  # both times are the producer's, or the consumer's
    return None if latency == "replication" else skew_us  # nobody compares brokers' clocks


def _hull(skews: Iterable[Skew | None]) -> Skew | None:
    known = list(skews)
    if not known or None in known:
        return None
    told = [skew for skew in known if skew is not None]
    return min(low for low, _ in told), max(high for _, high in told)


def _paths(ledger: Ledger, table: str, group: str | None) -> set[str]:
    """Segments that hold rows of a table, and of a group if one is named."""
    return {
        part.piece.path
        for part in ledger.tables[table]
        if group is None or part.group in (None, group)
    }


def _writers(ledger: Ledger) -> dict[str, _Writer]:
    """Who wrote each segment, by path."""
    return {
        str(folder.directory / str(line["path"])): _writer(number, line)
        for number, folder in enumerate(ledger.folders)
        for line in folder.commits
        if line["kind"] == "segment"
    }


def _writer(folder: int, line: Mapping[str, Any]) -> _Writer:
    try:
        return _Writer(folder, str(line["worker"]), int(line["epoch"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"a line of the commit log names no worker: {line!r:.200}") from error


class _Clocks(dict[_Writer, Clock]):
    """Clocks by writer; of a writer that left no line nothing is known but its folder."""

    def __missing__(self, writer: _Writer) -> Clock:
        return Clock(writer.folder)


def _clocks(ledger: Ledger) -> _Clocks:
    clocks = _Clocks()
    for number, folder in enumerate(ledger.folders):
        machine = folder.plan.get("machine")
        coordinator = machine.get("host") if isinstance(machine, Mapping) else None
        for writer, host, bounds_us in _told(number, folder.commits, folder.directory):
            held = clocks[writer]
            if host is not None:
                known = ONE_CLOCK if host == coordinator else held.bounds_us
                clocks[writer] = Clock(number, host, known)
            elif held.host is None or held.host != coordinator:
                clocks[writer] = Clock(
                    number, held.host, _hull([held.bounds_us or bounds_us, bounds_us])
                )
    return clocks


def _told(
    number: int, commits: Iterable[Mapping[str, Any]], where: Path
) -> Iterator[tuple[_Writer, str | None, Skew | None]]:
    """What lines of the commit log say of clocks: a host, or bounds."""
    for line in commits:
        if line["kind"] == "lease" and line.get("host"):
            yield _writer(number, line), str(line["host"]), None
        elif line["kind"] == "clock":
            low_us, high_us = line.get("low_us"), line.get("high_us")
            if not isinstance(low_us, int) or not isinstance(high_us, int):
                raise LedgerError(f"{where}: bad clock line {line!r:.200}")
            yield _writer(number, line), None, (low_us, high_us)
