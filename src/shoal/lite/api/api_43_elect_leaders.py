"""ElectLeaders (43), versions 0 to 2 (KIP-183, KIP-460).

Behaviour
- Preferred: elects the first replica if it is in sync. Unclean: where a partition has no leader,
  elects the replica with the most data. Without partitions in the request: all partitions
  that need an election.
- ELECTION_NOT_NEEDED where nothing has to change; PREFERRED_LEADER_NOT_AVAILABLE and
  ELIGIBLE_LEADERS_NOT_AVAILABLE where no replica can be elected.

Versions
- 1 unclean elections. 2 flexible.
"""

from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import Election, ElectLeaders, PartitionResult
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        ElectLeadersRequest,
        ElectLeadersResponse,
        ElectLeadersResponsePartition,
        ElectLeadersResponseReplicaElection,
    )


async def handle(
    core: BrokerCore, request: "ApiRequest[ElectLeadersRequest, ElectLeadersResponse]"
) -> Answer:
    body = request.body()
    wanted = None
    if body.topic_partitions is not None:
        wanted = [
            TopicPartition(topic.topic, index)
            for topic in body.topic_partitions
            for index in topic.partitions
        ]
    kind = body.election_type if request.version >= 1 else Election.PREFERRED.value
    try:
        answers = await core.controller.submit(ElectLeaders(_election(kind), wanted))
    except ApiError as error:
        answers = [PartitionResult(key, error.code, str(error)) for key in wanted or ()]
        return request.answer(
            {"error_code": error.code, "replica_election_results": _results(answers)}
        )
    return request.answer({"error_code": Code.NONE, "replica_election_results": _results(answers)})


def _election(kind: int) -> Election:
    try:
        return Election(kind)
    except ValueError:
        raise ApiError(Code.INVALID_REQUEST, f"Unknown election type {kind}") from None


def _results(answers: list[PartitionResult]) -> "list[ElectLeadersResponseReplicaElection]":
    topics: dict[str, list[ElectLeadersResponsePartition]] = {}
    for answer in answers:
        topics.setdefault(answer.partition.topic, []).append(
            {
                "partition_id": answer.partition.partition,
                "error_code": answer.code,
                "error_message": answer.message,
            }
        )
    return [{"topic": name, "partition_result": results} for name, results in topics.items()]


API = register(ApiKey.ELECT_LEADERS, 0, 2, handle)
