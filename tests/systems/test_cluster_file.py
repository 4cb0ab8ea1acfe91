"""`cluster.json` of an Apache Kafka cluster: versions, other engines, damage."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.model.errors import ConfigError
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.apache.cluster_file import ClusterFile, read_cluster_file

STORED = {"engine": "apache", "version": "4.3.1", "cluster_id": "abc", "ports": [[1, 2, 3]]}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_cluster_file(tmp_path) is None
    written = ClusterFile("4.3.1", "abc", [[1, 2, 3], [4, 5, 6]])
    written.write(tmp_path)
    assert read_cluster_file(tmp_path) == written
    assert json.loads((tmp_path / "cluster.json").read_text())["format"] == 1


def test_a_file_from_before_there_was_a_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(STORED))
    assert read_cluster_file(tmp_path) == ClusterFile("4.3.1", "abc", [[1, 2, 3]])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({**STORED, "format": 99}, "has format 99; this version of shoal reads 1"),
        ({**STORED, "format": "1"}, "has format '1'"),
        ({**STORED, "engine": "lite"}, "engine 'lite', not of apache"),
        ({"format": 3, "profile": "default", "ports": {"1": 9092}}, "engine 'lite'"),
        ({"format": 1}, "engine None"),
        ({k: v for k, v in STORED.items() if k != "cluster_id"}, "cluster_id"),
        ({**STORED, "ports": [["a"]]}, "ports"),
        ([], "not a JSON object"),
        ("{", "cannot be read"),
    ],
)
def test_other_files_are_refused_before_anything_starts(
    tmp_path: Path, content: Any, reason: str
) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    before = file.read_bytes()
    cluster = ApacheCluster(directory=tmp_path)
    cluster._directory = tmp_path
    with pytest.raises(ConfigError, match=reason) as refused:
        cluster._load_or_plan()
    assert refused.value.remedy
    assert file.read_bytes() == before
