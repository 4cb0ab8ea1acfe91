"""The self-test: worlds spoiled by one planting or several, judged by both judges.

A trial passes if the kernels and the second judge agree on the verdict, on every count, on the
smallest witness of every finding and on every metric; if a world with one planting shows what
that planting must show, and nothing that it cannot; and if a world with none is proven.
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
from shoal.audit.read.read import Held
from shoal.audit.self_test.plain_judge import PlainJudge
from shoal.audit.self_test.plantings import ALONG, PLANTINGS
from shoal.audit.self_test.world import Line, clean_world
from shoal.model.result import Result

_SIZES = (Sizes(), Sizes(rows_per_cell=12, rows_per_walk=7, offsets_per_cell=5))
_MOST_FAILURES = 5  # that are told of in full


@dataclass
class Tally:
    """What a self-test found out."""

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

    def add(self, other: "Tally") -> None:
        self.trials += other.trials
        self.failed += other.failed
        self.failures = (self.failures + other.failures)[:_MOST_FAILURES]
        for name in ("planted", "alone", "missed", "false_alarms", "findings"):
            getattr(self, name).update(getattr(other, name))


def run_trials(count: int, seed: int, *, first: int = 0, step: int = 1) -> Tally:
    """`count` trials of a seed; `first` and `step` share them out among processes."""
    tally = Tally()
    for number in range(first, count, step):
        _trial(tally, seed, number)
    return tally


def _trial(tally: Tally, seed: int, number: int) -> None:
    random = Random(f"{seed}/{number}")  # noqa: S311 - chance by seed is the point
    world = clean_world(random)
    chosen = random.choice([0, 1, 1, 1, 2, 3, 5])
    planted, wanted = [], set[str]()
    for _ in range(20 * chosen):
        planting = random.choice(PLANTINGS)
        found = planting(world)
        if found is not None:
            planted.append(planting.__name__)
            wanted |= found
        if len(planted) == chosen:
            break
    tally.trials += 1
    tally.planted.update(planted)
    where = f"seed {seed}, trial {number}, planted: {', '.join(planted) or 'nothing'}"
    result = _judged(world.lines(), _SIZES[number % len(_SIZES)])
    for difference in _differences(world.lines(), result):
        tally.fail(f"{where}: {difference}")
    found_names = set(result.findings)
    tally.findings.update(found_names)
    if len(planted) <= 1:
        tally.alone.update(planted)
        allowed = wanted | (ALONG.get(planted[0], set()) if planted else set())
        _check_alone(tally, where, (wanted - found_names, found_names - allowed))


def _check_alone(tally: Tally, where: str, odd: tuple[set[str], set[str]]) -> None:
    missed, alarms = odd
    tally.missed.update(missed)
    tally.false_alarms.update(alarms)
    if missed or alarms:
        tally.fail(f"{where}: missed {sorted(missed)}, false alarms {sorted(alarms)}")


def _judged(lines: list[Line], sizes: Sizes) -> Result:
    named = (
        line | {"producer": _split_name(line["producer"])[0]} if "producer" in line else line
        for line in lines
    )
    told = (parse_line(json.dumps(line).encode()) for line in named)
    ledger = import_lines(told, Path("planted"), Path())
    _alter(ledger, [line for line in lines if line["kind"] == "log"])
    _set_incarnations(ledger, lines)
    return audit(ledger, sizes=sizes)


def _split_name(producer: str) -> tuple[str, int]:
    """The id of a producer of a world, and its incarnation."""
    name, _, incarnation = producer.partition("#")
    return name, int(incarnation, 16) if incarnation else 0


def _set_incarnations(ledger: Ledger, lines: list[Line]) -> None:
    """Put into the rows what lines cannot say; each line has one row in each of its tables."""
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
            if isinstance(group.piece, Held):
                first = group.piece.position
                group.piece.columns["incarnation"][:] = incarnations[first : first + group.rows]


def _alter(ledger: Ledger, lines: list[Line]) -> None:
    """Change what a scan says of keys and headers, which lines cannot; one row for each line."""
    for group in ledger.tables["log"]:
        if isinstance(group.piece, Held):
            for row, line in enumerate(lines[group.piece.position :][: group.rows]):
                if "altered" in line:
                    group.piece.columns[f"{line['altered']}_check"][row] = 1


def _differences(lines: list[Line], result: Result) -> Iterator[str]:
    """Where the two judges do not agree."""
    plain = PlainJudge(lines)
    told = to_json("planted", result)
    wanted = plain.findings()
    have = {
        name: (found.count, _witness(name, _renamed(found.witness or {}, lines)))
        for name, found in result.findings.items()
    }
    for name in sorted(wanted.keys() | have.keys()):
        if wanted.get(name) != have.get(name):
            yield f"{name}: {have.get(name)}, and the second judge says {wanted.get(name)}"
    for name, value in plain.metrics().items():
        if told["metrics"][name] != value:
            yield f"{name}: {told['metrics'][name]}, and the second judge says {value}"
    if told["verdict"] != plain.verdict():
        yield f"verdict {told['verdict']}, and the second judge says {plain.verdict()}"


def _renamed(witness: dict[str, Any], lines: list[Line]) -> dict[str, Any]:
    """A witness with the world's name of its producer; one that is alone goes by its id."""
    if "producer" not in witness:
        return witness
    name, incarnation = _split_name(witness["producer"])
    names = {line["producer"] for line in lines if "producer" in line}
    own = [known for known in names if _split_name(known)[0] == name]
    told = name if incarnation == 0 else witness["producer"]
    return witness | {"producer": own[0] if len(own) == 1 else told}


def _witness(name: str, witness: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies a witness, as the second judge names it."""
    if name == "inconsistent offset":
        parts: tuple[str, ...] = ("cluster", "topic", "partition", "offset")
    elif name in ("poll skip", "non-monotonic poll"):
        parts = ("topic", "partition", "from_offset", "to_offset", "consumer", "assignment")
    else:
        parts = ("topic", "producer", "lane", "sequence")
    return tuple(witness.get(part) for part in parts)
