"""Admin calls: topics, configurations, records, groups.

Rules of this file:
- Calls that change the cluster go to the controller and are retried when it has moved. A retry may
  find that an earlier attempt succeeded: `create_topics` and `delete_topics` treat "already exists"
  and "does not exist" as success only after an attempt whose response was lost.
- The controller knows all topics: an unknown topic there is a final error. Any other broker may
  not have the newest metadata yet.
- The first error is raised, with the name of its topic; other topics may have been changed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.cluster.metadata import BrokerAddress
from shoal.client.cluster.router import Core
from shoal.client.codes import COORDINATOR_RETRY, Code
from shoal.client.errors import ConnectionLost, RequestTimedOut, error_for
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

T = TypeVar("T")

HIGH_WATERMARK = -1
_FIRST_VERSION_WITH_DEFAULTS = 4
_FIRST_VERSION_BY_STATE = 6


class ResourceType(IntEnum):
    """The type of a resource with a configuration."""

    TOPIC = 2
    BROKER = 4


class Operation(IntEnum):
    """How to change the value of a configuration."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Resource(NamedTuple):
    """A topic by its name or a broker by its id; an empty broker name means all brokers."""

    kind: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default.

    `assignments` (partition → replicas) replaces both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class ConfigEntry(NamedTuple):
    """One configuration value; None if the broker does not return it."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    is_topics_own: bool = False  # set for this topic, not inherited


class ConfigChange(NamedTuple):
    """One change to a configuration."""

    name: str
    value: str | None
    operation: Operation = Operation.SET


class ClusterDescription(NamedTuple):
    """The brokers and the controller of a cluster."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerAddress, ...]


