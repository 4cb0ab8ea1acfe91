"""DeleteTopics (20), versions 1 to 6.

Behaviour
- Each topic is deleted or refused by itself; when the answer is sent its files are gone.
- `delete.topic.enable=false` refuses all: TOPIC_DELETION_DISABLED.

Versions
- 4 flexible. 5 error messages. 6 topics by id (KIP-516): UNKNOWN_TOPIC_ID for one not known.
"""

from collections import Counter
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.requests import DeleteTopic
from shoal.wire.api_keys import ApiKey

_FIRST_VERSION_WITH_IDS = 6


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    if request.version >= _FIRST_VERSION_WITH_IDS:
        named = [(topic.name, topic.topic_id) for topic in body.topics]
    else:
        named = [(name, None) for name in body.topic_names]
    repeated = {one for one, count in Counter(named).items() if count > 1}
    responses = [await _deleted(core, *one) for one in named if one not in repeated]
    for name, topic_id in repeated:
        refused = Refused(Code.INVALID_REQUEST, "the topic is named more than once")
        responses.append(_refused(name, topic_id, refused))
    return request.answer(responses=responses)


async def _deleted(core: BrokerCore, name: str | None, topic_id: UUID | None) -> dict[str, Any]:
    try:
        return {"error_code": Code.NONE} | await _deleted_topic(core, name, topic_id)
    except Refused as refused:
        return _refused(name, topic_id, refused)


def _refused(name: str | None, topic_id: UUID | None, refused: Refused) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": refused.code,
        "error_message": str(refused),
    }


async def _deleted_topic(
    core: BrokerCore, name: str | None, topic_id: UUID | None
) -> dict[str, Any]:
    if not core.layers.flag("delete.topic.enable"):
        raise Refused(Code.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    if (name is None) == (topic_id is None):
        raise Refused(Code.INVALID_REQUEST, "a topic is named by its name or by its id")
    topic = core.topic(core.topic_name(topic_id) if name is None else name)
    await core.controller.submit(DeleteTopic(topic.topic_id))
    return {"name": topic.name, "topic_id": topic.topic_id}


API = register(ApiKey.DELETE_TOPICS, 1, 6, handle)
