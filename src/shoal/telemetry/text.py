"""Prometheus' text format and OpenMetrics, written in slices.

Rules:
- The metrics of a page are those of one table (`definitions`, or a dialect's); all samples of a
  metric are together.
- Text is yielded in slices of at most `CHUNK` samples, so that a caller can do other work between
  them. The text before the value of a series is cached: it is most of the work.
- Histograms have `le`, `_sum` and `_count`; exemplars are written in OpenMetrics only.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shoal.telemetry.definitions import Metric
from shoal.telemetry.samples import CHUNK, Exemplar, Families, HistogramValue, Sample, Value

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Series that come and go (topics, groups) must not fill the memory.
_MOST_PREFIXES: Final = 50_000
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class TextWriter:
    """Renders families; one for each endpoint, because it caches what precedes the values."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._prefixes: dict[tuple[str, tuple[str, ...]], str] = {}

    def render(self, families: Families, *, is_open: bool = False) -> Iterator[str]:
        """Yield the text of all families, in the order of the table."""
        for name, metric in self._metrics.items():
            samples = families.get(name)
            if not samples:
                continue
            yield _header(metric, is_open=is_open)
            for start in range(0, len(samples), CHUNK):
                yield self._lines(metric, samples[start : start + CHUNK], is_open=is_open)
        if is_open:
            yield "# EOF\n"

    def _lines(self, metric: Metric, samples: Sequence[Sample], *, is_open: bool) -> str:
        if metric.kind == "histogram":
            return "".join(
                self._histogram(metric, tuple(labels), HistogramValue(*value), is_open=is_open)
                for labels, value in samples
            )
        if len(self._prefixes) > _MOST_PREFIXES:
            self._prefixes.clear()
        prefixes, name, lines = self._prefixes, metric.name, []
        for labels, value in samples:
            key = (name, tuple(labels))
            prefix = prefixes.get(key)
            if prefix is None:
                prefix = prefixes[key] = _prefix(name, metric.labels, key[1])
            lines.append(f"{prefix}{value if type(value) is int else format_value(value)}\n")
        return "".join(lines)

    def _histogram(
        self, metric: Metric, labels: tuple[str, ...], value: HistogramValue, *, is_open: bool
    ) -> str:
        lines, count = [], 0
        exemplars = value.exemplars or [None] * len(value.counts)
        bounds = [*map(format_value, metric.buckets), "+Inf"]
        for bound, size, exemplar in zip(bounds, value.counts, exemplars, strict=True):
            count += size
            names = (*metric.labels, "le")
            prefix = _prefix(f"{metric.name}_bucket", names, (*labels, bound))
            mark = _exemplar(exemplar) if is_open and exemplar is not None else ""
            lines.append(f"{prefix}{count}{mark}\n")
        for suffix, number in (("sum", format_value(value.total)), ("count", str(count))):
            lines.append(f"{_prefix(f'{metric.name}_{suffix}', metric.labels, labels)}{number}\n")
        return "".join(lines)


def format_value(value: Value) -> str:
    """A number as Prometheus reads it."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _header(metric: Metric, *, is_open: bool) -> str:
    # OpenMetrics names the family of a counter without its suffix.
    name = metric.name.removesuffix("_total") if is_open else metric.name
    is_bare = metric.kind == "counter" and is_open and name == metric.name
    kind = "unknown" if is_bare else metric.kind
    return f"# HELP {name} {metric.help.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n"


def _prefix(name: str, labels: Sequence[str], values: Sequence[str]) -> str:
    """The text of a series before its value."""
    pairs = ",".join(
        f'{label}="{value.translate(_ESCAPES)}"'
        for label, value in zip(labels, values, strict=True)
    )
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


def _exemplar(exemplar: Sequence[Any]) -> str:
    found = Exemplar(*exemplar)  # after JSON it is a list
    labels = _prefix("", tuple(found.labels), tuple(found.labels.values()))
    return f" # {labels}{format_value(found.value)} {found.time_s:.3f}"
