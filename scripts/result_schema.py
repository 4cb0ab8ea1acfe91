"""Writes docs/reference/result.schema.json: the JSON schema of `result.json`.

    python scripts/result_schema.py            write it
    python scripts/result_schema.py --check    exit 1 if it is not what this writes

What is declared beside types (`shoal.model.serialised`) comes from them; what `shoal.model.result`
spells out is spelt out here. Fields may be added within a format, so readers get a schema that
allows others; `describe_result(is_strict=True)` allows none, for tests.
"""

import argparse
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

from shoal.model.findings import Verdict
from shoal.model.result import (
    NEVER,
    PERCENTILES,
    RESULT_FORMAT,
    STAGES,
    Metrics,
    Ratios,
    Series,
    Strip,
    Throughput,
)
from shoal.model.serialised import names_of

FILE = Path(__file__).parents[1] / "docs" / "reference" / "result.schema.json"
Schema = dict[str, Any]

COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT: Schema = {"type": "string"}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
TIME_US: Schema = {"type": ["integer", "null"], "description": "microseconds"}
VERDICT: Schema = {"enum": [verdict.value for verdict in Verdict]}
SCALARS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def by_name(schema: Schema) -> Schema:
    """An object with any names."""
    return {"type": "object", "additionalProperties": schema}


def make_list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


class Describer:
    """Makes the schemas of objects."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict

    def fields(
        self, required: dict[str, Schema], optional: dict[str, Schema] | None = None
    ) -> Schema:
        """An object with these fields."""
        closed = {"additionalProperties": False} if self._is_strict else {}
        properties = required | (optional or {})
        return {"type": "object", "properties": properties, "required": list(required), **closed}

    def describe_class(self, cls: type, special: dict[str, Schema] | None = None) -> Schema:
        """An object of a class with declared names; `special` fields have their own schemas."""
        required, optional = {}, {}
        for name in names_of(cls):
            schema = (special or {}).get(name.serialised_name) or describe_type(name.hint)
            kind = required if name.absent_up_to is None else optional
            kind[name.serialised_name] = schema
        return self.fields(required, optional)

    def latency(self) -> Schema:
        ranks = {name: TIME_US for name, _, _ in PERCENTILES}
        head = {"count": COUNT, "negative": COUNT, "mean": NUMBER_OR_NULL}
        optional = {
            "undelivered": COUNT,
            "owed": self.fields(ranks),
            "skew_us": {"type": ["array", "null"], "items": {"type": "integer"}},
            "interval": {"type": ["object", "null"]},
        }
        return self.fields({**head, **ranks, "max": TIME_US}, optional)

    def window(self) -> Schema:
        times = ("time_to_detect_us", "time_to_recover_us", "time_to_drain_us")
        ratios = {name.serialised_name: NUMBER_OR_NULL for name in names_of(Ratios)}
        metrics = {
            "type": "object",
            "properties": {**ratios, "latency_us": by_name(reference("latency"))},
            "required": [*ratios, "latency_us"],
            "additionalProperties": COUNT,
        }
        return self.fields(
            {
                "fault": {"type": ["integer", "null"]},
                **dict.fromkeys(times, TIME_US),
                "sent": COUNT,
                "received": COUNT,
                "findings": by_name(COUNT),
                "metrics": metrics,
            }
        )

    def describe_judged(self) -> dict[str, Schema]:
        """What the top level and every group have."""
        stage = self.fields({"verdict": VERDICT, "findings": make_list(TEXT)})
        return {
            "verdict": VERDICT,
            "sentence": TEXT,
            "stages": by_name(stage) | {"propertyNames": {"enum": list(STAGES)}},
            "findings": by_name(reference("finding")),
            "metrics": reference("metrics"),
            "throughput": make_list(reference("throughput")),
            "windows": make_list(reference("window")),
        }

    def group(self) -> Schema:
        lane = {
            "type": "object",
            "properties": {"topic": TEXT, "lane": COUNT},
            "required": ["topic", "lane"],
        }
        drawn = {
            "lanes": make_list(lane),
            "series": self.describe_class(Series),
            "strips": make_list(self.describe_class(Strip)),
            "histogram": make_list(make_list(COUNT)),
        }
        return self.fields({**self.describe_judged(), **drawn})

    def threshold(self) -> Schema:
        value = {"anyOf": [{"type": ["number", "null"]}, {"const": NEVER}]}
        return self.fields(
            {
                "threshold": TEXT,
                "metric": TEXT,
                "met": {"type": "boolean"},
                "values": by_name(value),
                "missed_by": make_list(TEXT),
            }
        )

    def definitions(self) -> dict[str, Schema]:
        finding = {"count": COUNT, "streams": COUNT, "witness": {"type": ["object", "null"]}}
        latencies = {"latency_us": by_name(reference("latency"))}
        return {
            "latency": self.latency(),
            "finding": self.fields(finding),
            "metrics": self.describe_class(Metrics, latencies),
            "throughput": self.describe_class(Throughput),
            "window": self.window(),
            "group": self.group(),
        }


def describe_type(hint: Any) -> Schema:
    """The schema of a type: scalars, lists, tuples, maps and unions of them."""
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    if hint in (type(None), None):
        return {"type": "null"}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [describe_type(each) for each in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is dict:
        return by_name(describe_type(inner[1]))
    if origin is list or (origin is tuple and inner[1:] == (Ellipsis,)):
        return make_list(describe_type(inner[0]))
    if origin is tuple:
        places = [describe_type(each) for each in inner]
        return {"type": "array", "prefixItems": places, "items": False, "minItems": len(places)}
    raise TypeError(f"no schema for {hint!r}")


def describe_result(*, is_strict: bool = False) -> Schema:
    """The schema of `result.json`."""
    describer = Describer(is_strict=is_strict)
    fault = {"fault": COUNT, "name": TEXT, "target": TEXT, "began_us": TIME_US, "ended_us": TIME_US}
    required = {
        "format": {"const": RESULT_FORMAT},
        "run": TEXT,
        **describer.describe_judged(),
        "worst_group": TEXT,
        "promises": {"type": "object"},
        "foreign": by_name(COUNT),
        "faults": make_list({"type": "object", "properties": fault, "required": list(fault)}),
        "missing_scans": make_list(TEXT),
        "mirror": {"type": ["object", "null"]},
        "groups": by_name(reference("group")),
    }
    worker = {"worker": TEXT, "reason": TEXT, "error": TEXT, "at_us": TIME_US, "attempts": COUNT}
    added = {
        "thresholds": make_list(describer.threshold()),
        "lost_workers": make_list(
            {"type": "object", "properties": worker, "required": list(worker)}
        ),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "result.json of Shoal",
        "description": "The verdict on one run and its numbers; docs/reference/results.md.",
        **describer.fields(required, added),
        "$defs": describer.definitions(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    text = json.dumps(describe_result(), indent=1) + "\n"
    if parser.parse_args().check:
        is_current = FILE.exists() and FILE.read_text(encoding="utf-8") == text
        print("the schema is current" if is_current else "stale: run scripts/result_schema.py")
        return 0 if is_current else 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
