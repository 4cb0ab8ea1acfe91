"""The way of a controller into its quorum: founded with others, or joined later.

found    a disk that was never used: exchange introductions with the others (`founding`) until
         there is a quorum to be part of
join     a member that does not vote: ask the leader for a vote until it has caught up
replace  take the vote of a lost disk, so that the same id can come with another
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.client.errors import ClientError
from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.dial import Peer, dial
from shoal.lite.metadata.data import rpc
from shoal.lite.metadata.data.requests import Introduce
from shoal.lite.metadata.server.founding import Contradicted, Disks, Draft, Founder
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
_PATIENCE_S = 5.0
_CHANGE_TIMEOUT_MS = 10_000
# How often to say for whom we wait.
_SPEAK_EVERY = 50
_logger = logging.getLogger(__name__)


async def ask(
    own_id: int, peer: Peer, encode: Callable[[int], list[Part]], name: str
) -> memoryview:
    """One request over a connection of its own; `ClientError` if it gets no answer."""
    connection = await dial(own_id, peer)
    try:
        return await connection.request(encode, name=name, timeout_s=_PATIENCE_S)
    finally:
        await connection.close()


class Founding:
    """A controller with a disk that was never used. `run` makes the disk that of a member."""

    def __init__(
        self,
        folder: Path,
        own_id: int,
        cluster_id: str,
        controllers: Sequence[Peer],
        *,
        may_replace: bool,
    ) -> None:
        """`controllers` are all that the quorum is to have, with this one."""
        self._folder = folder
        self._cluster_id = cluster_id
        self._known = {peer.node_id: peer for peer in controllers}
        self._may_replace = may_replace
        self._founder = Founder(Draft.open(folder, own_id), self._known)
        self._founder.draft.save(folder)
        self._server = ControllerServer(self._answer)

    async def run(self, host: str, port: int) -> int:
        """Until there is a quorum; returns the port, which is free again."""
        taken = self._server.bind(host, port)
        await self._server.start()
        try:
            await self._find()
        finally:
            await self._server.close()
        return taken

    async def _find(self) -> None:
        own_id = self._founder.draft.node_id
        tries = 0
        while self._founder.voters is None:
            for peer in self._known.values():
                if peer.node_id != own_id:
                    await self._introduce(peer)
            if (reason := self._founder.disagreement()) is not None:
                raise SystemFailure(reason, remedy="empty the folders of all of them")
            if self._founder.voters is None:
                if tries % _SPEAK_EVERY == 0:
                    _logger.warning(
                        "controller %d waits for %s",
                        own_id,
                        self._founder.missing() or "the others",
                    )
                tries += 1
                await asyncio.sleep(_PAUSE_S)
        self._format(self._founder.voters)

    async def _introduce(self, peer: Peer) -> None:
        draft = self._founder.draft
        request = Introduce(self._cluster_id, self._founder.introduction())

        def encode(correlation_id: int) -> list[Part]:
            return rpc.encode_call(request, self._cluster_id, correlation_id)

        try:
            frame = await ask(draft.node_id, peer, encode, "Introduce")
            reply = rpc.decode_reply(request, frame)
        except (ClientError, WireError, OSError, TimeoutError) as error:
            _logger.info("controller %d did not introduce itself: %s", peer.node_id, error)
            return
        if reply.refused is not None:
            raise SystemFailure(f"controller {peer.node_id} refuses this one: {reply.refused}")
        try:
            self._heard(reply.answer)
        except Contradicted as contradicted:
            if not self._may_replace:
                raise
            key = ReplicaKey(draft.node_id, contradicted.directory)
            await remove_voter(key, self._cluster_id, list(self._known.values()))

    def _heard(self, introduction: Any) -> None:
        before = self._founder.draft
        self._founder.heard(introduction)
        if self._founder.draft != before:
            # Before anybody hears of it.
            self._founder.draft.save(self._folder)

    def _answer(self, request: memoryview) -> Answer:
        header = decode_request_header(request)
        if header.api_key != ApiKey.ENVELOPE or header.api_version != 0:
            raise UnsupportedVersion("this controller is not a member of a quorum yet")
        call = rpc.decode_call(header, request, self._cluster_id)
        if not isinstance(call, Introduce):
            refused = Refused(Code.NOT_CONTROLLER, "this controller is not a member yet")
            return rpc.encode_reply(header, rpc.Reply(None, refused, 0))
        if call.cluster_id != self._cluster_id:
            return rpc.encode_reply(header, rpc.Reply(None, wrong_cluster(self._cluster_id), 0))
        with suppress(Contradicted):
            # Whoever is asked hears it in its own time.
            self._heard(call.introduction)
        return rpc.encode_reply(header, rpc.Reply(self._founder.introduction(), None, 0))

    def _format(self, disks: Disks) -> None:
        draft = self._founder.draft
        voters = [
            Voter(node_id, directory, *(self._known[node_id][1:] if node_id in self._known else ()))
            for node_id, directory in disks
        ]
        format_storage(self._folder, ReplicaKey(draft.node_id, draft.directory), Voters(voters))


def wrong_cluster(cluster_id: str) -> Refused:
    return Refused(Code.INCONSISTENT_CLUSTER_ID, f"this is cluster {cluster_id}")


async def remove_voter(key: ReplicaKey, cluster_id: str, peers: Sequence[Peer]) -> None:
    """Take the vote of a controller whose disk is lost: asks each until one is the leader."""
    values = {"voter_id": key.id, "voter_directory_id": key.directory}
    for peer in peers:
        if peer.node_id != key.id:
            outcome = await change_voters(ApiKey.REMOVE_RAFT_VOTER, 0, values, (peer, cluster_id))
            _logger.info("controller %d was asked to remove %s: %s", peer.node_id, key, outcome)


async def join(own: Voter, cluster_id: str, leader: Callable[[], Peer | None]) -> None:
    """Ask once for a vote, if somebody leads who can give it."""
    peer = leader()
    if peer is None or peer.node_id == own.id:
        return
    values = {
        "timeout": _CHANGE_TIMEOUT_MS,
        "voter_id": own.id,
        "voter_directory_id": own.directory,
        "listeners": [{"name": "CONTROLLER", "host": own.host, "port": own.port}],
    }
    outcome = await change_voters(ApiKey.ADD_RAFT_VOTER, 1, values, (peer, cluster_id))
    _logger.info("controller %d asked for a vote: %s", own.id, outcome)


async def change_voters(
    api_key: ApiKey, version: int, values: dict[str, Any], to: tuple[Peer, str]
) -> str:
    """Ask once; returns what was said. Whoever asks looks whether it was done."""
    peer, cluster_id = to
    request = build(request_class(api_key, version), values | {"cluster_id": cluster_id})

    def encode(correlation_id: int) -> list[Part]:
        return [encode_request(request, correlation_id=correlation_id, client_id=None)]

    try:
        frame = await ask(int(values["voter_id"]), peer, encode, api_key.name)
        body: Any = decode_response(frame, response_class(api_key, version))[1]
    except (ClientError, WireError, OSError, TimeoutError) as error:
        return str(error)
    return body.error_message or Code(int(body.error_code)).name


async def until(is_so: Callable[[], bool], try_again: Callable[[], Awaitable[None]]) -> None:
    """Try until it is so."""
    while not is_so():
        await try_again()
        await asyncio.sleep(_PAUSE_S)
