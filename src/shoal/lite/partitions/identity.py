"""What a broker's folder says about whose it is: Apache Kafka's `meta.properties`.

A folder of another cluster, or of another broker, must not be used: the metadata would know
nothing of what is in it, and it would be removed.
"""

from pathlib import Path
from uuid import UUID

from shoal.lite.partitions.log_opening import kafka_uuid
from shoal.lite.storage.files import replace_file
from shoal.model.errors import SystemFailure

META_NAME = "meta.properties"


def check_identity(folder: Path, cluster_id: str, broker_id: int) -> None:
    """Refuse a folder that belongs to somebody else."""
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
                remedy="name the folder of this broker, or an empty one",
            )


def sign(folder: Path, cluster_id: str, broker_id: int, directory_id: UUID) -> None:
    """Write down whose folder this is, if that is not known yet."""
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
