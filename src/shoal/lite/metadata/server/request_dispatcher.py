"""What a controller answers to each request that arrives at its port.

    Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot    the quorum, by `raft.wire`
    BrokerRegistration, BrokerHeartbeat, AlterPartition,
    AllocateProducerIds, Envelope                                   the active controller, by `rpc`
    DescribeQuorum, AddRaftVoter, RemoveRaftVoter                   its leader, by `quorum_admin`
    ApiVersions                                                     which of these there are

A fetch is answered when the leader has something to give. One that its sender has replaced by
another is never answered: its connection is closed.
"""

import asyncio
from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data import rpc
from shoal.lite.metadata.data.requests import Introduce, Introduction
from shoal.lite.metadata.rules import quorum_admin
from shoal.lite.metadata.server.joining import wrong_cluster
from shoal.lite.metadata.server.node import Answered, ControllerNode, NodeRefused
from shoal.lite.metadata.server.port import Answer
from shoal.lite.raft import wire
from shoal.lite.raft.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchResponse,
    FetchSnapshotResponse,
    Response,
    VoteResponse,
)
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.errors import UnsupportedVersion
from shoal.wire.messages import (
    RequestFrame,
    decode_request_header,
    encode_response,
    response_class,
)

_ANSWERS: dict[type[Any], ApiKey] = {
    VoteResponse: ApiKey.VOTE,
    BeginQuorumEpochResponse: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochResponse: ApiKey.END_QUORUM_EPOCH,
    FetchResponse: ApiKey.FETCH,
    FetchSnapshotResponse: ApiKey.FETCH_SNAPSHOT,
}
_API_VERSIONS = range(5)


class Desk:
    """Takes requests to a node, and the node's responses back to who asked."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._node: ControllerNode | None = None
        # Requests of the quorum that wait for a response, by who asked and for what.
        self._asked: dict[tuple[int, ApiKey], tuple[RequestFrame, asyncio.Future[Answer]]] = {}

    def open(self, node: ControllerNode) -> None:
        """Before this nothing is answered."""
        self._node = node

    def respond(self, to: int, message: Response) -> None:
        """A response of the node, for whoever asked."""
        asked = self._asked.pop((to, _ANSWERS[type(message)]), None)
        if asked is not None and not asked[1].done():
            header, future = asked
            future.set_result(wire.encode_answer(header, message))

    def answer(self, request: memoryview) -> "Answer | asyncio.Future[Answer]":
        header = decode_request_header(request)
        api_key, version = header.api_key, header.api_version
        if api_key == ApiKey.API_VERSIONS:
            return _api_versions(header)
        if version not in _versions_of(api_key):
            raise UnsupportedVersion(f"{api_key.name} {version} is not served by controllers")
        node = self._node
        if node is None:
            raise UnsupportedVersion("this controller has not begun yet")
        if api_key in wire.VERSIONS:
            return self._ask_member(node, header, request)
        if api_key in quorum_admin.VERSIONS:
            return quorum_admin.answer(node, header, request)
        return self._ask_controller(node, header, request)

    def _ask_member(
        self, node: ControllerNode, header: RequestFrame, request: memoryview
    ) -> "Answer | asyncio.Future[Answer]":
        received = wire.decode_message(header, request)
        if received.cluster_id not in {None, self._cluster_id}:
            return wire.refuse_cluster(header)
        key = (received.sender, header.api_key)
        if (earlier := self._asked.pop(key, None)) is not None:
            earlier[1].cancel()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[key] = (header, future)
        node.receive(received.sender, received.message)
        return future

    def _ask_controller(
        self, node: ControllerNode, header: RequestFrame, request: memoryview
    ) -> "Answer | asyncio.Future[Answer]":
        try:
            call = rpc.decode_call(header, request, self._cluster_id)
        except Refused as refused:
            return rpc.encode_reply(header, rpc.Reply(None, refused, 0))
        if isinstance(call, Introduce):
            return rpc.encode_reply(header, self._introduced(node, call))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def on_done(future: "asyncio.Future[Answered[Any]]") -> None:
            if not answer.done():
                answer.set_result(rpc.encode_reply(header, _reply(future)))

        node.submit(call).add_done_callback(on_done)
        return answer

    def _introduced(self, node: ControllerNode, call: Introduce) -> rpc.Reply:
        if call.cluster_id != self._cluster_id:
            return rpc.Reply(None, wrong_cluster(self._cluster_id), 0)
        voters = tuple((voter.id, voter.directory) for voter in node.raft.voters)
        return rpc.Reply(Introduction(*node.key, voters, is_member=True), None, 0)


def _reply(future: "asyncio.Future[Answered[Any]]") -> rpc.Reply:
    error = future.exception()
    if error is None:
        answered = future.result()
        return rpc.Reply(answered.answer, None, answered.end_offset)
    if isinstance(error, NodeRefused):
        return rpc.Reply(None, error, error.end_offset)
    return rpc.Reply(None, Refused(Code.UNKNOWN_SERVER_ERROR, str(error)), 0)


def _versions_of(api_key: ApiKey) -> range:
    """The versions that are served: of what only nodes of ours ask, the one that they use."""
    if api_key in quorum_admin.VERSIONS:
        return quorum_admin.VERSIONS[api_key]
    only = wire.VERSIONS.get(api_key, rpc.VERSIONS.get(api_key))
    return range(0) if only is None else range(only, only + 1)


def _api_versions(header: RequestFrame) -> Answer:
    known = header.api_version in _API_VERSIONS
    keys = [*wire.VERSIONS, *rpc.VERSIONS, *quorum_admin.VERSIONS]
    ranges = {key: _versions_of(key) for key in sorted(keys)} | {ApiKey.API_VERSIONS: _API_VERSIONS}
    values = {
        "error_code": Code.NONE if known else Code.UNSUPPORTED_VERSION,
        "throttle_time": 0,
        "api_keys": [
            {"api_key": key, "min_version": versions[0], "max_version": versions[-1]}
            for key, versions in ranges.items()
        ],
    }
    cls = response_class(ApiKey.API_VERSIONS, header.api_version if known else 0)
    return [encode_response(build(cls, values), correlation_id=header.correlation_id)]
