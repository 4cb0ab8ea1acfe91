"""Runs in which something goes wrong on purpose, and what the judge makes of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.experiment.faults.fault_injection import check, prepare_environment
from shoal.experiment.presets import find
from shoal.experiment.run import run_workload
from shoal.experiment.spec import ExperimentSpec, load, load_variants
from shoal.faults.timeline import Timeline
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import ConfigError
from shoal.model.events import End, Event, FaultSeen, State, Tick
from shoal.model.findings import Verdict
from shoal.model.result import Result
from shoal.telemetry.events import EventReader


def outcome(spec: ExperimentSpec, run_dir: Path) -> Result:
    check(spec)
    with prepare_environment(spec) as environment:
        faults = environment.fault_injection(spec)
        run_workload(
            spec,
            addresses=environment.addresses(spec),
            run_dir=run_dir,
            watch=lambda _progress: None,
            faults=faults,
        )
    assert faults.failures == []
    return audit(open_ledger([run_dir]))


def quick(spec: ExperimentSpec) -> ExperimentSpec:
    """In less time, with enough of it between the faults for a producer that is slow to start."""
    cut, kill = spec.faults.faults
    faults = (
        replace(cut, when=replace(cut.when, at_s=0.5), lasts_s=4.0),
        replace(kill, when=replace(kill.when, at_s=3.0), lasts_s=1.0),
    )
    settings = {**spec.producers.settings, "duration_s": 4.0}
    return replace(
        spec, faults=Timeline(faults), producers=replace(spec.producers, settings=settings)
    )


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["0", "1"])  # the tests of presets have the third
@pytest.mark.quick("1")
def test_a_leader_that_dies_alone_costs_what_acks_say(acks: str, tmp_path: Path) -> None:
    specs = {spec.variant: spec for spec in load_variants(find("leader-lost"))}
    result = outcome(quick(specs[f"acks-{acks}"]), tmp_path / "run")
    metrics = result.metrics
    assert [fault["name"] for fault in result.faults] == ["cut", "kill"]
    assert all(fault["ended_us"] for fault in result.faults)
    assert metrics.harvest is not None
    assert metrics.harvest < 1
    assert (metrics.lost > 0) == (acks == "1")
    check_events(tmp_path / "run")


def check_events(run_dir: Path) -> None:
    """The event streams of the run and of its cluster tell of the faults and of the election."""
    run, source = read_events(run_dir), read_events(run_dir / "source")
    faults = [(each.phase, each.what.split()[0]) for each in run if isinstance(each, FaultSeen)]
    assert set(faults) == {(phase, name) for phase in ("begin", "end") for name in ("cut", "kill")}
    assert max(each.counters["sent"] for each in run if isinstance(each, Tick)) > 0
    assert any(isinstance(each, End) and each.outcome == "finished" for each in run)
    states = [each for each in source if isinstance(each, State)]
    assert any(each.object.startswith("broker ") and each.state == "dead" for each in states)
    assert any(each.details.get("epoch", 0) > 0 for each in states)
    assert isinstance(source[-1], End)


def read_events(folder: Path) -> list[Event]:
    reader = EventReader(folder)
    try:
        return reader.read().events
    finally:
        reader.close()


EXTERNAL = """
[source]
engine = "external"
bootstrap = "{bootstrap}"
{more}
[topics]
partitions = 2
[producer]
messages = 500
rate = 250
size = "256B"
drain_timeout = "60s"
[[fault]]
name = "{name}"
{target}
at = "500ms"
"""


def external(
    tmp_path: Path, bootstrap: str, name: str, target: str, more: str = ""
) -> ExperimentSpec:
    file = tmp_path / "foreign.toml"
    file.write_text(EXTERNAL.format(bootstrap=bootstrap, name=name, target=target, more=more))
    return load(file)


@pytest.mark.slow
def test_links_to_somebody_elses_cluster_can_be_cut(tmp_path: Path) -> None:
    with LiteCluster(brokers=2) as cluster:
        spec = external(
            tmp_path, cluster.bootstrap, "cut", 'between = ["producers", "source"]\nfor = "1200ms"'
        )
        result = outcome(spec, tmp_path / "run")
        assert cluster.faults() == []
    assert result.verdict is Verdict.PROVEN, result.sentence
    latency = result.metrics.latency_us["producer"]
    # Producers that sent during the fault waited for its end.
    assert latency.max is not None
    assert latency.max >= 250_000


@pytest.mark.parametrize(
    ("name", "target", "more", "message"),
    [
        ("kill", 'target = "source/1"', "", "did not start this cluster"),
        ("cut", 'between = ["source/1", "source/2"]', "", "do not go through shoal.s proxy"),
        (
            "cut",
            'between = ["producers", "source"]',
            'client = { "security.protocol" = "SSL" }',
            "cannot rewrite broker addresses",
        ),
        ("kill", 'target = "mirror"', "", "unknown target 'mirror'"),
    ],
)
def test_what_cannot_be_done_to_others_is_refused(
    tmp_path: Path, name: str, target: str, more: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(external(tmp_path, "kafka.invalid:9092", name, target, more))


def test_a_fault_after_the_end_is_refused(tmp_path: Path) -> None:
    spec = external(tmp_path, "kafka.invalid:9092", "reset", 'between = ["producers", "source"]')
    late = replace(spec.faults.faults[0], when=replace(spec.faults.faults[0].when, at_s=2.5))
    with pytest.raises(ConfigError, match=r"would start at 2\.5 s"):
        check(replace(spec, faults=Timeline((late,))))
