"""ListPartitionReassignments (46), version 0 (KIP-455).

Behaviour
- The ongoing reassignments: all of them, or those of the named partitions. Partitions that do not
  exist are left out.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
        ListPartitionReassignmentsResponseOngoingPartitionReassignment,
        ListPartitionReassignmentsResponseOngoingTopicReassignment,
    )


def handle(
    core: BrokerCore,
    request: "ApiRequest[ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse]",
) -> Answer:
    state = core.state
    wanted = request.body().topics
    named: dict[str, set[int] | None] = dict.fromkeys(state.topics)
    if wanted is not None:
        named = {item.name: set(item.partition_indexes) for item in wanted}
    topics: list[ListPartitionReassignmentsResponseOngoingTopicReassignment] = []
    for name, indexes in named.items():
        topic = state.topics.get(name)
        partitions = [
            _describe_reassignment(record)
            for index, record in (topic.partitions.items() if topic is not None else ())
            if (indexes is None or index in indexes) and (record.adding or record.removing)
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return request.answer({"error_code": Code.NONE, "error_message": None, "topics": topics})


def _describe_reassignment(
    record: PartitionRecord,
) -> "ListPartitionReassignmentsResponseOngoingPartitionReassignment":
    return {
        "partition_index": record.partition,
        "replicas": record.replicas,
        "adding_replicas": record.adding,
        "removing_replicas": record.removing,
    }


API = register(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle)
