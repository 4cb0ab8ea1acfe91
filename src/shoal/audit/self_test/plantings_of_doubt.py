"""Plantings about what a run can know: lost answers, truncated logs, offsets without an answer.

As in `plantings`, each function spoils a world in one way and returns what must then be found.
"""

from shoal.audit.self_test.plantings_common import any_message, unless_superseded
from shoal.audit.self_test.world import Line, Name, World, name_of


def _committed(world: World) -> Line | None:
    """Any attempt in a committed transaction that was delivered and is in the logs."""
    name = any_message(world)
    send = None if name is None else world.send_of(name)
    return send if send is not None and send.get("fate") == "committed" else None


def lose_what_was_committed_unanswered(world: World) -> set[str] | None:
    """The answer to one send of a committed transaction was lost, and so was the message."""
    send = _committed(world)
    if send is None:
        return None
    send.update(outcome="unknown", offset=None, acked_us=None)
    for cluster in ("source", "target"):
        world.drop_from_log(cluster, name_of(send))
    world.drop_receipts(name_of(send))
    return unless_superseded(world, "lost: never-stored")


def refuse_in_a_committed_transaction(world: World) -> set[str] | None:
    """Refused, committed with the rest, and delivered all the same."""
    send = _committed(world)
    if send is None:
        return None
    send.update(outcome="failed", offset=None, acked_us=None)
    return {"aborted read"}


def begin_below_the_start(world: World) -> set[str] | None:
    """The first delivery of an assignment lies below the offset where it was to begin."""
    begun = []
    for line in (line for line in world.others if line["kind"] == "assign"):
        reader = ("consumer", "assignment", "topic", "partition")
        own = [r for r in world.receipts if all(r[part] == line[part] for part in reader)]
        begun += [(line, own[0])] if own else []
    if not begun:
        return None
    line, first = world.random.choice(begun)
    line["offset"] = first["offset"] + world.random.randint(1, 3)
    return {"non-monotonic poll"}


def _cut_the_source(world: World) -> list[Name]:
    """Take the last messages of a source log away, as an unclean election does."""
    scan = world.scan_of("source", world.random.choice(world.scans)["partition"])
    lines = [line for line in world.logs["source"] if line["partition"] == scan["partition"]]
    gone = sorted(lines, key=lambda line: int(line["offset"]))[-world.random.randint(1, 3) :]
    if gone:
        scan["end"] = gone[0]["offset"]
    names = [name_of(line) for line in gone]
    world.drop_from_log("source", *names)
    return names


def truncate_the_source_undrained(world: World) -> set[str] | None:
    """What was mirrored or delivered is gone from the source, and nobody waited for a drain."""
    if not _cut_the_source(world):
        return None
    world.end["drained"] = False
    return unless_superseded(world, "vanished")


def truncate_and_write_again(world: World) -> set[str] | None:
    """Acknowledged messages are truncated before anyone read them; later ones take their place."""
    names = _cut_the_source(world)
    if not names:
        return None
    world.drop_from_log("target", *names)
    world.drop_receipts(*names)
    for _ in names:
        world.send(names[0][:3])
    if world.random.random() < 0.5:
        world.end["drained"] = False
    return unless_superseded(world, "lost: never-stored") | {"inconsistent offset"}


def empty_the_source(world: World) -> set[str] | None:
    """A scan finds an empty source, though messages were acknowledged."""
    partition = world.random.choice(world.scans)["partition"]
    lines = [line for line in world.logs["source"] if line["partition"] == partition]
    if not lines:
        return None
    scan = world.scan_of("source", partition)
    scan["end"] = scan["start"]
    names = [name_of(line) for line in lines]
    for cluster in ("source", "target"):
        world.drop_from_log(cluster, *names)
    world.drop_receipts(*names)
    world.end["drained"] = world.random.random() < 0.5
    return {"lost: never-stored", "tail loss"}


def name_an_offset_without_an_answer(world: World) -> set[str] | None:
    """An attempt without an answer names the offset of another message: that shows nothing."""
    name = any_message(world)
    if name is None:
        return None
    used = [line["seq"] for line in world.sends if name_of(line)[:3] == name[:3]]
    send = world.send_of(name) | {"seq": max(used) + 1, "outcome": "unknown", "acked_us": None}
    world.sends.append({k: v for k, v in send.items() if k not in ("txn", "fate", "committed_us")})
    return set()


def make_up_a_message_and_send_on(world: World) -> set[str] | None:
    """A message that nobody sent has no place in the order of those that follow it."""
    name = any_message(world)
    if name is None:
        return None
    made_up = (*name[:3], world.random.randint(900, 999))
    world.deliver(made_up, world.append(world.read, made_up))
    world.send(name[:3])
    return {"unexpected"}


DOUBTS = (
    lose_what_was_committed_unanswered,
    refuse_in_a_committed_transaction,
    begin_below_the_start,
    truncate_the_source_undrained,
    truncate_and_write_again,
    empty_the_source,
    name_an_offset_without_an_answer,
    make_up_a_message_and_send_on,
)

_LOSS = {"tail loss", "poll skip", "torn transaction", "superseded", "lost: never-stored"}
ALONG_DOUBTS: dict[str, set[str]] = {
    "lose_what_was_committed_unanswered": _LOSS,
    "truncate_the_source_undrained": {"vanished"},
    "truncate_and_write_again": _LOSS,
}
