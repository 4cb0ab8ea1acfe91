"""Every preset that ships, scaled down, on Kafka Lite: it ends with the verdict it should."""

import re
from pathlib import Path

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.experiment.faults.fault_injection import check, prepare_environment
from shoal.experiment.presets import find, presets
from shoal.experiment.run import run_workload
from shoal.experiment.spec import ExperimentSpec, load_variants
from shoal.model.errors import UsageError
from shoal.model.findings import Verdict
from support.sizes import mark_long

MESSAGES = 800
SPEED_UP = 5
_TIMES = re.compile(r'^(at|for|duration|grow_after) = "(\d+)s"', re.MULTILINE)


def scale_down(name: str, tmp_path: Path) -> ExperimentSpec:
    """The last variant of a preset with times a fifth as long, or with few messages."""
    text = _TIMES.sub(
        lambda found: f'{found[1]} = "{1000 * int(found[2]) // SPEED_UP}ms"',
        find(name).read_text(),
    )
    file = tmp_path / f"{name}.toml"
    file.write_text(text)
    sets = []
    if "messages =" in text:
        sets = [f"producer.messages={MESSAGES}", "producer.rate=800"]
    return load_variants(file, sets)[-1]


# MirrorMaker 2 is for `make prove-presets`.
SHIPPED = sorted(set(presets()) - {"shoal-vs-mm2"})
# A mirror, a kill of a broker, and latencies between zones.
QUICK = ("mirror-correctness", "leader-lost")


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_long(SHIPPED, quick=QUICK))
def test_a_preset_ends_with_its_verdict(name: str, tmp_path: Path) -> None:
    spec = scale_down(name, tmp_path)
    check(spec)
    run_dir = tmp_path / "run"
    with prepare_environment(spec) as environment:
        faults = environment.fault_injection(spec)
        run_workload(
            spec,
            addresses=environment.addresses(spec),
            run_dir=run_dir,
            watch=lambda _progress: None,
            faults=faults,
        )
    result = audit(open_ledger([run_dir]))
    assert faults.failures == []
    assert result.verdict is Verdict.PROVEN, result.sentence
    assert set(result.groups) == set(spec.consumers.groups)
    assert result.metrics.attempts >= MESSAGES
    fault_names = [fault["name"] for fault in result.faults]
    if spec.topics.grow_after_s is None:
        assert sorted(fault_names) == sorted(fault.name for fault in spec.faults.faults)
    else:
        assert fault_names in (["new_topic"], ["new_partitions"])
    if spec.target:
        assert result.mirror is not None
        assert result.mirror["usage"]["cpu_s"] > 0
    for group, zone in zip(spec.consumers.groups, spec.consumers.racks, strict=False):
        # Whichever way a message takes, it has to come from there to here.
        way = spec.zones.zone_of["producers"], zone
        latency = result.groups[group].metrics.latency_us["e2e_actual"]
        assert latency.percentiles["p50"] >= spec.zones.latency_ms.get(way, 0) * 1000


@pytest.mark.parametrize("name", sorted(presets()))
@pytest.mark.parametrize("engine", ["lite", "apache"])
def test_every_preset_can_be_read_for_both_engines(name: str, engine: str) -> None:
    specs = load_variants(find(name), engine=engine)
    assert all(spec.description for spec in specs)
    assert {cluster.engine for spec in specs for cluster in spec.clusters.values()} == {engine}
    assert len({spec.title for spec in specs}) == len(specs)


def test_a_misspelt_preset_is_guessed() -> None:
    with pytest.raises(UsageError) as refusal:
        find("consistancy")
    assert refusal.value.remedy == "did you mean consistency?"
