"""Judges a history; `docs/reference/history-format.md` documents the JSON of its result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shoal.audit.audit import audit
from shoal.audit.history.lines import TIME_SHIFT_US
from shoal.audit.history.store import import_history, import_lines
from shoal.audit.history.verifiable import read_verifiable
from shoal.model.result import GroupResult, Metrics, Result

Json = dict[str, Any]

# The metrics that the format documents, in its order; all others follow them.
_NAMED = (
    *("attempts", "ok", "failed", "unknown", "deliveries", "delivered", "re_reads", "recovered"),
    *("yield", "harvest", "completeness", "duplication", "F", "K", "latency_us", "range_us"),
)


def judge_history(path: Path) -> Result:
    """Judge one history file."""
    with TemporaryDirectory(prefix="shoal-history-") as folder:
        result = audit(import_history(path, Path(folder)))
    return _unshift_times(result)


def judge_verifiable(
    producers: Sequence[Path], consumers: Sequence[Path], *, drained: bool
) -> Result:
    """Judge one run of Apache Kafka's verifiable tools."""
    lines = read_verifiable(producers, consumers, drained=drained)
    with TemporaryDirectory(prefix="shoal-history-") as folder:
        result = audit(import_lines(lines, producers[0], Path(folder)))
    return _unshift_times(result)


def _unshift_times(result: Result) -> Result:
    return replace(result, groups={name: _unshift(group) for name, group in result.groups.items()})


def _unshift(group: GroupResult) -> GroupResult:
    """Undo the shift of the times in witnesses, so that they are those of the history."""
    findings = {
        name: replace(found, witness=found.witness and _unshift_witness(found.witness))
        for name, found in group.findings.items()
    }
    return replace(group, findings=findings)


def to_json(name: str, result: Result) -> Json:
    """Return one element of the array that `--output json` prints.

    `name` is the file name as the user gave it.
    """
    found = result.findings
    return {
        "history": name,
        "verdict": result.verdict.value,
        "sentence": result.sentence,
        "findings": {name: {"count": finding.count} for name, finding in found.items()},
        "metrics": _metrics(result.metrics),
        "stages": {name: stage.to_json() for name, stage in result.worst.stages.items()},
        "witnesses": {
            name: {"streams": finding.streams, **(finding.witness or {})}
            for name, finding in found.items()
        },
    }


def _metrics(metrics: Metrics) -> Json:
    values = metrics.to_json()
    return {name: values[name] for name in _NAMED} | {
        name: value for name, value in values.items() if name not in _NAMED
    }


def _unshift_witness(witness: Json) -> Json:
    return {name: _unshift_value(name, value) for name, value in witness.items()}


def _unshift_value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_unshift_witness(item) if isinstance(item, dict) else item for item in value]
    if name.endswith("_us") and isinstance(value, int):
        return value - TIME_SHIFT_US
    return value
