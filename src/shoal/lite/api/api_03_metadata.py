"""Metadata (3), versions 0 to 13.

Behaviour
- All topics, or the named ones. A topic that does not exist is created if the client allows it and
  `auto.create.topics.enable` is true. The same response already describes it, whereas Apache Kafka
  makes the client retry.
- Fenced brokers stay listed for 10 s. A broker names itself as the controller: any broker accepts
  requests for the controller and forwards them.
- If the leader of a topic has just disconnected, the response waits a moment for the next leader.
  Otherwise a client that asks because of that disconnect would get the old leader, and would ask
  again much later.

Versions
- 0 an empty list means all topics; from 1 null does. 1 controller, racks. 2 cluster id.
  4 auto-creation is the client's choice. 7 leader epochs. 8 authorized operations (KIP-430): all
  of them, because there is no authorizer. 9 flexible. 10 topic ids (KIP-516). 12 lookup by topic
  id. 13 a top-level error (KIP-1102), which is never sent.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from shoal.lite.api.descriptions import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    describe_partition,
)
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.topics import INTERNAL_TOPICS
from shoal.lite.metadata.data.requests import NewTopicSpec
from shoal.lite.metadata.data.state import ClusterState, Topic
from shoal.lite.metadata.rules.commands import check_topic_name
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import MetadataRequest, MetadataResponse, MetadataResponseTopic

_ZERO_ID = UUID(int=0)


async def handle(
    core: BrokerCore, request: "ApiRequest[MetadataRequest, MetadataResponse]"
) -> Answer:
    body, version = request.body(), request.version
    wanted = body.topics
    if core.replicas.suspects:
        await _wait_for_successors(core)
    with_operations = version >= 8 and body.include_topic_authorized_operations
    if wanted is None or (version == 0 and not wanted):
        topics = [
            _describe_topic(core.state, topic, with_operations=with_operations)
            for topic in core.state.topics.values()
        ]
    else:
        may_create = version < 4 or body.allow_auto_topic_creation
        topics = []
        # A topic that is named twice is described once.
        for name, topic_id in dict.fromkeys(
            (item.name, item.topic_id if version >= 10 else None) for item in wanted
        ):
            answer = await _find_or_create_topic(core, name, topic_id, may_create=may_create)
            if isinstance(answer, Topic):
                answer = _describe_topic(core.state, answer, with_operations=with_operations)
            topics.append(answer)
    state = core.state
    with_operations = 8 <= version <= 10 and body.include_cluster_authorized_operations
    return request.answer(
        {
            "brokers": [
                {
                    "node_id": broker.broker_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                }
                for broker in core.brokers_for_clients()
            ],
            "cluster_id": state.cluster_id,
            "controller_id": core.spec.broker_id,
            "topics": topics,
            "cluster_authorized_operations": CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
            "error_code": Code.NONE,
        }
    )


async def _wait_for_successors(core: BrokerCore) -> None:
    """Wait until no broker that just disconnected leads, or until it is no longer suspected."""
    suspects = core.replicas.suspects
    while any(core.state.leader_counts[broker_id] for broker_id in suspects):
        await core.replicas.wait_for_metadata()


async def _find_or_create_topic(
    core: BrokerCore, name: str | None, topic_id: UUID | None, *, may_create: bool
) -> "Topic | MetadataResponseTopic":
    try:
        if name is None:
            name = core.topic_name(topic_id)
        topic = core.state.topics.get(name)
        return topic or await _auto_create_topic(core, name, may_create=may_create)
    except ApiError as error:
        return {
            "error_code": error.code,
            "name": name,
            "topic_id": topic_id if name is None else None,
            "is_internal": False,
            "partitions": [],
        }


async def _auto_create_topic(core: BrokerCore, name: str, *, may_create: bool) -> Topic:
    check_topic_name(name)
    layers = core.layers
    if not (may_create and layers.flag("auto.create.topics.enable")):
        message = "This server does not host this topic-partition."
        raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
    internal = next((h for h in core.coordinators.values() if h.topic.name == name), None)
    if internal is not None:
        await internal.create_topic()
        return core.topic(name)
    factor = layers.integer("default.replication.factor")
    try:
        return await core.create_topic(NewTopicSpec(name, layers.integer("num.partitions"), factor))
    except ApiError as error:
        if error.code != Code.TOPIC_ALREADY_EXISTS:
            raise
        # Another client created it at the same time.
        return core.topic(name)


def _describe_topic(
    state: ClusterState, topic: Topic, *, with_operations: bool
) -> "MetadataResponseTopic":
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [
            describe_partition(state, partition)
            for _, partition in sorted(topic.partitions.items())
        ],
        "topic_authorized_operations": TOPIC_OPERATIONS if with_operations else NOT_ASKED,
    }


API = register(ApiKey.METADATA, 0, 13, handle)
