"""ListGroups (16), versions 0 to 5.

Behaviour
- The groups that this broker coordinates; clients ask all brokers. While it loads some of them:
  COORDINATOR_LOAD_IN_PROGRESS.
- Filters by state and type ignore case; unknown values match nothing. All groups are of the
  classic type.

Versions
- 3 flexible. 4 states (KIP-518). 5 types (KIP-848).
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import (
        ListGroupsRequest,
        ListGroupsResponse,
        ListGroupsResponseListedGroup,
    )

_CLASSIC = "classic"


def handle(
    core: BrokerCore, request: "ApiRequest[ListGroupsRequest, ListGroupsResponse]"
) -> Answer:
    if core.groups.is_loading:
        return request.answer({"error_code": Code.COORDINATOR_LOAD_IN_PROGRESS, "groups": []})
    body = request.body()
    states = {state.lower() for state in body.states_filter} if request.version >= 4 else set()
    types = {kind.lower() for kind in body.types_filter} if request.version >= 5 else set()
    groups: list[ListGroupsResponseListedGroup] = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type or "",
            "group_state": group.state,
            "group_type": _CLASSIC,
        }
        for shard in core.groups.active_shards()
        for group in shard.groups()
        if (not states or group.state.lower() in states) and (not types or _CLASSIC in types)
    ]
    return request.answer({"error_code": Code.NONE, "groups": groups})


API = register(ApiKey.LIST_GROUPS, 0, 5, handle)
