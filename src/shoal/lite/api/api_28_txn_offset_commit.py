"""TxnOffsetCommit (28), versions 0 to 5.

Behaviour
- Offsets that take effect when the transaction commits. Until then they are pending, which
  OffsetFetch with `require_stable` reports.
- Before the first of them is written, the transaction coordinator is asked: up to version 4 to
  verify that AddOffsetsToTxn added the group, from 5 on to add it (KIP-890).
- From version 3 on the producer sends the member and generation that it works for, which are
  checked as in OffsetCommit: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (KIP-447).
- UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE and the rest as in OffsetCommit.

Versions
- 2 leader epochs, and the client knows COORDINATOR_LOAD_IN_PROGRESS. 3 flexible, members.
  4 TRANSACTION_ABORTABLE. 5 needs no AddOffsetsToTxn before.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.api_08_offset_commit import (
    Commits,
    CommittedTopic,
    check_offsets,
    partition_results,
)
from shoal.lite.api.group_requests import member_shard
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.messages import MemberIdentity
from shoal.lite.coordinator.loaded_shard import to_coordinator_error
from shoal.lite.coordinator.topics import GROUP_TOPIC
from shoal.lite.coordinator.transactions.model import ProducerIdAndEpoch
from shoal.lite.coordinator.transactions.service import CoordinatorAction
from shoal.lite.partitions.admission.guards import VerificationGuard
from shoal.lite.storage.header import BatchHeader
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_FIRST_THAT_KNOWS_LOADING = 2
_FIRST_WITH_LEADER_EPOCH = 2
_FIRST_WITH_MEMBERS = 3
_FIRST_THAT_KNOWS_ABORTABLE = 4
_FIRST_THAT_ADDS = 5
_NO_HEADER = BatchHeader._make([0] * len(BatchHeader._fields))


async def handle(
    core: BrokerCore, request: "ApiRequest[TxnOffsetCommitRequest, TxnOffsetCommitResponse]"
) -> Answer:
    body = request.body()
    topics = [CommittedTopic(item.name, None, item.partitions) for item in body.topics]
    has_epochs = request.version >= _FIRST_WITH_LEADER_EPOCH
    commits, codes = check_offsets(core, topics, has_epochs=has_epochs)
    code = Code.NONE
    try:
        if commits:
            await _commit(core, request.version, body, commits)
    except ApiError as error:
        code = error.code
    if code == Code.COORDINATOR_LOAD_IN_PROGRESS and request.version < _FIRST_THAT_KNOWS_LOADING:
        code = Code.COORDINATOR_NOT_AVAILABLE
    return request.answer(
        {
            "topics": [
                {
                    "name": topic.name or "",
                    "partitions": partition_results(topic, place, codes, code),
                }
                for place, topic in enumerate(topics)
            ]
        }
    )


async def _commit(
    core: BrokerCore,
    version: int,
    body: "TxnOffsetCommitRequest",
    commits: Commits,
) -> None:
    # Check the group first: if it is refused, the coordinator need not be asked.
    member_shard(core, body.group_id)
    guard = await _verify_or_add_group(core, version, body)
    # Another broker may coordinate the group by now.
    shard = member_shard(core, body.group_id)
    identity = MemberIdentity("")
    if version >= _FIRST_WITH_MEMBERS:
        identity = MemberIdentity(body.member_id, body.generation_id, body.group_instance_id)
    await shard.commit_in_transaction(
        body.group_id,
        identity,
        commits,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        guard=guard,
    )


async def _verify_or_add_group(
    core: BrokerCore, version: int, body: "TxnOffsetCommitRequest"
) -> VerificationGuard | None:
    """The guard for the first offsets of a transaction; None if it is already open here."""
    key = TopicPartition(GROUP_TOPIC.name, core.groups.partition_for(body.group_id))
    partition = core.partition(*key)
    identity = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
    if partition.log.producers.has_open_transaction(identity.producer_id, identity.epoch):
        return None
    header = _NO_HEADER._replace(
        producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=0
    )
    guard = partition.guards.begin_verification(
        header, partition.log.producers, begins_at_zero=False
    )
    codes = await core.transactions.verify_or_add(
        body.transactional_id, identity, [key], _coordinator_action(version)
    )
    if codes[key] != Code.NONE:
        message = "the coordinator did not add the group to the transaction"
        raise to_coordinator_error(ApiError(codes[key], message))
    return guard


def _coordinator_action(version: int) -> CoordinatorAction:
    if version >= _FIRST_THAT_ADDS:
        return CoordinatorAction.ADD
    return (
        CoordinatorAction.VERIFY_ABORTABLE
        if version >= _FIRST_THAT_KNOWS_ABORTABLE
        else CoordinatorAction.VERIFY
    )


API = register(ApiKey.TXN_OFFSET_COMMIT, 0, 5, handle)
