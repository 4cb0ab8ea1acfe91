"""CreateTopics (19), versions 2 to 7.

Behaviour
- Each topic is made or refused by itself; the answer is sent when it can be used.
- Partitions and replication factor of -1 mean the broker's defaults (KIP-464).
- Settings are checked by name and value: INVALID_CONFIG. A name twice in one request:
  INVALID_REQUEST for all of its mentions.
- `validate_only` checks and changes nothing.

Versions
- 4 broker's defaults. 5 flexible; the answer tells partitions, replication factor and settings
  (KIP-525). 7 topic ids (KIP-516).
"""

import uuid
from collections import Counter
from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.settings import TOPIC_SETTINGS
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.requests import NewTopic
from shoal.lite.metadata.rules.commands import create_topic
from shoal.wire.api_keys import ApiKey

_DEFAULT = -1


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    mentions = Counter(topic.name for topic in body.topics)
    topics = []
    for name, count in mentions.items():
        if count > 1:
            message = f"topic {name!r} is named {count} times"
            topics.append(_refused(name, Refused(Code.INVALID_REQUEST, message)))
            continue
        wish = next(topic for topic in body.topics if topic.name == name)
        try:
            topics.append(await _created(core, wish, validate_only=body.validate_only))
        except Refused as refused:
            topics.append(_refused(name, refused))
    return request.answer(topics=topics)


async def _created(core: BrokerCore, asked: Any, *, validate_only: bool) -> dict[str, Any]:
    wish = _wish(core, asked)
    if validate_only:
        topic_id = uuid.uuid4()
        create_topic(core.state, wish, topic_id)
        partitions = len(wish.assignments) or wish.partitions
    else:
        topic = await core.create_topic(wish)
        topic_id = topic.topic_id
        partitions = len(topic.partitions)
    overrides = {name: value for name, value in wish.configs.items() if value is not None}
    return {
        "name": wish.name,
        "topic_id": topic_id,
        "error_code": Code.NONE,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": len(wish.assignments.get(0, ())) or wish.replication_factor,
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


def _wish(core: BrokerCore, asked: Any) -> NewTopic:
    partitions, factor = asked.num_partitions, asked.replication_factor
    assignments = {item.partition_index: item.broker_ids for item in asked.assignments}
    if assignments and (partitions, factor) != (_DEFAULT, _DEFAULT):
        message = "with assignments, partitions and replication factor must both be -1"
        raise Refused(Code.INVALID_REQUEST, message)
    return NewTopic(
        asked.name,
        core.layers.integer("num.partitions") if partitions == _DEFAULT else partitions,
        core.layers.integer("default.replication.factor") if factor == _DEFAULT else factor,
        assignments,
        {config.name: config.value for config in asked.configs},
    )


def _refused(name: str, refused: Refused) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": refused.code,
        "error_message": str(refused),
        "configs": [],
    }


API = register(ApiKey.CREATE_TOPICS, 2, 7, handle)
