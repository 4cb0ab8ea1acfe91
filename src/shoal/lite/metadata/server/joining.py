"""How a controller becomes a voter: it founds the quorum with others, or joins later.

found    an unused disk: exchange ids with the others (`founding`) until the quorum exists
join     an observer: ask the leader for a vote until it has caught up
replace  remove the voter of a lost disk, so that the same id can join with another disk
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.client.errors import ClientError
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.dial import NodeAddress, connect_to_node
from shoal.lite.metadata.data import rpc
from shoal.lite.metadata.data.requests import ExchangeVoterIds
from shoal.lite.metadata.server.founding import (
    FoundingState,
    VoterAgreement,
    VoterIds,
    WrongDirectory,
)
from shoal.lite.metadata.server.port import Answer, ControllerServer
from shoal.lite.raft.model import ReplicaKey, Voter, Voters
from shoal.lite.raft.storage.storage import format_storage
from shoal.model.errors import SystemFailure
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.errors import UnsupportedVersion, WireError
from shoal.wire.framing import Part
from shoal.wire.messages import (
    decode_request_header,
    decode_response,
    encode_request,
    request_class,
    response_class,
)

_PAUSE_S = 0.1
_TIMEOUT_S = 5.0
_CHANGE_TIMEOUT_MS = 10_000
# Log the missing controllers every so many tries.
_LOG_EVERY_TRIES = 50
_logger = logging.getLogger(__name__)


async def send_once(
    own_id: int, peer: NodeAddress, encode: Callable[[int], list[Part]], name: str
) -> memoryview:
    """Send one request over a new connection; `ClientError` if there is no answer."""
    connection = await connect_to_node(own_id, peer)
    try:
        return await connection.request(encode, name=name, timeout_s=_TIMEOUT_S)
    finally:
        await connection.close()


class Founding:
    """A controller with an unused disk. `run` formats it as the disk of a member."""

    def __init__(
        self,
        folder: Path,
        own_id: int,
        cluster_id: str,
        controllers: Sequence[NodeAddress],
        *,
        may_replace: bool,
    ) -> None:
        """`controllers` are all of the future quorum, including this one."""
        self._folder = folder
        self._cluster_id = cluster_id
        self._known = {peer.node_id: peer for peer in controllers}
        self._may_replace = may_replace
        self._agreement = VoterAgreement(FoundingState.open(folder, own_id), self._known)
        self._agreement.state.save(folder)
        self._server = ControllerServer(self._answer)

    async def run(self, host: str, port: int) -> int:
        """Run until the quorum exists; returns the port, which is free again."""
        bound_port = self._server.bind(host, port)
        await self._server.start()
        try:
            await self._agree_on_voters()
        finally:
            await self._server.close()
        return bound_port

    async def _agree_on_voters(self) -> None:
        own_id = self._agreement.state.node_id
        tries = 0
        while self._agreement.voters is None:
            for peer in self._known.values():
                if peer.node_id != own_id:
                    await self._exchange_ids_with(peer)
            if (reason := self._agreement.disagreement()) is not None:
                raise SystemFailure(
                    reason,
                    remedy="empty the folders of all controllers, and start them alike",
                )
            if self._agreement.voters is None:
                if tries % _LOG_EVERY_TRIES == 0:
                    _logger.warning(
                        "controller %d is waiting for controllers %s",
                        own_id,
                        self._agreement.missing() or "the others",
                    )
                tries += 1
                await asyncio.sleep(_PAUSE_S)
        self._format(self._agreement.voters)

    async def _exchange_ids_with(self, peer: NodeAddress) -> None:
        draft = self._agreement.state
        request = ExchangeVoterIds(self._cluster_id, self._agreement.identity())

        def encode(correlation_id: int) -> list[Part]:
            return rpc.encode_call(request, self._cluster_id, correlation_id)

        try:
            frame = await send_once(draft.node_id, peer, encode, "Introduce")
            reply = rpc.decode_reply(request, frame)
        except (ClientError, WireError, OSError, TimeoutError) as error:
            _logger.info(
                "controller %d did not answer the exchange of voter ids: %s", peer.node_id, error
            )
            return
        if reply.refused is not None:
            raise SystemFailure(
                f"controller {peer.node_id} rejected this controller: {reply.refused}"
            )
        try:
            self._on_identity(reply.answer)
        except WrongDirectory as contradicted:
            if not self._may_replace:
                raise
            key = ReplicaKey(draft.node_id, contradicted.directory)
            await request_voter_removal(key, self._cluster_id, list(self._known.values()))

    def _on_identity(self, identity: Any) -> None:
        before = self._agreement.state
        self._agreement.on_identity(identity)
        if self._agreement.state != before:
            # Stored before it is sent to another controller.
            self._agreement.state.save(self._folder)

    def _answer(self, request: memoryview) -> Answer:
        header = decode_request_header(request)
        if header.api_key != ApiKey.ENVELOPE or header.api_version != 0:
            raise UnsupportedVersion("this controller is not a member of a quorum yet")
        call = rpc.decode_call(header, request, self._cluster_id)
        if not isinstance(call, ExchangeVoterIds):
            refused = ApiError(Code.NOT_CONTROLLER, "this controller is not a member yet")
            return rpc.encode_reply(header, rpc.Reply(None, refused, 0))
        if call.cluster_id != self._cluster_id:
            return rpc.encode_reply(
                header, rpc.Reply(None, wrong_cluster_error(self._cluster_id), 0)
            )
        with suppress(WrongDirectory):
            # This controller raises it when it gets the same from its own request.
            self._on_identity(call.identity)
        return rpc.encode_reply(header, rpc.Reply(self._agreement.identity(), None, 0))

    def _format(self, disks: VoterIds) -> None:
        draft = self._agreement.state
        voters = [
            Voter(node_id, directory, *(self._known[node_id][1:] if node_id in self._known else ()))
            for node_id, directory in disks
        ]
        format_storage(self._folder, ReplicaKey(draft.node_id, draft.directory), Voters(voters))


def wrong_cluster_error(cluster_id: str) -> ApiError:
    return ApiError(
        Code.INCONSISTENT_CLUSTER_ID, f"this controller belongs to cluster {cluster_id}"
    )


async def request_voter_removal(
    key: ReplicaKey, cluster_id: str, peers: Sequence[NodeAddress]
) -> None:
    """Remove the voter of a lost disk: ask every other controller, since any may lead."""
    values = {"voter_id": key.id, "voter_directory_id": key.directory}
    for peer in peers:
        if peer.node_id != key.id:
            outcome = await send_voter_change(
                ApiKey.REMOVE_RAFT_VOTER, 0, values, (peer, cluster_id)
            )
            _logger.info("asked controller %d to remove voter %s: %s", peer.node_id, key, outcome)


async def request_vote(
    own: Voter, cluster_id: str, leader: Callable[[], NodeAddress | None]
) -> None:
    """Ask the leader once for a vote, if a leader is known."""
    peer = leader()
    if peer is None or peer.node_id == own.id:
        return
    values = {
        "timeout": _CHANGE_TIMEOUT_MS,
        "voter_id": own.id,
        "voter_directory_id": own.directory,
        "listeners": [{"name": "CONTROLLER", "host": own.host, "port": own.port}],
    }
    outcome = await send_voter_change(ApiKey.ADD_RAFT_VOTER, 1, values, (peer, cluster_id))
    _logger.info("controller %d asked to become a voter: %s", own.id, outcome)


async def send_voter_change(
    api_key: ApiKey, version: int, values: dict[str, Any], to: tuple[NodeAddress, str]
) -> str:
    """Send a voter change once; returns the result as text. The caller checks its effect."""
    peer, cluster_id = to
    request = build(request_class(api_key, version), values | {"cluster_id": cluster_id})

    def encode(correlation_id: int) -> list[Part]:
        return [encode_request(request, correlation_id=correlation_id, client_id=None)]

    try:
        frame = await send_once(int(values["voter_id"]), peer, encode, api_key.name)
        body: Any = decode_response(frame, response_class(api_key, version))[1]
    except (ClientError, WireError, OSError, TimeoutError) as error:
        return str(error)
    return body.error_message or Code(int(body.error_code)).name


async def retry_until(
    is_done: Callable[[], bool], try_again: Callable[[], Awaitable[None]]
) -> None:
    """Call `try_again` until `is_done`."""
    while not is_done():
        await try_again()
        await asyncio.sleep(_PAUSE_S)
