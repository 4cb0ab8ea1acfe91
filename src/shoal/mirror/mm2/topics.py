"""Selects the topics to copy, and prepares their target topics.

Rules:
- Topics are selected by expressions (`shoal.mirror.mm2.patterns`) and named by a policy
  (`shoal.mirror.mm2.naming`). A plain name that the source does not have is reported.
- A missing target topic is created with the source's partition count and configs
  (`shoal.mirror.mm2.topic_configs`). An existing one must have at least as many partitions, have
  compatible configs, and be empty or written by this mirror (`shoal.mirror.run.resume` checks
  that).
- A target topic that this mirror already writes gets new partitions and config changes of the
  source.
- A topic is identified by its id. A topic that was deleted, or has another id than when it was
  accepted, is checked like a new one (`shoal.mirror.watch.generations` decides how to proceed),
  whether it is selected by its name or by a pattern. A missing target topic is created.
- Nothing is created for a topic before all possible checks have passed. A topic that cannot be
  copied is refused with its reason and checked again at the next refresh; other topics continue.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from shoal.client.admin import ConfigChange, NewTopic, Resource, ResourceType
from shoal.client.client import Client
from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.codes import Code
from shoal.client.errors import ClientError, KafkaError, UnsupportedByBroker, error_for
from shoal.mirror.config import MirrorConfig
from shoal.mirror.mm2.naming import is_internal
from shoal.mirror.mm2.topic_configs import (
    COMPRESSION,
    KEEPS_BATCHES,
    Entries,
    changes_for,
    check_compatible,
    creation_configs,
    inherits_codec,
    select_configs,
    unknown_configs,
    values_to_set,
)
from shoal.mirror.routes import Route
from shoal.mirror.run.remedies import remedy_for_seeing
from shoal.mirror.watch.generations import has_other_id
from shoal.model.errors import ConfigError, ShoalError, UsageError
from shoal.model.topics import TopicPartition

_log = logging.getLogger(__name__)

# Checks existing target partitions: raises if they must not be written to, and returns whether this
# mirror has written to them.
CheckTarget = Callable[[list[Route]], Awaitable[bool]]


@dataclass(slots=True)
class TopicPlan:
    """The result of a refresh: what to copy, and what is refused."""

    routes: list[Route] = field(default_factory=list)
    refused: dict[str, ShoalError] = field(default_factory=dict)  # by topic of the source


class AcceptedTopic(NamedTuple):
    """A topic that is being copied."""

    partitions: int
    source_id: UUID | None
    target_id: UUID | None


class Topics:
    """The topics of one flow."""

    def __init__(
        self, source: Client, target: Client, config: MirrorConfig, check: CheckTarget
    ) -> None:
        self._source = source
        self._target = target
        self._rules = config.rules
        self._naming = config.rules.naming
        self._selection = config.selection()
        self._excluded = config.config_exclusions()
        self._check = check
        # A flow that emits heartbeats also copies the heartbeats of other flows.
        self._copies_heartbeats = config.heartbeats.emit
        self._accepted: dict[str, AcceptedTopic] = {}  # by topic of the source
        self._refused: dict[str, str] = {}
        self._known_routes: dict[str, list[Route]] = {}  # of the last refresh
        self._is_first = True

    async def refresh(self, *, finds_new: bool = True) -> TopicPlan:
        """Inspect both clusters, and create missing topics and partitions at the target."""
        names = await self._choose_topics() if finds_new else sorted(self._accepted)
        for name in self._accepted.keys() - set(names):
            self._forget(name, "the source no longer has it")
        sources = await self._source.metadata(names, refresh=True)
        targets = await self._target.metadata(map(self._naming.target_of, names), refresh=True)
        plan = TopicPlan()
        taken: dict[str, str] = {}
        for name in names:
            target_name = self._naming.target_of(name)
            try:
                other = taken.setdefault(target_name, name)
                if other != name:
                    raise ConfigError(  # noqa: TRY301 - all reasons to refuse a topic are raised
                        f"topics {name} and {other} would both be copied into {target_name}",
                        remedy="give each source topic its own name at the target (--rename)",
                    )
                await self._prepare(name, target_name, sources, targets)
            except (ConfigError, UsageError, ClientError) as error:
                if isinstance(error, ClientError) and error.retriable and not self._accepted:
                    raise
                plan.refused[name] = error
            plan.routes += self._list_routes(name)
        self._log_refused(plan)
        return plan

    async def sync_configs(self, only: Collection[str] | None = None) -> None:
        """Apply the configs of the source topics to the target topics."""
        names = [name for name in self._accepted if only is None or name in only]
        theirs = {name: self._naming.target_of(name) for name in names}
        source = await _describe_configs(self._source, names)
        target = await _describe_configs(self._target, theirs.values())
        for name in names:
            wanted = select_configs(source.get(name, {}), self._excluded)
            changes = changes_for(wanted, target.get(theirs[name], {}), self._excluded)
            await self._alter(theirs[name], changes)

    async def _alter(self, target_name: str, changes: list[ConfigChange]) -> None:
        if not changes:
            return
        try:
            await self._target.admin.alter_configs(
                {Resource(ResourceType.TOPIC, target_name): changes}
            )
            _log.info(
                "target topic %s: set %s", target_name, ", ".join(each.name for each in changes)
            )
        except ClientError as error:
            _log.warning("cannot change the configs of target topic %s: %s", target_name, error)

    async def _choose_topics(self) -> list[str]:
        there = (await self._source.with_retries(self._source.metadata)).topics
        naming = self._naming
        clusters = self._source.cluster.cluster_id, self._target.cluster.cluster_id
        # Within one cluster, expressions would match the copies too, and the copies of these.
        is_one_cluster = clusters[0] is not None and clusters[0] == clusters[1]
        found = [
            name
            for name, topic in there.items()
            if (
                self._selection.includes(name)
                or (self._copies_heartbeats and naming.is_heartbeats(name))
            )
            and not topic.is_internal
            and not is_internal(name)
            and not naming.is_cycle(name)
            and not (is_one_cluster and naming.is_own_copy(name))
        ]
        named = [n for n in self._selection.named if n not in there and self._selection.includes(n)]
        return sorted({*found, *named})

    def _list_routes(self, name: str) -> list[Route]:
        count = self._accepted[name].partitions if name in self._accepted else 0
        known = self._known_routes.get(name, [])
        if len(known) != count:
            target = self._naming.target_of(name)
            known = self._known_routes[name] = [
                Route(TopicPartition(name, number), TopicPartition(target, number))
                for number in range(count)
            ]
        return known

    def _forget(self, name: str, why: str) -> None:
        """Stop copying a topic until it is accepted again."""
        self._known_routes.pop(name, None)
        if self._accepted.pop(name, None) is not None:
            _log.warning(
                "topic %s is not copied for now: %s; its copy at the target stays", name, why
            )

    async def _prepare(
        self, name: str, target_name: str, sources: ClusterMetadata, targets: ClusterMetadata
    ) -> None:
        count = _partition_count(sources, name, "source")
        if count is None:
            self._forget(name, "the source no longer has it")
            raise UsageError(
                f"the source cluster has no topic {name}",
                remedy="check --topics, or create it first",
            )
        there = _partition_count(targets, target_name, "target")
        if there is None:
            if name in self._accepted:
                _log.warning("the target topic %s was deleted: creating it again", target_name)
            await self._create(name, target_name, count)
        elif not self._is_accepted(name, sources, targets.topics[target_name].topic_id):
            self._accepted.pop(name, None)
            await self._check_existing(name, target_name, count, there)
        elif there < count:
            await self._grow(target_name, count)
        self._accepted[name] = AcceptedTopic(
            count,
            sources.topics[name].topic_id,
            self._target.cluster.topics[target_name].topic_id,
        )

    def _is_accepted(self, name: str, sources: ClusterMetadata, target_id: UUID | None) -> bool:
        known = self._accepted.get(name)
        return known is not None and not (
            has_other_id(known.source_id, sources.topics[name].topic_id)
            or has_other_id(known.target_id, target_id)
        )

    async def _check_existing(self, name: str, target_name: str, count: int, there: int) -> None:
        routes = [
            Route(TopicPartition(name, number), TopicPartition(target_name, number))
            for number in range(min(count, there))
        ]
        is_ours = await self._check(routes)
        if there < count and not is_ours:
            raise ConfigError(
                f"the target topic {target_name} has {there} partitions, "
                f"the source topic has {count}",
                remedy="add partitions to it, or delete it and let the mirror create it",
            )
        source = await _describe_configs(self._source, [name])
        target = await _describe_configs(self._target, [target_name])
        if is_ours and inherits_codec(target.get(target_name, {})):
            # An earlier version created the topic without a value, so it has the brokers' default.
            codec = ConfigChange(COMPRESSION, KEEPS_BATCHES[COMPRESSION])
            await self._alter(target_name, [codec])
            target = await _describe_configs(self._target, [target_name])
        check_compatible(target_name, source.get(name, {}), target.get(target_name, {}))
        if there < count:
            await self._grow(target_name, count)

    async def _create(self, name: str, target_name: str, count: int) -> None:
        source = (await _describe_configs(self._source, [name])).get(name, {})
        new = NewTopic(
            target_name,
            partitions=count,
            replication_factor=self._rules.replication_factor,
            configs=creation_configs(source, self._excluded),
        )
        await self._create_with_known_configs(new)
        await self._await_partitions(target_name, count)
        _log.info("created target topic %s with %d partitions", target_name, count)
        target = (await _describe_configs(self._target, [target_name])).get(target_name, {})
        # Values that the source inherits, where the target would inherit other ones.
        wanted = select_configs(source, self._excluded)
        await self._alter(target_name, values_to_set(wanted, target))

    async def _create_with_known_configs(self, new: NewTopic) -> None:
        """Create a topic, without configs that the target does not know."""
        while True:
            try:
                await self._target.admin.create_topics([new])
            except KafkaError as error:
                if error.code == Code.TOPIC_ALREADY_EXISTS:
                    return  # another mirror was faster; the start checks who owns the topic
                refusal = str(error) if error.code == Code.INVALID_CONFIG else ""
                unknown = unknown_configs(new.configs, refusal)
                if not unknown:
                    raise
                _log.warning(
                    "creating target topic %s without %s, which the target does not know (%s)",
                    new.name,
                    ", ".join(unknown),
                    error,
                )
                known = {name: new.configs[name] for name in new.configs if name not in unknown}
                new = replace(new, configs=known)
            else:
                return

    async def _grow(self, target_name: str, count: int) -> None:
        await self._target.admin.create_partitions({target_name: count})
        await self._await_partitions(target_name, count)
        _log.info("target topic %s now has %d partitions", target_name, count)

    async def _await_partitions(self, name: str, count: int) -> None:
        """Wait until the metadata has the partitions, and so the topic id."""

        async def look() -> None:
            cluster = await self._target.metadata([name], refresh=True)
            if cluster.topics[name].error != Code.NONE:
                raise error_for(cluster.topics[name].error, topic=name)
            if len(cluster.topics[name].partitions) < count:
                raise error_for(Code.UNKNOWN_TOPIC_OR_PARTITION, topic=name, partition=count - 1)

        await self._target.with_retries(look)

    def _log_refused(self, plan: TopicPlan) -> None:
        # If the only topic is refused at the start, the mirror ends with that error: no need to
        # log it too.
        is_all = self._is_first and not plan.routes and len(plan.refused) == 1
        self._is_first = False
        for name, error in plan.refused.items():
            if self._refused.get(name) != str(error) and not is_all:
                _log.error(
                    "topic %s is not copied: %s (%s)",
                    name,
                    error.message,
                    error.remedy or "retried",
                )
        self._refused = {name: str(error) for name, error in plan.refused.items()}


def _partition_count(cluster: ClusterMetadata, name: str, side: str) -> int | None:
    """The partition count of a topic; None if it does not exist."""
    topic = cluster.topics[name]
    if topic.error == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if topic.error != Code.NONE:
        error = error_for(topic.error, topic=name)
        error.args = (f"cannot read the metadata of the {side} topic: {error.message}",)
        error.remedy = error.remedy or remedy_for_seeing(topic.error)
        raise error
    return len(topic.partitions)


async def _describe_configs(client: Client, topics: Iterable[str]) -> dict[str, Entries]:
    """Read the configs of topics; empty if the cluster does not support it."""
    resources = [Resource(ResourceType.TOPIC, name) for name in topics]
    if not resources:
        return {}
    try:
        described = await client.admin.describe_configs(resources)
    except UnsupportedByBroker as error:
        _log.warning("cannot compare the configs of topics: %s", error)
        return {}
    return {resource.name: entries for resource, entries in described.items()}
