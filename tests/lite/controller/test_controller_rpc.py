"""What brokers and controllers say to each other travels as it is, and rubbish is refused."""

from typing import Any
from uuid import UUID

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import requests, rpc
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.values import decode_value, encode_value
from shoal.lite.raft import wire
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
from shoal.lite.raft.model import EntryKind, RaftEntry, RaftEpochEnd, RaftSnapshotId
from shoal.model.topics import TopicPartition
from shoal.wire.errors import Malformed, WireError
from shoal.wire.framing import Part
from shoal.wire.messages import decode_request_header, encode_request, request_class

CLUSTER = "cluster"
TOPIC_ID = UUID(int=9)
OTHER_ID = UUID(int=10)
PROCESS = UUID(int=11).hex
# What a leader is told of a partition: not who its replicas are.
PARTITION = PartitionRecord(TOPIC_ID, 0, (), (1, 2), 1, 4, 5)

CALLS: list[tuple[requests.ControllerRequest[Any], Any]] = [
    (
        requests.RegisterBroker(
            1,
            PROCESS,
            "host",
            9092,
            "boot",
            TOPIC_ID.hex,
            earlier=(PROCESS, TOPIC_ID.hex),
            previous_epoch=17,
            clean_incarnation=PROCESS,
            rack="rack",
        ),
        requests.RegistrationAnswer(7),
    ),
    (
        requests.RegisterBroker(1, PROCESS, "host", 9092, "boot", TOPIC_ID.hex),
        requests.RegistrationAnswer(8),
    ),
    (
        requests.Heartbeat(1, 2, 3, want_fence=True, want_shutdown=False),
        requests.HeartbeatAnswer(is_caught_up=True, is_fenced=False, should_shut_down=True),
    ),
    (
        requests.AlterPartitions(
            1,
            2,
            [
                requests.InSyncChange(TOPIC_ID, 0, 1, 2, ((1, 7), (2, -1))),
                requests.InSyncChange(TOPIC_ID, 1, 1, 2, ((1, 7),)),
                requests.InSyncChange(OTHER_ID, 0, 1, 2, ()),
            ],
        ),
        [
            requests.InSyncAnswer(TOPIC_ID, 0, Code.NONE, PARTITION),
            requests.InSyncAnswer(TOPIC_ID, 1, Code.FENCED_LEADER_EPOCH),
            requests.InSyncAnswer(OTHER_ID, 0, Code.INELIGIBLE_REPLICA),
        ],
    ),
    (requests.AllocateProducerIds(1, 2), requests.ProducerIdBlock(3000, 1000)),
    (
        requests.CreateTopic(requests.NewTopicSpec("t", 1, 3, {0: [1, 2]}, {"a": None}), TOPIC_ID),
        None,
    ),
    (
        requests.ElectLeaders(requests.Election.UNCLEAN, [TopicPartition("t", 1)]),
        [requests.PartitionResult(TopicPartition("t", 1), Code.ELECTION_NOT_NEEDED, "why")],
    ),
    (requests.Reassign({TopicPartition("t", 1): [1, 2], TopicPartition("t", 2): None}), []),
    (requests.ReportFailures(1, 2, [(TOPIC_ID, 3)]), None),
    (requests.ReportLosses(1, 2, [(TOPIC_ID, 3)]), None),
    (requests.ReportBrokerExits({1: PROCESS}), None),
]


def receive_parts(parts: list[Part]) -> memoryview:
    return memoryview(b"".join(parts))


@pytest.mark.parametrize(("call", "answer"), CALLS)
def test_a_call_and_its_answer_come_as_they_were(call: Any, answer: Any) -> None:
    frame = receive_parts(rpc.encode_call(call, CLUSTER, 5))
    header = decode_request_header(frame)
    assert rpc.decode_call(header, frame, CLUSTER) == call
    reply = receive_parts(rpc.encode_reply(header, rpc.Reply(answer, None, 42)))
    assert rpc.decode_reply(call, reply) == rpc.Reply(answer, None, 42)


@pytest.mark.parametrize("call", [call for call, _ in CALLS])
def test_a_refusal_says_why(call: Any) -> None:
    header = decode_request_header(receive_parts(rpc.encode_call(call, CLUSTER, 5)))
    refused = ApiError(Code.STALE_BROKER_EPOCH, "another process came")
    reply = rpc.decode_reply(
        call, receive_parts(rpc.encode_reply(header, rpc.Reply(None, refused, 7)))
    )
    assert reply.refused is not None
    assert (reply.refused.code, str(reply.refused)) == (refused.code, str(refused))
    assert reply.end_offset == 7


def test_a_broker_of_another_cluster_is_refused() -> None:
    frame = receive_parts(rpc.encode_call(CALLS[0][0], "another", 5))
    with pytest.raises(ApiError) as refused:
        rpc.decode_call(decode_request_header(frame), frame, CLUSTER)
    assert refused.value.code == Code.INCONSISTENT_CLUSTER_ID


