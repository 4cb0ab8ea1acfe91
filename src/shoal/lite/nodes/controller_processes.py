"""Controllers in processes of their own, as the supervisor that starts them sees them.

The supervisor is an observer of their quorum: it knows the metadata, and asks the active
controller for changes like a broker does. It is not needed for anything: while it is gone the
quorum goes on. What it sees it tells, so that nobody waits for a session to time out.
"""

import asyncio
import logging
import shutil
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from shoal.client.errors import ClientError
from shoal.lite.base.codes import Refused
from shoal.lite.base.dial import Peer
from shoal.lite.metadata.data.records import Record
from shoal.lite.metadata.data.requests import BrokersDied, Request
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.server.joining import remove_voter
from shoal.lite.metadata.server.link import ControllerLink
from shoal.lite.nodes.cluster_folder import ClusterFolder
from shoal.lite.raft.model import ReplicaKey, Voter, Voters
from shoal.lite.raft.storage.small_files import MEMBER_NAME, read_member
from shoal.lite.raft.storage.storage import format_storage
from shoal.model.errors import SystemFailure, UsageError
from shoal.runtime.tasks import log_only, run_once
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.error_codes import Code
from shoal.wire.messages import decode_response, encode_request, request_class, response_class

A = TypeVar("A")
# The id by which the supervisor observes; where controllers are processes nobody else has it.
OBSERVER_ID = 100
FIRST_ID = 101
_CHANGE_PATIENCE_S = 60.0
_RETRY_S = 0.05
_logger = logging.getLogger(__name__)


class Member(NamedTuple):
    """A voter or observer of the quorum, as its leader sees it."""

    id: int
    directory: UUID
    log_end_offset: int
    last_fetch_ms: int


class Described(NamedTuple):
    """A quorum, as its leader sees it."""

    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[Member, ...]
    observers: tuple[Member, ...]

    @property
    def log_end_offset(self) -> int:
        return next(
            (voter.log_end_offset for voter in self.voters if voter.id == self.leader_id),
            self.high_watermark,
        )


