"""What a generated deployment serves as metrics is what its Prometheus scrapes, and no more."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from shoal.generate.compose import generate_compose
from shoal.generate.files import Files, write_files
from shoal.generate.kubernetes import generate_kubernetes
from shoal.generate.plan import ClusterPlan, Host, MirrorPlan
from shoal.generate.systemd import generate_systemd
from support.deploy.kustomize import build_kustomization
from support.deploy.player import Unit
from support.deploy.units import list_installed_units, list_pods, list_services

HOSTS = [Host.parse(text) for text in ("a@zone-1", "b@zone-2", "c@zone-3", "d")]
GENERATORS: dict[str, Callable[[MirrorPlan | None], Files]] = {
    "compose": lambda mirror: generate_compose(ClusterPlan(name="east", brokers=4, mirror=mirror)),
    "kubernetes": lambda mirror: generate_kubernetes(
        ClusterPlan(name="east", brokers=3, mirror=mirror)
    ),
    "systemd": lambda mirror: generate_systemd(HOSTS, name="east", mirror=mirror),
}


def list_units(kind: str, folder: Path, *, has_mirror: bool) -> list[Unit]:
    if kind == "compose":
        return list_services(folder / "compose.yaml")
    if kind == "systemd":
        return list_installed_units(folder)
    folders = ["overlays/production", *(["mirror"] if has_mirror else [])]
    return [unit for each in folders for unit in list_pods(build_kustomization(folder / each))]


def find_metrics_port(unit: Unit) -> int | None:
    """The port on which a unit serves metrics to other hosts, by its command."""
    words = unit.command
    if "--metrics-port" not in words:
        return None
    assert words[words.index("--metrics-host") + 1] == "0.0.0.0"  # noqa: S104 - what is looked for
    port = int(words[words.index("--metrics-port") + 1])
    assert port in unit.ports, f"{unit.name} does not declare its port {port}"
    return port


@pytest.mark.parametrize("mirror", [None, MirrorPlan("source:9092")], ids=["alone", "mirror"])
@pytest.mark.parametrize("kind", GENERATORS)
def test_targets_are_the_ports_of_brokers_and_mirror(
    kind: str, mirror: MirrorPlan | None, tmp_path: Path
) -> None:
    write_files(GENERATORS[kind](mirror), tmp_path)
    units = list_units(kind, tmp_path, has_mirror=mirror is not None)
    served = {unit.name: (set(unit.names), find_metrics_port(unit)) for unit in units}
    assert {name for name, (_, port) in served.items() if port is None} == {
        name for name in served if "controller" in name
    }
    document = yaml.safe_load((tmp_path / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["static_configs"] for job in document["scrape_configs"]}
    assert set(jobs) == {"shoal"} | ({"shoal-mirrors"} if mirror else set())
    scraped: dict[str, str] = {}
    for job, [configured] in jobs.items():
        assert configured["labels"] == {"cluster": "east"}
        for target in configured["targets"]:
            host, _, port = target.rpartition(":")
            [owner] = [
                n for n, (names, own) in served.items() if host in names and own == int(port)
            ]
            assert owner not in scraped, f"{owner} is scraped twice"
            assert ("mirror" in owner) == (job == "shoal-mirrors")
            scraped[owner] = target
    assert set(scraped) == {name for name, (_, port) in served.items() if port is not None}
    for file in document["rule_files"]:
        assert (tmp_path / "prometheus" / file).is_file()
