"""Timelines: what a file may say, when faults come, and how mistakes are explained."""

from itertools import islice

import pytest

from shoal.faults import timeline, zones
from shoal.faults.targets import PlannedTargets
from shoal.faults.timeline import Timeline
from shoal.model.errors import ConfigError
from shoal.model.tables import parse_toml


def parse_timeline(text: str) -> Timeline:
    return timeline.parse(parse_toml(text, name="test.toml").tables("fault"))


def fault(**keys: object) -> str:
    def toml(value: object) -> str:
        return str(value) if isinstance(value, int | list) else f'"{value}"'

    lines = (f"{key.rstrip('_')} = {toml(value)}" for key, value in keys.items())
    return "\n".join(["[[fault]]", *lines]) + "\n"


def test_faults_come_in_order_of_time() -> None:
    made = parse_timeline(
        fault(name="kill", target="source/1", at="30s", for_="5s")
        + fault(name="pause", target="target/any", every="20s", for_="1s")
        + fault(name="reset", between=["zone/a", "zone/b"], at="10s", every="30s", until="70s")
    )
    found = [(one.at_s, one.fault.name) for one in made.occurrences(75.0)]
    assert found == [
        (10.0, "reset"),
        (20.0, "pause"),
        (30.0, "kill"),
        (40.0, "pause"),
        (40.0, "reset"),
        (60.0, "pause"),
        (70.0, "reset"),
    ]
    endless = [one.at_s for one in islice(made.occurrences(), 100)]
    assert endless == sorted(endless)
    assert endless[-1] > 1000


def test_choices_are_the_same_for_the_same_seed() -> None:
    def times(seed: int) -> list[tuple[float, int]]:
        text = fault(name="kill", target="source/any", random=5, at="10s", until="60s", seed=seed)
        return [(one.at_s, one.choice_seed) for one in parse_timeline(text).occurrences()]

    assert times(1) == times(1)
    assert times(1) != times(2)
    assert len(times(1)) == 5
    assert all(10 <= moment <= 60 for moment, _ in times(3))
    assert len({choice_seed for _, choice_seed in times(1)}) == 5


def test_a_link_fault_says_what_it_does() -> None:
    made = parse_timeline(
        fault(name="delay", between=["mirror", "target"], at=0, delay="80ms")
        + fault(name="bandwidth", from_="zone/a", to="zone/b", at=0, bandwidth="1MB", for_=9)
    )
    slow, narrow = made.faults
    assert (slow.effect.delay_ms, slow.is_one_way, slow.described_target) == (
        80.0,
        False,
        "mirror<->target",
    )
    assert (narrow.effect.bytes_per_s, narrow.is_one_way, narrow.lasts_s) == (1e6, True, 9.0)
    assert narrow.detail() == {"for_s": 9.0, "bytes_per_s": 1e6}
    assert made.touches_links


