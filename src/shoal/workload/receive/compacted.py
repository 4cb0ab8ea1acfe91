"""Which topics are compacted: there a record goes when a later one of its key has come."""

import logging
from collections.abc import Iterable

from shoal.client.admin import Resource, ResourceType
from shoal.client.client import Client
from shoal.model.errors import ClientError

_CLEANUP = "cleanup.policy"
_log = logging.getLogger(__name__)


async def compacted_topics(client: Client, topics: Iterable[str]) -> set[str]:
    """Topics whose records may be superseded; one whose settings we may not see counts as not."""
    found = set()
    for topic in topics:
        resource = Resource(ResourceType.TOPIC, topic)
        try:
            told = await client.admin.describe_configs([resource], names=[_CLEANUP])
        except ClientError as error:
            _log.warning("whether topic %s is compacted is not known: %s", topic, error)
            continue
        entry = told[resource].get(_CLEANUP)
        if entry is not None and "compact" in (entry.value or ""):
            found.add(topic)
    return found
