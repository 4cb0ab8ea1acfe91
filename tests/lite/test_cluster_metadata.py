"""Folders of clusters that have lost their metadata, and disks that take no more of it."""

import json
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure, UnreachableError, UsageError
from support.lite.batches import batch_of
from support.lite.client import HungUp, PlainClient
from support.lite.clusters import eventually


@pytest.mark.parametrize("controllers", [None, 3])
def test_a_folder_without_its_metadata_is_not_begun_anew(
    tmp_path: Path, controllers: int | None
) -> None:
    with LiteCluster(directory=tmp_path / "c", controllers=controllers) as cluster:
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("t")
            assert client.produce("t", batch_of(b"a")).error_code == 0
        [data] = cluster.log_dirs().values()
    for folder in (*tmp_path.glob("c/metadata"), *tmp_path.glob("c/controller-*/")):
        shutil.rmtree(folder)
    with pytest.raises(SystemFailure, match=r"metadata of the cluster in .* is missing"):
        LiteCluster(directory=tmp_path / "c").start()
    assert list(data.glob("t-0/*.log"))


def test_ids_of_brokers_end_before_those_of_controllers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 to 99"):
        LiteCluster(brokers=100)
    with LiteCluster(directory=tmp_path / "c"):
        pass
    description = tmp_path / "c" / "cluster.json"
    description.write_text(description.read_text().replace('"1":', '"99":'))
    (tmp_path / "c" / "broker-1").rename(tmp_path / "c" / "broker-99")
    (tmp_path / "c" / "broker-99" / "meta.properties").unlink()
    with LiteCluster(directory=tmp_path / "c") as cluster:
        assert cluster.add().id == 1


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
def test_without_a_disk_for_its_metadata_a_cluster_ends(tmp_path: Path) -> None:
    """The controller has failed for good: nobody would elect leaders any more."""
    with LiteCluster(directory=tmp_path / "c") as cluster:
        supervisor = json.loads((tmp_path / "c" / "supervisor.json").read_text())["pid"]
        metadata = max(f.stat().st_size for f in tmp_path.glob("c/metadata/*/*.log"))
        resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (metadata, metadata))
        with PlainClient(cluster.bootstrap) as client, suppress(HungUp):
            client.create_topic("t", 100)
        eventually(lambda: psutil.Process(supervisor).status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(UnreachableError, match="has ended, and all nodes with it"):
            cluster.check_supervisor()
    assert "File too large" in (tmp_path / "c" / "supervisor.log").read_text()
