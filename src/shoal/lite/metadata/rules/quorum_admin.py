"""Requests of clients about the quorum: describe it, add and remove voters.

    DescribeQuorum 55 (KIP-595, 836, 853)    versions 0 to 2
    AddRaftVoter 80 (KIP-853)                versions 0 to 1
    RemoveRaftVoter 81                       version 0

Only the leader answers; brokers forward these requests to it. A voter is added when it has caught
up as an observer, with its current directory id: a voter that lost its disk is removed first.
"""

import asyncio
import time
from functools import partial
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.metadata.server.node import ControllerNode
from shoal.lite.metadata.server.port import Answer, answer_when_replied
from shoal.lite.raft.leader import ReplicaProgress
from shoal.lite.raft.model import ReplicaKey, Voter
from shoal.lite.raft.wire import TOPIC
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.errors import Malformed
from shoal.wire.messages import (
    RequestFrame,
    decode_body,
    encode_response,
    request_class,
    response_class,
)

VERSIONS = {
    ApiKey.DESCRIBE_QUORUM: range(3),
    ApiKey.ADD_RAFT_VOTER: range(2),
    ApiKey.REMOVE_RAFT_VOTER: range(1),
}
# An observer that has not fetched for so long is not described, as in Apache Kafka.
_OBSERVER_TIMEOUT_MS = 300_000
_UNKNOWN = -1


def answer(
    node: ControllerNode, header: RequestFrame, request: memoryview
) -> "Answer | asyncio.Future[Answer]":
    cls = request_class(header.api_key, header.api_version)
    body: Any = decode_body(request, cls, header.body_position)
    if header.api_key == ApiKey.DESCRIBE_QUORUM:
        return _encode_response(header, _describe_quorum(node))
    directory = body.voter_directory_id or UUID(int=0)
    if header.api_key == ApiKey.ADD_RAFT_VOTER:
        if not body.listeners:
            raise Malformed("AddRaftVoter names no listener of the voter")
        listener = body.listeners[0]
        voter = Voter(body.voter_id, directory, listener.host, listener.port)
        change = partial(node.add_voter, voter)
    else:
        change = partial(node.remove_voter, ReplicaKey(body.voter_id, directory))
    return answer_when_replied(
        change, lambda reply: _encode_response(header, _change_values(reply.refused))
    )


def _change_values(refused: ApiError | None) -> dict[str, Any]:
    if refused is None:
        return {"error_code": Code.NONE, "error_message": None}
    return {"error_code": refused.code, "error_message": str(refused)}


def _describe_quorum(node: ControllerNode) -> dict[str, Any]:
    raft = node.raft
    partition: dict[str, Any] = {
        "partition_index": 0,
        "error_code": Code.NONE if raft.is_leader else Code.NOT_LEADER_OR_FOLLOWER,
        "error_message": None,
        "leader_id": _UNKNOWN if raft.leader_id is None else raft.leader_id,
        "leader_epoch": raft.epoch,
        "high_watermark": raft.high_watermark,
        "current_voters": [],
        "observers": [],
    }
    if raft.is_leader:
        now_ms = monotonic_ms()
        voters = [_replica(node, voter.key, now_ms) for voter in raft.voters]
        observers = [
            _replica(node, progress.key, now_ms)
            for progress in raft.progress.values()
            if not raft.voters.has(progress.key)
            and now_ms - progress.fetched_ms < _OBSERVER_TIMEOUT_MS
        ]
        partition |= {"current_voters": voters, "observers": observers}
    nodes = [
        {
            "node_id": voter.id,
            "listeners": [{"name": "CONTROLLER", "host": voter.host, "port": voter.port}],
        }
        for voter in raft.voters
    ]
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "topics": [{"topic_name": TOPIC, "partitions": [partition]}],
        "nodes": nodes,
    }


def _replica(node: ControllerNode, key: ReplicaKey, now_ms: int) -> dict[str, Any]:
    raft = node.raft
    wall_ms = time.time_ns() // 1_000_000
    progress: ReplicaProgress | None = raft.progress.get(key.id)
    if key == node.key:
        end_offset, fetched_ms, caught_up_ms = raft.log.end_offset, wall_ms, wall_ms
    elif progress is None:
        end_offset = fetched_ms = caught_up_ms = _UNKNOWN
    else:
        end_offset = progress.end_offset
        fetched_ms = wall_ms - (now_ms - progress.fetched_ms)
        caught_up_ms = fetched_ms if end_offset >= raft.high_watermark else _UNKNOWN
    return {
        "replica_id": key.id,
        "replica_directory_id": key.directory,
        "log_end_offset": end_offset,
        "last_fetch_timestamp": fetched_ms,
        "last_caught_up_timestamp": caught_up_ms,
    }


def _encode_response(header: RequestFrame, values: dict[str, Any]) -> Answer:
    cls = response_class(header.api_key, header.api_version)
    response = build(cls, values | {"throttle_time": 0})
    return [encode_response(response, correlation_id=header.correlation_id)]
