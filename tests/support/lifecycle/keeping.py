"""Results of plays in a file, one line of JSON each, so that a run that was ended can be continued.

A line names the code that played its cell; a later line about a cell replaces an earlier one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from support.lifecycle.cells import Cell, Delivery, Match, Outcome, When
from support.lifecycle.judging import Verdict
from support.lifecycle.plays import Result


class KeptResult(NamedTuple):
    """A result, and the code that gave it."""

    result: Result
    code: str


def keep_result(path: Path, result: Result, code: str) -> None:
    """Add a result to a file."""
    line = {
        "cell": list(result.cell),
        "outcome": result.verdict.outcome,
        "detail": result.verdict.detail,
        "is_good": result.is_good,
        "seconds": round(result.seconds, 1),
        "switches": result.switches,
        "code": code,
    }
    with path.open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_kept(path: Path) -> dict[Cell, KeptResult]:
    """The last result of each cell."""
    return {each.result.cell: each for each in _read_all(path)}


def read_replayed(path: Path) -> list[KeptResult]:
    """Failures of cells that were played again, whatever came of that."""
    last = read_kept(path)
    return [
        each
        for each in _read_all(path)
        if not each.result.is_good and each != last[each.result.cell]
    ]


def _read_all(path: Path) -> list[KeptResult]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [_read_line(line) for line in lines]


def _read_line(text: str) -> KeptResult:
    line = json.loads(text)
    event, when, match, delivery = line["cell"]
    cell = Cell(event, When(when), Match(match), Delivery(delivery))
    verdict = Verdict(Outcome(line["outcome"]), line["detail"])
    result = Result(cell, verdict, line["is_good"], line["seconds"], line.get("switches", 0))
    return KeptResult(result, line["code"])


def describe_codes(kept: Iterable[KeptResult]) -> str:
    """Which code played how many cells."""
    counts: dict[str, int] = {}
    for each in kept:
        counts[each.code] = counts.get(each.code, 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{code} ({count} cells)" for code, count in counts.items())
