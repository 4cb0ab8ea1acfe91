"""AlterReplicaLogDirs (34), versions 1 to 2 (KIP-113).

Behaviour
- A broker has one folder. To move a replica there changes nothing; any other is not known:
  LOG_DIR_NOT_FOUND.

Versions
- 2 flexible.
"""

from pathlib import Path

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.wire.api_keys import ApiKey


def handle(core: BrokerCore, request: Request) -> Answer:
    return request.answer(
        results=[
            {
                "topic_name": topic.name,
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": _moved(core, folder.path, topic.name, index),
                    }
                    for index in topic.partitions
                ],
            }
            for folder in request.body().dirs
            for topic in folder.topics
        ]
    )


def _moved(core: BrokerCore, folder: str, topic: str, index: int) -> Code:
    if Path(folder) != core.spec.path:
        return Code.LOG_DIR_NOT_FOUND
    try:
        core.partition(topic, index)
    except Refused as refused:
        return refused.code
    return Code.NONE


API = register(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, handle)
