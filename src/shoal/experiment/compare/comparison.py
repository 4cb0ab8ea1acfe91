"""`shoal compare`: runs side by side, from their folders.

Runs that were set up alike are repeats of each other and share a column; what makes columns
differ is what they are called by.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from shoal.experiment.compare import measures
from shoal.experiment.compare.measures import MEASURES, Tested
from shoal.experiment.runs import RunSummary, read_json
from shoal.model.comparison import Column, Comparison, Judged, Row
from shoal.model.errors import UsageError
from shoal.model.result import Result

# What of `run.json` says how a run was set up; the rest is about that one time.
_SET_UP: Final = (
    "experiment",
    "variant",
    "systems",
    "mirror",
    "topics",
    "groups",
    "workload",
    "acks",
    "isolation",
    "promises",
    "faults",
    "master",
)
# Follows from something else, or is about what happened.
_NAMES: Final = ("variant", "experiment")
_LEFT_OUT: Final = ("mirror.usage", "workload.messages")


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run and its result."""

    path: Path
    settings: Mapping[str, str]
    result: Result

    @classmethod
    def read(cls, path: Path) -> "JudgedRun":
        if not (path / "result.json").is_file():
            raise UsageError(
                f"run {path.name} has not been judged", remedy=f"shoal audit {path.name} does it"
            )
        settings = settings_of(read_json(path / "run.json"))
        return cls(path, settings, Result.from_json(read_json(path / "result.json")))


def settings_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """How a run was set up, as texts by dotted names."""
    # Variants have topics of their own, whose names say nothing.
    shapes = list((manifest.get("topics") or {}).values())
    told = {**manifest, "topics": {"count": len(shapes), **(shapes[0] if shapes else {})}}
    flat = {
        name: value
        for key in _SET_UP
        for name, value in _flat(key, told.get(key))
        if value not in ("", "None")
    }
    return {
        name: value
        for name, value in flat.items()
        if not any(name == left or name.startswith(f"{left}.") for left in _LEFT_OUT)
    }


def _flat(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))
    else:
        yield name, str(value)


def require_different_runs(runs: Sequence[RunSummary]) -> None:
    """Refuse what is not a comparison: one run alone, or a run with itself or its copy."""
    if len(runs) < 2:
        raise UsageError(
            f"one run alone ({', '.join(run.run for run in runs)}) cannot be compared",
            remedy="name two runs or more: shoal compare RUN RUN…",
        )
    seen: dict[tuple[str, datetime], RunSummary] = {}
    for run in runs:
        # A copied folder is the same run too: its numbers say nothing of the noise.
        earlier = seen.setdefault((run.run, run.started), run)
        if earlier is not run:
            raise UsageError(
                f"{earlier.path} and {run.path} are the same run, {run.run}",
                remedy="name each run once",
            )


def compare(runs: Sequence[JudgedRun]) -> Comparison:
    """Columns in the order in which their first runs are given."""
    if not runs:
        raise UsageError("there are no runs to compare")
    groups: dict[tuple[tuple[str, str], ...], list[JudgedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(run.settings.items())), []).append(run)
    members = list(groups.values())
    return side_by_side(members, labels([group[0].settings for group in members], members))


def labels(
    settings: Sequence[Mapping[str, str]], members: Sequence[Sequence[JudgedRun]]
) -> list[str]:
    """What sets each column apart from the others, or else the name of its run."""
    differing = [
        name
        for name in dict.fromkeys(name for one in settings for name in one)
        if len({one.get(name) for one in settings}) > 1
    ]
    # The name of the variant or experiment alone is the shortest way, if each has its own.
    for name in _NAMES:
        if len({one.get(name) for one in settings} - {None}) == len(settings) > 1:
            differing = [name]
            break
    made = [
        " · ".join(
            one[name] if name in _NAMES else f"{name.rpartition('.')[2]} {one[name]}"
            for name in differing
            if name in one
        )
        for one in settings
    ]
    is_clear = len(set(made)) == len(made) and all(0 < len(label) <= 60 for label in made)
    return made if is_clear else [group[0].path.name for group in members]


def side_by_side(members: Sequence[Sequence[JudgedRun]], names: Sequence[str]) -> Comparison:
    """One column for each group of runs that are alike."""
    tests = compare_rows(members)
    return put_together(members, names, tests, judge_rows(tests))


def compare_rows(members: Sequence[Sequence[JudgedRun]]) -> dict[str, Tested]:
    """Every measure that is known of any run, tested."""
    values = [[measures.values_of(run.result) for run in group] for group in members]
    tests = {}
    for measure, _ in MEASURES:
        name = measure.name
        cells = [[run[name] for run in group if name in run] for group in values]
        if any(cells):
            tests[name] = measures.compare_columns(measure, cells)
    return tests


def judge_rows(tests: Mapping[str, Tested]) -> dict[str, Judged]:
    equal = [name for name, test in tests.items() if measures.is_equal(test.values)]
    return measures.judge(tests, equal)


def put_together(
    members: Sequence[Sequence[JudgedRun]],
    names: Sequence[str],
    tests: Mapping[str, Tested],
    said: Mapping[str, Judged],
) -> Comparison:
    columns = tuple(
        Column(
            label=name,
            runs=tuple(run.path.name for run in group),
            verdicts=tuple(run.result.verdict.value for run in group),
            sentence=group[0].result.sentence,
            settings=dict(group[0].settings),
        )
        for name, group in zip(names, members, strict=True)
    )
    rows = [Row(test.measure, test.values, said[name]) for name, test in tests.items()]
    return Comparison(columns, tuple(rows))
