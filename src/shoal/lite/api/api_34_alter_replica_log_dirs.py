"""AlterReplicaLogDirs (34), versions 1 to 2 (KIP-113).

Behaviour
- A broker has one log directory. Moving a replica to it changes nothing; any other is unknown:
  LOG_DIR_NOT_FOUND.

Versions
- 2 flexible.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse


def handle(
    core: BrokerCore, request: "ApiRequest[AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse]"
) -> Answer:
    return request.answer(
        {
            "results": [
                {
                    "topic_name": topic.name,
                    "partitions": [
                        {
                            "partition_index": index,
                            "error_code": _check_move(core, folder.path, topic.name, index),
                        }
                        for index in topic.partitions
                    ],
                }
                for folder in request.body().dirs
                for topic in folder.topics
            ]
        }
    )


def _check_move(core: BrokerCore, folder: str, topic: str, index: int) -> Code:
    if Path(folder) != core.spec.path:
        return Code.LOG_DIR_NOT_FOUND
    try:
        core.partition(topic, index)
    except ApiError as error:
        return error.code
    return Code.NONE


API = register(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, handle)
