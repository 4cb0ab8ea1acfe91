"""DeleteGroups (42), versions 0 to 2.

Behaviour
- Deletes a group without members, with all its offsets: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND for
  each group separately. The response is sent when the deletion is on all in-sync replicas.

Versions
- 2 flexible.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import (
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DeleteGroupsResponseDeletableGroup,
    )


async def handle(
    core: BrokerCore, request: "ApiRequest[DeleteGroupsRequest, DeleteGroupsResponse]"
) -> Answer:
    results: list[DeleteGroupsResponseDeletableGroup] = []
    for group_id in request.body().groups_names:
        code = Code.NONE
        try:
            await core.groups.shard_for(group_id).delete(group_id)
        except ApiError as error:
            code = error.code
        results.append({"group_id": group_id, "error_code": code})
    return request.answer({"results": results})


API = register(ApiKey.DELETE_GROUPS, 0, 2, handle)
