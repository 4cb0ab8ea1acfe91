"""Findings that are raised while a run runs: none is taken back, and none of these is late."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.follow import CERTAIN, RunFollower, find_certain
from shoal.audit.growth.increments import Increments
from shoal.audit.history.lines import parse_line
from shoal.audit.history.store import import_lines
from shoal.audit.read.folder import Ledger
from shoal.audit.read.read import Piece
from shoal.audit.self_test.plantings import PLANTINGS
from shoal.audit.self_test.synthetic_run import (
    Line,
    SyntheticRun,
    generate_clean_run,
    name_of,
)
from shoal.audit.self_test.trial import _judge
from shoal.model.findings import Finding

NAMES = {finding.value for finding in CERTAIN}
# Each of these is shown by what producers and consumers recorded.
SHOWN_EARLY = {
    "repeat_by_the_producer": Finding.DUPLICATE_SOURCE,
    "reuse_a_sequence": Finding.REUSED_SEQUENCE,
    "repeat_by_the_mirror": Finding.DUPLICATE_TARGET,
    "refuse_a_send": Finding.ABORTED_READ,
    "read_too_early": Finding.UNCOMMITTED_READ,
    "swap_at_the_consumer": Finding.NON_MONOTONIC_POLL,
    "make_up_a_message": Finding.UNEXPECTED,
    "corrupt": Finding.CORRUPTED,
}


def in_order_of_commit(run: SyntheticRun, random: Random) -> Iterator[Line]:
    """The lines of a run as workers commit them: each in its order, late by a time of its own."""
    late_us: dict[str, int] = {}

    def committed_us(line: Line) -> int:
        worker = str(line.get("consumer", line.get("producer", "")))
        delay = late_us.setdefault(worker, random.randrange(0, 20_000))
        if line["kind"] == "manifest":  # after all sends: a history has no reservations
            return max(int(send.get("acked_us") or send["sent_us"]) for send in run.sends) + 30_000
        at = line.get("received_us") or line.get("acked_us") or line.get("sent_us") or 0
        return int(at) + delay

    early = [*run.sends, *run.receipts, *run.others]
    # A worker's rows are in the order in which they are recorded.
    latest: dict[tuple[str, str], int] = {}
    keyed = []
    for number, line in enumerate(early):
        name = (line["kind"], str(line.get("consumer", line.get("producer", ""))))
        latest[name] = max(latest.get(name, 0), committed_us(line))
        keyed.append((latest[name], number, line))
    return (line for _, _, line in sorted(keyed, key=lambda item: item[:2]))


def without_fate(lines: list[Line], whole: list[Line]) -> list[Line]:
    """Transactions of which not all sends are committed yet have no fate yet."""
    sends = [line for line in lines if line["kind"] == "send" and "txn" in line]
    counts: dict[str, int] = {}
    for line in whole:
        if line["kind"] == "send" and "txn" in line:
            counts[line["txn"]] = counts.get(line["txn"], 0) + 1
    seen: dict[str, int] = {}
    for line in sends:
        seen[line["txn"]] = seen.get(line["txn"], 0) + 1
    hidden = {name for name, count in counts.items() if seen.get(name, 0) < count}
    gone = ("fate", "committed_us")
    return [
        {key: value for key, value in line.items() if key not in gone}
        if line.get("txn") in hidden
        else line
        for line in lines
    ]


def ledger_of(run: SyntheticRun, lines: list[Line], whole: list[Line]) -> Ledger:
    """The ledgers of a run that has committed these lines, and no end."""
    known = [run.run_line, *without_fate(lines, whole)]
    return import_lines(
        (parse_line(json.dumps(line).encode()) for line in known), Path("r"), Path()
    )


def make_planted_run(
    random: Random, count: int, *, names: set[str] | None = None
) -> tuple[Any, list[str]]:
    run, planted = generate_clean_run(random), []
    choices = [each for each in PLANTINGS if names is None or each.__name__ in names]
    for _ in range(20 * count):
        planting = random.choice(choices)
        if planting(run) is not None:
            planted.append(planting.__name__)
        if len(planted) == count:
            break
    return run, planted


def has_plain_names(run: SyntheticRun) -> bool:
    """Whether no producer shares its id: lines have no incarnations."""
    return not any("#" in str(line.get("producer", "")) for line in run.lines())


@given(st.integers(0, 10**9), st.integers(0, 4))
def test_no_early_finding_is_taken_back(seed: int, count: int) -> None:
    random = Random(seed)
    run, _ = make_planted_run(random, count)
    if not has_plain_names(run):
        return
    final = _judge(run.lines(), _sizes())
    whole = list(in_order_of_commit(run, random))
    raised = 0
    for end in sorted(random.sample(range(len(whole) + 1), min(4, len(whole)))):
        early = find_certain(ledger_of(run, whole[:end], whole))
        for name, found in early.items():
            known = final.findings.get(name)
            assert known is not None, f"{name} at line {end} of {len(whole)}: {found}"
            assert found.count <= known.count, name
        assert sum(found.count for found in early.values()) >= raised
        raised = sum(found.count for found in early.values())


@given(st.integers(0, 10**9))
def test_every_finding_of_these_kinds_is_raised_before_the_end(seed: int) -> None:
    random = Random(seed)
    run, planted = make_planted_run(random, 2, names=set(SHOWN_EARLY))
    if not has_plain_names(run):
        return
    final = _judge(run.lines(), _sizes())
    whole = list(in_order_of_commit(run, random))
    early = find_certain(ledger_of(run, whole, whole))
    found = {name: each.count for name, each in early.items()}
    expected = {name: each.count for name, each in final.findings.items() if name in NAMES}
    # Only scans show what is in the source behind a mirror, and damage that no consumer read.
    broken = {name_of(line) for line in run.receipts if not line["intact"]}
    assert found.pop(Finding.CORRUPTED, 0) == (0 if run.has_mirror else len(broken))
    expected.pop(Finding.CORRUPTED, None)
    if run.has_mirror:
        found.pop(Finding.DUPLICATE_SOURCE, None)
        expected.pop(Finding.DUPLICATE_SOURCE, None)
    assert found == expected, planted


def _sizes() -> Any:
    from shoal.audit.audit import Sizes

    return Sizes()


def test_a_follower_raises_what_is_new() -> None:
    random = Random(5)
    run, planted = make_planted_run(random, 1, names={"swap_at_the_consumer"})
    while not planted or not has_plain_names(run):
        run, planted = make_planted_run(random, 1, names={"swap_at_the_consumer"})
    whole = list(in_order_of_commit(run, random))
    follower, seen = RunFollower(), []
    for end in range(len(whole) + 1):
        follower.position = -1
        follower.increments = Increments()  # these ledgers are all new
        ledger = ledger_of(run, whole[:end], whole)
        seen += follower.judge(ledger, end, receipts=receipts_of(ledger))
    assert {event.finding for event in seen} == {"non-monotonic poll"}
    assert [event.count for event in seen] == list(range(1, len(seen) + 1))
    assert all(event.is_certain and event.witness for event in seen)
    follower.position = sum(len(f.commits) for f in ledger_of(run, whole, whole).folders)
    assert follower.judge(ledger_of(run, whole, whole), 0, receipts=()) == []


def receipts_of(ledger: Ledger) -> list[Piece]:
    return [group.piece for group in ledger.tables["receipts"]]
