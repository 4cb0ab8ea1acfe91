"""Lists the groups of a cluster, of all protocols, and whether they have members."""

import asyncio
from typing import Final, NamedTuple

from shoal.client.cluster.router import Core
from shoal.client.errors import error_for
from shoal.wire.api_keys import ApiKey

_WITHOUT_MEMBERS: Final = frozenset({"empty", "dead"})


class GroupListing(NamedTuple):
    """One group; `state` is empty if an old broker does not report it."""

    group_id: str
    protocol_type: str
    state: str

    @property
    def is_active(self) -> bool:
        return bool(self.state) and self.state.lower() not in _WITHOUT_MEMBERS


async def list_groups(core: Core) -> dict[str, GroupListing]:
    """List all groups: each broker reports those that it coordinates."""

    async def attempt() -> dict[str, GroupListing]:
        cluster = await core.metadata((), refresh=True)
        answers = await asyncio.gather(*(_groups_of(core, node) for node in cluster.brokers))
        return {group.group_id: group for groups in answers for group in groups}

    return await core.with_retries(attempt)


async def _groups_of(core: Core, node_id: int) -> list[GroupListing]:
    values = {"states_filter": (), "types_filter": ()}
    response = await core.call(ApiKey.LIST_GROUPS, values, node_id=node_id)
    if response.error_code:
        raise error_for(int(response.error_code))
    return [
        GroupListing(
            str(group.group_id), str(group.protocol_type), str(getattr(group, "group_state", ""))
        )
        for group in response.groups
    ]
