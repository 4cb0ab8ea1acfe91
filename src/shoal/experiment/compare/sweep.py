"""`shoal sweep`: runs every combination of some settings, repeated, and finds their effects.

Rules:
- The order is random by seed, one repeat after the other. So an interrupted sweep has nearly as
  many runs of each combination, and a slow hour affects all settings alike.
- A sweep has a folder, named after the experiment and the sweep's parameters. Each run has a folder
  in it. A run is done once it is judged and was not interrupted. The same command resumes a sweep
  that was killed: it deletes runs that are not done, and repeats them.
- Runs of a sweep never share topics. They may use the same clusters one after another, but not
  after a fault.
"""

import fcntl
import hashlib
import itertools
import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Self

from shoal.experiment.compare import measures
from shoal.experiment.compare.comparison import JudgedRun, assemble_comparison, compare_rows
from shoal.experiment.compare.measures import MEASURES, MeasureTest
from shoal.experiment.faults.fault_injection import check
from shoal.experiment.runs import LOCK_FILE, SWEEP_FILE
from shoal.experiment.safety import Permissions, apply_permissions
from shoal.experiment.spec import ExperimentSpec, load, qualify_key
from shoal.model.comparison import EQUAL, NOT_TESTED, MeasureJudgement, ParameterEffect, SweepResult
from shoal.model.errors import UsageError
from shoal.model.json_files import read_json
from shoal.model.tables import Table

MAX_RUNS: Final = 10_000
_FORMAT: Final = 1

Combination = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a sweep."""

    combination: Combination
    repeat: int  # from 1
    settings: tuple[str, ...]  # the names of the settings that are varied, without their sections

    @property
    def folder(self) -> str:
        """The name of its folder, unique in the sweep; it begins with the settings."""
        pairs = zip(self.settings, self.combination, strict=True)
        named = "-".join(f"{_legal(name)}_{_legal(value)}" for name, value in pairs)
        return f"{named[:80]}-{self._digest}-{self.repeat}"

    @property
    def old_folder(self) -> str:
        """The name of its folder before the names of settings were in it."""
        values = "-".join(map(_legal, self.combination))
        return f"{values[:60]}-{self._digest}-{self.repeat}"

    @property
    def _digest(self) -> str:
        return hashlib.sha256("\0".join(self.combination).encode()).hexdigest()[:6]

    def describe(self) -> str:
        """Its settings, for people."""
        pairs = zip(self.settings, self.combination, strict=True)
        named = ", ".join(f"{name} {value}" for name, value in pairs)
        return f"{named} (repeat {self.repeat})"


def _legal(text: str) -> str:
    """Only signs that names of folders and topics may contain."""
    return "".join(sign if sign.isalnum() or sign in "._" else "_" for sign in text)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is varied, how often, and in which order."""

    file: Path
    sets: tuple[str, ...]
    parameters: Mapping[str, tuple[str, ...]]
    repeats: int
    seed: int

    def order(self) -> list[PlannedRun]:
        """All runs, in the order in which they are executed."""
        chance = random.Random(self.seed)  # noqa: S311 - must be repeatable, not secure
        combinations = list(itertools.product(*self.parameters.values()))
        planned = []
        for repeat in range(1, self.repeats + 1):
            chance.shuffle(combinations)
            planned += [PlannedRun(c, repeat, self.settings) for c in combinations]
        return planned

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of the parameters, without their sections if that is enough."""
        short = [name.rpartition(".")[2] for name in self.parameters]
        return tuple(short if len(set(short)) == len(short) else self.parameters)

    def spec(self, planned: PlannedRun) -> ExperimentSpec:
        """The experiment of one run, with topics of its own."""
        varied = [
            f"{name}={value}"
            for name, value in zip(self.parameters, planned.combination, strict=True)
        ]
        spec = apply_permissions(load(self.file, [*self.sets, *varied]), Permissions())
        topics = replace(spec.topics, name=f"{spec.topics.name}-{planned.folder}"[-200:])
        return replace(spec, topics=topics)

    def check(self) -> None:
        """Raise if a combination is not a valid experiment."""
        for planned in self.order()[: len(self.order()) // self.repeats]:
            check(self.spec(planned))

    def identity(self) -> dict[str, Any]:
        """The parameters that identify this sweep."""
        return {
            "file": self.file.name,
            "sets": list(self.sets),
            "parameters": {name: list(values) for name, values in self.parameters.items()},
            "repeats": self.repeats,
            "seed": self.seed,
            "content": hashlib.sha256(self.file.read_bytes()).hexdigest(),
        }

    @property
    def name(self) -> str:
        digest = json.dumps(self.identity(), sort_keys=True).encode()
        return f"sweep-{self.file.stem}-{hashlib.sha256(digest).hexdigest()[:8]}"


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse texts like `producer.acks=0,1,all`: the key with its section, and the values."""
    varied: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, sign, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(",") if value.strip())
        if not sign or not key.strip() or not values:
            raise UsageError(
                f"--vary {text!r:.80} is not key=value,value",
                remedy="write it like --vary producer.acks=0,1,all",
            )
        name = ".".join(qualify_key([part.strip() for part in key.split(".", 2)]))
        if name in varied or len(set(values)) < len(values):
            raise UsageError(f"--vary {text!r:.80} repeats a key or a value")
        varied[name] = values
    return varied