MISTAKES = [
    (fault(name="kil", target="source/1", at=1), "did you mean kill"),
    (fault(name="kill", at=1), "fault.target is missing"),
    (fault(name="kill", target="source/1"), "fault.at is missing"),
    (fault(name="kill", target="source/1", at=1, fro="2s"), "fault.fro is not known"),
    (fault(name="kill", target="source/1", at="soon"), "is not a duration"),
    (fault(name="kill", target="source/1", every=0), "every must be above 0"),
    (fault(name="kill", target="source/1", random=3), "until is missing"),
    (fault(name="kill", target="source/1", at=9, until=3, every=1), "before the first"),
    (fault(name="kill", target="source/1", at=1, delay="1s"), "delay is not a key of kill"),
    (fault(name="restart", target="source/1", at=1, for_=2), "for is not a key of restart"),
    (fault(name="cut", at=1), "between or from and to"),
    (fault(name="cut", at=1, between=["a"]), "a link has two ends"),
    (fault(name="cut", at=1, from_="a"), "to is missing"),
    (fault(name="cut", at=1, between=["a", "b"], to="c"), "between or from and to"),
    (fault(name="delay", at=1, between=["a", "b"]), "delay is missing"),
    (fault(name="delay", at=1, between=["a", "b"], delay=0), "delay must be above 0"),
    (fault(name="bandwidth", at=1, between=["a", "b"]), "bandwidth is missing"),
    (fault(name="grow", at=1, target="source"), "partitions is missing"),
    (fault(name="kill", target="source/1", every=1, random=2, until=9), "exclude each other"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_timeline(text)
    message_and_remedy = f"{caught.value} {caught.value.remedy or ''}"
    assert message in message_and_remedy
    assert "test.toml" in message_and_remedy


PLANNED = PlannedTargets(
    brokers={"source": 3, "target": None},
    workers={"producers": ["producer-1"], "consumers": ["consumer-1"]},
    groups=["readers"],
    zones=["a", "b"],
    topics=["orders"],
    has_mirror=True,
)


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "kill", "target": "source/3"},
        {"name": "kill", "target": "source/leader"},
        {"name": "kill", "target": "target/1007"},
        {"name": "kill", "target": "mirror"},
        {"name": "kill", "target": "consumers/any"},
        {"name": "pause", "target": "mirror"},
        {"name": "rolling_restart", "target": "source"},
        {"name": "purge", "target": "source", "topic": "orders"},
        {"name": "cut", "between": ["zone/a", "readers"]},
        {"name": "cut", "between": ["source/followers", "source/leader"]},
        {"name": "heal"},
    ],
)
def test_targets_that_will_be_there_are_known(keys: dict[str, object]) -> None:
    PLANNED.check(parse_timeline(fault(at=1, **keys)))


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "kill", "target": "source/4"},
        {"name": "kill", "target": "source/0"},
        {"name": "kill", "target": "sorce/1"},
        {"name": "kill", "target": "consumer-2"},
        {"name": "pause", "target": "consumer-1"},
        {"name": "rolling_restart", "target": "source/1"},
        {"name": "purge", "target": "source", "topic": "other"},
        {"name": "cut", "between": ["zone/a", "zone/c"]},
    ],
)
def test_unknown_targets_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="unknown target"):
        PLANNED.check(parse_timeline(fault(at=1, **keys)))


ZONES = """
[[zone]]
name = "a"
members = ["source/1", "producers"]
latency = { b = "20ms", c = "40ms" }
[[zone]]
name = "b"
members = ["source"]
latency = { c = 0.01 }
[[zone]]
name = "c"
latency = { a = "50ms" }
"""


def test_zones_have_members_and_latencies() -> None:
    made = zones.parse(
        parse_toml(ZONES, name="zones.toml").tables("zone"), {"group-1": "c", "other": "x"}
    )
    assert made.with_zone("source/1", "source") == {"source/1", "source", "zone/a"}
    assert made.with_zone("source/2", "source") == {"source/2", "source", "zone/b"}
    assert made.with_zone("group-1", "consumers") == {"group-1", "consumers", "zone/c"}
    assert made.with_zone("other") == {"other"}
    delays = {(source, target): effect.delay_ms for source, target, effect in made.effects()}
    assert delays == {
        ("zone/a", "zone/b"): 20,
        ("zone/b", "zone/a"): 20,
        ("zone/a", "zone/c"): 40,
        ("zone/c", "zone/a"): 50,
        ("zone/b", "zone/c"): 10,
        ("zone/c", "zone/b"): 10,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[zone]]\nname = "a"\nlatency = { d = "1ms" }', "zone.latency.d is not known"),
        ('[[zone]]\nname = "a"\n[[zone]]\nname = "a"', "must be unique"),
        (
            '[[zone]]\nname = "a"\nmembers = ["x"]\n[[zone]]\nname = "b"\nmembers = ["x"]',
            "already in",
        ),
        ('[[zone]]\nnam = "a"', "zone.name is missing"),
    ],
)
def test_mistakes_in_zones_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        zones.parse(parse_toml(text, name="zones.toml").tables("zone"))
