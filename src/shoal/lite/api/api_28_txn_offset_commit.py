"""TxnOffsetCommit (28), versions 0 to 5.

Behaviour
- Offsets that count when the transaction commits; until then they are pending, and OffsetFetch
  with `require_stable` says so.
- The transaction's coordinator is asked before the first of them is written: up to version 4
  whether the group was announced by AddOffsetsToTxn, from 5 on it is added (KIP-890).
- From version 3 on the producer names the member and generation that it works for, which are
  checked as in OffsetCommit: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (KIP-447).
- UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE and the rest as in OffsetCommit.

Versions
- 2 leader epochs, and COORDINATOR_LOAD_IN_PROGRESS is known to the client. 3 flexible, members.
  4 TRANSACTION_ABORTABLE. 5 no AddOffsetsToTxn before.
"""

from typing import Any

from shoal.lite.api.api_08_offset_commit import commit_answers, judge_offsets
from shoal.lite.api.group_requests import identity_in, member_shard
from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.loaded_shard import translated
from shoal.lite.coordinator.topics import GROUP_TOPIC
from shoal.lite.coordinator.transactions.model import Identity
from shoal.lite.coordinator.transactions.service import Asked
from shoal.lite.partitions.guards import Guard
from shoal.lite.storage.header import BatchHeader
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

_FIRST_THAT_KNOWS_LOADING = 2
_FIRST_THAT_KNOWS_ABORTABLE = 4
_FIRST_THAT_ADDS = 5
_NO_HEADER = BatchHeader._make([0] * len(BatchHeader._fields))


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    commits, codes = judge_offsets(core, body)
    code = Code.NONE
    try:
        if commits:
            await _commit(core, request, body, commits)
    except Refused as refused:
        code = refused.code
    if code == Code.COORDINATOR_LOAD_IN_PROGRESS and request.version < _FIRST_THAT_KNOWS_LOADING:
        code = Code.COORDINATOR_NOT_AVAILABLE
    return request.answer(topics=commit_answers(core, body, codes, code))


async def _commit(core: BrokerCore, request: Request, body: Any, commits: Any) -> None:
    # Refused before the transaction's coordinator is troubled.
    member_shard(core, body.group_id)
    guard = await _joined(core, request.version, body)
    # Another broker may coordinate the group by now.
    shard = member_shard(core, body.group_id)
    await shard.commit_in_transaction(
        body.group_id,
        identity_in(body),
        commits,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        guard=guard,
    )


async def _joined(core: BrokerCore, version: int, body: Any) -> Guard | None:
    """The guard under which the first offsets of a transaction are written, if these are."""
    key = TopicPartition(GROUP_TOPIC.name, core.groups.partition_for(body.group_id))
    partition = core.partition(*key)
    identity = Identity(body.producer_id, body.producer_epoch)
    if partition.log.producers.has_open_transaction(identity.producer_id, identity.epoch):
        return None
    header = _NO_HEADER._replace(
        producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=0
    )
    guard = partition.guards.stand(header, partition.log.producers, begins_at_zero=False)
    codes = await core.transactions.join(body.transactional_id, identity, [key], _asked(version))
    if codes[key] != Code.NONE:
        message = "the group could not be added to the transaction"
        raise translated(Refused(codes[key], message))
    return guard


def _asked(version: int) -> Asked:
    if version >= _FIRST_THAT_ADDS:
        return Asked.ADD
    return Asked.VERIFY_ABORTABLE if version >= _FIRST_THAT_KNOWS_ABORTABLE else Asked.VERIFY


API = register(ApiKey.TXN_OFFSET_COMMIT, 0, 5, handle)