def plan_sweep(
    file: Path, sets: Sequence[str], varied: Sequence[str], *, repeats: int | None, seed: int | None
) -> Sweep:
    """Plan a sweep from the command line; what it leaves out comes from the file's `[sweep]`."""
    table = load(file, sets).sweep
    judgements = _from_file(table) if table is not None else ([], 3, 0)
    sweep = Sweep(
        file=file,
        sets=tuple(sets),
        parameters=parse_vary(varied or judgements[0]),
        repeats=repeats or judgements[1],
        seed=judgements[2] if seed is None else seed,
    )
    if not sweep.parameters:
        raise UsageError(
            "the sweep varies no setting",
            remedy="e.g. --vary producer.acks=0,1,all --vary in_flight=1,5",
        )
    count = len(sweep.order())
    if count > MAX_RUNS:
        raise UsageError(f"the sweep has {count:,} runs; the limit is {MAX_RUNS:,}")
    return sweep


def _from_file(table: Table) -> tuple[list[str], int, int]:
    varied = [
        f"{name}={','.join(map(str, values if isinstance(values, list) else [values]))}"
        for name, values in table.mapping("vary").items()
    ]
    found = varied, table.count("repeat", 3, least=1), table.count("seed", 0)
    table.refuse_unknown_keys()
    return found


class SweepFolder:
    """The folder of a sweep and of its runs."""

    def __init__(self, path: Path, sweep: Sweep) -> None:
        self.path = path
        self._sweep = sweep
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        """Create the folder or continue in it; it is locked until `__exit__`."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / LOCK_FILE).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UsageError(
                f"this sweep is already running, in {self.path}", remedy="wait for it, or stop it"
            ) from error
        plan = {"format": _FORMAT, **self._sweep.identity()}
        (self.path / SWEEP_FILE).write_text(json.dumps(plan, indent=2) + "\n")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def run_dir(self, planned: PlannedRun) -> Path:
        old = self.path / planned.old_folder
        return old if old.is_dir() else self.path / planned.folder

    def is_done(self, planned: PlannedRun) -> bool:
        folder = self.run_dir(planned)
        if not (folder / "result.json").is_file():
            return False
        return read_json(folder / "run.json").get("state") == "finished"

    def remaining_runs(self) -> list[PlannedRun]:
        return [planned for planned in self._sweep.order() if not self.is_done(planned)]

    def clear_run_dir(self, planned: PlannedRun) -> Path:
        """Delete what an earlier attempt left of a run; return the run's folder."""
        folder = self.run_dir(planned)
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def result(self) -> SweepResult:
        """The result of the runs that are done so far."""
        done = [planned for planned in self._sweep.order() if self.is_done(planned)]
        runs = {planned: JudgedRun.read(self.run_dir(planned)) for planned in done}
        return conclude(self._sweep, runs)


def conclude(sweep: Sweep, runs: Mapping[PlannedRun, JudgedRun]) -> SweepResult:
    """The effect of each parameter on each measure, with the noise between repeats."""
    cells: dict[Combination, list[JudgedRun]] = {}
    for planned, run in runs.items():
        cells.setdefault(planned.combination, []).append(run)
    ordered = sorted(cells, key=_order_key(sweep))
    names = [" · ".join(_describe_combination(sweep, combination)) for combination in ordered]
    # The page of a sweep tests only the effects; for combinations it shows what was measured. So
    # only the effects are corrected together.
    effects = _effects(sweep, cells)
    members = [cells[combination] for combination in ordered]
    tests = compare_rows(members)
    is_same = {name: measures.is_equal(test.values) for name, test in tests.items()}
    judgements = {
        name: MeasureJudgement(EQUAL if same else NOT_TESTED) for name, same in is_same.items()
    }
    return SweepResult(
        name=sweep.file.stem,
        parameters={name: list(values) for name, values in sweep.parameters.items()},
        repeats=sweep.repeats,
        seed=sweep.seed,
        planned=len(sweep.order()),
        done=len(runs),
        effects=tuple(effects),
        comparison=assemble_comparison(members, names, tests, judgements),
    )


def _order_key(sweep: Sweep) -> Callable[[Combination], list[int]]:
    values = list(sweep.parameters.values())
    return lambda combination: [
        values[place].index(value) for place, value in enumerate(combination)
    ]


def _describe_combination(sweep: Sweep, combination: Combination) -> list[str]:
    return [f"{name} {value}" for name, value in zip(sweep.settings, combination, strict=True)]


def _effects(
    sweep: Sweep, cells: Mapping[Combination, Sequence[JudgedRun]]
) -> list[ParameterEffect]:
    values = {
        combination: [measures.values_of(run.result) for run in runs]
        for combination, runs in sorted(cells.items(), key=lambda cell: _order_key(sweep)(cell[0]))
    }
    found: dict[str, ParameterEffect] = {}
    tests: dict[str, MeasureTest] = {}
    for place, (parameter, levels) in enumerate(sweep.parameters.items()):
        for measure, _ in MEASURES:
            name = measure.name
            known = {c: [run[name] for run in runs if name in run] for c, runs in values.items()}
            if not any(known.values()):
                continue
            key = f"{parameter}\0{name}"
            tests[key] = measures.compare_levels(measure, known, place)
            by_level = tuple(
                tuple(v for c, found in known.items() if c[place] == level for v in found)
                for level in levels
            )
            found[key] = ParameterEffect(parameter, measure, levels, by_level, measures.UNJUDGED)
    equal = [key for key, effect in found.items() if measures.is_equal(effect.values)]
    judgements = measures.judge(tests, equal)
    return [replace(effect, judged=judgements[key]) for key, effect in found.items()]
