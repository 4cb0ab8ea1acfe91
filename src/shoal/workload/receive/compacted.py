"""Finds compacted topics, where a later record of the same key supersedes an earlier one."""

import logging
from collections.abc import Iterable

from shoal.client.admin import Resource, ResourceType
from shoal.client.client import Client
from shoal.model.errors import ClientError

_CLEANUP = "cleanup.policy"
_log = logging.getLogger(__name__)


async def find_compacted_topics(client: Client, topics: Iterable[str]) -> set[str]:
    """The compacted ones of `topics`; a topic whose settings cannot be read counts as not."""
    found = set()
    for topic in topics:
        resource = Resource(ResourceType.TOPIC, topic)
        try:
            configs = await client.admin.describe_configs([resource], names=[_CLEANUP])
        except ClientError as error:
            _log.warning(
                "cannot find out whether topic %s is compacted, assuming not: %s", topic, error
            )
            continue
        entry = configs[resource].get(_CLEANUP)
        if entry is not None and "compact" in (entry.value or ""):
            found.add(topic)
    return found
