"""What can go wrong, planted: each function spoils a world in one way, at a random place.

It returns the findings that must then be there if it was planted alone; `ANY` gives those that
may come along with it. None means that this world has no place for it.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from shoal.audit.self_test.plantings_common import any_message, unless_superseded
from shoal.audit.self_test.plantings_of_doubt import ALONG_DOUBTS, DOUBTS
from shoal.audit.self_test.world import Line, Name, World, name_of

Planting = Callable[[World], set[str] | None]


def drop_before_the_source(world: World) -> set[str] | None:
    if (name := any_message(world)) is None:
        return None
    for cluster in ("source", "target"):
        world.drop_from_log(cluster, name)
    world.drop_receipts(name)
    return unless_superseded(world, "lost: never-stored")


def drop_in_the_mirror(world: World) -> set[str] | None:
    if not world.has_mirror or (name := any_message(world)) is None:
        return None
    world.drop_from_log("target", name)
    world.drop_receipts(name)
    return unless_superseded(world, "lost: not-mirrored")


def drop_before_the_consumer(world: World) -> set[str] | None:
    if (name := any_message(world)) is None:
        return None
    world.drop_receipts(name)
    return {"lost: undelivered"}


def repeat_by_the_producer(world: World) -> set[str] | None:
    if (name := any_message(world)) is None:
        return None
    offset = world.append("source", name)
    found = {"duplicate: source"}
    if world.has_mirror:
        offset = world.append("target", name)
        found.add("duplicate: target")
    world.deliver(name, offset)
    return found


def reuse_a_sequence(world: World) -> set[str] | None:
    """Another message under the same name, acknowledged too; it may never get further."""
    if (name := any_message(world)) is None:
        return None
    offset, found = world.append("source", name), {"reused sequence", "duplicate: source"}
    send = world.send_of(name)
    times = {"sent_us": world.clock_us, "intended_us": None, "acked_us": world.clock_us + 100}
    world.sends.append(send | {"offset": offset} | times)
    if world.random.random() < 0.5:
        return found
    if world.has_mirror:
        offset = world.append("target", name)
        found.add("duplicate: target")
    world.deliver(name, offset)
    return found


def repeat_by_the_mirror(world: World) -> set[str] | None:
    if not world.has_mirror or (name := any_message(world)) is None:
        return None
    world.deliver(name, world.append("target", name))
    return {"duplicate: target"}


def _neighbours(world: World, cluster: str) -> tuple[Line, Line] | None:
    """Two successive log lines of one stream."""
    logs = sorted(world.logs[cluster], key=lambda line: (name_of(line)[:3], line["offset"]))
    pairs = [
        (a, b)
        for a, b in pairwise(logs)
        if name_of(a)[:3] == name_of(b)[:3] and a["seq"] < b["seq"]
    ]
    return world.random.choice(pairs) if pairs else None


def _swap_in_log(world: World, cluster: str) -> bool:
    pair = _neighbours(world, cluster)
    if pair is None:
        return False
    first, second = pair
    places = {first["seq"]: second["offset"], second["seq"]: first["offset"]}
    stream = name_of(first)[:3]
    for line in world.logs[cluster]:
        if name_of(line)[:3] == stream and line["seq"] in places:
            line["offset"] = places[line["seq"]]
    if cluster == "source":
        for line in world.sends:
            if name_of(line)[:3] == stream and line["seq"] in places:
                line["offset"] = places[line["seq"]]
    if cluster == world.read:
        numbers = {second["seq"]: first["seq"], first["seq"]: second["seq"]}
        for line in world.receipts:
            if name_of(line)[:3] == stream:
                line["seq"] = numbers.get(line["seq"], line["seq"])
    return True


def swap_at_the_source(world: World) -> set[str] | None:
    if not _swap_in_log(world, "source"):
        return None
    return {"reordered: source"} | (set() if world.has_mirror else {"reordered"})


def swap_in_the_mirror(world: World) -> set[str] | None:
    if not world.has_mirror or not _swap_in_log(world, "target"):
        return None
    return {"reordered: target", "reordered"}


def swap_at_the_consumer(world: World) -> set[str] | None:
    own = [
        place
        for place, (a, b) in enumerate(pairwise(world.receipts))
        if all(a[part] == b[part] for part in ("consumer", "assignment", "partition"))
        and a["producer"] == b["producer"]
        and a["offset"] < b["offset"]
    ]
    if not own:
        return None
    place = world.random.choice(own)
    world.receipts[place : place + 2] = world.receipts[place : place + 2][::-1]
    return {"non-monotonic poll", "reordered"}


def corrupt(world: World) -> set[str] | None:
    lines = [*world.logs["source"], *world.logs["target"], *world.receipts]
    if not lines:
        return None
    world.random.choice(lines)["intact"] = False
    return {"corrupted"}


def alter(world: World) -> set[str] | None:
    """The mirror changes key or headers of a copy, and so breaks its checksum."""
    if not world.has_mirror or (name := any_message(world)) is None:
        return None
    part = world.random.choice(["key", "headers"])
    for line in [*world.logs["target"], *world.receipts]:
        if name_of(line) == name:
            line["intact"] = False
            if line["kind"] == "log":
                line["altered"] = part
    return {f"altered: {part}"}


def abort_a_transaction(world: World) -> set[str] | None:
    """Aborted, and delivered all the same."""
    names = sorted({line["txn"] for line in world.sends if "txn" in line})
    if not names:
        return None
    name = world.random.choice(names)
    for line in world.sends:
        if line.get("txn") == name:
            line["fate"] = "aborted"
    return {"aborted read"}


def refuse_a_send(world: World) -> set[str] | None:
    """Refused, and delivered all the same."""
    name = any_message(world)
    if name is None or "txn" in world.send_of(name):
        return None
    world.send_of(name).update(outcome="failed", offset=None, acked_us=None)
    return {"aborted read"}


def abort_unseen(world: World) -> set[str] | None:
    """Aborted or left open, in the log, and rightly delivered to nobody."""
    names = sorted({line["txn"] for line in world.sends if "txn" in line})
    if not names:
        return None
    name = world.random.choice(names)
    fate = world.random.choice(["aborted", "open"])
    for line in world.sends:
        if line.get("txn") == name:
            line["fate"] = fate
            world.drop_receipts(name_of(line))
            if world.has_mirror:
                world.drop_from_log("target", name_of(line))
    return set()


def read_too_early(world: World) -> set[str] | None:
    lines = [r for r in world.receipts if "txn" in _send_or_nothing(world, r)]
    if not lines:
        return None
    line = world.random.choice(lines)
    line["received_us"] = _send_or_nothing(world, line)["committed_us"] - 1
    return {"uncommitted read"}


def _send_or_nothing(world: World, receipt: Line) -> Line:
    return next((s for s in world.sends if name_of(s) == name_of(receipt)), {})


def tear_a_transaction(world: World) -> set[str] | None:
    delivered = {name_of(line) for line in world.receipts}
    by_transaction: dict[str, list[Name]] = {}
    for line in world.sends:
        if line.get("fate") == "committed" and name_of(line) in delivered:
            by_transaction.setdefault(line["txn"], []).append(name_of(line))
    several = [names for names in by_transaction.values() if len(names) > 1]
    if not several:
        return None
    world.drop_receipts(world.random.choice(world.random.choice(several)))
    return {"torn transaction", "lost: undelivered"}


def skip_and_come_back(world: World) -> set[str] | None:
    """A poll leaves a message out; a later assignment brings it."""
    inner = [
        b
        for a, b, c in zip(world.receipts, world.receipts[1:], world.receipts[2:], strict=False)
        if all(a[p] == b[p] == c[p] for p in ("consumer", "assignment", "partition"))
        and a["offset"] < b["offset"] < c["offset"]
    ]
    held = {(line["partition"], line["offset"]) for line in world.logs[world.read]}
    inner = [line for line in inner if (line["partition"], line["offset"]) in held]
    if not inner:
        return None
    line = world.random.choice(inner)
    world.receipts.remove(line)
    numbers = [r["assignment"] for r in world.receipts if r["partition"] == line["partition"]]
    world.receipts.append(line | {"assignment": max(numbers) + 1})
    return {"poll skip"}


def lose_the_tail(world: World) -> set[str] | None:
    names = _tail(world)
    if not names:
        return None
    world.drop_from_log(world.read, *names)
    world.drop_receipts(*names)
    cause = "lost: not-mirrored" if world.has_mirror else "lost: never-stored"
    return unless_superseded(world, cause, "tail loss")


def _tail(world: World) -> list[Name]:
    """The last messages of a stream, all of which were delivered."""
    name = any_message(world)
    if name is None:
        return []
    own = sorted({name_of(line) for line in world.receipts if name_of(line)[:3] == name[:3]})
    return own[-world.random.randint(1, 3) :]


def lose_a_stream(world: World) -> set[str] | None:
    name = any_message(world)
    if name is None:
        return None
    own = {name_of(line) for line in world.receipts if name_of(line)[:3] == name[:3]}
    world.drop_from_log(world.read, *own)
    world.drop_receipts(*own)
    cause = "lost: not-mirrored" if world.has_mirror else "lost: never-stored"
    return unless_superseded(world, cause, "tail loss")


def late_marker(world: World) -> set[str] | None:
    """Not drained: the last messages of a log that consumers have not reached may still come."""
    name = any_message(world)
    if name is None:
        return None
    world.end["drained"] = False
    own = [line for line in world.receipts if line["partition"] == name[2]]
    last = max(own, key=lambda line: line["offset"])
    world.drop_receipts(name_of(last))
    return {"pending"}


def skew_the_clocks(world: World) -> set[str] | None:
    """The consumers' clocks are behind: impossible latencies, and no finding at all."""
    if any("txn" in line for line in world.sends):
        return None
    for line in world.receipts:
        line["received_us"] -= 60_000_000
    return set()


