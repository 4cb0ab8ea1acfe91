"""CreateTopics (19), versions 2 to 7.

Behaviour
- Each topic is created or refused separately; the response is sent when the topics can be used.
- Partitions and replication factor of -1 mean the broker's defaults (KIP-464).
- Configs are checked by name and value: INVALID_CONFIG. A topic that is named twice in one
  request: INVALID_REQUEST.
- `validate_only` checks and changes nothing.

Versions
- 4 broker's defaults. 5 flexible; the response has partitions, replication factor and configs
  (KIP-525). 7 topic ids (KIP-516).
"""

import uuid
from collections import Counter
from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.settings import TOPIC_SETTINGS
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import NewTopicSpec
from shoal.lite.metadata.rules.commands import create_topic
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        CreateTopicsRequest,
        CreateTopicsRequestCreatableTopic,
        CreateTopicsResponse,
        CreateTopicsResponseCreatableTopic,
    )

_DEFAULT = -1


async def handle(
    core: BrokerCore, request: "ApiRequest[CreateTopicsRequest, CreateTopicsResponse]"
) -> Answer:
    body = request.body()
    mentions = Counter(topic.name for topic in body.topics)
    topics = []
    for name, count in mentions.items():
        if count > 1:
            message = f"topic {name!r} is named {count} times in the request"
            topics.append(_error_answer(name, ApiError(Code.INVALID_REQUEST, message)))
            continue
        requested = next(topic for topic in body.topics if topic.name == name)
        try:
            topics.append(await _create_topic(core, requested, validate_only=body.validate_only))
        except ApiError as error:
            topics.append(_error_answer(name, error))
    return request.answer({"topics": topics})


async def _create_topic(
    core: BrokerCore, requested: "CreateTopicsRequestCreatableTopic", *, validate_only: bool
) -> "CreateTopicsResponseCreatableTopic":
    new_topic = _parse_new_topic(core, requested)
    if validate_only:
        topic_id = uuid.uuid4()
        create_topic(core.state, new_topic, topic_id)
        partitions = len(new_topic.assignments) or new_topic.partitions
    else:
        topic = await core.create_topic(new_topic)
        topic_id = topic.topic_id
        partitions = len(topic.partitions)
    overrides = {name: value for name, value in new_topic.configs.items() if value is not None}
    return {
        "name": new_topic.name,
        "topic_id": topic_id,
        "error_code": Code.NONE,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": len(new_topic.assignments.get(0, ())) or new_topic.replication_factor,
        "configs": [
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": source,
                "is_sensitive": False,
            }
            for name, setting in TOPIC_SETTINGS.items()
            if not setting.is_hidden
            for value, source in [core.layers.topic_value(name, overrides)]
        ],
    }


def _parse_new_topic(
    core: BrokerCore, requested: "CreateTopicsRequestCreatableTopic"
) -> NewTopicSpec:
    partitions, factor = requested.num_partitions, requested.replication_factor
    assignments = {item.partition_index: item.broker_ids for item in requested.assignments}
    if len(assignments) < len(requested.assignments):
        message = "a partition has several assignments of replicas"
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, message)
    if assignments and (partitions, factor) != (_DEFAULT, _DEFAULT):
        message = "partitions and replication factor must both be -1 if replicas are assigned"
        raise ApiError(Code.INVALID_REQUEST, message)
    return NewTopicSpec(
        requested.name,
        core.layers.integer("num.partitions") if partitions == _DEFAULT else partitions,
        core.layers.integer("default.replication.factor") if factor == _DEFAULT else factor,
        assignments,
        {config.name: config.value for config in requested.configs},
    )


def _error_answer(name: str, error: ApiError) -> "CreateTopicsResponseCreatableTopic":
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": str(error),
        "configs": [],
    }


API = register(ApiKey.CREATE_TOPICS, 2, 7, handle)
