"""Hypothesis strategies for runs in which anything may have happened."""

from typing import Any

from hypothesis import strategies as st

from shoal.model.ledger import FAILED, OK, UNKNOWN
from support.audit.ledgers import History, put, receive, scan, send

LANES = st.integers(0, 1)
SEQUENCES = st.integers(0, 7)
PRODUCERS = st.sampled_from(["p0", "p1"])
OFFSETS = st.integers(0, 9)
GROUPS = st.sampled_from(["g", "h"])


@st.composite
def chaotic_runs(draw: st.DrawFn) -> History:
    """Mostly plausible, and wrong in any place."""
    history = History(
        mirror=draw(st.booleans()),
        promises={"order": draw(st.booleans())},
        groups=draw(st.sampled_from([("g",), ("g", "h")])),
        all_drained=draw(st.booleans()),
    )
    if draw(st.integers(0, 3)) == 0:
        history.partitions["t"] = 1
    _add_attempts(draw, history)
    _add_logs(draw, history)
    _add_receipts(draw, history)
    _add_rest(draw, history)
    if draw(st.integers(0, 2)) == 0:
        _share_an_id(history)
    return history


def _share_an_id(history: History) -> None:
    """What the producer p1 did was done by another producer with the id p0."""
    rows = [row for table in history.rows.values() for _, row in table]
    for row in [*rows, *history.commits]:
        if row.get("producer") == "p1":
            row |= {"producer": "p0", "incarnation": 0xC0FFEE}


def _add_attempts(draw: st.DrawFn, history: History) -> None:
    for producer in ("p0", "p1"):
        for lane in (0, 1):
            for sequence in range(draw(st.integers(0, 6))):
                outcome = draw(st.sampled_from([OK, OK, OK, FAILED, UNKNOWN]))
                offset = draw(st.sampled_from([sequence, sequence, -1, draw(OFFSETS)]))
                times = {"sent_us": draw(st.integers(0, 50)), "acked_us": draw(st.integers(-1, 90))}
                intended = draw(st.sampled_from([-1, 0, 10]))
                columns = {"outcome": outcome, "offset": offset, "intended_us": intended, **times}
                send(history, producer, lane, sequence, **columns)
            stream: dict[str, Any] = {"producer": producer, "topic": "t", "lane": lane}
            if draw(st.booleans()):
                history.commit("reserve", worker="w", epoch=1, until=draw(SEQUENCES), **stream)
            if draw(st.booleans()):
                history.add("manifests", "w", count=draw(SEQUENCES), **stream)
            for group in ("g", "h"):
                if draw(st.booleans()):
                    history.commit("drained", group=group, **stream)
    if not history.table("attempts") and not any(c["kind"] == "reserve" for c in history.commits):
        # Receipts alone are refused: the ledger of a producer is missing.
        history.commit("reserve", worker="w", epoch=1, until=0, producer="p0", topic="t", lane=0)
    if draw(st.integers(0, 3)) == 0:  # contradictions
        send(
            history, "p0", 0, draw(SEQUENCES), outcome=draw(st.integers(0, 2)), offset=draw(OFFSETS)
        )


def _add_logs(draw: st.DrawFn, history: History) -> None:
    for cluster in ("source", "target") if history.mirror else ("source",):
        for _ in range(draw(st.integers(0, 12))):
            lane = draw(LANES)
            partition = draw(st.sampled_from([lane, lane, lane, 1 - lane]))
            columns = {"partition": partition, "offset": draw(OFFSETS)}
            columns |= {
                "append_us": draw(st.integers(-1, 60)),
                "intact": draw(st.integers(0, 9)) > 0,
            }
            put(history, cluster, draw(PRODUCERS), lane, draw(SEQUENCES), **columns)
        for partition in (0, 1):
            if draw(st.booleans()):
                start = draw(st.sampled_from([0, 0, 3]))
                end = draw(st.integers(start, 10))
                scan(history, cluster, partition, start=start, end=end)


def _add_receipts(draw: st.DrawFn, history: History) -> None:
    read = [
        r
        for r in history.table("log")
        if r["cluster"] == ("target" if history.mirror else "source")
    ]
    for row in draw(st.permutations(read)) if draw(st.booleans()) else read:
        if draw(st.booleans()):
            _receive(draw, history, row["producer"], (row["lane"], row["sequence"]), row["offset"])
    for _ in range(draw(st.integers(0, 6))):
        _receive(draw, history, draw(PRODUCERS), (draw(LANES), draw(SEQUENCES)), draw(OFFSETS))


def _receive(
    draw: st.DrawFn, history: History, producer: str, message: tuple[int, int], offset: int
) -> None:
    lane, sequence = message
    columns = {
        "partition": draw(st.sampled_from([lane, lane, lane, 1 - lane])),
        "offset": offset,
        "group": draw(GROUPS) if "h" in history.groups else "g",
        "consumer": draw(st.sampled_from(["c", "d"])),
        "assignment": draw(st.integers(1, 2)),
        "received_us": draw(st.integers(0, 60)),
        "intact": draw(st.integers(0, 9)) > 0,
        "worker": draw(st.sampled_from(["w", "x"])),
    }
    receive(history, producer, lane, sequence, **columns)


def _add_rest(draw: st.DrawFn, history: History) -> None:
    readers = ["g", "h", "mirror"] if history.mirror else ["g", "h"]
    if "h" not in history.groups:
        readers.remove("h")
    for partition in (0, 1):
        for reader in readers:
            if draw(st.integers(0, 2)) == 0:
                place = {"topic": "t", "partition": partition, "offset": draw(OFFSETS)}
                history.add("positions", "w", reader=reader, **place)
        for consumer in ("c", "d"):
            if draw(st.booleans()):
                place = {"topic": "t", "partition": partition, "offset": draw(OFFSETS)}
                assignment = draw(st.integers(1, 2))
                history.add("assignments", "w", consumer=consumer, assignment=assignment, **place)
