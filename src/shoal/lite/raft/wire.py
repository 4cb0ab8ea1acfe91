"""The messages of the quorum as Apache Kafka's requests and responses.

    Vote 52, BeginQuorumEpoch 53, EndQuorumEpoch 54, Fetch 1, FetchSnapshot 59

Each is about one partition, 0 of `__cluster_metadata`, and names the cluster: a node
of another cluster gets INCONSISTENT_CLUSTER_ID, and nothing else.

Rules of this file:
- A response is decoded together with its request, since our messages repeat parts of it (see
  `messages`).
- Invalid content raises a `WireError`, also an error code that no member would send.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from shoal.lite.raft.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochResponse,
    EndQuorumEpoch,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from shoal.lite.raft.model import RaftEntry, RaftEpochEnd, RaftSnapshotId
from shoal.lite.raft.storage.codec import decode_entries, encode_entries
from shoal.wire import fetch as fetch_wire
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.error_codes import Code
from shoal.wire.errors import Malformed, WireError
from shoal.wire.framing import Part
from shoal.wire.messages import (
    RequestFrame,
    decode_body,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from shoal.wire.record_messages import CurrentLeader

TOPIC = "__cluster_metadata"
TOPIC_ID = UUID(int=1)
_PARTITION = 0
_NO_NODE = -1
_NO_DIRECTORY = UUID(int=0)
# What a fetch response may contain; the leader's own limit is far lower.
_MAX_BYTES = 64 * 1024 * 1024

VERSIONS = {
    ApiKey.VOTE: 2,
    ApiKey.BEGIN_QUORUM_EPOCH: 1,
    ApiKey.END_QUORUM_EPOCH: 1,
    ApiKey.FETCH: 18,
    ApiKey.FETCH_SNAPSHOT: 1,
}
_KEYS: dict[type[Any], ApiKey] = {
    VoteRequest: ApiKey.VOTE,
    BeginQuorumEpoch: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpoch: ApiKey.END_QUORUM_EPOCH,
    RaftFetchRequest: ApiKey.FETCH,
    FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
}


class WrongCluster(WireError):
    """The other node belongs to another cluster."""


class RequestContext(NamedTuple):
    """What a request carries beside its message: receiver, cluster, and the sender's address."""

    voter_id: int
    cluster_id: str
    host: str
    port: int
    wait_ms: int


class ReceivedRequest(NamedTuple):
    """A request that another node has sent."""

    sender: int
    cluster_id: str | None
    message: RaftRequest


def api_key_of(message: RaftRequest) -> ApiKey:
    return _KEYS[type(message)]


# Requests


def encode_raft_request(
    message: RaftRequest, envelope: RequestContext, correlation_id: int
) -> list[Part]:
    """The parts of a request, to be framed."""
    if isinstance(message, RaftFetchRequest):
        return [_encode_fetch(message, envelope, correlation_id)]
    api_key = api_key_of(message)
    partition, values = _REQUEST_VALUES[api_key](message)
    topic = {"topic_name": TOPIC, "name": TOPIC, "partitions": [partition]}
    listener = {"name": "CONTROLLER", "host": envelope.host, "port": envelope.port}
    values = values | {
        "cluster_id": envelope.cluster_id,
        "voter_id": envelope.voter_id,
        "topics": [topic],
        "leader_endpoints": [listener],
    }
    request = build(request_class(api_key, VERSIONS[api_key]), values)
    return [encode_request(request, correlation_id=correlation_id, client_id=None)]


