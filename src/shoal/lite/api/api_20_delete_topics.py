"""DeleteTopics (20), versions 1 to 6.

Behaviour
- Each topic is deleted or refused separately; its files are gone when the response is sent.
- `delete.topic.enable=false` refuses all: TOPIC_DELETION_DISABLED.

Versions
- 4 flexible. 5 error messages. 6 topics by id (KIP-516): UNKNOWN_TOPIC_ID for an unknown id.
"""

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import DeleteTopic
from shoal.lite.metadata.data.state import Topic
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        DeleteTopicsRequest,
        DeleteTopicsResponse,
        DeleteTopicsResponseDeletableTopic,
    )

_FIRST_VERSION_WITH_IDS = 6


async def handle(
    core: BrokerCore, request: "ApiRequest[DeleteTopicsRequest, DeleteTopicsResponse]"
) -> Answer:
    body = request.body()
    if request.version >= _FIRST_VERSION_WITH_IDS:
        named = [(topic.name, topic.topic_id) for topic in body.topics]
    else:
        named = [(name, None) for name in body.topic_names]
    repeated = {one for one, count in Counter(named).items() if count > 1}
    responses = [await _delete_and_answer(core, *one) for one in named if one not in repeated]
    for name, topic_id in repeated:
        error = ApiError(Code.INVALID_REQUEST, "the request names the topic more than once")
        responses.append(_error_answer(name, topic_id, error))
    return request.answer({"responses": responses})


async def _delete_and_answer(
    core: BrokerCore, name: str | None, topic_id: UUID | None
) -> "DeleteTopicsResponseDeletableTopic":
    try:
        topic = await _delete_topic(core, name, topic_id)
    except ApiError as error:
        return _error_answer(name, topic_id, error)
    return {"error_code": Code.NONE, "name": topic.name, "topic_id": topic.topic_id}


def _error_answer(
    name: str | None, topic_id: UUID | None, error: ApiError
) -> "DeleteTopicsResponseDeletableTopic":
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": error.code,
        "error_message": str(error),
    }


async def _delete_topic(core: BrokerCore, name: str | None, topic_id: UUID | None) -> Topic:
    if not core.layers.flag("delete.topic.enable"):
        raise ApiError(
            Code.TOPIC_DELETION_DISABLED, "topics cannot be deleted: delete.topic.enable is false"
        )
    if (name is None) == (topic_id is None):
        raise ApiError(Code.INVALID_REQUEST, "a topic needs either a name or an id, not both")
    topic = core.topic(core.topic_name(topic_id) if name is None else name)
    await core.controller.submit(DeleteTopic(topic.topic_id))
    return topic


API = register(ApiKey.DELETE_TOPICS, 1, 6, handle)
