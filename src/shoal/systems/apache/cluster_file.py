"""`cluster.json` in the folder of an Apache Kafka cluster: what stays the same at the next start.

Rules: the file has a format version. One without a version was written before there was one, and
has the same fields. Another version, another engine and a damaged file are refused: a cluster that
starts with other ids would not find its data.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.model.errors import ConfigError

FORMAT: Final = 1
ENGINE: Final = "apache"
_NAME: Final = "cluster.json"


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The id of the cluster, and the ports of each node."""

    version: str  # of Apache Kafka
    cluster_id: str
    ports: Sequence[Sequence[int]]

    def write(self, folder: Path) -> None:
        content = {
            "format": FORMAT,
            "engine": ENGINE,
            "version": self.version,
            "cluster_id": self.cluster_id,
            "ports": [list(ports) for ports in self.ports],
        }
        (folder / _NAME).write_text(json.dumps(content, indent=2))


def read_cluster_file(folder: Path) -> ClusterFile | None:
    """The file of a folder; None if the folder has none."""
    file = folder / _NAME
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise _describe_damage(file, str(error)) from error
    if not isinstance(content, dict):
        raise _describe_damage(file, "it is not a JSON object")
    engine = content.get("engine", "lite" if "profile" in content else None)
    if engine != ENGINE:
        raise ConfigError(
            f"{folder} holds a cluster of the engine {engine!r:.40}, not of {ENGINE}",
            remedy="name another folder, or use that engine",
        )
    if content.get("format", FORMAT) != FORMAT:
        raise ConfigError(
            f"{file} has format {content['format']!r:.40}; this version of shoal reads {FORMAT}",
            remedy="start the cluster with the version of shoal that wrote it, or name another"
            " folder",
        )
    return _check(file, content)


def _check(file: Path, content: dict[str, Any]) -> ClusterFile:
    match content:
        case {"version": str(version), "cluster_id": str(cluster_id), "ports": list(ports)}:
            if all(isinstance(row, list) and all(type(p) is int for p in row) for row in ports):
                return ClusterFile(version, cluster_id, ports)
    raise _describe_damage(file, "version, cluster_id or ports is missing or has another type")


def _describe_damage(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} cannot be read: {why}", remedy="restore the file, or name another folder"
    )
