"""Generated manifests are played as they stand: every pod with its own address and its own names.

Commands, environment, ports, names and probes are those of the files; only the folders of volumes
are translated. What remains untested is what Kubernetes itself does: scheduling, images, volumes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from generate.test_played import generate
from support.deploy.kustomize import build_kustomization
from support.deploy.namespaces import NamespacePlayer, find_obstacle
from support.deploy.units import list_pods

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(find_obstacle()), reason=find_obstacle() or "-"),
]
SOURCE = "broker-0.brokers.east.svc:9092"


@pytest.fixture
def player(tmp_path: Path) -> Iterator[NamespacePlayer]:
    playing = NamespacePlayer(tmp_path)
    try:
        yield playing
    finally:
        playing.end()
        playing.close()


def list_targets(folder: Path) -> list[str]:
    document = yaml.safe_load((folder / "prometheus" / "prometheus.yml").read_text())
    return [
        target
        for job in document["scrape_configs"]
        for configured in job["static_configs"]
        for target in configured["targets"]
    ]


def test_the_small_overlay_serves_on_its_own_names_and_ports(
    player: NamespacePlayer, tmp_path: Path
) -> None:
    folder = generate("kubernetes", tmp_path / "files", "--name", "east", "--brokers", "1")
    player.add(list_pods(build_kustomization(folder / "overlays" / "small")))
    player.start()
    player.wait_until_ready()
    player.exchange("send", SOURCE, "a")
    for target in list_targets(folder):
        assert "shoal_broker_up" in player.exchange("scrape", f"http://{target}/metrics")
    player.kill("east.broker-0")
    assert player.probe("east.broker-0") is not None
    player.start("east.broker-0")
    player.wait_until_ready("east.broker-0")
    player.exchange("send", SOURCE, "b")
    assert player.exchange("read", SOURCE, "2").split() == ["a", "b"]
    assert set(player.end().values()) == {0}


@pytest.mark.long
def test_the_production_overlay_and_a_mirror_in_another_namespace(
    player: NamespacePlayer, tmp_path: Path
) -> None:
    east = generate("kubernetes", tmp_path / "files-east", "--name", "east")
    options = ("--name", "west", "--brokers", "1", "--mirror-source", SOURCE)
    west = generate("kubernetes", tmp_path / "files-west", *options)
    player.add(
        [
            *list_pods(build_kustomization(east / "overlays" / "production")),
            *list_pods(build_kustomization(west / "overlays" / "small")),
            *list_pods(build_kustomization(west / "mirror")),
        ]
    )
    player.start()
    player.wait_until_ready()
    player.exchange("send", SOURCE, "a")
    target = "broker-0.brokers.west.svc:9092"
    assert player.exchange("read", target, "1").split() == ["a"]
    for victim in ("east.broker-1", "east.controller-0", "west.mirror-0"):
        player.kill(victim)
        player.start(victim)
        player.wait_until_ready(victim)
    player.exchange("send", SOURCE, "b")
    assert player.exchange("read", target, "2").split() == ["a", "b"]
    for address in (*list_targets(east), *list_targets(west)):
        assert "shoal_" in player.exchange("scrape", f"http://{address}/metrics")
    assert set(player.end().values()) == {0}
