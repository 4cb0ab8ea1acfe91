"""DescribeLogDirs (35), versions 1 to 5 (KIP-113).

Behaviour
- The broker's one folder, the disk's size and room, and the size of each replica there, or of
  those that are named. How far a follower's end lies behind the high watermark is its lag.

Versions
- 2 flexible. 3 an error for the whole. 4 sizes of disks (KIP-827). 5 cordoned folders: none.
"""

import shutil
from collections.abc import Iterable
from typing import Any

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.partitions.partition import Partition
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey


def handle(core: BrokerCore, request: Request) -> Answer:
    wanted = request.body().topics
    replicas = core.replicas.partitions
    if wanted is None:
        found: Iterable[TopicPartition] = sorted(replicas)
    else:
        named = [TopicPartition(item.topic, index) for item in wanted for index in item.partitions]
        found = [key for key in named if key in replicas]
    topics: dict[str, list[dict[str, Any]]] = {}
    for key in found:
        topics.setdefault(key.topic, []).append(_described(replicas[key]))
    disk = shutil.disk_usage(core.spec.path)
    return request.answer(
        error_code=Code.NONE,
        results=[
            {
                "error_code": Code.NONE,
                "log_dir": str(core.spec.path),
                "topics": [{"name": name, "partitions": told} for name, told in topics.items()],
                "total_bytes": disk.total,
                "usable_bytes": disk.free,
            }
        ],
    )


def _described(partition: Partition) -> dict[str, Any]:
    return {
        "partition_index": partition.record.partition,
        "partition_size": partition.log.size_bytes,
        "offset_lag": max(0, partition.high_watermark - partition.log.end_offset),
        "is_future_key": False,
    }


API = register(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, handle)
