"""Planted defects: each function changes a run in one way, at a random place.

A planting returns the findings that must be present if it is the only one; `ALSO_ALLOWED` has the
findings that may come with it. It returns None if the run has no place for it.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from shoal.audit.self_test.plantings_common import expect_unless_superseded, pick_message
from shoal.audit.self_test.plantings_uncertain import ALSO_ALLOWED_UNCERTAIN, UNCERTAIN_PLANTINGS
from shoal.audit.self_test.synthetic_run import Line, Name, SyntheticRun, name_of

Planting = Callable[[SyntheticRun], set[str] | None]


def drop_before_the_source(run: SyntheticRun) -> set[str] | None:
    if (name := pick_message(run)) is None:
        return None
    for cluster in ("source", "target"):
        run.drop_from_log(cluster, name)
    run.drop_receipts(name)
    return expect_unless_superseded(run, "lost: never-stored")


def drop_in_the_mirror(run: SyntheticRun) -> set[str] | None:
    if not run.has_mirror or (name := pick_message(run)) is None:
        return None
    run.drop_from_log("target", name)
    run.drop_receipts(name)
    return expect_unless_superseded(run, "lost: not-mirrored")


def drop_before_the_consumer(run: SyntheticRun) -> set[str] | None:
    if (name := pick_message(run)) is None:
        return None
    run.drop_receipts(name)
    return {"lost: undelivered"}


def repeat_by_the_producer(run: SyntheticRun) -> set[str] | None:
    if (name := pick_message(run)) is None:
        return None
    offset = run.append("source", name)
    found = {"duplicate: source"}
    if run.has_mirror:
        offset = run.append("target", name)
        found.add("duplicate: target")
    run.deliver(name, offset)
    return found


def reuse_a_sequence(run: SyntheticRun) -> set[str] | None:
    """Another message with the same identity is acknowledged too; perhaps it gets no further."""
    if (name := pick_message(run)) is None:
        return None
    offset, found = run.append("source", name), {"reused sequence", "duplicate: source"}
    send = run.send_of(name)
    times = {"sent_us": run.clock_us, "intended_us": None, "acked_us": run.clock_us + 100}
    run.sends.append(send | {"offset": offset} | times)
    if run.random.random() < 0.5:
        return found
    if run.has_mirror:
        offset = run.append("target", name)
        found.add("duplicate: target")
    run.deliver(name, offset)
    return found


def repeat_by_the_mirror(run: SyntheticRun) -> set[str] | None:
    if not run.has_mirror or (name := pick_message(run)) is None:
        return None
    run.deliver(name, run.append("target", name))
    return {"duplicate: target"}


def _neighbours(run: SyntheticRun, cluster: str) -> tuple[Line, Line] | None:
    """Return two successive log lines of one stream."""
    logs = sorted(run.logs[cluster], key=lambda line: (name_of(line)[:3], line["offset"]))
    pairs = [
        (a, b)
        for a, b in pairwise(logs)
        if name_of(a)[:3] == name_of(b)[:3] and a["seq"] < b["seq"]
    ]
    return run.random.choice(pairs) if pairs else None


def _swap_in_log(run: SyntheticRun, cluster: str) -> bool:
    """Let two successive messages of a log change places, also in what follows from the log.

    Return False if there are no such messages. The producer saw the offsets of the source; groups
    received what is in the log that they read.
    """
    pair = _neighbours(run, cluster)
    if pair is None:
        return False
    first, second = pair
    places = {first["seq"]: second["offset"], second["seq"]: first["offset"]}
    stream = name_of(first)[:3]
    for line in run.logs[cluster]:
        if name_of(line)[:3] == stream and line["seq"] in places:
            line["offset"] = places[line["seq"]]
    if cluster == "source":
        for line in run.sends:
            if name_of(line)[:3] == stream and line["seq"] in places:
                line["offset"] = places[line["seq"]]
    if cluster == run.read:
        numbers = {second["seq"]: first["seq"], first["seq"]: second["seq"]}
        for line in run.receipts:
            if name_of(line)[:3] == stream:
                line["seq"] = numbers.get(line["seq"], line["seq"])
    return True


def swap_at_the_source(run: SyntheticRun) -> set[str] | None:
    if not _swap_in_log(run, "source"):
        return None
    return {"reordered: source"} | (set() if run.has_mirror else {"reordered"})


def swap_in_the_mirror(run: SyntheticRun) -> set[str] | None:
    if not run.has_mirror or not _swap_in_log(run, "target"):
        return None
    return {"reordered: target", "reordered"}


def swap_at_the_consumer(run: SyntheticRun) -> set[str] | None:
    own = [
        place
        for place, (a, b) in enumerate(pairwise(run.receipts))
        if all(a[part] == b[part] for part in ("consumer", "assignment", "partition"))
        and a["producer"] == b["producer"]
        and a["offset"] < b["offset"]
    ]
    if not own:
        return None
    place = run.random.choice(own)
    run.receipts[place : place + 2] = run.receipts[place : place + 2][::-1]
    return {"non-monotonic poll", "reordered"}


def corrupt(run: SyntheticRun) -> set[str] | None:
    lines = [*run.logs["source"], *run.logs["target"], *run.receipts]
    if not lines:
        return None
    run.random.choice(lines)["intact"] = False
    return {"corrupted"}


def alter(run: SyntheticRun) -> set[str] | None:
    """The mirror changes key or headers of a copy, which breaks its checksum."""
    if not run.has_mirror or (name := pick_message(run)) is None:
        return None
    part = run.random.choice(["key", "headers"])
    for line in [*run.logs["target"], *run.receipts]:
        if name_of(line) == name:
            line["intact"] = False
            if line["kind"] == "log":
                line["altered"] = part
    return {f"altered: {part}"}


def abort_a_transaction(run: SyntheticRun) -> set[str] | None:
    """A transaction is aborted and delivered nevertheless."""
    names = sorted({line["txn"] for line in run.sends if "txn" in line})
    if not names:
        return None
    name = run.random.choice(names)
    for line in run.sends:
        if line.get("txn") == name:
            line["fate"] = "aborted"
    return {"aborted read"}


def refuse_a_send(run: SyntheticRun) -> set[str] | None:
    """A send is refused and delivered nevertheless."""
    name = pick_message(run)
    if name is None or "txn" in run.send_of(name):
        return None
    run.send_of(name).update(outcome="failed", offset=None, acked_us=None)
    return {"aborted read"}


def abort_unseen(run: SyntheticRun) -> set[str] | None:
    """A transaction is aborted or left open, and correctly delivered to nobody."""
    names = sorted({line["txn"] for line in run.sends if "txn" in line})
    if not names:
        return None
    name = run.random.choice(names)
    fate = run.random.choice(["aborted", "open"])
    for line in run.sends:
        if line.get("txn") == name:
            line["fate"] = fate
            run.drop_receipts(name_of(line))
            if run.has_mirror:
                run.drop_from_log("target", name_of(line))
    return set()


def read_too_early(run: SyntheticRun) -> set[str] | None:
    lines = [r for r in run.receipts if "txn" in _find_send(run, r)]
    if not lines:
        return None
    line = run.random.choice(lines)
    line["received_us"] = _find_send(run, line)["committed_us"] - 1
    return {"uncommitted read"}


def _find_send(run: SyntheticRun, receipt: Line) -> Line:
    return next((s for s in run.sends if name_of(s) == name_of(receipt)), {})


def tear_a_transaction(run: SyntheticRun) -> set[str] | None:
    delivered = {name_of(line) for line in run.receipts}
    by_transaction: dict[str, list[Name]] = {}
    for line in run.sends:
        if line.get("fate") == "committed" and name_of(line) in delivered:
            by_transaction.setdefault(line["txn"], []).append(name_of(line))
    several = [names for names in by_transaction.values() if len(names) > 1]
    if not several:
        return None
    run.drop_receipts(run.random.choice(run.random.choice(several)))
    return {"torn transaction", "lost: undelivered"}


def skip_and_come_back(run: SyntheticRun) -> set[str] | None:
    """A poll leaves out a message; a later assignment delivers it."""
    inner = [
        b
        for a, b, c in zip(run.receipts, run.receipts[1:], run.receipts[2:], strict=False)
        if all(a[p] == b[p] == c[p] for p in ("consumer", "assignment", "partition"))
        and a["offset"] < b["offset"] < c["offset"]
    ]
    held = {(line["partition"], line["offset"]) for line in run.logs[run.read]}
    inner = [line for line in inner if (line["partition"], line["offset"]) in held]
    if not inner:
        return None
    line = run.random.choice(inner)
    run.receipts.remove(line)
    numbers = [r["assignment"] for r in run.receipts if r["partition"] == line["partition"]]
    run.receipts.append(line | {"assignment": max(numbers) + 1})
    return {"poll skip"}


def lose_the_tail(run: SyntheticRun) -> set[str] | None:
    names = _tail(run)
    if not names:
        return None
    run.drop_from_log(run.read, *names)
    run.drop_receipts(*names)
    cause = "lost: not-mirrored" if run.has_mirror else "lost: never-stored"
    return expect_unless_superseded(run, cause, "tail loss")


def _tail(run: SyntheticRun) -> list[Name]:
    """Return the last messages of a stream, all of which were delivered."""
    name = pick_message(run)
    if name is None:
        return []
    own = sorted({name_of(line) for line in run.receipts if name_of(line)[:3] == name[:3]})
    return own[-run.random.randint(1, 3) :]


def lose_a_stream(run: SyntheticRun) -> set[str] | None:
    name = pick_message(run)
    if name is None:
        return None
    own = {name_of(line) for line in run.receipts if name_of(line)[:3] == name[:3]}
    run.drop_from_log(run.read, *own)
    run.drop_receipts(*own)
    cause = "lost: not-mirrored" if run.has_mirror else "lost: never-stored"
    if run.has_mirror and hides_where_its_target_began(run, name[2]):
        cause = "lost: unlocated"
    return expect_unless_superseded(run, cause, "tail loss")


def hides_where_its_target_began(run: SyntheticRun, partition: int) -> bool:
    """Whether the target may have deleted messages that nobody has read, for all that is known."""
    is_assigned = any(
        line["kind"] == "assign" and line["partition"] == partition for line in run.others
    )
    return bool(run.scan_of("target", partition)["start"] > 0 and not is_assigned)


def late_marker(run: SyntheticRun) -> set[str] | None:
    """The lane is not drained: the last messages, which consumers did not reach, are pending."""
    name = pick_message(run)
    if name is None:
        return None
    run.end["drained"] = False
    own = [line for line in run.receipts if line["partition"] == name[2]]
    last = max(own, key=lambda line: line["offset"])
    run.drop_receipts(name_of(last))
    return {"pending"}


def skew_the_clocks(run: SyntheticRun) -> set[str] | None:
    """The clocks of consumers are behind: latencies are impossible, but nothing is found."""
    if any("txn" in line for line in run.sends):
        return None
    for line in run.receipts:
        line["received_us"] -= 60_000_000
    return set()


def vanish_from_the_source(run: SyntheticRun) -> set[str] | None:
    if not run.has_mirror or (name := pick_message(run)) is None:
        return None
    run.drop_from_log("source", name)
    return expect_unless_superseded(run, "vanished")


def vanish_from_the_read_log(run: SyntheticRun) -> set[str] | None:
    if (name := pick_message(run)) is None:
        return None
    run.drop_from_log(run.read, name)
    return expect_unless_superseded(run, "vanished")


def acknowledge_wrongly(run: SyntheticRun) -> set[str] | None:
    """A message is acknowledged with the offset of another one."""
    pair = _neighbours(run, "source")
    if pair is None:
        return None
    sends = [line for line in run.sends if name_of(line) == name_of(pair[0])]
    if not sends or sends[0]["outcome"] != "ok":
        return None
    sends[0]["offset"] = pair[1]["offset"]
    return {"inconsistent offset", "duplicate: source"}


def make_up_a_message(run: SyntheticRun) -> set[str] | None:
    partition = run.random.choice(run.scans)["partition"]
    name = ("t", run.random.choice(["p", "ghost"]), partition, run.random.randint(900, 999))
    run.deliver(name, run.append(run.read, name))
    return {"unexpected"}


def expire_at_the_source(run: SyntheticRun) -> set[str] | None:
    """The source deletes messages that were not mirrored yet."""
    scan = run.scan_of("source", run.random.choice(run.scans)["partition"])
    lines = [line for line in run.logs["source"] if line["partition"] == scan["partition"]]
    lines.sort(key=lambda line: line["offset"])
    gone = lines[: run.random.randint(1, 3)]
    if not gone or len(gone) == len(lines):
        return None
    scan["start"] = gone[-1]["offset"] + 1
    names = [name_of(line) for line in gone]
    run.drop_from_log("source", *names)
    run.drop_from_log("target", *names)
    run.drop_receipts(*names)
    return expect_unless_superseded(run, "lost: expired")


def expire_at_the_target(run: SyntheticRun) -> set[str] | None:
    """The target deletes a message that a slow reader has not read, but has read those before."""
    if not run.has_mirror:
        return None
    scan = run.scan_of("target", run.random.choice(run.scans)["partition"])
    lines = [line for line in run.logs["target"] if line["partition"] == scan["partition"]]
    lines.sort(key=lambda line: line["offset"])
    if len({name_of(line)[:3] for line in lines}) > 1 or len(lines) < 4:
        return None
    cut = run.random.randint(2, len(lines) - 1)
    scan["start"] = lines[cut - 1]["offset"] + 1
    run.drop_from_log("target", *(name_of(line) for line in lines[:cut]))
    run.drop_receipts(name_of(lines[cut - 1]))
    return expect_unless_superseded(run, "lost: expired at target")


def compact(run: SyntheticRun) -> set[str] | None:
    """Both logs keep only the last message of each key; consumers may be too late for others."""
    partition = run.random.choice(run.scans)["partition"]
    if not run.scan_of("source", partition)["compacted"]:
        return None
    lines = [line for line in run.logs["source"] if line["partition"] == partition]
    keys = {name_of(line): line["key"] for line in run.sends}
    last: dict[str, Name] = {}
    for line in sorted(lines, key=lambda line: line["offset"]):
        if name_of(line) in keys:
            last[keys[name_of(line)]] = name_of(line)
    gone = [name_of(line) for line in lines if name_of(line) not in last.values()]
    gone = [name for name in gone if name in keys]
    for cluster in ("source", "target"):
        run.drop_from_log(cluster, *gone)
    if run.random.random() < 0.5:
        run.drop_receipts(*gone)
        return {"superseded"} if gone else None
    return set()


def time_out(run: SyntheticRun) -> set[str] | None:
    """An answer is lost, but the message was stored."""
    name = pick_message(run)
    if name is None:
        return None
    run.send_of(name).update(outcome="unknown", offset=None, acked_us=None)
    return set()


def time_out_unstored(run: SyntheticRun) -> set[str] | None:
    """An answer and its message are lost: nothing was promised."""
    name = pick_message(run)
    if name is None or "txn" in run.send_of(name):
        return None
    run.send_of(name).update(outcome="unknown", offset=None, acked_us=None)
    for cluster in ("source", "target"):
        run.drop_from_log(cluster, name)
    run.drop_receipts(name)
    return set()


def read_again(run: SyntheticRun) -> set[str] | None:
    """A rebalance: the end of a partition is read again."""
    if not run.receipts:
        return None
    partition = run.random.choice(run.receipts)["partition"]
    own = [line for line in run.receipts if line["partition"] == partition]
    own.sort(key=lambda line: (line["assignment"], line["offset"]))
    again = own[-run.random.randint(1, 4) :]
    number = max(line["assignment"] for line in own) + 1
    offsets = sorted({line["offset"] for line in again})
    for offset in offsets:
        line = next(line for line in again if line["offset"] == offset)
        run.receipts.append(line | {"assignment": number, "consumer": "c3"})
    return set()


PLANTINGS: Final[tuple[Planting, ...]] = (
    drop_before_the_source,
    drop_in_the_mirror,
    drop_before_the_consumer,
    repeat_by_the_producer,
    reuse_a_sequence,
    repeat_by_the_mirror,
    swap_at_the_source,
    swap_in_the_mirror,
    swap_at_the_consumer,
    corrupt,
    alter,
    abort_a_transaction,
    refuse_a_send,
    abort_unseen,
    read_too_early,
    tear_a_transaction,
    skip_and_come_back,
    lose_the_tail,
    lose_a_stream,
    late_marker,
    skew_the_clocks,
    vanish_from_the_source,
    vanish_from_the_read_log,
    acknowledge_wrongly,
    make_up_a_message,
    expire_at_the_source,
    expire_at_the_target,
    compact,
    time_out,
    time_out_unstored,
    read_again,
    *UNCERTAIN_PLANTINGS,
)

_LOSS = {"tail loss", "poll skip", "torn transaction"}
_GONE = _LOSS | {"superseded", "lost: never-stored", "lost: not-mirrored"}
# Findings that may come with each planting if it is the only one.
ALSO_ALLOWED: Final[dict[str, set[str]]] = {
    "drop_before_the_source": _LOSS | {"superseded", "lost: never-stored"},
    "drop_in_the_mirror": _LOSS | {"superseded", "lost: not-mirrored"},
    "drop_before_the_consumer": _LOSS,
    "swap_at_the_source": {"reordered: target", "reordered"},
    "swap_at_the_consumer": {"poll skip"},
    "tear_a_transaction": _LOSS,
    "lose_the_tail": _GONE,
    "lose_a_stream": _GONE,
    "late_marker": _LOSS,
    "skip_and_come_back": {"reordered"},
    "vanish_from_the_source": {"vanished"},
    "vanish_from_the_read_log": {"vanished"},
    "acknowledge_wrongly": {"reordered: source"},
    "expire_at_the_source": _LOSS | {"superseded", "lost: expired", "vanished"},
    "expire_at_the_target": _LOSS | {"superseded", "lost: expired at target"},
    "compact": {"superseded"},
    **ALSO_ALLOWED_UNCERTAIN,
}
