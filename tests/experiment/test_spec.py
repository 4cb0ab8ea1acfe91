"""Experiment files: what they may say, and the one message that a wrong one gets."""

from pathlib import Path

import pytest

from shoal.experiment import spec as specs
from shoal.experiment.faults.fault_injection import check
from shoal.experiment.placing import count_slots
from shoal.experiment.spec import ExperimentSpec
from shoal.model.errors import ConfigError, ShoalError, UsageError

GOOD = """\
name = "orders"
warm_up = "2s"

[source]
engine = "lite"
racks = ["a", "b", "c"]
properties."log.segment.bytes" = 1048576

[target]
engine = "apache"
version = "3.9.2"

[mirror]
kind = "mm2"
properties = { "tasks.max" = 2 }

[topics]
partitions = 6
replication_factor = 3

[producer]
count = 2
rate = "2k"
messages = "10k"
size = "1KiB"
acks = 1
in_flight = 1
linger = "2ms"

[consumer]
groups = ["one", "two"]
max_wait_ms = 100

[promises]
delivery = "at_least_once"
thresholds = ["latency_ms_p99<250"]

[[fault]]
name = "kill"
target = "source/1"
at = "1s"
"""


def load_text(tmp_path: Path, text: str, *sets: str) -> ExperimentSpec:
    file = tmp_path / "orders.toml"
    file.write_text(text)
    return specs.load(file, sets)


def test_a_file_becomes_values(tmp_path: Path) -> None:
    spec = load_text(tmp_path, GOOD)
    assert spec.source.brokers == 3
    assert spec.source.properties == {"log.segment.bytes": "1048576"}
    assert spec.target is not None
    assert spec.target.version == "3.9.2"
    assert spec.mirror.properties == {"tasks.max": "2"}
    assert spec.topics.target_replication_factor == 1
    assert spec.producers.count == 2
    assert spec.producers.settings == {
        "rate_per_s": 2000.0,
        "messages": 10_000,
        "size_bytes": 1024,
        "acks": 1,
        "idempotent": False,
        "max_in_flight": 1,
        "linger_us": 2000,
    }
    assert spec.consumers.fetching == {"max_wait_ms": 100}
    assert spec.warm_up_s == 2
    assert len(spec.faults.faults) == 1


@pytest.mark.parametrize("master", ["local[2]", "local[*]", "yarn", "spark://host:7077"])
def test_workers_have_a_place_on_spark(tmp_path: Path, master: str) -> None:
    assert load_text(tmp_path, GOOD).workers.on_spark
    assert not load_text(tmp_path, GOOD, "placement=processes").workers.on_spark
    spec = load_text(tmp_path, GOOD, f"master={master}")
    assert (spec.workers.on_spark, spec.workers.master) == (True, master)
    # Two producers, and a consumer of each group, all at the same time.
    assert count_slots(spec) == 4
    growing = load_text(tmp_path, GOOD, "topics.grow_after=1s", "topics.grow_to=8")
    assert count_slots(growing) == 4 + 3


def test_a_master_needs_the_placement_on_spark(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not apply to the placement processes"):
        load_text(tmp_path, GOOD, "placement=processes", "master=yarn")
    with pytest.raises(ConfigError, match="placement"):
        load_text(tmp_path, GOOD, "placement=somewhere")


def test_set_is_as_if_it_stood_in_the_file(tmp_path: Path) -> None:
    spec = load_text(
        tmp_path, GOOD, "producer.acks=all", "in_flight=5", "partitions=2", "mirror.kind=mm1"
    )
    assert spec.producers.settings["acks"] == -1
    assert spec.producers.settings["max_in_flight"] == 5
    assert spec.topics.partitions == 2
    assert spec.mirror.kind == "mm1"


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("acks = 1", "ackss = 1", 26, "did you mean acks?"),
        ("acks = 1", "acks = 2", 26, 'legal are 0, 1 and "all"'),
        ('rate = "2k"', 'rate = "fast"', 23, "write it like 500, 10k or 1.5m"),
        ("[producer]", "[producers]", 21, "did you mean producer?"),
        ('kind = "mm2"', 'kind = "mm3"', 14, "did you mean mm2?"),
        ('engine = "apache"', 'engine = "apach"', 10, "did you mean apache?"),
        ('version = "3.9.2"', 'version = "three"', 11, 'write it like "3.9.2"'),
        ('version = "3.9.2"', 'version = "2.3.1"', 11, "use 2.4.0 or newer"),
        ("replication_factor = 3", "replication_factor = 4", 19, "only 3 brokers"),
        ("latency_ms_p99", "latency_ms_p98", 36, "latency_ms_p99"),
        ("count = 2", "count = -2", 22, "1 or more"),
        ("count = 2", "count = = 2", 22, "not valid TOML"),
        ('linger = "2ms"', "linger_us = 2\nlinger = 2", 29, "remove one of them"),
        ("[promises]", '[workers]\nmaster = "sparks"\n[promises]', 35, "spark://host:7077"),
        ("[promises]", "[workers]\nexecutors = 2\n[promises]", 35, "without a master"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, before: str, after: str, line: int, said: str
) -> None:
    assert before in GOOD
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, GOOD.replace(before, after))
    whole = f"{caught.value} {caught.value.remedy}"
    assert f"line {line}:" in whole
    assert said in whole


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('target = "source/1"', 'target = "source/7"', "has the unknown target 'source/7'"),
        ('at = "1s"', 'at = "90s"', "would start at 90 s, but all messages are sent after 5 s"),
    ],
)
def test_a_fault_that_cannot_be_is_named_with_its_line(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(load_text(tmp_path, GOOD.replace(before, after)))
    assert f"line 38: the fault kill {said}" in str(caught.value)


def test_a_wrong_set_is_blamed_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set producer\.acks: producer\.acks"):
        load_text(tmp_path, GOOD, "producer.acks=7")
    with pytest.raises(UsageError, match="not a key of exactly one section"):
        load_text(tmp_path, GOOD, "nonsense=7")


@pytest.mark.parametrize("text", ["", "[target]\n[mirror]\nkind = 'none'", "\x00", "a" * 100])
def test_files_that_say_too_little_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ShoalError):
        load_text(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.toml"):
        specs.load(tmp_path / "nowhere.toml")
