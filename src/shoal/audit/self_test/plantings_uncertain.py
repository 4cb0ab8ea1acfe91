"""Planted defects about what a run can know: lost answers, truncated logs, unconfirmed offsets.

As in `plantings`, each function changes a run in one way and returns what must then be found.
"""

from shoal.audit.self_test.plantings_common import expect_unless_superseded, pick_message
from shoal.audit.self_test.synthetic_run import Line, Name, SyntheticRun, name_of


def _any_committed_send(run: SyntheticRun) -> Line | None:
    """Return any attempt in a committed transaction that was delivered and is in the logs."""
    name = pick_message(run)
    send = None if name is None else run.send_of(name)
    return send if send is not None and send.get("fate") == "committed" else None


def lose_what_was_committed_unanswered(run: SyntheticRun) -> set[str] | None:
    """The answer to one send of a committed transaction is lost, and so is the message."""
    send = _any_committed_send(run)
    if send is None:
        return None
    send.update(outcome="unknown", offset=None, acked_us=None)
    for cluster in ("source", "target"):
        run.drop_from_log(cluster, name_of(send))
    run.drop_receipts(name_of(send))
    return expect_unless_superseded(run, "lost: never-stored")


def refuse_in_a_committed_transaction(run: SyntheticRun) -> set[str] | None:
    """A send is refused, its transaction is committed, and the message is delivered."""
    send = _any_committed_send(run)
    if send is None:
        return None
    send.update(outcome="failed", offset=None, acked_us=None)
    return {"aborted read"}


def begin_below_the_start(run: SyntheticRun) -> set[str] | None:
    """The first delivery of an assignment is below the start offset of the assignment."""
    begun = []
    for line in (line for line in run.others if line["kind"] == "assign"):
        reader = ("consumer", "assignment", "topic", "partition")
        own = [r for r in run.receipts if all(r[part] == line[part] for part in reader)]
        begun += [(line, own[0])] if own else []
    if not begun:
        return None
    line, first = run.random.choice(begun)
    line["offset"] = first["offset"] + run.random.randint(1, 3)
    return {"non-monotonic poll"}


def _truncate_source(run: SyntheticRun) -> list[Name]:
    """Remove the last messages of a source log, as an unclean leader election does."""
    scan = run.scan_of("source", run.random.choice(run.scans)["partition"])
    lines = [line for line in run.logs["source"] if line["partition"] == scan["partition"]]
    gone = sorted(lines, key=lambda line: int(line["offset"]))[-run.random.randint(1, 3) :]
    if gone:
        scan["end"] = gone[0]["offset"]
    names = [name_of(line) for line in gone]
    run.drop_from_log("source", *names)
    return names


def truncate_the_source_undrained(run: SyntheticRun) -> set[str] | None:
    """Messages that were mirrored or delivered are missing from the source; no drain."""
    if not _truncate_source(run):
        return None
    run.end["drained"] = False
    return expect_unless_superseded(run, "vanished")


def truncate_and_write_again(run: SyntheticRun) -> set[str] | None:
    """Acknowledged messages are truncated before they are read; later ones get their offsets."""
    names = _truncate_source(run)
    if not names:
        return None
    run.drop_from_log("target", *names)
    run.drop_receipts(*names)
    for _ in names:
        run.send(names[0][:3])
    if run.random.random() < 0.5:
        run.end["drained"] = False
    return expect_unless_superseded(run, "lost: never-stored") | {"inconsistent offset"}


def empty_the_source(run: SyntheticRun) -> set[str] | None:
    """A scan finds an empty source although messages were acknowledged."""
    partition = run.random.choice(run.scans)["partition"]
    lines = [line for line in run.logs["source"] if line["partition"] == partition]
    if not lines:
        return None
    scan = run.scan_of("source", partition)
    scan["end"] = scan["start"]
    names = [name_of(line) for line in lines]
    for cluster in ("source", "target"):
        run.drop_from_log(cluster, *names)
    run.drop_receipts(*names)
    run.end["drained"] = run.random.random() < 0.5
    return {"lost: never-stored", "tail loss"}


def name_an_offset_without_an_answer(run: SyntheticRun) -> set[str] | None:
    """An attempt without an answer has the offset of another message: not evidence."""
    name = pick_message(run)
    if name is None:
        return None
    used = [line["seq"] for line in run.sends if name_of(line)[:3] == name[:3]]
    send = run.send_of(name) | {"seq": max(used) + 1, "outcome": "unknown", "acked_us": None}
    run.sends.append({k: v for k, v in send.items() if k not in ("txn", "fate", "committed_us")})
    return set()


def make_up_a_message_and_send_on(run: SyntheticRun) -> set[str] | None:
    """A message that was never sent does not count in the order of those that follow it."""
    name = pick_message(run)
    if name is None:
        return None
    made_up = (*name[:3], run.random.randint(900, 999))
    run.deliver(made_up, run.append(run.read, made_up))
    run.send(name[:3])
    return {"unexpected"}


UNCERTAIN_PLANTINGS = (
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
ALSO_ALLOWED_UNCERTAIN: dict[str, set[str]] = {
    "lose_what_was_committed_unanswered": _LOSS,
    "truncate_the_source_undrained": {"vanished"},
    "truncate_and_write_again": _LOSS,
}
