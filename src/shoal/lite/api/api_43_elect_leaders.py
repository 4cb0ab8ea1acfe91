"""ElectLeaders (43), versions 0 to 2 (KIP-183, KIP-460).

Behaviour
- The first replica leads again if it is in sync, or, in an unclean election, whoever has most
  where nobody leads. Without partitions in the request: all that need it.
- ELECTION_NOT_NEEDED where all is well, PREFERRED_LEADER_NOT_AVAILABLE and
  ELIGIBLE_LEADERS_NOT_AVAILABLE where it cannot be.

Versions
- 1 unclean elections. 2 flexible.
"""

from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.requests import Election, ElectLeaders, PartitionAnswer
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    wanted = None
    if body.topic_partitions is not None:
        wanted = [
            TopicPartition(topic.topic, index)
            for topic in body.topic_partitions
            for index in topic.partitions
        ]
    kind = getattr(body, "election_type", Election.PREFERRED.value)
    try:
        answers = await core.controller.submit(ElectLeaders(_election(kind), wanted))
    except Refused as refused:
        answers = [PartitionAnswer(key, refused.code, str(refused)) for key in wanted or ()]
        return request.answer(error_code=refused.code, replica_election_results=_results(answers))
    return request.answer(error_code=Code.NONE, replica_election_results=_results(answers))


def _election(kind: int) -> Election:
    try:
        return Election(kind)
    except ValueError:
        raise Refused(Code.INVALID_REQUEST, f"Unknown election type {kind}") from None


def _results(answers: list[PartitionAnswer]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
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
