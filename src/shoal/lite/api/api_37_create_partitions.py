"""CreatePartitions (37), versions 0 to 3 (KIP-195).

Behaviour
- Grows each topic to the requested number of partitions, or refuses it separately. A number that
  is not larger: INVALID_PARTITIONS.
- `validate_only` checks and changes nothing.

Versions
- 2 flexible. 3 the client knows THROTTLING_QUOTA_EXCEEDED, which is never sent.
"""

from collections import Counter
from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import CreatePartitions
from shoal.lite.metadata.rules.commands import create_partitions
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        CreatePartitionsRequest,
        CreatePartitionsRequestTopic,
        CreatePartitionsResponse,
        CreatePartitionsResponseTopic,
    )


async def handle(
    core: BrokerCore, request: "ApiRequest[CreatePartitionsRequest, CreatePartitionsResponse]"
) -> Answer:
    body = request.body()
    mentions = Counter(topic.name for topic in body.topics)
    results = [
        await _grow_topic(core, topic, validate_only=body.validate_only)
        for topic in body.topics
        if mentions[topic.name] == 1
    ]
    results += [
        {
            "name": name,
            "error_code": Code.INVALID_REQUEST,
            "error_message": "Duplicate topic name.",
        }
        for name, count in mentions.items()
        if count > 1
    ]
    return request.answer({"results": results})


async def _grow_topic(
    core: BrokerCore, topic: "CreatePartitionsRequestTopic", *, validate_only: bool
) -> "CreatePartitionsResponseTopic":
    assignments = None
    if topic.assignments is not None:
        assignments = [item.broker_ids for item in topic.assignments]
    answer: CreatePartitionsResponseTopic = {"name": topic.name, "error_code": Code.NONE}
    try:
        if validate_only:
            create_partitions(core.state, topic.name, topic.count, assignments)
        else:
            request = CreatePartitions(topic.name, topic.count, assignments)
            await core.controller.submit(request)
    except ApiError as error:
        answer |= {"error_code": error.code, "error_message": str(error)}
    return answer


API = register(ApiKey.CREATE_PARTITIONS, 0, 3, handle)
