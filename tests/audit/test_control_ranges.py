"""Jumps over control records end where the walk is; all others reach the driver."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.audit.audit import Sizes, audit, run_here
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.read.folder import open_ledger
from shoal.audit.tasks import Task
from shoal.model.result import Result
from support.audit.ledgers import History, Row

PER_TRANSACTION, TRANSACTIONS = 3, 8


def transactional_run(*, ranges: bool, scans: bool = True, skipped: int = -1) -> History:
    """Transactions of three messages, each with a marker after it, in one partition.

    The message with the number `skipped` is in the log but was not delivered.
    """
    history = History(mirror=False, all_drained=True)
    for number in range(PER_TRANSACTION * TRANSACTIONS):
        offset = number + number // PER_TRANSACTION
        message: Row = {"producer": "p", "topic": "t", "lane": 0, "sequence": number}
        history.add("attempts", **message, offset=offset, sent_us=number)
        place: Row = {"partition": 0, "offset": offset}
        if scans:
            history.add("log", cluster="source", **message, **place)
        if number != skipped:
            history.add("receipts", **message, **place, received_us=number + 5)
    end = (PER_TRANSACTION + 1) * TRANSACTIONS
    if scans:
        history.add("scans", cluster="source", topic="t", partition=0, start=0, end=end)
    for marker in range(PER_TRANSACTION, end, PER_TRANSACTION + 1) if ranges else ():
        history.add("control_ranges", cluster="source", low=marker, high=marker + 1)
    return history


def judge(history: History, folder: Path) -> tuple[Result, int]:
    """The result, and how many jumps came to the driver."""
    jumps = 0

    def watch(tasks: Sequence[Task], context: AuditContext) -> list[list[TaskPart]]:
        nonlocal jumps
        answers = run_here(tasks, context)
        parts = (part for answer in answers for part in answer)
        jumps += sum(len(part.rows) for part in parts if part.kind is PartKind.JUMPS)
        return answers

    sizes = Sizes(offsets_per_cell=4)
    return audit(open_ledger([history.write(folder)]), watch, sizes=sizes), jumps


@pytest.mark.parametrize("skipped", [-1, 0, 1, 2, 3, 11])
def test_control_ranges_change_what_travels_and_no_result(tmp_path: Path, skipped: int) -> None:
    plain, before = judge(transactional_run(ranges=False, skipped=skipped), tmp_path / "plain")
    known, after = judge(transactional_run(ranges=True, skipped=skipped), tmp_path / "known")
    assert json.dumps(known.to_json()) == json.dumps(plain.to_json())
    assert ("poll skip" in known.findings) == (skipped > 0)
    assert before >= TRANSACTIONS - 1
    assert after == (skipped > 0)


def test_a_range_over_a_message_hides_no_skip_beside_it(tmp_path: Path) -> None:
    history = transactional_run(ranges=True, skipped=4)
    history.add("control_ranges", cluster="target", low=0, high=100)  # of the other cluster
    history.add("control_ranges", cluster="source", partition=1, low=0, high=100)
    found, jumps = judge(history, tmp_path / "run")
    assert jumps == 1
    assert found.findings["poll skip"].count == 1


def test_without_the_scan_of_a_log_its_ranges_count_for_nothing(tmp_path: Path) -> None:
    _, jumps = judge(transactional_run(ranges=True, scans=False), tmp_path / "run")
    assert jumps == TRANSACTIONS - 1
