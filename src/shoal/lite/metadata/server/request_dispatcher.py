"""Dispatches the requests that arrive at the port of a controller.

    Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot    the quorum, by `raft.wire`
    BrokerRegistration, BrokerHeartbeat, AlterPartition,
    AllocateProducerIds, Envelope                                   the active controller, by `rpc`
    DescribeQuorum, AddRaftVoter, RemoveRaftVoter                   the leader, by `quorum_admin`
    ApiVersions                                                     the versions of all of these

A fetch is answered when the leader has new data. A fetch that its sender replaced by another is
never answered: its connection is closed.
"""

import asyncio
from typing import Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import rpc
from shoal.lite.metadata.data.requests import ControllerIdentity, ExchangeVoterIds
from shoal.lite.metadata.rules import quorum_admin
from shoal.lite.metadata.server.joining import wrong_cluster_error
from shoal.lite.metadata.server.node import ControllerNode
from shoal.lite.metadata.server.port import Answer, answer_when_replied
from shoal.lite.raft import wire
from shoal.lite.raft.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchSnapshotResponse,
    RaftFetchResponse,
    RaftResponse,
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

_RESPONSE_KEYS: dict[type[Any], ApiKey] = {
    VoteResponse: ApiKey.VOTE,
    BeginQuorumEpochResponse: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochResponse: ApiKey.END_QUORUM_EPOCH,
    RaftFetchResponse: ApiKey.FETCH,
    FetchSnapshotResponse: ApiKey.FETCH_SNAPSHOT,
}
_API_VERSIONS = range(5)


class RequestDispatcher:
    """Passes requests to a node, and the node's responses back to their senders."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._node: ControllerNode | None = None
        # Raft requests that wait for a response, by sender and API key.
        self._pending: dict[tuple[int, ApiKey], tuple[RequestFrame, asyncio.Future[Answer]]] = {}

    def open(self, node: ControllerNode) -> None:
        """Start answering requests for `node`."""
        self._node = node

    def respond(self, to: int, message: RaftResponse) -> None:
        """Send a response of the node to the sender of the request."""
        pending = self._pending.pop((to, _RESPONSE_KEYS[type(message)]), None)
        if pending is not None and not pending[1].done():
            header, future = pending
            future.set_result(wire.encode_raft_response(header, message))

    def answer(self, request: memoryview) -> "Answer | asyncio.Future[Answer]":
        header = decode_request_header(request)
        api_key, version = header.api_key, header.api_version
        if api_key == ApiKey.API_VERSIONS:
            return _api_versions(header)
        if version not in _versions_of(api_key):
            raise UnsupportedVersion(f"controllers do not serve {api_key.name} version {version}")
        node = self._node
        if node is None:
            raise UnsupportedVersion("this controller has not started yet")
        if api_key in wire.VERSIONS:
            return self._pass_to_raft(node, header, request)
        if api_key in quorum_admin.VERSIONS:
            return quorum_admin.answer(node, header, request)
        return self._pass_to_controller(node, header, request)

    def _pass_to_raft(
        self, node: ControllerNode, header: RequestFrame, request: memoryview
    ) -> "Answer | asyncio.Future[Answer]":
        received = wire.decode_raft_request(header, request)
        if received.cluster_id not in {None, self._cluster_id}:
            return wire.encode_wrong_cluster(header)
        key = (received.sender, header.api_key)
        if (earlier := self._pending.pop(key, None)) is not None:
            earlier[1].cancel()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[key] = (header, future)
        node.receive(received.sender, received.message)
        return future

    def _pass_to_controller(
        self, node: ControllerNode, header: RequestFrame, request: memoryview
    ) -> "Answer | asyncio.Future[Answer]":
        try:
            call = rpc.decode_call(header, request, self._cluster_id)
        except ApiError as refused:
            return rpc.encode_reply(header, rpc.Reply(None, refused, 0))
        if isinstance(call, ExchangeVoterIds):
            return rpc.encode_reply(header, self._exchange_voter_ids(node, call))
        return answer_when_replied(
            lambda on_reply: node.submit(call, on_reply),
            lambda reply: rpc.encode_reply(header, reply),
        )

    def _exchange_voter_ids(self, node: ControllerNode, call: ExchangeVoterIds) -> rpc.Reply:
        if call.cluster_id != self._cluster_id:
            return rpc.Reply(None, wrong_cluster_error(self._cluster_id), 0)
        voters = tuple((voter.id, voter.directory) for voter in node.raft.voters)
        return rpc.Reply(ControllerIdentity(*node.key, voters, is_member=True), None, 0)


def _versions_of(api_key: ApiKey) -> range:
    """The served versions: for requests between nodes of shoal, only the one that they use."""
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
