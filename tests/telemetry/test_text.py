"""The text of metrics, judged by the parsers of prometheus_client."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

from shoal.telemetry.definitions import Metric
from shoal.telemetry.samples import CHUNK, Exemplar, Families, Histogram, Sample
from shoal.telemetry.text import TextWriter

_TABLE = {
    metric.name: metric
    for metric in (
        Metric("shoal_a_total", "counter", "", ("topic",), 'Counts "a"\\b.\nAnd more.', "broker"),
        Metric("shoal_b", "gauge", "", (), "A gauge.", "cluster"),
        Metric("shoal_c_seconds", "histogram", "", ("x",), "Times.", "broker", (0.1, 1.0, 10.0)),
    )
}


def _values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")), unique=True
    ),
    st.one_of(st.integers(0, 2**62), st.floats(allow_nan=False, width=64)),
)
def test_any_label_and_value_is_parsed_again(topics: list[str], value: float) -> None:
    families: Families = {"shoal_a_total": [((topic,), value) for topic in topics]}
    text = "".join(TextWriter(_TABLE).render(families))
    found = _values(text)
    assert found == {("shoal_a_total", (("topic", topic),)): float(value) for topic in topics}


def test_nan_and_missing_families() -> None:
    text = "".join(TextWriter(_TABLE).render({"shoal_b": [((), math.nan)], "shoal_a_total": []}))
    ((name, _), value) = next(iter(_values(text).items()))
    assert name == "shoal_b"
    assert math.isnan(value)
    assert "shoal_a" not in text


def test_histograms_and_exemplars_are_read_by_the_open_metrics_parser() -> None:
    histogram = Histogram(_TABLE["shoal_c_seconds"].buckets)
    histogram.observe(0.1)
    histogram.observe(5.0, Exemplar({"offset": "42"}, 5.0, 1_700_000_000.0))
    histogram.observe(50.0)
    families: Families = {
        "shoal_a_total": [(("t",), 3)],
        "shoal_c_seconds": [(("one",), histogram.value())],
    }
    writer = TextWriter(_TABLE)
    text = "".join(writer.render(families, is_open=True))
    counter, family = parse_open_metrics(text)  # type: ignore[no-untyped-call]
    assert counter.samples[0].value == 3
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets == {"0.1": 1, "1.0": 1, "10.0": 2, "+Inf": 3}
    marked = [sample.exemplar for sample in family.samples if sample.exemplar]
    assert [(one.labels, one.value) for one in marked] == [({"offset": "42"}, 5.0)]
    plain = _values("".join(writer.render(families)))
    assert plain["shoal_c_seconds_count", (("x", "one"),)] == 3
    assert plain["shoal_c_seconds_sum", (("x", "one"),)] == pytest.approx(55.1)


def test_many_series_are_written_in_small_slices() -> None:
    families: Families = {"shoal_a_total": [((f"topic-{n}",), n) for n in range(10_000)]}
    slices = list(TextWriter(_TABLE).render(families))
    assert max(part.count("\n") for part in slices) <= CHUNK
    assert len(_values("".join(slices))) == 10_000


def test_the_cache_of_prefixes_is_limited() -> None:
    writer = TextWriter(_TABLE)
    for start in range(0, 120_000, 10_000):
        samples: list[Sample] = [((f"{start + n}",), n) for n in range(10_000)]
        text = "".join(writer.render({"shoal_a_total": samples}))
        assert text.count("\n") == 10_000 + 3 - 1
    assert len(writer._prefixes) <= 60_000
