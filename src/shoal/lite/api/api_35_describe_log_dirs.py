"""DescribeLogDirs (35), versions 1 to 5 (KIP-113).

Behaviour
- The one log directory of the broker, the total and free bytes of its disk, and the size of all
  replicas or of the named ones. The offset lag of a follower is the high watermark minus its log
  end offset.

Versions
- 2 flexible. 3 a top-level error. 4 sizes of disks (KIP-827). 5 cordoned directories: none.
"""

import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.partitions.partition import Partition
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
        DescribeLogDirsResponsePartition,
    )


def handle(
    core: BrokerCore, request: "ApiRequest[DescribeLogDirsRequest, DescribeLogDirsResponse]"
) -> Answer:
    wanted = request.body().topics
    replicas = core.replicas.partitions
    if wanted is None:
        found: Iterable[TopicPartition] = sorted(replicas)
    else:
        named = [TopicPartition(item.topic, index) for item in wanted for index in item.partitions]
        found = [key for key in named if key in replicas]
    topics: dict[str, list[DescribeLogDirsResponsePartition]] = {}
    for key in found:
        topics.setdefault(key.topic, []).append(_describe_replica(replicas[key]))
    disk = shutil.disk_usage(core.spec.path)
    return request.answer(
        {
            "error_code": Code.NONE,
            "results": [
                {
                    "error_code": Code.NONE,
                    "log_dir": str(core.spec.path),
                    "topics": [
                        {"name": name, "partitions": partitions}
                        for name, partitions in topics.items()
                    ],
                    "total_bytes": disk.total,
                    "usable_bytes": disk.free,
                }
            ],
        }
    )


def _describe_replica(partition: Partition) -> "DescribeLogDirsResponsePartition":
    return {
        "partition_index": partition.record.partition,
        "partition_size": partition.log.size_bytes,
        "offset_lag": max(0, partition.high_watermark - partition.log.end_offset),
        "is_future_key": False,
    }


API = register(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, handle)
