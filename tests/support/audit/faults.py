"""Hypothesis strategies for runs with faults: a clean pipeline in which each stage may fail.

What stage by stage went wrong is drawn; everything that the ledgers say follows from it, so
that these runs, unlike chaotic ones, are what real systems leave behind.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from shoal.model.ledger import FAILED, OK, UNKNOWN
from support.audit.ledgers import History, put, receive, scan, send

Entry = tuple[str, int]  # producer and sequence


@dataclass
class Log:
    """One partition: entries by offset, and the log start."""

    entries: list[Entry] = field(default_factory=list)
    start: int = 0


@st.composite
def faulty_runs(draw: st.DrawFn) -> History:
    history = History(mirror=draw(st.booleans()), promises={"order": draw(st.integers(0, 3)) > 0})
    drained = draw(st.booleans())
    for lane in range(draw(st.integers(1, 2))):
        source = _produce(draw, history, lane)
        log = source
        if history.mirror:
            passed = draw(st.sampled_from([len(source.entries), draw(st.integers(0, 8))]))
            log = Log(_draw_copy(draw, source.entries[source.start : passed]))
            _expire(draw, log)
            if draw(st.integers(0, 3)) == 0:
                columns = {"topic": "t", "partition": lane, "offset": passed}
                history.add("positions", "w", reader="mirror", **columns)
        _consume(draw, history, lane, log)
        _expire(draw, source)
        _scan(draw, history, "source", (lane, source))
        if history.mirror:
            _expire(draw, log)
            _scan(draw, history, "target", (lane, log))
        for producer in ("p0", "p1") if drained else ():
            history.commit("drained", producer=producer, topic="t", lane=lane, group="g")
    return history


def _produce(draw: st.DrawFn, history: History, lane: int) -> Log:
    log = Log()
    numbers = {"p0": 0, "p1": 0}
    for producer in draw(st.lists(st.sampled_from(["p0", "p0", "p1"]), max_size=14)):
        sequence = numbers[producer]
        numbers[producer] += 1
        fate = draw(st.sampled_from(["ok"] * 8 + ["failed", "lied", "timeout", "stored timeout"]))
        outcome = {"failed": FAILED, "ok": OK, "lied": OK}.get(fate, UNKNOWN)
        offset = len(log.entries) if outcome == OK else -1
        if fate != "timeout" or draw(st.booleans()):
            send(history, producer, lane, sequence, outcome=outcome, offset=offset)
        if fate in ("ok", "stored timeout"):
            log.entries.append((producer, sequence))
    for producer, count in numbers.items():
        stream = {"producer": producer, "topic": "t", "lane": lane}
        if draw(st.integers(0, 3)):
            history.add("manifests", "w", count=count, **stream)
        else:
            until = count + draw(st.integers(0, 2))
            history.commit("reserve", worker="w", epoch=1, until=until, **stream)
    log.entries = _draw_copy(draw, log.entries) if draw(st.integers(0, 5)) == 0 else log.entries
    return log


def _draw_copy(draw: st.DrawFn, entries: list[Entry]) -> list[Entry]:
    """The entries, with a few dropped, repeated or moved."""
    copy = list(entries)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        if copy:
            at = draw(st.integers(0, len(copy) - 1))
            to = draw(st.integers(0, len(copy)))
            change = draw(st.sampled_from(["drop", "repeat", "move"]))
            entry = copy[at] if change == "repeat" else copy.pop(at)
            if change != "drop":
                copy.insert(to, entry)
    return copy


def _expire(draw: st.DrawFn, log: Log) -> None:
    if draw(st.integers(0, 4)) == 0:
        log.start = draw(st.integers(log.start, len(log.entries)))


def _consume(draw: st.DrawFn, history: History, lane: int, log: Log) -> None:
    """One or two assignments; the second continues where the first stopped, or a bit before."""
    position = log.start
    for assignment in range(1, draw(st.integers(1, 2)) + 1):
        position = max(position - draw(st.sampled_from([0, 0, 2])), log.start)
        reader = {"consumer": f"c{assignment}", "assignment": assignment}
        if draw(st.booleans()):
            place = {"topic": "t", "partition": lane, "offset": position}
            history.add("assignments", f"w{assignment}", **reader, **place)
        end = draw(st.sampled_from([len(log.entries)] * 2 + [draw(st.integers(0, 12))]))
        for offset in range(position, min(end, len(log.entries))):
            if draw(st.integers(0, 9)):
                producer, sequence = log.entries[offset]
                columns = {"offset": offset, "worker": f"w{assignment}", **reader}
                receive(history, producer, lane, sequence, **columns)
        position = max(position, min(end, len(log.entries)))
    if draw(st.booleans()):
        columns = {"topic": "t", "partition": lane, "offset": position}
        history.add("positions", "w", reader="g", **columns)


def _scan(draw: st.DrawFn, history: History, cluster: str, held: tuple[int, Log]) -> None:
    lane, log = held
    if draw(st.integers(0, 3)) == 0:
        return
    scan(history, cluster, lane, start=log.start, end=len(log.entries))
    for offset in range(log.start, len(log.entries)):
        producer, sequence = log.entries[offset]
        put(history, cluster, producer, lane, sequence, offset=offset)
