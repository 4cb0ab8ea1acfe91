"""Messages in few words, for traces. What is said all the time, and means nothing, is left out."""

from typing import Any

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data import requests
from shoal.lite.raft import messages as raft
from shoal.lite.simulation.messages import (
    ControllerCall,
    ControllerReply,
    FetchCall,
    FetchRelease,
    FetchReply,
    ProduceMessage,
    ProduceReply,
)
from shoal.wire.fetch import FetchRequest, PartitionAnswer


def describe(message: Any) -> str | None:
    """What a message says; None if it says nothing new."""
    if isinstance(message, ControllerCall):
        return _describe_call(message.request)
    if isinstance(message, ControllerReply):
        return _describe_answer(message)
    if isinstance(message, FetchCall):
        return _describe_fetch(message.request)
    if isinstance(message, FetchReply):
        return _describe_fetched(message)
    if isinstance(message, FetchRelease):
        return "do not hold the fetch"
    if isinstance(message, ProduceMessage):
        header = message.header
        return (
            f"produce p{message.key[1]}: {header.record_count} of {header.producer_id} from "
            f"sequence {header.base_sequence}, acks {message.acks}"
        )
    if isinstance(message, ProduceReply):
        return f"produced {message.batch}: {message.code.name}"
    return _describe_raft(message)


def _describe_call(request: Any) -> str | None:
    if isinstance(request, requests.Heartbeat):
        return "heartbeat, wants to stop" if request.want_shutdown else None
    if isinstance(request, requests.RegisterBroker):
        return f"register {request.incarnation} on {request.boot_id}, {request.directory_id}"
    if isinstance(request, requests.AlterPartitions):
        return "; ".join(
            f"in sync for p{change.partition}: {change.in_sync} on partition epoch "
            f"{change.partition_epoch}, leader epoch {change.leader_epoch}"
            for change in request.changes
        )
    return str(request)


def _describe_answer(reply: ControllerReply) -> str | None:
    if reply.code != Code.NONE:
        return reply.code.name
    if isinstance(reply.answer, requests.HeartbeatAnswer):
        return None
    if isinstance(reply.answer, list):
        return "; ".join(_describe_part(part) for part in reply.answer)
    return str(reply.answer)


def _describe_part(part: Any) -> str:
    if not isinstance(part, requests.InSyncAnswer):
        return str(part)
    record = part.partition
    now = "" if record is None else f" {record.in_sync} partition epoch {record.partition_epoch}"
    return f"in sync for p{part.index}: {part.code.name}{now}"


def _describe_fetch(fetch: FetchRequest) -> str:
    partitions = [
        f"p{each.partition} from {each.offset} after e{each.last_fetched_epoch}, leader epoch "
        f"{each.leader_epoch}"
        for each in fetch.partitions
    ]
    partitions += [f"p{gone.partition} no longer" for gone in fetch.forgotten]
    session = f"session epoch {fetch.session_epoch}, broker epoch {fetch.replica_epoch}"
    return f"fetch {'; '.join(partitions) or 'what is new'}, {session}"


def _describe_fetched(reply: FetchReply) -> str:
    if reply.code != Code.NONE:
        return f"fetched: {reply.code.name}"
    return f"fetched {'; '.join(map(_describe_fetched_partition, reply.answers)) or 'nothing'}"


def _describe_fetched_partition(answer: PartitionAnswer[Any]) -> str:
    words = f"p{answer.partition}: "
    if answer.error_code:
        return words + f"{Code(answer.error_code).name}, log from {answer.log_start_offset}"
    if answer.diverging_epoch is not None:
        return words + f"diverges, {answer.diverging_epoch}, log from {answer.log_start_offset}"
    batches = " ".join(map(str, answer.records)) or "nothing"
    return words + f"{batches}, high watermark {answer.high_watermark}"


def _describe_raft(message: Any) -> str | None:
    if isinstance(message, raft.RaftFetchRequest):
        return None
    if isinstance(message, raft.RaftFetchResponse):
        if not message.entries and message.diverging is None and not message.error:
            return None
        entries = sum(entry.count for entry in message.entries)
        return (
            f"metadata of epoch {message.epoch}: {entries} records from {message.offset}, "
            f"high watermark {message.high_watermark}, {message.diverging}, {message.error.name}"
        )
    if isinstance(message, raft.VoteRequest):
        kind = "pre-vote" if message.pre_vote else "vote"
        log = f"log e{message.last_epoch}, {message.last_offset}"
        return f"{kind} for {message.candidate_id} in epoch {message.epoch}, {log}"
    if isinstance(message, raft.VoteResponse):
        kind = "pre-vote" if message.pre_vote else "vote"
        return f"{kind} in epoch {message.epoch}: {'yes' if message.granted else 'no'}"
    if isinstance(message, raft.FetchSnapshotRequest | raft.FetchSnapshotResponse):
        return f"{type(message).__name__} {message.snapshot} at {message.position}"
    return f"{type(message).__name__} epoch {message.epoch}"
