"""Metadata (3), versions 0 to 13.

Behaviour
- All topics, or those that are named. One that does not exist is made if the client allows it
  and `auto.create.topics.enable` is true, and the answer tells of it at once, where Apache
  Kafka asks the client to come back.
- Brokers that are fenced are listed for 10 s more, and then no longer. The broker that is asked
  names itself as the controller: what needs the controller can be sent to any broker, which
  passes it on.
- If the leader of a topic has hung up just now, the answer waits a moment for its successor: a
  client that asks because of that would else hear of the old one, and ask again much later.

Versions
- 0 an empty list means all topics; from 1 null does. 1 controller, racks. 2 cluster id.
  4 auto-creation is the client's choice. 7 leader epochs. 9 flexible. 10 topic ids (KIP-516).
  8 authorized operations (KIP-430): without an authorizer, all. 12 lookup by topic id. 13 an
  error for the whole (KIP-1102), which is never sent.
"""

from typing import Any
from uuid import UUID

from shoal.lite.api.described import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    described_partition,
)
from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.topics import INTERNAL_TOPICS
from shoal.lite.metadata.data.requests import NewTopic
from shoal.lite.metadata.data.state import ClusterState, Topic
from shoal.lite.metadata.rules.commands import check_topic_name
from shoal.wire.api_keys import ApiKey

_ZERO_ID = UUID(int=0)


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    wanted = body.topics
    if core.replicas.suspects:
        await _wait_for_successors(core)
    with_operations = getattr(body, "include_topic_authorized_operations", False)
    if wanted is None or (request.version == 0 and not wanted):
        topics = [
            _described(core.state, topic, with_operations=with_operations)
            for topic in core.state.topics.values()
        ]
    else:
        may_create = getattr(body, "allow_auto_topic_creation", True)
        topics = []
        for item in wanted:
            told = await _wanted(core, item, may_create=may_create)
            if isinstance(told, Topic):
                told = _described(core.state, told, with_operations=with_operations)
            topics.append(told)
    state = core.state
    with_operations = getattr(body, "include_cluster_authorized_operations", False)
    return request.answer(
        brokers=[
            {
                "node_id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
            }
            for broker in core.listed_brokers()
        ],
        cluster_id=state.cluster_id,
        controller_id=core.spec.broker_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if with_operations else NOT_ASKED,
        error_code=Code.NONE,
    )


async def _wait_for_successors(core: BrokerCore) -> None:
    """Until nobody leads who has hung up just now, or that is over."""
    suspects = core.replicas.suspects
    while any(core.state.led[broker_id] for broker_id in suspects):
        await core.replicas.next_follow()


async def _wanted(core: BrokerCore, item: Any, *, may_create: bool) -> Topic | dict[str, Any]:
    topic_id = getattr(item, "topic_id", None)
    name: str | None = item.name
    try:
        if name is None:
            name = core.topic_name(topic_id)
        topic = core.state.topics.get(name)
        return topic or await _created(core, name, may_create=may_create)
    except Refused as refused:
        return {
            "error_code": refused.code,
            "name": name,
            "topic_id": topic_id if name is None else None,
            "is_internal": False,
            "partitions": [],
        }


async def _created(core: BrokerCore, name: str, *, may_create: bool) -> Topic:
    check_topic_name(name)
    layers = core.layers
    if not (may_create and layers.flag("auto.create.topics.enable")):
        message = "This server does not host this topic-partition."
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, message)
    internal = next((h for h in core.coordinators.values() if h.topic.name == name), None)
    if internal is not None:
        await internal.create_topic()
        return core.topic(name)
    factor = layers.integer("default.replication.factor")
    try:
        return await core.create_topic(NewTopic(name, layers.integer("num.partitions"), factor))
    except Refused as refused:
        if refused.code != Code.TOPIC_ALREADY_EXISTS:
            raise
        # Another client was faster.
        return core.topic(name)


def _described(state: ClusterState, topic: Topic, *, with_operations: bool) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [
            described_partition(state, partition)
            for _, partition in sorted(topic.partitions.items())
        ],
        "topic_authorized_operations": TOPIC_OPERATIONS if with_operations else NOT_ASKED,
    }


API = register(ApiKey.METADATA, 0, 13, handle)
