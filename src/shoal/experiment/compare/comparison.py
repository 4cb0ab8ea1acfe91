"""`shoal compare`: runs side by side, from their folders.

Runs with the same settings are repeats and share a column. A column is labelled by the settings
that differ from other columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from shoal.experiment.compare import measures
from shoal.experiment.compare.measures import MEASURES, MeasureTest
from shoal.experiment.runs import RunSummary
from shoal.model.comparison import Column, Comparison, MeasureJudgement, Row
from shoal.model.errors import UsageError
from shoal.model.json_files import read_json
from shoal.model.result import Result

# The fields of `run.json` that are settings of a run; the others are about that one run.
_SETTINGS: Final = (
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
# Fields that are not settings: derived from others, or measured.
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
                f"run {path.name} is not judged", remedy=f"judge it with shoal audit {path.name}"
            )
        settings = settings_of(read_json(path / "run.json"))
        return cls(path, settings, Result.from_json(read_json(path / "result.json")))


def settings_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a run, as text by dotted names."""
    # Variants have topics of their own; the names are not a setting.
    shapes = list((manifest.get("topics") or {}).values())
    manifest_with_shape = {
        **manifest,
        "topics": {"count": len(shapes), **(shapes[0] if shapes else {})},
    }
    flat = {
        name: value
        for key in _SETTINGS
        for name, value in _flatten(key, manifest_with_shape.get(key))
        if value not in ("", "None")
    }
    return {
        name: value
        for name, value in flat.items()
        if not any(name == left or name.startswith(f"{left}.") for left in _LEFT_OUT)
    }


def _flatten(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))
    else:
        yield name, str(value)


def require_different_runs(runs: Sequence[RunSummary]) -> None:
    """Refuse a comparison of one run, or of a run with itself or a copy of it."""
    if len(runs) < 2:
        raise UsageError(
            f"cannot compare only one run ({', '.join(run.run for run in runs)})",
            remedy="give two runs or more: shoal compare RUN RUN…",
        )
    seen: dict[tuple[str, datetime], RunSummary] = {}
    for run in runs:
        # A copied folder is the same run too: it shows nothing about the noise.
        earlier = seen.setdefault((run.run, run.started), run)
        if earlier is not run:
            raise UsageError(
                f"{earlier.path} and {run.path} are the same run, {run.run}",
                remedy="give each run once",
            )


def compare(runs: Sequence[JudgedRun]) -> Comparison:
    """Compare runs; columns are in the order of their first runs."""
    if not runs:
        raise UsageError("no runs to compare")
    groups: dict[tuple[tuple[str, str], ...], list[JudgedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(run.settings.items())), []).append(run)
    members = list(groups.values())
    return compare_groups(members, label_columns([group[0].settings for group in members], members))


def label_columns(
    settings: Sequence[Mapping[str, str]], members: Sequence[Sequence[JudgedRun]]
) -> list[str]:
    """Label each column by the settings that differ, or else by the name of its run."""
    differing = [
        name
        for name in dict.fromkeys(name for one in settings for name in one)
        if len({one.get(name) for one in settings}) > 1
    ]
    # The name of the variant or experiment is enough if it differs for each column.
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


def compare_groups(members: Sequence[Sequence[JudgedRun]], names: Sequence[str]) -> Comparison:
    """Compare groups of repeats, one column for each."""
    tests = compare_rows(members)
    return assemble_comparison(members, names, tests, judge_rows(tests))


def compare_rows(members: Sequence[Sequence[JudgedRun]]) -> dict[str, MeasureTest]:
    """Test every measure that at least one run has."""
    values = [[measures.values_of(run.result) for run in group] for group in members]
    tests = {}
    for measure, _ in MEASURES:
        name = measure.name
        cells = [[run[name] for run in group if name in run] for group in values]
        if any(cells):
            tests[name] = measures.compare_columns(measure, cells)
    return tests


def judge_rows(tests: Mapping[str, MeasureTest]) -> dict[str, MeasureJudgement]:
    equal = [name for name, test in tests.items() if measures.is_equal(test.values)]
    return measures.judge(tests, equal)


def assemble_comparison(
    members: Sequence[Sequence[JudgedRun]],
    names: Sequence[str],
    tests: Mapping[str, MeasureTest],
    judgements: Mapping[str, MeasureJudgement],
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
    rows = [Row(test.measure, test.values, judgements[name]) for name, test in tests.items()]
    return Comparison(columns, tuple(rows))