class Quorum:
    """The running quorum; `start` when its processes have been started."""

    def __init__(self, folder: ClusterFolder, controllers: Sequence[Peer]) -> None:
        """Make the disks of a quorum that begins; `controllers` are all it has."""
        self._folder = folder
        self.controllers = list(controllers)
        self._format_all()
        self.state = ClusterState()
        self._link = ControllerLink(
            ReplicaKey(OBSERVER_ID, uuid.uuid4()),
            folder.cluster_id,
            controllers,
            self._on_records,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def _format_all(self) -> None:
        """Only if none has a disk: an empty one among others has lost what it promised."""
        disks = {peer: self._folder.controller(peer.node_id) for peer in self.controllers}
        if any((disk / MEMBER_NAME).exists() for disk in disks.values()):
            return
        self._folder.refuse_lost_metadata()
        voters = Voters(Voter(p.node_id, uuid.uuid4(), p.host, p.port) for p in disks)
        for voter in voters:
            format_storage(self._folder.controller(voter.id), voter.key, voters)

    def lost_disks(self) -> list[int]:
        """The controllers whose disks are empty, of a quorum that has begun.

        `SystemFailure` if the others are too few to go on without them.
        """
        ids = [peer.node_id for peer in self.controllers]
        lost = [i for i in ids if not (self._folder.controller(i) / MEMBER_NAME).exists()]
        if 2 * len(lost) >= len(ids):
            raise SystemFailure(
                f"{len(lost)} of {len(ids)} controllers have lost their disks: {lost}; the others "
                "are no majority, and what the cluster knew may be lost",
                remedy="bring their folders back, or begin anew in another folder",
            )
        return lost

    def _on_records(self, records: list[Record], begins_anew: bool) -> None:
        if begins_anew:
            self.state = ClusterState()
        for record in records:
            self.state.apply(record)

    async def start(self) -> None:
        """Wait for an active controller, and forget the processes of a supervisor before us."""
        self._link.start()
        if self._folder.ports:
            # Answered when everything before it is known here.
            await self.submit(BrokersDied({}))
            dead = {
                broker.broker_id: broker.incarnation
                for broker in self.state.brokers.values()
                if not broker.shutting_down
            }
            await self.submit(BrokersDied(dead))

    async def submit(self, request: Request[A]) -> A:
        """The answer, once what it is about is committed; `Refused` if it cannot be."""
        return await self._link.submit(request)

    def died(self, incarnations: Mapping[int, str]) -> None:
        """Processes of brokers have ended; what was seen together is told together."""
        if incarnations:
            # Unheard, their sessions time out.
            work = self._tell(dict(incarnations))
            task = run_once("report of ended brokers", work, on_failure=log_only)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self, incarnations: dict[int, str]) -> None:
        try:
            await self.submit(BrokersDied(incarnations))
        except Refused as refused:
            # Their sessions will time out.
            _logger.warning("deaths of %s were not told: %s", list(incarnations), refused)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()

    # The quorum itself

    async def described(self) -> dict[str, Any] | None:
        """What `describe` says, for whoever looks."""
        found = await self.describe()
        return None if found is None else as_json(found)

    async def describe(self) -> Described | None:
        """The quorum as its leader sees it; None while there is none."""
        try:
            body = await self._ask(ApiKey.DESCRIBE_QUORUM, 2, {"topics": []})
        except (ClientError, TimeoutError):
            return None
        partition = body.topics[0].partitions[0]
        if partition.error_code != Code.NONE:
            return None
        return Described(
            int(partition.leader_id),
            partition.leader_epoch,
            partition.high_watermark,
            tuple(map(_member, partition.current_voters)),
            tuple(map(_member, partition.observers)),
        )

    async def _ask(self, api_key: ApiKey, version: int, values: dict[str, Any]) -> Any:
        request = build(request_class(api_key, version), values)
        frame = await self._link.ask(
            lambda correlation_id: [
                encode_request(request, correlation_id=correlation_id, client_id=None)
            ],
            api_key.name,
        )
        return decode_response(frame, response_class(api_key, version))[1]

    async def replace(self, controller_id: int) -> None:
        """Give a controller that does not run an empty disk, and take its vote away meanwhile.

        When it has been started and has caught up, it asks for its vote.
        """
        try:
            async with asyncio.timeout(_CHANGE_PATIENCE_S):
                await self._remove_voter(controller_id)
                described = await self.describe()
                while described is None:
                    await asyncio.sleep(_RETRY_S)
                    described = await self.describe()
        except TimeoutError:
            raise _not_changed(controller_id) from None
        known = {peer.node_id: peer for peer in self.controllers}
        voters = Voters(
            Voter(member.id, member.directory, *known[member.id][1:]) for member in described.voters
        )
        disk = self._folder.controller(controller_id)
        shutil.rmtree(disk, ignore_errors=True)
        format_storage(disk, ReplicaKey(controller_id, uuid.uuid4()), voters)

    async def _remove_voter(self, controller_id: int) -> None:
        while True:
            described = await self.describe()
            voter = None
            if described is not None:
                voter = next((v for v in described.voters if v.id == controller_id), None)
                if voter is None:
                    return
            if voter is not None:
                key = ReplicaKey(voter.id, voter.directory)
                await remove_voter(key, self._folder.cluster_id, self.controllers)
            await asyncio.sleep(_RETRY_S)

    async def wait_for_vote(self, controller_id: int) -> None:
        """Until a controller that was started has its vote, for which it asks by itself."""
        key, _ = read_member(self._folder.controller(controller_id))
        try:
            async with asyncio.timeout(_CHANGE_PATIENCE_S):
                while not await self._is_voter(key):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise _not_changed(controller_id) from None

    async def _is_voter(self, key: ReplicaKey) -> bool:
        described = await self.describe()
        voters = () if described is None else described.voters
        return any((voter.id, voter.directory) == key for voter in voters)


def as_json(described: Described) -> dict[str, Any]:
    def members(found: tuple[Member, ...]) -> list[dict[str, Any]]:
        return [
            {
                "id": member.id,
                "directory": member.directory.hex,
                "log_end_offset": member.log_end_offset,
                "lag": described.log_end_offset - member.log_end_offset,
                "last_fetch_ms": member.last_fetch_ms,
            }
            for member in found
        ]

    return {
        "leader": described.leader_id,
        "epoch": described.epoch,
        "high_watermark": described.high_watermark,
        "log_end_offset": described.log_end_offset,
        "voters": members(described.voters),
        "observers": members(described.observers),
    }


def _member(state: Any) -> Member:
    return Member(
        int(state.replica_id),
        state.replica_directory_id or UUID(int=0),
        state.log_end_offset,
        state.last_fetch_timestamp,
    )


def _not_changed(controller_id: int) -> SystemFailure:
    return SystemFailure(
        f"controller {controller_id} was not replaced within {_CHANGE_PATIENCE_S:.0f} s",
        remedy="see that a majority of the controllers runs, and try again",
    )


def controller_ids(folder: ClusterFolder, wanted: int | None) -> list[int]:
    """The controllers that are processes: those of the folder, or as many as are wanted."""
    if folder.controllers:
        if wanted not in {None, len(folder.controllers)}:
            raise UsageError(
                f"{folder.path} has {len(folder.controllers)} controllers, not {wanted}",
                remedy="leave their number out",
            )
        return sorted(folder.controllers)
    if wanted and folder.ports:
        raise UsageError(
            f"{folder.path} has its controller inside the supervisor",
            remedy="leave the number of controllers out, or name another folder",
        )
    return list(range(FIRST_ID, FIRST_ID + (wanted or 0)))