def vanish_from_the_source(world: World) -> set[str] | None:
    if not world.has_mirror or (name := any_message(world)) is None:
        return None
    world.drop_from_log("source", name)
    return unless_superseded(world, "vanished")


def vanish_from_the_read_log(world: World) -> set[str] | None:
    if (name := any_message(world)) is None:
        return None
    world.drop_from_log(world.read, name)
    return unless_superseded(world, "vanished")


def acknowledge_wrongly(world: World) -> set[str] | None:
    """Acknowledged with the offset of another message."""
    pair = _neighbours(world, "source")
    if pair is None:
        return None
    sends = [line for line in world.sends if name_of(line) == name_of(pair[0])]
    if not sends or sends[0]["outcome"] != "ok":
        return None
    sends[0]["offset"] = pair[1]["offset"]
    return {"inconsistent offset", "duplicate: source"}


def make_up_a_message(world: World) -> set[str] | None:
    partition = world.random.choice(world.scans)["partition"]
    name = ("t", world.random.choice(["p", "ghost"]), partition, world.random.randint(900, 999))
    world.deliver(name, world.append(world.read, name))
    return {"unexpected"}


def expire_at_the_source(world: World) -> set[str] | None:
    """The source deletes what was not mirrored yet."""
    scan = world.scan_of("source", world.random.choice(world.scans)["partition"])
    lines = [line for line in world.logs["source"] if line["partition"] == scan["partition"]]
    lines.sort(key=lambda line: line["offset"])
    gone = lines[: world.random.randint(1, 3)]
    if not gone or len(gone) == len(lines):
        return None
    scan["start"] = gone[-1]["offset"] + 1
    names = [name_of(line) for line in gone]
    world.drop_from_log("source", *names)
    world.drop_from_log("target", *names)
    world.drop_receipts(*names)
    return unless_superseded(world, "lost: expired")


