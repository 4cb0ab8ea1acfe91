"""Asks source leaders whether they still have the records that were read (OffsetForLeaderEpoch).

Rules:
- Every partition is judged separately. If its leader is missing or does not answer, the partition
  stays unanswered, and the caller asks again.
- An answer is valid for the leader epoch in the request; a later leader is asked again.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import ClientError
from shoal.client.results import LATEST
from shoal.mirror.watch.divergence import (
    EpochStart,
    Judgement,
    LeaderEpochEnd,
    judge,
    judge_unknown,
)
from shoal.model.errors import SystemFailure, WireError
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

# The first version with the field `current_leader_epoch`.
_FIRST_VERSION: Final = 2
_END_S: Final = 5.0


class ReadSoFar(NamedTuple):
    """What was read of a partition: the epochs, and the next position."""

    epochs: tuple[EpochStart, ...]
    position: int


@dataclass(slots=True)
class Answers:
    """The answers of leaders."""

    # By partition: the leader epoch for which the answer is valid.
    checked: dict[TopicPartition, int] = field(default_factory=dict)
    # Of those: the offset from which the leader has other records.
    diverged: dict[TopicPartition, int] = field(default_factory=dict)
    # Not answered, with the reason.
    errors: dict[TopicPartition, str] = field(default_factory=dict)


def epochs_unavailable(tp: TopicPartition, reason: str) -> SystemFailure:
    """The error for a partition that cannot be compared yet."""
    failure = SystemFailure(
        f"cannot check whether the source leader of {tp} still has the copied records: {reason}",
        remedy="restart its brokers; the check is retried",
    )
    failure.retriable = True
    return failure


def leader_epoch(client: Client, tp: TopicPartition) -> int:
    """The leader epoch in the client's metadata; -1 if unknown."""
    known = client.cluster.partition(tp)
    return -1 if known is None else known.leader_epoch


async def find_divergences(source: Client, read: Mapping[TopicPartition, ReadSoFar]) -> Answers:
    """Ask the leaders of these partitions; raises `UnsupportedByBroker` on old brokers."""
    answers = Answers()
    epochs = {tp: leader_epoch(source, tp) for tp in read}
    questions = {tp: each.epochs[-1].epoch for tp, each in read.items()}
    while questions:
        ends = await _ask_leaders(source, questions, epochs, answers)
        asked, questions = questions, {}
        for tp, end in ends.items():
            judgement = await _judge_answer(source, tp, read[tp], asked=(asked[tp], end))
            if judgement is None:
                answers.errors[tp] = "the leader returns neither its epochs nor its log end"
            elif judgement.ask_next is not None:
                questions[tp] = judgement.ask_next
            else:
                answers.checked[tp] = epochs[tp]
                if judgement.diverged_at is not None:
                    answers.diverged[tp] = judgement.diverged_at
    return answers


async def _judge_answer(
    source: Client, tp: TopicPartition, read: ReadSoFar, *, asked: tuple[int, LeaderEpochEnd]
) -> Judgement | None:
    """Judge the answer to the requested epoch; None if the log end is needed and unavailable."""
    asked_epoch, end = asked
    if end.end_offset >= 0:
        return judge(read.epochs, read.position, asked_epoch, end)
    listed = await source.list_offsets_or_errors({tp: LATEST}, timeout_s=_END_S)
    if tp in listed.errors:
        return None
    return judge_unknown(read.epochs, read.position, listed.offsets[tp].offset)


async def _ask_leaders(
    source: Client,
    questions: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    answers: Answers,
) -> dict[TopicPartition, LeaderEpochEnd]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for tp in questions:
        leader = source.cluster.leader(tp)
        if leader is None:
            answers.errors[tp] = "the partition has no leader"
        else:
            by_leader.setdefault(leader, []).append(tp)
    ends: dict[TopicPartition, LeaderEpochEnd] = {}

    async def ask(node_id: int, partitions: list[TopicPartition]) -> None:
        values = _values(partitions, questions, epochs)
        try:
            response = await source.call(
                ApiKey.OFFSET_FOR_LEADER_EPOCH, values, node_id=node_id, at_least=_FIRST_VERSION
            )
        except (ClientError, WireError) as error:
            if isinstance(error, ClientError) and not error.retriable:
                raise
            answers.errors.update(dict.fromkeys(partitions, str(error)))
            return
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic, int(part.partition))
                if part.error_code != Code.NONE:
                    answers.errors[tp] = Code(part.error_code).name
                elif tp in questions:
                    ends[tp] = LeaderEpochEnd(int(part.leader_epoch), int(part.end_offset))

    await asyncio.gather(*(ask(node, partitions) for node, partitions in by_leader.items()))
    return ends


def _values(
    partitions: Iterable[TopicPartition],
    questions: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
) -> dict[str, object]:
    topics: dict[str, list[dict[str, int]]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(
            {
                "partition": tp.partition,
                "current_leader_epoch": epochs[tp],
                "leader_epoch": questions[tp],
            }
        )
    listed = [{"topic": name, "partitions": parts} for name, parts in topics.items()]
    return {"replica_id": -1, "topics": listed}
