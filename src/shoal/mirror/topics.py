"""Before the first batch: which partitions there are, and a target to write to.

Rules:
- A target topic that is missing is made with the source's partition count and those of its
  configs that decide what fits in and how long it stays. `compression.type` and
  `message.timestamp.type` stay the target's own: only then a batch keeps its bytes and its
  timestamps.
- A target topic that is there must have as many partitions at least, and be empty or written
  by this mirror (`shoal.mirror.resume` tells).
- Nothing is made before everything that can be checked has been checked.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from shoal.client.admin import NewTopic, Resource, ResourceType
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import UnsupportedByBroker, error_for
from shoal.model.errors import ConfigError, UsageError
from shoal.model.topics import TopicPartition

COPIED_CONFIGS: Final = (
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "retention.bytes",
    "retention.ms",
)

_log = logging.getLogger(__name__)


CheckTarget = Callable[[list[TopicPartition]], Awaitable[None]]


async def prepare_topics(
    source: Client, target: Client, topics: Iterable[str], check: CheckTarget
) -> list[TopicPartition]:
    """Make or check the target's topics; returns the partitions to copy.

    `check` is asked about those partitions that are there already.
    """
    names = list(topics)
    partitions = await _source_partitions(source, names)
    there = await _target_partitions(target, names)
    for name, count in there.items():
        if count < len(partitions[name]):
            raise ConfigError(
                f"the target's topic {name} has {count} partitions, "
                f"the source's has {len(partitions[name])}",
                remedy="add partitions to it, or delete it and let the mirror make it",
            )
    if there:
        await check([tp for name in there for tp in partitions[name]])
    missing = [name for name in names if name not in there]
    if missing:
        await _create(source, target, {name: len(partitions[name]) for name in missing})
        await _await_topics(target, missing)
    return [tp for name in names for tp in partitions[name]]


async def _source_partitions(source: Client, names: list[str]) -> dict[str, list[TopicPartition]]:
    cluster = await source.metadata(names, refresh=True)
    for name in names:
        error = cluster.topics[name].error
        if error == Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise UsageError(
                f"the source has no topic {name}", remedy="check --topics, or create it first"
            )
        if error != Code.NONE:
            raise error_for(error, topic=name)
    return {name: cluster.partitions_of(name) for name in names}


async def _target_partitions(target: Client, names: list[str]) -> dict[str, int]:
    """Partition counts of those topics that exist."""
    cluster = await target.metadata(names, refresh=True)
    there = {}
    for name in names:
        error = cluster.topics[name].error
        if error == Code.NONE:
            there[name] = len(cluster.topics[name].partitions)
        elif error != Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise error_for(error, topic=name)
    return there


async def _await_topics(target: Client, names: list[str]) -> None:
    """Until the cluster's metadata has them, and so their ids."""

    async def look() -> None:
        cluster = await target.metadata(names, refresh=True)
        for name in names:
            if cluster.topics[name].error != Code.NONE:
                raise error_for(cluster.topics[name].error, topic=name)

    await target.retrying(look)


async def _create(source: Client, target: Client, counts: dict[str, int]) -> None:
    configs = await _configs(source, list(counts))
    new = [
        NewTopic(name, partitions=count, configs=configs.get(name, {}))
        for name, count in counts.items()
    ]
    await target.admin.create_topics(new)
    _log.info("made at the target: %s", ", ".join(counts))


async def _configs(source: Client, names: list[str]) -> dict[str, dict[str, str]]:
    resources = [Resource(ResourceType.TOPIC, name) for name in names]
    try:
        described = await source.admin.describe_configs(resources, names=COPIED_CONFIGS)
    except UnsupportedByBroker as error:
        _log.warning("the target gets its own defaults as configs: %s", error)
        return {}
    return {
        resource.name: {
            entry.name: entry.value
            for entry in entries.values()
            if entry.name in COPIED_CONFIGS and entry.value is not None
        }
        for resource, entries in described.items()
    }
