"""Checks which of the permissions that a run needs a client has on an external cluster.

Rules: nothing is changed. Brokers report the authorized operations (KIP-430), and the creation of
a topic is only validated (`validate_only`). A broker that does not report them gives a warning,
not an error.
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

_NOT_REPORTED: Final = -(2**31)


class AclOperation(IntEnum):
    """The operations of Kafka's ACLs, by their numbers in the protocol."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    DESCRIBE = 8
    IDEMPOTENT_WRITE = 12


# `_ON_TOPIC`: required for every run. `_ON_CLUSTER`: only some runs need them.
_ON_TOPIC: Final = {
    AclOperation.DESCRIBE: "find the topic's leaders",
    AclOperation.WRITE: "produce",
    AclOperation.READ: "consume, and scan the log",
}
_ON_CLUSTER: Final = {
    AclOperation.CREATE: "create topics for the run; or allow it for topics with a prefix",
    AclOperation.DESCRIBE: "describe the cluster",
    AclOperation.IDEMPOTENT_WRITE: "use idempotent producers, before Kafka 3.0",
}


async def examine_cluster(properties: Mapping[str, str], canary: str | None) -> list[Check]:
    """One check for each permission that a run needs on that cluster."""
    try:
        async with Client(properties) as client:
            seen = await client.metadata(())
            servers = ", ".join(str(broker) for broker in seen.brokers.values())
            checks = [Check("Cluster", "ok", f"{seen.cluster_id or 'reached'}: {servers}")]
            if canary is None:
                checks += await _check_topic_creation(client)
            else:
                checks += await _check_canary_topic(client, canary)
    except ShoalError as error:
        remedy = error.remedy or "check the address, and --command-config for credentials"
        return [Check("Cluster", "missing", f"cannot connect: {error.message}", remedy)]
    return checks


async def _check_topic_creation(client: Client) -> list[Check]:
    granted = await _fetch_cluster_operations(client)
    checks = _permission_checks("cluster", _ON_CLUSTER, granted, is_needed=False)
    wished = NewTopic(f"shoal-doctor-{uuid.uuid4().hex[:8]}", 1, -1, {})
    try:
        await client.admin.create_topics([wished], validate_only=True)
    except KafkaError as error:
        remedy = "kafka-acls.sh --add --operation Create --cluster …; or use --canary-topic NAME"
        return [*checks, Check("Create topics", "missing", str(error), remedy)]
    allowed = "allowed (validated only); the run also reads, writes and deletes its topics"
    return [*checks, Check("Create topics", "ok", allowed)]


async def _check_canary_topic(client: Client, name: str) -> list[Check]:
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
        return [
            Check(f"Topic {name}", "warn", f"the broker does not report its permissions: {error}")
        ]
    (topic,) = answer.topics
    if not topic.partitions:
        remedy = f"kafka-topics.sh --create --topic {name}"
        return [
            Check(
                f"Topic {name}",
                "missing",
                "it does not exist, or the client may not describe it",
                remedy,
            )
        ]
    granted = _operations_in(topic.topic_authorized_operations)
    return _permission_checks(f"topic {name}", _ON_TOPIC, granted, is_needed=True)


async def _fetch_cluster_operations(client: Client) -> frozenset[int] | None:
    try:
        answer: Any = await client.call(
            ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True}, at_most=0
        )
    except ClientError:
        return None  # Kafka before 2.8 has no DescribeCluster request
    return _operations_in(answer.cluster_authorized_operations)


def _operations_in(bits: int) -> frozenset[int] | None:
    if bits == _NOT_REPORTED:
        return None
    return frozenset(number for number in range(31) if bits & (1 << number))


def _permission_checks(
    where: str,
    wanted: Mapping[AclOperation, str],
    granted: Iterable[int] | None,
    *,
    is_needed: bool,
) -> list[Check]:
    checks = []
    for operation, purpose in wanted.items():
        acl_name = operation.name.title().replace("_", "")
        name = f"{acl_name} on {where}"
        if granted is None:
            checks.append(Check(name, "warn", f"to {purpose}: not reported by the broker"))
        elif operation in granted:
            checks.append(Check(name, "ok", f"to {purpose}"))
        else:
            remedy = f"kafka-acls.sh --add --operation {acl_name} …"
            state = Check(name, "missing" if is_needed else "warn", f"to {purpose}", remedy)
            checks.append(state)
    return checks
