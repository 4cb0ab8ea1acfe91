"""The identity of a broker's data folder: Apache Kafka's `meta.properties`.

A broker must not use the folder of another cluster or broker: its own metadata would not contain
those partitions, and it would delete them.
"""

from pathlib import Path
from uuid import UUID

from shoal.lite.partitions.log_opening import kafka_uuid
from shoal.lite.storage.files import replace_file
from shoal.model.errors import SystemFailure

META_NAME = "meta.properties"


def check_identity(folder: Path, cluster_id: str, broker_id: int) -> None:
    """Raise `SystemFailure` if the folder belongs to another cluster or broker."""
    path = folder / META_NAME
    if not path.exists():
        return
    lines = path.read_text().split("\n")
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    wanted = {"cluster.id": cluster_id, "node.id": str(broker_id)}
    for name, what in (("cluster.id", "cluster"), ("node.id", "broker")):
        if found.get(name) != wanted[name]:
            raise SystemFailure(
                f"{folder} belongs to {what} {found.get(name)}, not to {wanted[name]}",
                remedy="use the folder of this broker, or an empty one",
            )


def write_identity(folder: Path, cluster_id: str, broker_id: int, directory_id: UUID) -> None:
    """Write `meta.properties` if it does not exist."""
    path = folder / META_NAME
    if not path.exists():
        lines = [
            "version=1",
            f"cluster.id={cluster_id}",
            f"node.id={broker_id}",
            f"directory.id={kafka_uuid(directory_id)}",
            "",
        ]
        replace_file(path, "\n".join(lines).encode(), durable=False)
