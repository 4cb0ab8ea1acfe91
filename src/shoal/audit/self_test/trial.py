"""The self-test: runs with one or several planted defects, judged by both judges.

A trial passes if the kernels and the second judge agree on the verdict, on every count, on the
smallest witness of every finding and on every metric; if a run with one planting has the findings
that the planting must cause, and no other that it cannot cause; and if a run without one is proven.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from shoal.audit.audit import Sizes, audit
from shoal.audit.history.lines import parse_line
from shoal.audit.history.store import import_lines
from shoal.audit.history.verdict import to_json
from shoal.audit.read.folder import Ledger
from shoal.audit.read.read import MemoryPiece
from shoal.audit.self_test.plain_judge import PlainJudge
from shoal.audit.self_test.plantings import ALSO_ALLOWED, PLANTINGS
from shoal.audit.self_test.synthetic_run import Line, generate_clean_run
from shoal.model.result import Result

_SIZES = (Sizes(), Sizes(rows_per_cell=12, rows_per_walk=7, offsets_per_cell=5))
_MOST_FAILURES = 5  # that are reported in full


@dataclass
class TrialTally:
    """The counts of a self-test."""

    trials: int = 0
    planted: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    false_alarms: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    failed: int = 0

    @property
    def passed(self) -> bool:
        return not self.failed

    def fail(self, text: str) -> None:
        self.failed += 1
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(text)

    def add(self, other: "TrialTally") -> None:
        self.trials += other.trials
        self.failed += other.failed
        self.failures = (self.failures + other.failures)[:_MOST_FAILURES]
        for name in ("planted", "alone", "missed", "false_alarms", "findings"):
            getattr(self, name).update(getattr(other, name))


def run_trials(count: int, seed: int, *, first: int = 0, step: int = 1) -> TrialTally:
    """Run `count` trials of a seed; `first` and `step` distribute them over processes."""
    tally = TrialTally()
    for number in range(first, count, step):
        _trial(tally, seed, number)
    return tally


def _trial(tally: TrialTally, seed: int, number: int) -> None:
    random = Random(f"{seed}/{number}")  # noqa: S311 - chance by seed is the point
    run = generate_clean_run(random)
    chosen = random.choice([0, 1, 1, 1, 2, 3, 5])
    planted, wanted = [], set[str]()
    for _ in range(20 * chosen):
        planting = random.choice(PLANTINGS)
        found = planting(run)
        if found is not None:
            planted.append(planting.__name__)
            wanted |= found
        if len(planted) == chosen:
            break
    tally.trials += 1
    tally.planted.update(planted)
    where = f"seed {seed}, trial {number}, planted: {', '.join(planted) or 'nothing'}"
    result = _judge(run.lines(), _SIZES[number % len(_SIZES)])
    for difference in _differences(run.lines(), result):
        tally.fail(f"{where}: {difference}")
    found_names = set(result.findings)
    tally.findings.update(found_names)
    if len(planted) <= 1:
        tally.alone.update(planted)
        allowed = wanted | (ALSO_ALLOWED.get(planted[0], set()) if planted else set())
        _check_alone(tally, where, (wanted - found_names, found_names - allowed))


def _check_alone(tally: TrialTally, where: str, odd: tuple[set[str], set[str]]) -> None:
    missed, alarms = odd
    tally.missed.update(missed)
    tally.false_alarms.update(alarms)
    if missed or alarms:
        tally.fail(f"{where}: missed {sorted(missed)}, false alarms {sorted(alarms)}")


def _judge(lines: list[Line], sizes: Sizes) -> Result:
    named = (
        line | {"producer": _split_name(line["producer"])[0]} if "producer" in line else line
        for line in lines
    )
    parsed = (parse_line(json.dumps(line).encode()) for line in named)
    ledger = import_lines(parsed, Path("planted"), Path())
    _alter(ledger, [line for line in lines if line["kind"] == "log"])
    _set_incarnations(ledger, lines)
    return audit(ledger, sizes=sizes)


def _split_name(producer: str) -> tuple[str, int]:
    """Return the id of a producer and its incarnation, from its name in a line."""
    name, _, incarnation = producer.partition("#")
    return name, int(incarnation, 16) if incarnation else 0


def _set_incarnations(ledger: Ledger, lines: list[Line]) -> None:
    """Set the incarnations, which lines cannot have; each line has one row in its tables."""
    sends = [line for line in lines if line["kind"] == "send"]
    rows_of = {
        "attempts": sends,
        "keys": [line for line in sends if line.get("key") is not None],
        "transactions": [line for line in sends if line.get("txn") is not None],
        "log": [line for line in lines if line["kind"] == "log"],
        "receipts": [line for line in lines if line["kind"] == "receive"],
        "manifests": [line for line in lines if line["kind"] == "manifest"],
    }
    for table, own in rows_of.items():
        incarnations = [_split_name(line["producer"])[1] for line in own]
        for group in ledger.tables[table]:
            if isinstance(group.piece, MemoryPiece):
                first = group.piece.position
                group.piece.columns["incarnation"][:] = incarnations[first : first + group.rows]


def _alter(ledger: Ledger, lines: list[Line]) -> None:
    """Set altered keys and headers in rows of scans, which lines cannot; one row per line."""
    for group in ledger.tables["log"]:
        if isinstance(group.piece, MemoryPiece):
            for row, line in enumerate(lines[group.piece.position :][: group.rows]):
                if "altered" in line:
                    group.piece.columns[f"{line['altered']}_check"][row] = 1


def _differences(lines: list[Line], result: Result) -> Iterator[str]:
    """Return where the two judges disagree."""
    plain = PlainJudge(lines)
    judged = to_json("planted", result)
    wanted = plain.findings()
    have = {
        name: (found.count, _witness(name, _rename_producer(found.witness or {}, lines)))
        for name, found in result.findings.items()
    }
    for name in sorted(wanted.keys() | have.keys()):
        if wanted.get(name) != have.get(name):
            yield f"{name}: {have.get(name)}, and the second judge says {wanted.get(name)}"
    for name, value in plain.metrics().items():
        if judged["metrics"][name] != value:
            yield f"{name}: {judged['metrics'][name]}, and the second judge says {value}"
    if judged["verdict"] != plain.verdict():
        yield f"verdict {judged['verdict']}, and the second judge says {plain.verdict()}"


def _rename_producer(witness: dict[str, Any], lines: list[Line]) -> dict[str, Any]:
    """Return a witness with the producer's name in the lines; results may use the bare id."""
    if "producer" not in witness:
        return witness
    name, incarnation = _split_name(witness["producer"])
    names = {line["producer"] for line in lines if "producer" in line}
    own = [known for known in names if _split_name(known)[0] == name]
    reported = name if incarnation == 0 else witness["producer"]
    return witness | {"producer": own[0] if len(own) == 1 else reported}


def _witness(name: str, witness: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a witness, in the form of the second judge."""
    if name == "inconsistent offset":
        parts: tuple[str, ...] = ("cluster", "topic", "partition", "offset")
    elif name in ("poll skip", "non-monotonic poll"):
        parts = ("topic", "partition", "from_offset", "to_offset", "consumer", "assignment")
    else:
        parts = ("topic", "producer", "lane", "sequence")
    return tuple(witness.get(part) for part in parts)