def _vote_values(message: VoteRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    partition = {
        "partition_index": _PARTITION,
        "replica_epoch": message.epoch,
        "replica_id": message.candidate_id,
        "replica_directory_id": message.candidate_directory,
        "voter_directory_id": message.voter_directory,
        "last_offset_epoch": message.last_epoch,
        "last_offset": message.last_offset,
        "pre_vote": message.pre_vote,
    }
    return partition, {}


def _begin_values(message: BeginQuorumEpoch) -> tuple[dict[str, Any], dict[str, Any]]:
    partition = {
        "partition_index": _PARTITION,
        "voter_directory_id": message.voter_directory,
        "leader_id": message.leader_id,
        "leader_epoch": message.epoch,
    }
    return partition, {}


def _end_values(message: EndQuorumEpoch) -> tuple[dict[str, Any], dict[str, Any]]:
    preferred = [
        {"candidate_id": voter_id, "candidate_directory_id": None} for voter_id in message.preferred
    ]
    partition = {
        "partition_index": _PARTITION,
        "leader_id": message.leader_id,
        "leader_epoch": message.epoch,
        "preferred_candidates": preferred,
    }
    return partition, {}


def _snapshot_id(snapshot: RaftSnapshotId) -> dict[str, Any]:
    return {"end_offset": snapshot.end_offset, "epoch": snapshot.epoch}


def _snapshot_values(message: FetchSnapshotRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    partition = {
        "partition": _PARTITION,
        "current_leader_epoch": message.epoch,
        "snapshot_id": _snapshot_id(message.snapshot),
        "position": message.position,
        "replica_directory_id": message.replica_directory,
    }
    return partition, {"replica_id": message.replica_id}


_REQUEST_VALUES: dict[ApiKey, Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]] = {
    ApiKey.VOTE: _vote_values,
    ApiKey.BEGIN_QUORUM_EPOCH: _begin_values,
    ApiKey.END_QUORUM_EPOCH: _end_values,
    ApiKey.FETCH_SNAPSHOT: _snapshot_values,
}


def _encode_fetch(
    message: RaftFetchRequest, envelope: RequestContext, correlation_id: int
) -> bytes:
    partition = fetch_wire.FetchPartition(
        TOPIC,
        TOPIC_ID,
        _PARTITION,
        message.offset,
        _MAX_BYTES,
        leader_epoch=message.epoch,
        last_fetched_epoch=message.last_fetched_epoch,
        log_start_offset=0,
        replica_directory_id=message.replica_directory,
        high_watermark=message.high_watermark,
    )
    return fetch_wire.encode_fetch_request(
        VERSIONS[ApiKey.FETCH],
        correlation_id=correlation_id,
        client_id=None,
        max_wait_ms=envelope.wait_ms,
        min_bytes=0,
        max_bytes=_MAX_BYTES,
        isolation=fetch_wire.READ_UNCOMMITTED,
        partitions=[partition],
        replica_id=message.replica_id,
        cluster_id=envelope.cluster_id,
    )


def decode_raft_request(header: RequestFrame, frame: Part) -> ReceivedRequest:
    """Decode a request of another node; its version is one of `VERSIONS`."""
    if header.api_key == ApiKey.FETCH:
        return _decode_fetch(header, frame)
    body = decode_body(
        frame, request_class(header.api_key, header.api_version), header.body_position
    )
    partition = _only_partition(body.topics)
    match header.api_key:
        case ApiKey.VOTE:
            message: RaftRequest = VoteRequest(
                partition.replica_epoch,
                partition.replica_id,
                partition.replica_directory_id or _NO_DIRECTORY,
                partition.voter_directory_id or _NO_DIRECTORY,
                partition.last_offset_epoch,
                partition.last_offset,
                partition.pre_vote,
            )
            sender = partition.replica_id
        case ApiKey.BEGIN_QUORUM_EPOCH:
            directory = partition.voter_directory_id or _NO_DIRECTORY
            sender = partition.leader_id
            message = BeginQuorumEpoch(partition.leader_epoch, sender, directory)
        case ApiKey.END_QUORUM_EPOCH:
            preferred = tuple(item.candidate_id for item in partition.preferred_candidates)
            sender = partition.leader_id
            message = EndQuorumEpoch(partition.leader_epoch, sender, preferred)
        case _:
            sender = body.replica_id
            snapshot = RaftSnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
            directory = partition.replica_directory_id or _NO_DIRECTORY
            message = FetchSnapshotRequest(
                partition.current_leader_epoch, sender, directory, snapshot, partition.position
            )
    return ReceivedRequest(int(sender), body.cluster_id, message)


def _decode_fetch(header: RequestFrame, frame: Part) -> ReceivedRequest:
    fetch = fetch_wire.decode_fetch_request(header.api_version, frame, header.body_position)
    if len(fetch.partitions) != 1 or fetch.partitions[0].topic_id != TOPIC_ID:
        raise Malformed(f"a fetch from a controller must name {TOPIC} only")
    [partition] = fetch.partitions
    message = RaftFetchRequest(
        partition.leader_epoch,
        fetch.replica_id,
        partition.replica_directory_id or _NO_DIRECTORY,
        partition.offset,
        partition.last_fetched_epoch,
        -1 if partition.high_watermark is None else partition.high_watermark,
    )
    return ReceivedRequest(fetch.replica_id, fetch.cluster_id, message)


def _only_partition(topics: Any) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise Malformed(f"a quorum message must name one partition of {TOPIC}")
    return topics[0].partitions[0]


# Responses


def encode_wrong_cluster(header: RequestFrame) -> list[Part]:
    """The response to a node of another cluster."""
    code = Code.INCONSISTENT_CLUSTER_ID
    if header.api_key == ApiKey.FETCH:
        return _encode_fetch_response(header, [], code)
    values = {"error_code": code, "topics": [], "throttle_time": 0}
    return _encode_response(header, values)


def encode_raft_response(header: RequestFrame, message: RaftResponse) -> list[Part]:
    """The parts of a response to the request with this header."""
    if isinstance(message, RaftFetchResponse):
        return _encode_fetch_response(header, [_build_fetch_partition(message)], Code.NONE)
    leader = {
        "leader_id": _NO_NODE if message.leader_id is None else message.leader_id,
        "leader_epoch": message.epoch,
    }
    partition: dict[str, Any] = {
        "partition_index": _PARTITION,
        "index": _PARTITION,
        "error_code": message.error,
        **leader,
    }
    if isinstance(message, VoteResponse):
        partition["vote_granted"] = message.granted
    elif isinstance(message, FetchSnapshotResponse):
        partition |= {
            "snapshot_id": _snapshot_id(message.snapshot),
            "current_leader": leader,
            "size": message.size,
            "position": message.position,
            "unaligned_records": message.data,
        }
    topic = {"topic_name": TOPIC, "name": TOPIC, "partitions": [partition]}
    return _encode_response(
        header, {"error_code": Code.NONE, "topics": [topic], "throttle_time": 0}
    )


def _encode_response(header: RequestFrame, values: dict[str, Any]) -> list[Part]:
    response = build(response_class(header.api_key, header.api_version), values)
    return [encode_response(response, correlation_id=header.correlation_id)]


def _build_fetch_partition(message: RaftFetchResponse) -> fetch_wire.PartitionAnswer[Part]:
    leader_id = _NO_NODE if message.leader_id is None else message.leader_id
    diverging, snapshot = message.diverging, message.snapshot
    return fetch_wire.PartitionAnswer(
        TOPIC,
        TOPIC_ID,
        _PARTITION,
        error_code=message.error,
        high_watermark=message.high_watermark,
        last_stable_offset=message.high_watermark,
        log_start_offset=0,
        diverging_epoch=None if diverging is None else fetch_wire.EpochEnd(*diverging),
        current_leader=CurrentLeader(leader_id, message.epoch),
        snapshot_id=None if snapshot is None else fetch_wire.SnapshotId(*snapshot),
        records=memoryview(encode_entries(message.entries, message.offset)),
    )


def _encode_fetch_response(
    header: RequestFrame, partitions: list[fetch_wire.PartitionAnswer[Part]], code: Code
) -> list[Part]:
    return fetch_wire.encode_fetch_response(
        header.api_version,
        correlation_id=header.correlation_id,
        session_id=fetch_wire.NO_SESSION_ID,
        error_code=code,
        partitions=partitions,
    )


def decode_raft_response(request: RaftRequest, frame: Part) -> RaftResponse:
    """Decode the response to `request`."""
    if isinstance(request, RaftFetchRequest):
        return _decode_fetch_response(request, frame)
    api_key = api_key_of(request)
    _, body = decode_response(frame, response_class(api_key, VERSIONS[api_key]))
    _check_cluster(body.error_code)
    partition = _only_partition(body.topics)
    error = _code(partition.error_code)
    if isinstance(request, FetchSnapshotRequest):
        leader = partition.current_leader
        return FetchSnapshotResponse(
            leader.leader_epoch,
            _leader(leader.leader_id),
            request.snapshot,
            request.position,
            partition.size,
            bytes(partition.unaligned_records or b""),
            error,
        )
    known = (partition.leader_epoch, _leader(partition.leader_id))
    if isinstance(request, VoteRequest):
        return VoteResponse(*known, partition.vote_granted, request.pre_vote, error)
    if isinstance(request, BeginQuorumEpoch):
        return BeginQuorumEpochResponse(*known, error)
    return EndQuorumEpochResponse(*known, error)


def _decode_fetch_response(request: RaftFetchRequest, frame: Part) -> RaftFetchResponse:
    response = fetch_wire.decode_fetch_response(VERSIONS[ApiKey.FETCH], frame)
    _check_cluster(response.error_code)
    if len(response.partitions) != 1 or response.partitions[0].current_leader is None:
        raise Malformed("a fetch response of the metadata quorum names no leader epoch")
    [fetched] = response.partitions
    leader = response.partitions[0].current_leader
    diverging, snapshot = fetched.diverging_epoch, fetched.snapshot_id
    return RaftFetchResponse(
        leader.leader_epoch,
        _leader(leader.leader_id),
        request.offset,
        request.last_fetched_epoch,
        _entries(fetched.records, request.offset),
        fetched.high_watermark,
        None if diverging is None else RaftEpochEnd(*diverging),
        None if snapshot is None else RaftSnapshotId(*snapshot),
        _code(fetched.error_code),
    )


def _entries(records: memoryview, offset: int) -> tuple[RaftEntry, ...]:
    entries = []
    for base_offset, entry in decode_entries(records):
        if base_offset != offset:
            raise Malformed(
                f"fetched from offset {offset}, but the response begins at {base_offset}"
            )
        entries.append(entry)
        offset += entry.count
    return tuple(entries)


def _check_cluster(error_code: int) -> None:
    if error_code == Code.INCONSISTENT_CLUSTER_ID:
        raise WrongCluster("the other node belongs to another cluster")
    if error_code:
        raise Malformed(f"a quorum request failed with error code {int(error_code)}")


def _leader(leader_id: int) -> int | None:
    return None if leader_id == _NO_NODE else int(leader_id)


def _code(number: int) -> RaftCode:
    try:
        return RaftCode(int(number))
    except ValueError:
        raise Malformed(f"{int(number)} is not an error code of the quorum") from None
