"""Runs with everything that a look at a growing run may raise, and the steps in which they grow."""

import json
from pathlib import Path
from random import Random

from shoal.model.ledger import ABORTED, COMMITTED, FAILED, OPEN, UNKNOWN
from shoal.model.run_folder import COMMITS_FILE
from support.audit.ledgers import History, Row, clean_run

COUNT, LANES = 60, 2
NOBODY: Row = {"producer": "", "lane": -1, "sequence": -1, "intact": False}


def make_troubled_run(seed: int) -> History:
    """Everything that a look may raise, at places of chance."""
    random = Random(seed)
    history = clean_run(producers=2, lanes=LANES, count=COUNT, mirror=random.random() < 0.3)
    for table in ("log", "scans"):
        history.rows[table].clear()
    receipts = [row for _, row in history.rows["receipts"]]
    attempts = [row for _, row in history.rows["attempts"]]
    for _ in range(random.randrange(12)):
        spoil(history, attempts, receipts, random)
    attempt = random.choice(attempts)
    attempt |= {"outcome": UNKNOWN, "acked_us": -1}  # with an offset that no answer confirms
    put_in_transaction(history, attempt, OPEN, 0)
    history.rows["receipts"] = [("w", row) for row in receipts]
    history.rows["attempts"] = [("w", row) for row in attempts]
    return history


def spoil(history: History, attempts: list[Row], receipts: list[Row], random: Random) -> None:
    place = random.randrange(len(receipts))
    row, attempt = receipts[place], random.choice(attempts)
    match random.randrange(9):
        case 0:
            row["offset"] = random.randrange(2 * COUNT)
        case 1:
            receipts.insert(random.randrange(len(receipts)), {**row, "offset": 500 + place})
        case 2:
            receipts.insert(min(place + 20, len(receipts)), dict(row))
        case 3:
            attempt |= {"outcome": FAILED, "error": 10, "offset": -1, "acked_us": -1}
        case 4:
            row["intact"] = False
        case 5:
            row |= NOBODY
        case 6:
            attempts.append({**attempt, "offset": attempt["offset"] + 300, "sent_us": 1})
        case 7:
            fate = random.choice((COMMITTED, ABORTED, OPEN))
            put_in_transaction(history, attempt, fate, random.choice((0, 10**6)))
        case 8:
            row["sequence"] += 1000


def put_in_transaction(history: History, attempt: Row, fate: int, requested_us: int) -> None:
    names = ("producer", "incarnation", "topic", "lane", "sequence")
    message = {name: attempt[name] for name in names}
    own: Row = {"transaction": 3, "fate": fate, "requested_us": requested_us}
    history.add("transactions", **message, **own)


def in_steps(run: Path, random: Random) -> list[list[str]]:
    """The lines of the commit log in some order that keeps that of each table, more each time."""
    by_table: dict[str, list[str]] = {}
    for line in (run / COMMITS_FILE).read_text().splitlines(keepends=True):
        by_table.setdefault(json.loads(line).get("table", ""), []).append(line)
    lines = [by_table["attempts"].pop(0)]  # without any, a ledger is of no producer
    while by_table:
        table = random.choice(sorted(by_table))
        lines.append(by_table[table].pop(0))
        if not by_table[table]:
            del by_table[table]
    ends = sorted(random.sample(range(1, len(lines)), min(9, len(lines) - 1)))
    return [lines[:end] for end in [*ends, len(lines)]]
