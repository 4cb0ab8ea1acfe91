"""How single nodes are named and found."""

import json
import os
from pathlib import Path

import pytest

from shoal.control.clusters import find_entry, list_entries, open_cluster
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.nodes.node_events import NodeView, list_nodes, write_node_events
from shoal.model.errors import UsageError
from shoal.systems.registry import check_name
from shoal.telemetry.discovery import find_sources, node_file


def view_of(cluster_id: str, folder: Path) -> NodeView:
    return NodeView("broker", 7, cluster_id, folder, "h:9092", (), ClusterState, lambda: None)


@pytest.mark.parametrize("cluster_id", ["east", "../../etc", "-x", "_", "y" * 200, "a b/c"])
def test_a_node_has_a_name_that_is_a_file_and_ends_with_its_id(
    cluster_id: str, tmp_path: Path
) -> None:
    name = view_of(cluster_id, tmp_path).name
    assert check_name(name) == name
    assert name.endswith("-broker-7")


async def test_a_node_is_found_and_one_whose_folder_is_gone_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    gone = node_file("gone-broker-1")
    gone.parent.mkdir(parents=True)
    gone.write_text(json.dumps({"name": "gone-broker-1", "directory": str(tmp_path / "none")}))
    (gone.parent / "odd.json").write_text("[]")
    view = view_of("east", tmp_path / "b7")
    async with write_node_events(view):
        (found,) = find_sources(tmp_path / "runs")
        assert (found.name, found.is_alive) == ("east-broker-7", True)
        opened = open_cluster("cluster:east-broker-7", None)
        assert [(node.id, node.pid) for node in opened.nodes()] == [(7, os.getpid())]
        assert [node.id for node in list_nodes(view)] == [7]
        assert [entry.name for entry in list_entries()] == ["east-broker-7"]
        assert find_entry("east-broker-7").owner.pid == os.getpid()
    assert not gone.exists()
    for name in ("east-broker-7", "odd", "gone-broker-1"):
        node_file("odd").write_text('{"directory": 1}')
        if name != "east-broker-7":
            with pytest.raises(UsageError):
                open_cluster(f"cluster:{name}", None)


async def test_a_node_runs_without_a_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    async with write_node_events(view_of("east", tmp_path / "b7")):
        pass
    assert "shoal serve will not find this node" in caplog.text
    assert (tmp_path / "b7" / "events.jsonl").exists()