class Admin:
    """The admin calls of a client."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, UUID | None]:
        """Create topics; returns their ids if the broker returns them."""
        wanted = list(topics)
        needs_defaults = any(
            not topic.assignments and -1 in {topic.partitions, topic.replication_factor}
            for topic in wanted
        )
        values = {
            "topics": [_creatable(topic) for topic in wanted],
            "timeout": self._core.config.request_timeout_ms,
            "validate_only": validate_only,
        }

        async def attempt(node_id: int | None, is_repeated: bool) -> dict[str, UUID | None]:
            response = await self._core.call(
                ApiKey.CREATE_TOPICS,
                values,
                node_id=node_id,
                at_least=_FIRST_VERSION_WITH_DEFAULTS if needs_defaults else 0,
            )
            done = {Code.TOPIC_ALREADY_EXISTS} if is_repeated else set()
            for result in response.topics:
                _check(result, topic=result.name, accepted=done)
            return {str(one.name): getattr(one, "topic_id", None) for one in response.topics}

        created = await self._at_controller(attempt)
        self._core.invalidate_metadata()
        return created

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics by name."""
        wanted = list(names)
        values = {
            "topic_names": wanted,
            "topics": [{"name": name, "topic_id": None} for name in wanted],
            "timeout": self._core.config.request_timeout_ms,
        }

        async def attempt(node_id: int | None, is_repeated: bool) -> None:
            response = await self._core.call(ApiKey.DELETE_TOPICS, values, node_id=node_id)
            done = {Code.UNKNOWN_TOPIC_OR_PARTITION} if is_repeated else set()
            for result in response.responses:
                _check(result, topic=result.name, accepted=done)

        await self._at_controller(attempt)
        self._core.forget(wanted)
        self._core.invalidate_metadata()

    async def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, with its committed offsets."""
        coordinator = Coordinator(self._core, CoordinatorType.GROUP, group_id)

        def check(response: Any) -> None:
            for result in response.results:
                coordinator.check(int(result.error_code))

        await coordinator.call(ApiKey.DELETE_GROUPS, {"groups_names": [group_id]}, check=check)

    async def create_partitions(self, totals: Mapping[str, int]) -> None:
        """Increase the partitions of topics to these numbers."""
        values = {
            "topics": [
                {"name": name, "count": count, "assignments": None}
                for name, count in totals.items()
            ],
            "timeout": self._core.config.request_timeout_ms,
            "validate_only": False,
        }

        async def attempt(node_id: int | None, _is_repeated: bool) -> None:
            response = await self._core.call(ApiKey.CREATE_PARTITIONS, values, node_id=node_id)
            for result in response.results:
                _check(result, topic=result.name)

        await self._at_controller(attempt)
        self._core.invalidate_metadata()

    async def describe_configs(
        self, resources: Iterable[Resource], *, names: Sequence[str] | None = None
    ) -> dict[Resource, dict[str, ConfigEntry]]:
        """The configurations of topics and brokers, including defaults."""
        described: dict[Resource, dict[str, ConfigEntry]] = {}
        for node_id, group in _by_node(resources).items():

            async def attempt(
                node_id: int | None = node_id, group: list[Resource] = group
            ) -> dict[Resource, dict[str, ConfigEntry]]:
                return await self._describe(node_id, group, names)

            described.update(await self._core.with_retries(attempt))
        return described

    async def alter_configs(
        self, changes: Mapping[Resource, Iterable[ConfigChange] | Mapping[str, str]]
    ) -> None:
        """Change configurations; other values stay unchanged."""
        listed = {resource: _changes(wanted) for resource, wanted in changes.items()}
        for node_id, group in _by_node(listed).items():
            values = {
                "resources": [_alterable(resource, listed[resource]) for resource in group],
                "validate_only": False,
            }

            async def attempt(
                node_id: int | None = node_id, values: dict[str, Any] = values
            ) -> None:
                response = await self._core.call(
                    ApiKey.INCREMENTAL_ALTER_CONFIGS, values, node_id=node_id
                )
                for result in response.responses:
                    _check(result, topic=result.resource_name)

            await self._core.with_retries(attempt)

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete all records below these offsets; returns the new log starts.

        `HIGH_WATERMARK` means all records below the high watermark.
        """
        starts: dict[TopicPartition, int] = {}

        async def attempt() -> None:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for tp, offset in before.items():
                if tp not in starts:
                    by_leader.setdefault(await self._core.leader(tp), {})[tp] = offset
            for node_id, part in by_leader.items():
                starts.update(await self._delete_records(node_id, part))

        await self._core.with_retries(attempt)
        return starts

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers and the controller of the cluster."""
        cluster = await self._core.metadata((), refresh=True)
        brokers = tuple(cluster.brokers[node] for node in sorted(cluster.brokers))
        return ClusterDescription(cluster.cluster_id, cluster.controller_id, brokers)

    async def list_open_transactions(self, prefix: str) -> list[str]:
        """The transactional ids with this prefix that have an open transaction, of all brokers."""
        cluster = await self._core.metadata((), refresh=True)
        values = {"state_filters": ["Ongoing"], "producer_id_filters": []}
        found: set[str] = set()
        for node_id in cluster.brokers:

            async def attempt(node_id: int = node_id) -> Any:
                response = await self._core.call(
                    ApiKey.LIST_TRANSACTIONS, values, node_id=node_id, at_most=1
                )
                code = int(response.error_code)
                if code != Code.NONE:
                    error = error_for(code)
                    error.retriable = error.retriable or code in COORDINATOR_RETRY
                    raise error
                return response

            answer = await self._core.with_retries(attempt)
            found |= {str(one.transactional_id) for one in answer.transaction_states}
        return sorted(one for one in found if one.startswith(prefix))

    async def _at_controller(self, attempt: Callable[[int | None, bool], Awaitable[T]]) -> T:
        """Call the controller; `attempt` gets whether an earlier response was lost."""
        was_lost = False

        async def once() -> T:
            nonlocal was_lost
            cluster = await self._core.metadata(())
            controller = cluster.controller_id
            try:
                return await attempt(
                    controller if controller in cluster.brokers else None, was_lost
                )
            except (ConnectionLost, RequestTimedOut) as error:
                was_lost = was_lost or error.sent
                raise

        return await self._core.with_retries(once)

    async def _describe(
        self, node_id: int | None, resources: list[Resource], names: Sequence[str] | None
    ) -> dict[Resource, dict[str, ConfigEntry]]:
        values = {
            "resources": [
                {
                    "resource_type": resource.kind,
                    "resource_name": resource.name,
                    "configuration_keys": names,
                }
                for resource in resources
            ],
            "include_synonyms": False,
            "include_documentation": False,
        }
        response = await self._core.call(
            ApiKey.DESCRIBE_CONFIGS, values, node_id=node_id, at_least=1
        )
        described = {}
        for result in response.results:
            _check(result, topic=result.resource_name, is_final=False)
            resource = Resource(ResourceType(result.resource_type), result.resource_name)
            described[resource] = {entry.name: _to_config_entry(entry) for entry in result.configs}
        return described

    async def _delete_records(
        self, node_id: int, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        topics: dict[str, list[dict[str, int]]] = {}
        for tp, offset in before.items():
            topics.setdefault(tp.topic, []).append(
                {"partition_index": tp.partition, "offset": offset}
            )
        values = {
            "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
            "timeout": self._core.config.request_timeout_ms,
        }
        response = await self._core.call(ApiKey.DELETE_RECORDS, values, node_id=node_id)
        starts = {}
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, int(part.partition_index))
                if part.error_code != Code.NONE:
                    raise error_for(int(part.error_code), topic=tp.topic, partition=tp.partition)
                starts[tp] = int(part.low_watermark)
        return starts


def _check(
    result: Any, *, topic: str | None, accepted: Iterable[int] = (), is_final: bool = True
) -> None:
    code = int(result.error_code)
    if code != Code.NONE and code not in set(accepted):
        error = error_for(code, topic=topic, message=getattr(result, "error_message", None))
        error.retriable = error.retriable and not (
            is_final and code == Code.UNKNOWN_TOPIC_OR_PARTITION
        )
        raise error


def _creatable(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignments else topic.partitions,
        "replication_factor": -1 if topic.assignments else topic.replication_factor,
        "assignments": [
            {"partition_index": partition, "broker_ids": list(replicas)}
            for partition, replicas in topic.assignments.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


def _by_node(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    """Group by broker: only a broker itself returns its configuration; any returns a topic's."""
    groups: dict[int | None, list[Resource]] = {}
    for resource in resources:
        is_one_broker = resource.kind is ResourceType.BROKER and resource.name
        groups.setdefault(int(resource.name) if is_one_broker else None, []).append(resource)
    return groups


def _changes(wanted: Iterable[ConfigChange] | Mapping[str, str]) -> list[ConfigChange]:
    if isinstance(wanted, Mapping):
        return [ConfigChange(name, value) for name, value in wanted.items()]
    return list(wanted)


def _alterable(resource: Resource, changes: list[ConfigChange]) -> dict[str, Any]:
    return {
        "resource_type": resource.kind,
        "resource_name": resource.name,
        "configs": [
            {"name": one.name, "config_operation": one.operation, "value": one.value}
            for one in changes
        ],
    }


def _to_config_entry(entry: Any) -> ConfigEntry:
    # Source 5 is the default; 1 to 4 are explicit settings (KIP-226).
    return ConfigEntry(
        entry.name,
        entry.value,
        is_default=entry.config_source == 5,
        is_read_only=entry.read_only,
        is_sensitive=entry.is_sensitive,
        is_topics_own=entry.config_source == 1,
    )