ENTRIES = (
    RaftEntry(3, (b"\x00\xff", b""), EntryKind.DATA),
    RaftEntry(4, (b"x",), EntryKind.VOTERS),
)
SNAPSHOT = FetchSnapshotRequest(1, 2, TOPIC_ID, RaftSnapshotId(3, 4), 5)
MESSAGES: list[tuple[RaftRequest, RaftResponse]] = [
    (
        VoteRequest(1, 2, TOPIC_ID, OTHER_ID, 3, 4, pre_vote=True),
        VoteResponse(1, None, granted=True, pre_vote=True),
    ),
    (
        VoteRequest(1, 2, TOPIC_ID, OTHER_ID, 3, 4, pre_vote=False),
        VoteResponse(2, 3, granted=False, pre_vote=False, error=RaftCode.VOTER_NOT_FOUND),
    ),
    (
        BeginQuorumEpoch(1, 2, TOPIC_ID),
        BeginQuorumEpochResponse(1, 2, RaftCode.FENCED_LEADER_EPOCH),
    ),
    (EndQuorumEpoch(1, 2, (3, 4)), EndQuorumEpochResponse(1, None)),
    (
        RaftFetchRequest(4, 2, TOPIC_ID, 10, 3, 5),
        RaftFetchResponse(4, 1, 10, 3, entries=ENTRIES, high_watermark=9),
    ),
    (
        RaftFetchRequest(4, 2, TOPIC_ID, 10, 3, 5),
        RaftFetchResponse(4, 1, 10, 3, diverging=RaftEpochEnd(1, 2), snapshot=RaftSnapshotId(3, 4)),
    ),
    (
        RaftFetchRequest(4, 2, TOPIC_ID, 10, 3, 5),
        RaftFetchResponse(5, None, 10, 3, error=RaftCode.NOT_LEADER_OR_FOLLOWER),
    ),
    (SNAPSHOT, FetchSnapshotResponse(1, 2, RaftSnapshotId(3, 4), 5, 9, b"data")),
    (
        SNAPSHOT,
        FetchSnapshotResponse(1, None, RaftSnapshotId(3, 4), 5, error=RaftCode.SNAPSHOT_NOT_FOUND),
    ),
]
ENVELOPE = wire.RequestContext(1, CLUSTER, "127.0.0.1", 9093, 500)


@pytest.mark.parametrize(("request_", "response"), MESSAGES)
def test_messages_of_the_quorum_come_as_they_were(
    request_: RaftRequest, response: RaftResponse
) -> None:
    frame = receive_parts(wire.encode_raft_request(request_, ENVELOPE, 5))
    header = decode_request_header(frame)
    assert wire.decode_raft_request(header, frame) == wire.ReceivedRequest(2, CLUSTER, request_)
    assert (
        wire.decode_raft_response(
            request_, receive_parts(wire.encode_raft_response(header, response))
        )
        == response
    )


@pytest.mark.parametrize("request_", [request for request, _ in MESSAGES])
def test_nodes_of_another_cluster_are_told_so(request_: RaftRequest) -> None:
    header = decode_request_header(receive_parts(wire.encode_raft_request(request_, ENVELOPE, 5)))
    with pytest.raises(wire.WrongCluster):
        wire.decode_raft_response(request_, receive_parts(wire.encode_wrong_cluster(header)))


def test_entries_that_do_not_follow_are_refused() -> None:
    asked = RaftFetchRequest(4, 2, TOPIC_ID, 10, 3, 5)
    header = decode_request_header(receive_parts(wire.encode_raft_request(asked, ENVELOPE, 5)))
    answer = wire.encode_raft_response(header, RaftFetchResponse(4, 1, 11, 3, entries=ENTRIES))
    with pytest.raises(Malformed, match="begins at 11"):
        wire.decode_raft_response(asked, receive_parts(answer))


@pytest.mark.parametrize(
    "value",
    [
        b"rubbish",
        b'{"no": "mark"}',
        b'{"$": "os", "": []}',
        b'{"$": "LogEnd", "": {"partition": 1}}',
        b'{"$": "LogEnd", "": {"shell": 1}}',
        b'{"$": "uuid", "": "not one"}',
        b'{"$": "Code", "": 12345}',
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_rubbish_is_refused(value: bytes) -> None:
    with pytest.raises(Malformed):
        decode_value(value)


def test_only_requests_can_be_asked() -> None:
    values = {"request_data": encode_value([1]), "request_principal": None}
    message = request_class(58, 0)(**values, client_host_address=b"")
    frame = memoryview(encode_request(message, correlation_id=1, client_id=None))
    with pytest.raises(WireError, match="is not a request to a controller"):
        rpc.decode_call(decode_request_header(frame), frame, CLUSTER)


def test_what_is_not_known_does_not_travel() -> None:
    with pytest.raises(TypeError, match="cannot be serialised"):
        encode_value(object())
