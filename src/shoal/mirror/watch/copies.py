"""Which topics of a target are copies by mirrors of this project, and of which source topics.

What mirrors wrote down about target partitions is found by looking through all checkpoint topics
of the target: whoever compares need not know under which name a topic was mirrored.
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
    """What a mirror says about a target partition."""

    target_start: int  # where the present generation begins
    is_of_former_source: bool  # the source topic that was copied is gone


async def find_copies(source: Client, target: Client, routes: Iterable[Route]) -> dict[Route, Copy]:
    """What mirrors say about these target partitions; nothing where no mirror wrote."""
    wanted = {route.target: route for route in routes}
    copies: dict[Route, Copy] = {}
    topics = (await target.retrying(target.metadata)).topics
    for name in topics:
        if not name.startswith(PREFIX) or name == PREFIX:
            continue
        try:
            found = await CheckpointTopic(target, name.removeprefix(PREFIX)).read()
        except (ClientError, ConfigError) as error:
            _log.warning("what %s says about generations cannot be read: %s", name, error)
            continue
        for tp, checkpoint in found.items():
            route = wanted.get(tp)
            if route is not None and is_about(checkpoint, route, source, target):
                source_id = topic_id(source, route.source.topic)
                is_former = has_other_id(checkpoint.source_topic_id, source_id)
                copies[route] = Copy(checkpoint.generation_target_offset, is_former)
    return copies


def is_about(checkpoint: Checkpoint, route: Route, source: Client, target: Client) -> bool:
    """Whether a checkpoint is of this copy: of the same target topic, source cluster and name."""
    return (
        not has_other_id(checkpoint.target_topic_id, topic_id(target, route.target.topic))
        and checkpoint.source_cluster == source.cluster.cluster_id
        and (checkpoint.source_topic or route.target.topic) == route.source.topic
    )


def topic_id(client: Client, topic: str) -> str | None:
    """The topic's id, on clusters that have ids."""
    known = client.cluster.topics.get(topic)
    return None if known is None or known.topic_id is None else str(known.topic_id)
