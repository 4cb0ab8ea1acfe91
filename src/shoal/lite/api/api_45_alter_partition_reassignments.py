"""AlterPartitionReassignments (45), versions 0 to 1 (KIP-455).

Behaviour
- Assigns other replicas to partitions; null cancels a reassignment. Each reassignment is started or
  refused separately, and the response does not wait until the new replicas have caught up.

Versions
- 1 may forbid a change of the replication factor: INVALID_REPLICATION_FACTOR.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import PartitionResult, Reassign
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        AlterPartitionReassignmentsResponseReassignablePartition,
    )


async def handle(
    core: BrokerCore,
    request: "ApiRequest[AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse]",
) -> Answer:
    body = request.body()
    may_resize = request.version < 1 or body.allow_replication_factor_change
    targets = {
        TopicPartition(topic.name, item.partition_index): item.replicas
        for topic in body.topics
        for item in topic.partitions
    }
    refused = [] if may_resize else _refuse_resizing(core, targets)
    for answer in refused:
        del targets[answer.partition]
    try:
        answers = [*refused, *await core.controller.submit(Reassign(targets))]
    except ApiError as error:
        return request.answer(
            {"error_code": error.code, "error_message": str(error), "responses": []}
        )
    topics: dict[str, list[AlterPartitionReassignmentsResponseReassignablePartition]] = {}
    for answer in answers:
        topics.setdefault(answer.partition.topic, []).append(
            {
                "partition_index": answer.partition.partition,
                "error_code": answer.code,
                "error_message": answer.message,
            }
        )
    return request.answer(
        {
            "error_code": Code.NONE,
            "error_message": None,
            "allow_replication_factor_change": may_resize,
            "responses": [
                {"name": name, "partitions": partitions} for name, partitions in topics.items()
            ],
        }
    )


def _refuse_resizing(
    core: BrokerCore, targets: dict[TopicPartition, tuple[int, ...] | None]
) -> list[PartitionResult]:
    """Errors for the partitions whose replication factor would change."""
    found = []
    for key, target in targets.items():
        topic = core.state.topics.get(key.topic)
        record = None if topic is None else topic.partitions.get(key.partition)
        if record is None or target is None:
            continue
        count = len(record.target_replicas)
        if len(target) != count:
            message = f"The replication factor is changed from {count} to {len(target)}"
            found.append(PartitionResult(key, Code.INVALID_REPLICATION_FACTOR, message))
    return found


API = register(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, handle)
