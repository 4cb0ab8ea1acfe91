"""The report of one run: `report.html`, with the components of the page of `shoal serve`.

Order of the report: verdict sentence, metrics with numerator and denominator, findings with their
witnesses, pictures with their numbers, environment, how to run it again.

A report has at most `MOST_BYTES`. What does not fit is left out in this order: what processes and
brokers did, the charts of the last groups, the last groups themselves. The page names them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal.model.result import Result
from shoal.model.run_folder import hide_cluster_properties
from shoal.report.document import MOST_BYTES, render_document, size_of

Json = dict[str, Any]
Events = Mapping[str, Sequence[Json]]
# What only programs need, and what `page.json` has in more detail.
_LEFT_OUT: Final = ("lanes", "strips", "histogram")
_SHOWN: Final = (
    *("run", "verdict", "sentence", "worst_group", "thresholds", "promises", "foreign"),
    *("faults", "missing_scans", "mirror"),
)
_MOST_MOVED: Final = 100
_MARGIN_BYTES: Final = 20_000  # title, lead and what else is not data


def render(
    result: Result,
    manifest: Mapping[str, Any],
    page: Json | None = None,
    events: Events | None = None,
) -> str:
    """Return the report of a result.

    `manifest` is the run's `run.json`, `page` its `page.json`, `events` what the run, its clusters
    and its mirror wrote, by part ("run", "source", …).
    """
    content = _fit(
        {
            "kind": "run",
            "result": _select_result(result),
            "manifest": hide_cluster_properties(manifest),
            "page": page,
            "events": {part: list(found) for part, found in (events or {}).items()},
        }
    )
    missed = ", thresholds missed" if result.missed else ""
    title = f"{result.verdict.value}{missed}: {result.run}"
    return render_document(title, f"{result.verdict.value}: {result.sentence}", content)


def _select_result(result: Result) -> Json:
    whole = result.to_json()
    groups = {
        name: {key: value for key, value in group.items() if key not in _LEFT_OUT}
        | {
            "series": {"start_s": group["series"]["start_s"]},
            "lanes": _select_moved(group["lanes"]),
        }
        for name, group in whole["groups"].items()
    }
    return {name: whole[name] for name in _SHOWN} | {"groups": groups}


def _select_moved(lanes: Sequence[Json]) -> list[Json]:
    """Return the lanes in which messages moved from their place, the farthest first."""
    moved = [lane for lane in lanes if lane.get("F")]
    moved.sort(key=lambda lane: lane["F"] / max(1, lane.get("delivered", 0)), reverse=True)
    return moved[:_MOST_MOVED]


def _fit(content: Json) -> Json:
    """Leave out what matters least until the report is small enough."""
    limit = MOST_BYTES - _MARGIN_BYTES
    if size_of(content) > limit:
        content = {**content, "events": {}}
    worst = content["result"]["worst_group"]
    for part in ("page", "result"):
        names = list((content[part] or {}).get("groups", {}))
        for name in [name for name in reversed(names) if name != worst]:
            if size_of(content) <= limit:
                return content
            content = {**content, part: _leave_out(content[part], name)}
    return content


def _leave_out(whole: Json, name: str) -> Json:
    groups = {other: group for other, group in whole["groups"].items() if other != name}
    return {**whole, "groups": groups, "left_out": [*whole.get("left_out", ()), name]}