def expire_at_the_target(world: World) -> set[str] | None:
    """The target deletes what one slow reader has not seen; its neighbours before it were."""
    if not world.has_mirror:
        return None
    scan = world.scan_of("target", world.random.choice(world.scans)["partition"])
    lines = [line for line in world.logs["target"] if line["partition"] == scan["partition"]]
    lines.sort(key=lambda line: line["offset"])
    if len({name_of(line)[:3] for line in lines}) > 1 or len(lines) < 4:
        return None
    cut = world.random.randint(2, len(lines) - 1)
    scan["start"] = lines[cut - 1]["offset"] + 1
    world.drop_from_log("target", *(name_of(line) for line in lines[:cut]))
    world.drop_receipts(name_of(lines[cut - 1]))
    return unless_superseded(world, "lost: expired at target")


def compact(world: World) -> set[str] | None:
    """Of each key only the last stays, in both logs; consumers came too late for the rest."""
    partition = world.random.choice(world.scans)["partition"]
    if not world.scan_of("source", partition)["compacted"]:
        return None
    lines = [line for line in world.logs["source"] if line["partition"] == partition]
    keys = {name_of(line): line["key"] for line in world.sends}
    last: dict[str, Name] = {}
    for line in sorted(lines, key=lambda line: line["offset"]):
        if name_of(line) in keys:
            last[keys[name_of(line)]] = name_of(line)
    gone = [name_of(line) for line in lines if name_of(line) not in last.values()]
    gone = [name for name in gone if name in keys]
    for cluster in ("source", "target"):
        world.drop_from_log(cluster, *gone)
    if world.random.random() < 0.5:
        world.drop_receipts(*gone)
        return {"superseded"} if gone else None
    return set()


def time_out(world: World) -> set[str] | None:
    """An answer was lost; the message was stored all the same."""
    name = any_message(world)
    if name is None:
        return None
    world.send_of(name).update(outcome="unknown", offset=None, acked_us=None)
    return set()


def time_out_unstored(world: World) -> set[str] | None:
    """An answer was lost, and so was the message: nothing was promised."""
    name = any_message(world)
    if name is None or "txn" in world.send_of(name):
        return None
    world.send_of(name).update(outcome="unknown", offset=None, acked_us=None)
    for cluster in ("source", "target"):
        world.drop_from_log(cluster, name)
    world.drop_receipts(name)
    return set()


def read_again(world: World) -> set[str] | None:
    """A rebalance: the end of a partition is read once more."""
    if not world.receipts:
        return None
    partition = world.random.choice(world.receipts)["partition"]
    own = [line for line in world.receipts if line["partition"] == partition]
    own.sort(key=lambda line: (line["assignment"], line["offset"]))
    again = own[-world.random.randint(1, 4) :]
    number = max(line["assignment"] for line in own) + 1
    offsets = sorted({line["offset"] for line in again})
    for offset in offsets:
        line = next(line for line in again if line["offset"] == offset)
        world.receipts.append(line | {"assignment": number, "consumer": "c3"})
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
    *DOUBTS,
)

_LOSS = {"tail loss", "poll skip", "torn transaction"}
_GONE = _LOSS | {"superseded", "lost: never-stored", "lost: not-mirrored"}
# What may come along with each planting, planted alone.
ALONG: Final[dict[str, set[str]]] = {
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
    **ALONG_DOUBTS,
}
