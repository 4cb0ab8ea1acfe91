"""Every preset that ships, scaled down, on Kafka Lite: it ends with the verdict it should."""

from pathlib import Path

import pytest

from shoal.experiment.presets import find, presets
from shoal.experiment.spec import load_variants
from shoal.model.errors import UsageError
from shoal.model.findings import Verdict
from support.experiments import played

SMALL = ("producer.messages=1200", "producer.rate=600", "producer.drain_timeout=60s")
# Only the last variant of each: the others differ in what their own tests look at.
JUDGED = {
    "consistency": Verdict.PROVEN,
    "e2e-latency": Verdict.PROVEN,
    "mirror-correctness": Verdict.PROVEN,
}


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_a_preset_ends_with_its_verdict(name: str, tmp_path: Path) -> None:
    spec = load_variants(find(name), SMALL)[-1]
    result = played(spec, tmp_path / "run")
    assert result.verdict is JUDGED[name], result.sentence
    assert set(result.groups) == set(spec.consumers.groups)
    assert result.metrics.attempts == 1200
    if spec.target:
        assert result.mirror is not None
        assert result.mirror["usage"]["cpu_s"] > 0


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
