"""Kafka Lite behind the interface that all engines share."""

import pytest

from shoal.model.errors import ConfigError
from shoal.systems.clusters import make_cluster
from shoal.systems.probe import ask_metadata


def test_it_is_a_cluster_like_any_other() -> None:
    with make_cluster("lite", name="small") as cluster:
        assert (cluster.engine, cluster.name) == ("lite", "small")
        (node,) = cluster.nodes()
        assert cluster.bootstrap == f"{node.host}:{node.port}"
        view = ask_metadata(node.host, node.port)
        assert view is not None
        assert view.broker_ids == {node.id}
        assert view.controller_id >= 0
        cluster.kill(node.id)
        assert [down.pid for down in cluster.nodes()] == [0]
        assert ask_metadata(node.host, node.port) is None
        cluster.restart(node.id)
        (again,) = cluster.nodes()
        assert (again.port, again.pid not in (0, node.pid)) == (node.port, True)
        cluster.pause(node.id)
        assert ask_metadata(node.host, node.port, timeout_s=0.3) is None
        cluster.resume(node.id)
        assert ask_metadata(node.host, node.port) is not None
        assert set(cluster.log_dirs() or {}) == {node.id}


def test_it_has_no_versions() -> None:
    with pytest.raises(ConfigError, match="only one version"):
        make_cluster("lite", version="4.3.1")
