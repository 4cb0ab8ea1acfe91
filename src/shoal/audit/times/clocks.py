"""Bounds on the difference between the clocks of producers and consumers.

The skew of a group is (clock of its consumers) - (clock of producers), bounded from both sides:
- Workers on one machine share a clock.
- Workers of one run folder had a common coordinator, whose round trips bound each clock (the
  commit lines `clock`). A worker on the coordinator's machine has the coordinator's clock.
- Between folders there was no coordinator: the bound is what the user gave, or unknown.

The true latency of a message is the measured one minus the skew. Bounds are taken over the whole
run and over all pairs of a producer's and a consumer's worker, so they hold for each pair.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shoal.audit.read.folder import Ledger
from shoal.model.errors import LedgerError
from shoal.model.ledger import COMPACTED

Skew = tuple[int, int]  # lowest and highest, in microseconds

ONE_CLOCK: Skew = (0, 0)


@dataclass(frozen=True, slots=True)
class WorkerClock:
    """The clock of one worker in one epoch; `bounds_us` is its skew against the coordinator."""

    folder: int
    host: str | None = None
    bounds_us: Skew | None = None


class _Writer(NamedTuple):
    folder: int
    worker: str
    epoch: int


def compute_skews(ledger: Ledger, groups: Iterable[str]) -> dict[str, Skew | None]:
    """Return the skew of each group; None if it is unknown."""
    if any(folder.plan.get("one_clock") for folder in ledger.folders):
        return dict.fromkeys(groups, ONE_CLOCK)
    clocks, writers = _clocks(ledger), _writers(ledger)
    producers = {clocks[writers[path]] for path in _paths(ledger, "attempts", None)}
    found = {}
    for group in groups:
        consumers = {clocks[writers[path]] for path in _paths(ledger, "receipts", group)}
        pairs = [(p, c) for p in producers for c in consumers]
        found[group] = _hull(skew_between(p, c, ledger.clock_skew_us) for p, c in pairs)
    return found


def skew_between(producer: WorkerClock, consumer: WorkerClock, given_us: int | None) -> Skew | None:
    """Return the bounds of the consumer's clock minus the producer's clock."""
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
    """Return the skew between the clocks at both ends of a latency, given a group's skew."""
    if latency in ("producer", "staleness"):
        return ONE_CLOCK  # both times are from one clock
    return None if latency == "replication" else skew_us  # broker clocks are not compared


def _hull(skews: Iterable[Skew | None]) -> Skew | None:
    known = list(skews)
    if not known or None in known:
        return None
    bounds = [skew for skew in known if skew is not None]
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _paths(ledger: Ledger, table: str, group: str | None) -> set[str]:
    """Return the segments with rows of a table, and of a group if one is given."""
    return {
        part.piece.path
        for part in ledger.tables[table]
        if group is None or part.group in (None, group)
    }


def _writers(ledger: Ledger) -> dict[str, _Writer]:
    """Return the worker and epoch that wrote each segment, by path."""
    return {
        folder.place_of(str(line["path"])): _writer(number, line)
        for number, folder in enumerate(ledger.folders)
        for line in folder.commits
        if line["kind"] in ("segment", COMPACTED)
    }


def _writer(folder: int, line: Mapping[str, Any]) -> _Writer:
    try:
        return _Writer(folder, str(line["worker"]), int(line["epoch"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"a line of the commit log does not name a worker and its epoch: {line!r:.200}"
        ) from error


class _Clocks(dict[_Writer, WorkerClock]):
    """Clocks by writer; of a writer without a line only the folder is known."""

    def __missing__(self, writer: _Writer) -> WorkerClock:
        return WorkerClock(writer.folder)


def _clocks(ledger: Ledger) -> _Clocks:
    clocks = _Clocks()
    for number, folder in enumerate(ledger.folders):
        machine = folder.plan.get("machine")
        coordinator = machine.get("host") if isinstance(machine, Mapping) else None
        for writer, host, bounds_us in _read_clock_lines(number, folder.commits, folder.directory):
            held = clocks[writer]
            if host is not None:
                known = ONE_CLOCK if host == coordinator else held.bounds_us
                clocks[writer] = WorkerClock(number, host, known)
            elif held.host is None or held.host != coordinator:
                clocks[writer] = WorkerClock(
                    number, held.host, _hull([held.bounds_us or bounds_us, bounds_us])
                )
    return clocks


def _read_clock_lines(
    number: int, commits: Iterable[Mapping[str, Any]], where: Path
) -> Iterator[tuple[_Writer, str | None, Skew | None]]:
    """Return what the commit log records about clocks: a host, or bounds."""
    for line in commits:
        if line["kind"] == "lease" and line.get("host"):
            yield _writer(number, line), str(line["host"]), None
        elif line["kind"] == "clock":
            low_us, high_us = line.get("low_us"), line.get("high_us")
            if not isinstance(low_us, int) or not isinstance(high_us, int):
                raise LedgerError(
                    f"{where}: bad clock line, its bounds are not numbers: {line!r:.200}"
                )
            yield _writer(number, line), None, (low_us, high_us)
