"""Finds which target topics are copies made by shoal mirrors, and of which source topics.

All checkpoint topics of the target are read, so the caller need not know the name of the mirror
that copied a topic.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.mirror.offsets.checkpoints import PREFIX, Checkpoint, CheckpointTopic
from shoal.mirror.routes import Route
from shoal.mirror.watch.generations import has_other_id
from shoal.model.errors import ConfigError

_log = logging.getLogger(__name__)


class Copy(NamedTuple):
    """What the checkpoint of a mirror says about a target partition."""

    target_start: int  # where the current generation begins
    is_of_former_source: bool  # the copied source topic no longer exists
    source_start: int = -1  # the source offset at which the copy began; -1 if unknown


async def find_copies(source: Client, target: Client, routes: Iterable[Route]) -> dict[Route, Copy]:
    """Find the copies among these routes; routes that no mirror wrote are left out."""
    wanted = {route.target: route for route in routes}
    copies: dict[Route, Copy] = {}
    topics = (await target.with_retries(target.metadata)).topics
    for name in topics:
        if not name.startswith(PREFIX) or name == PREFIX:
            continue
        try:
            found = await CheckpointTopic(target, name.removeprefix(PREFIX)).read()
        except (ClientError, ConfigError) as error:
            _log.warning("cannot read the checkpoints of topic %s: %s", name, error)
            continue
        for tp, checkpoint in found.items():
            route = wanted.get(tp)
            if route is not None and is_about(checkpoint, route, source, target):
                source_id = topic_id(source, route.source.topic)
                is_former = has_other_id(checkpoint.source_topic_id, source_id)
                begun = checkpoint.generation_target_offset, is_former, checkpoint.began_at
                copies[route] = Copy(*begun)
    return copies


def is_about(checkpoint: Checkpoint, route: Route, source: Client, target: Client) -> bool:
    """Whether a checkpoint belongs to a route: same target topic id, source cluster and name."""
    return (
        not has_other_id(checkpoint.target_topic_id, topic_id(target, route.target.topic))
        and checkpoint.source_cluster == source.cluster.cluster_id
        and (checkpoint.source_topic or route.target.topic) == route.source.topic
    )


def topic_id(client: Client, topic: str) -> str | None:
    """The id of a topic; None on clusters without topic ids."""
    known = client.cluster.topics.get(topic)
    return None if known is None or known.topic_id is None else str(known.topic_id)
