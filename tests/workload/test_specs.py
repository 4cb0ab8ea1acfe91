"""Specs travel as JSON and refuse what they cannot be."""

import json
from typing import Any

import pytest

from shoal.model.errors import ConfigError
from shoal.workload.specs import (
    ConsumerSpec,
    FetchSettings,
    ProducedTopic,
    ProducerSpec,
    ScanSpec,
    StartingPoint,
)

PRODUCER = ProducerSpec(
    run="r", producer="p", topics=(ProducedTopic("t", 4, 8),), rate_per_s=10.5, messages=5
)
STARTS = (StartingPoint("t", 0, 3), StartingPoint("u", 1, 0, recorded_as="t"))


@pytest.mark.parametrize(
    "spec",
    [
        PRODUCER,
        ConsumerSpec("r", "g", "c", ("t",), STARTS, fetching=FetchSettings("read_committed")),
        ScanSpec("r", "source", ("t",), STARTS, timeout_s=4),
    ],
)
def test_a_spec_survives_the_journey(spec: Any) -> None:
    assert type(spec).from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"surprise": 1}, "surprise"),
        ({"rate_per_s": "fast"}, "rate_per_s"),
        ({"messages": 1.5}, "messages"),
        ({"idempotent": 1}, "idempotent"),
        ({"topics": [{"name": "t", "partitions": 1}]}, "lanes"),
        (
            {"topics": [{"name": "t", "partitions": 0, "lanes": 1, "compacted": False}]},
            "topic t",
        ),
        ({"topics": "t"}, "topics"),
        ({"first_numbers": {"t": "x"}}, "first_numbers"),
        ({"acks": 2}, "acks"),
        ({"acks": 1}, "idempotent"),
        ({"max_in_flight": 6}, "max_in_flight"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"driver": "java"}, "driver"),
        ({"shape": "wave"}, "shape"),
        ({"codec": "zip"}, "codec"),
        ({"abort_every": 3}, "transaction_messages"),
        ({"acks": 1, "idempotent": False, "transaction_messages": 3}, "transactions"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ProducerSpec.from_json(PRODUCER.to_json() | change)


def test_a_missing_field_is_named() -> None:
    body = PRODUCER.to_json()
    del body["producer"]
    with pytest.raises(ConfigError, match="producer"):
        ProducerSpec.from_json(body)
    with pytest.raises(ConfigError, match=r"\[\], not a object"):
        ProducerSpec.from_json([])


def test_the_client_is_configured_as_the_spec_says() -> None:
    properties = PRODUCER.client_properties()
    assert properties["acks"] == "-1"
    assert properties["enable.idempotence"] == "true"
    assert all(isinstance(value, str) for value in properties.values())
