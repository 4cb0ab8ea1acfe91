"""Which permissions a run needs on somebody else's cluster, and which of them a client has.

Rules: nothing is changed: brokers are asked what they would allow (KIP-430), and a topic is
created only in words (`validate_only`). A broker that does not tell is noted, not blamed.
"""

import uuid
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.errors import ClientError, KafkaError
from shoal.model.errors import ShoalError
from shoal.systems.doctor import Check
from shoal.wire.api_keys import ApiKey

_NOT_TOLD: Final = -(2**31)


class Operation(IntEnum):
    """What an access rule allows, by Kafka's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    DESCRIBE = 8
    IDEMPOTENT_WRITE = 12


# Those whose lack stops a run, and those that only some runs need.
_ON_TOPIC: Final = {
    Operation.DESCRIBE: "find the topic's leaders",
    Operation.WRITE: "produce",
    Operation.READ: "consume, and scan the log",
}
_ON_CLUSTER: Final = {
    Operation.CREATE: "make topics for the run; or allow it for topics by their prefix",
    Operation.DESCRIBE: "see who is there",
    Operation.IDEMPOTENT_WRITE: "idempotent producers, before Kafka 3.0",
}


async def examine_cluster(properties: Mapping[str, str], canary: str | None) -> list[Check]:
    """All that a run needs there, each with whether it is granted."""
    try:
        async with Client(properties) as client:
            seen = await client.metadata(())
            servers = ", ".join(str(broker) for broker in seen.brokers.values())
            checks = [Check("Cluster", "ok", f"{seen.cluster_id or 'reached'}: {servers}")]
            if canary is None:
                checks += await _to_make_topics(client)
            else:
                checks += await _on_canary(client, canary)
    except ShoalError as error:
        remedy = error.remedy or "check the address, and --command-config for credentials"
        return [Check("Cluster", "missing", f"cannot be reached: {error}", remedy)]
    return checks


async def _to_make_topics(client: Client) -> list[Check]:
    granted = await _granted_on_cluster(client)
    checks = _told("cluster", _ON_CLUSTER, granted, is_needed=False)
    wished = NewTopic(f"shoal-doctor-{uuid.uuid4().hex[:8]}", 1, -1, {})
    try:
        await client.admin.create_topics([wished], validate_only=True)
    except KafkaError as error:
        remedy = "kafka-acls.sh --add --operation Create --cluster …; or use --canary-topic NAME"
        return [*checks, Check("Create topics", "missing", str(error), remedy)]
    allowed = "allowed (tried in words only); the run also reads, writes and deletes its topics"
    return [*checks, Check("Create topics", "ok", allowed)]


async def _on_canary(client: Client, name: str) -> list[Check]:
    try:
        answer = await client.call(
            ApiKey.METADATA,
            {
                "topics": [{"name": name, "topic_id": None}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": True,
            },
            at_least=8,
            at_most=10,
        )
    except ClientError as error:
        return [Check(f"Topic {name}", "warn", f"its permissions are not told: {error}")]
    (topic,) = answer.topics
    if not topic.partitions:
        remedy = f"kafka-topics.sh --create --topic {name}"
        return [Check(f"Topic {name}", "missing", "it is not there, or not to be seen", remedy)]
    granted = _set_of(topic.topic_authorized_operations)
    return _told(f"topic {name}", _ON_TOPIC, granted, is_needed=True)


async def _granted_on_cluster(client: Client) -> frozenset[int] | None:
    try:
        answer: Any = await client.call(
            ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True}, at_most=0
        )
    except ClientError:
        return None  # Kafka before 2.8 has no such question
    return _set_of(answer.cluster_authorized_operations)


def _set_of(bits: int) -> frozenset[int] | None:
    if bits == _NOT_TOLD:
        return None
    return frozenset(number for number in range(31) if bits & (1 << number))


def _told(
    where: str,
    wanted: Mapping[Operation, str],
    granted: Iterable[int] | None,
    *,
    is_needed: bool,
) -> list[Check]:
    checks = []
    for operation, purpose in wanted.items():
        spoken = operation.name.title().replace("_", "")
        name = f"{spoken} on {where}"
        if granted is None:
            checks.append(Check(name, "warn", f"to {purpose}: the broker does not tell"))
        elif operation in granted:
            checks.append(Check(name, "ok", f"to {purpose}"))
        else:
            remedy = f"kafka-acls.sh --add --operation {spoken} …"
            state = Check(name, "missing" if is_needed else "warn", f"to {purpose}", remedy)
            checks.append(state)
    return checks
