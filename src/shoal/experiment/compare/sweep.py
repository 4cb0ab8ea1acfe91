"""`shoal sweep`: every combination of some settings, repeated, and what each setting does.

Rules:
- The order is chance by seed, one repeat after the other, so that a sweep that was cut short
  has nearly as many runs of each combination, and a slow hour hits no setting more than another.
- A sweep has a folder, named after the experiment and what was asked. Each run has a folder in
  there; a run counts once it is judged and was not cut short. The same command goes on where the
  last one was killed: what does not count is removed and done again.
- No two runs of a sweep share topics; they share clusters only one after the other, and never
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
from shoal.experiment.compare.comparison import JudgedRun, compare_rows, put_together
from shoal.experiment.compare.measures import MEASURES, Tested
from shoal.experiment.faults.fault_injection import check
from shoal.experiment.runs import read_json
from shoal.experiment.safety import Leave, guarded
from shoal.experiment.spec import ExperimentSpec, load, qualified
from shoal.model.comparison import EQUAL, NOT_TESTED, Effect, Judged, SweepResult
from shoal.model.errors import UsageError
from shoal.model.tables import Table

MOST_RUNS: Final = 10_000
_PLAN: Final = "sweep.json"
_FORMAT: Final = 1

Combination = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of a sweep."""

    combination: Combination
    repeat: int  # from 1

    @property
    def folder(self) -> str:
        """A name that tells it from all others."""
        plain = "-".join(
            "".join(sign if sign.isalnum() or sign in "._" else "_" for sign in value)
            for value in self.combination
        )
        told = hashlib.sha256("\0".join(self.combination).encode()).hexdigest()[:6]
        return f"{plain[:60]}-{told}-{self.repeat}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is varied, how often, and in which order."""

    file: Path
    sets: tuple[str, ...]
    parameters: Mapping[str, tuple[str, ...]]
    repeats: int
    seed: int

    def order(self) -> list[Planned]:
        """All runs, in the order in which they are done."""
        chance = random.Random(self.seed)  # noqa: S311 - to be repeated, not to be safe
        combinations = list(itertools.product(*self.parameters.values()))
        planned = []
        for repeat in range(1, self.repeats + 1):
            chance.shuffle(combinations)
            planned += [Planned(combination, repeat) for combination in combinations]
        return planned

    def spec(self, planned: Planned) -> ExperimentSpec:
        """The experiment of one run; its topics are its own."""
        varied = [
            f"{name}={value}"
            for name, value in zip(self.parameters, planned.combination, strict=True)
        ]
        spec = guarded(load(self.file, [*self.sets, *varied]), Leave())
        topics = replace(spec.topics, name=f"{spec.topics.name}-{planned.folder}"[-200:])
        return replace(spec, topics=topics)

    def check(self) -> None:
        """Every combination must be an experiment that can be run."""
        for planned in self.order()[: len(self.order()) // self.repeats]:
            check(self.spec(planned))

    def identity(self) -> dict[str, Any]:
        """What makes it this sweep and no other."""
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
        told = json.dumps(self.identity(), sort_keys=True).encode()
        return f"sweep-{self.file.stem}-{hashlib.sha256(told).hexdigest()[:8]}"


def parse_varied(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """From `producer.acks=0,1,all` the name with its section, and the values."""
    varied: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, sign, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(",") if value.strip())
        if not sign or not key.strip() or not values:
            raise UsageError(
                f"--vary {text!r:.80} varies nothing",
                remedy="write it like --vary producer.acks=0,1,all",
            )
        name = ".".join(qualified([part.strip() for part in key.split(".", 2)]))
        if name in varied or len(set(values)) < len(values):
            raise UsageError(f"--vary {text!r:.80} names something twice")
        varied[name] = values
    return varied


def planned_sweep(
    file: Path, sets: Sequence[str], varied: Sequence[str], *, repeats: int | None, seed: int | None
) -> Sweep:
    """A sweep by the command line and, for what it leaves open, by the file's `[sweep]`."""
    table = load(file, sets).sweep
    said = _from_file(table) if table is not None else ([], 3, 0)
    sweep = Sweep(
        file=file,
        sets=tuple(sets),
        parameters=parse_varied(varied or said[0]),
        repeats=repeats or said[1],
        seed=said[2] if seed is None else seed,
    )
    if not sweep.parameters:
        raise UsageError(
            "nothing is varied", remedy="e.g. --vary producer.acks=0,1,all --vary in_flight=1,5"
        )
    count = len(sweep.order())
    if count > MOST_RUNS:
        raise UsageError(f"that would be {count:,} runs, and the limit is {MOST_RUNS:,}")
    return sweep


def _from_file(table: Table) -> tuple[list[str], int, int]:
    varied = [
        f"{name}={','.join(map(str, values if isinstance(values, list) else [values]))}"
        for name, values in table.mapping("vary").items()
    ]
    found = varied, table.count("repeat", 3, least=1), table.count("seed", 0)
    table.done()
    return found


class SweepFolder:
    """The folder of a sweep: which runs are done, and where the next ones go."""

    def __init__(self, path: Path, sweep: Sweep) -> None:
        self.path = path
        self._sweep = sweep
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        """Make the folder, or go on in it; it is ours alone until the end."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UsageError(
                f"this sweep is going on already, in {self.path}", remedy="wait for it, or stop it"
            ) from error
        plan = {"format": _FORMAT, **self._sweep.identity()}
        (self.path / _PLAN).write_text(json.dumps(plan, indent=2) + "\n")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def run_dir(self, planned: Planned) -> Path:
        return self.path / planned.folder

    def is_done(self, planned: Planned) -> bool:
        folder = self.run_dir(planned)
        if not (folder / "result.json").is_file():
            return False
        return read_json(folder / "run.json").get("state") == "finished"

    def left(self) -> list[Planned]:
        return [planned for planned in self._sweep.order() if not self.is_done(planned)]

    def cleared(self, planned: Planned) -> Path:
        """An empty place for a run: what an earlier try left there is removed."""
        folder = self.run_dir(planned)
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def result(self) -> SweepResult:
        """What is known so far."""
        done = [planned for planned in self._sweep.order() if self.is_done(planned)]
        runs = {planned: JudgedRun.read(self.run_dir(planned)) for planned in done}
        return conclude(self._sweep, runs)


def conclude(sweep: Sweep, runs: Mapping[Planned, JudgedRun]) -> SweepResult:
    """What each parameter does to each measure, with the noise between repeats."""
    cells: dict[Combination, list[JudgedRun]] = {}
    for planned, run in runs.items():
        cells.setdefault(planned.combination, []).append(run)
    ordered = sorted(cells, key=_place_in(sweep))
    names = [" · ".join(_named(sweep, combination)) for combination in ordered]
    # A sweep's page says of effects whether they are noise, and of combinations only what was
    # measured: so the effects are all the tests of the page.
    effects = _effects(sweep, cells)
    members = [cells[combination] for combination in ordered]
    tests = compare_rows(members)
    is_same = {name: measures.is_equal(test.values) for name, test in tests.items()}
    said = {name: Judged(EQUAL if same else NOT_TESTED) for name, same in is_same.items()}
    return SweepResult(
        name=sweep.file.stem,
        parameters={name: list(values) for name, values in sweep.parameters.items()},
        repeats=sweep.repeats,
        seed=sweep.seed,
        planned=len(sweep.order()),
        done=len(runs),
        effects=tuple(effects),
        comparison=put_together(members, names, tests, said),
    )


def _place_in(sweep: Sweep) -> Callable[[Combination], list[int]]:
    values = list(sweep.parameters.values())
    return lambda combination: [
        values[place].index(value) for place, value in enumerate(combination)
    ]


def _named(sweep: Sweep, combination: Combination) -> list[str]:
    return [
        f"{name.rpartition('.')[2]} {value}"
        for name, value in zip(sweep.parameters, combination, strict=True)
    ]


def _effects(sweep: Sweep, cells: Mapping[Combination, Sequence[JudgedRun]]) -> list[Effect]:
    values = {
        combination: [measures.values_of(run.result) for run in runs]
        for combination, runs in sorted(cells.items(), key=lambda cell: _place_in(sweep)(cell[0]))
    }
    found: dict[str, Effect] = {}
    tests: dict[str, Tested] = {}
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
            found[key] = Effect(parameter, measure, levels, by_level, measures.UNJUDGED)
    equal = [key for key, effect in found.items() if measures.is_equal(effect.values)]
    said = measures.judge(tests, equal)
    return [replace(effect, judged=said[key]) for key, effect in found.items()]
