"""Controllers in separate processes, as the supervisor that starts them sees them.

The supervisor is an observer of their quorum: it follows the metadata, and submits requests to the
active controller like a broker. The quorum does not depend on it. It reports ended broker
processes to the controller, so that their sessions need not time out.
"""

import asyncio
import logging
import shutil
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from shoal.client.errors import ClientError
from shoal.lite.base.codes import ApiError
from shoal.lite.base.dial import NodeAddress
from shoal.lite.metadata.data.records import Record
from shoal.lite.metadata.data.requests import ControllerRequest, ReportBrokerExits
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.server.joining import request_voter_removal
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
# The node id of the supervisor as an observer; no other node of such a cluster has it.
OBSERVER_ID = 100
FIRST_ID = 101
_CHANGE_TIMEOUT_S = 60.0
_RETRY_S = 0.05
_logger = logging.getLogger(__name__)


class QuorumReplica(NamedTuple):
    """A voter or observer of the quorum, as its leader sees it."""

    id: int
    directory: UUID
    log_end_offset: int
    last_fetch_ms: int


class QuorumDescription(NamedTuple):
    """A quorum, as its leader sees it."""

    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    @property
    def log_end_offset(self) -> int:
        return next(
            (voter.log_end_offset for voter in self.voters if voter.id == self.leader_id),
            self.high_watermark,
        )


class ControllerQuorum:
    """The running quorum; call `start` when its processes have been started."""

    def __init__(self, folder: ClusterFolder, controllers: Sequence[NodeAddress]) -> None:
        """Format the disks of a new quorum; `controllers` are all of its members."""
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
        """Format only if no controller has a disk: an empty one among others has lost its votes."""
        disks = {peer: self._folder.controller(peer.node_id) for peer in self.controllers}
        if any((disk / MEMBER_NAME).exists() for disk in disks.values()):
            return
        self._folder.refuse_lost_metadata()
        voters = Voters(Voter(p.node_id, uuid.uuid4(), p.host, p.port) for p in disks)
        for voter in voters:
            format_storage(self._folder.controller(voter.id), voter.key, voters)

    def find_lost_disks(self) -> list[int]:
        """The controllers of an existing quorum whose disks are empty.

        `SystemFailure` if the others are not a majority.
        """
        ids = [peer.node_id for peer in self.controllers]
        lost = [i for i in ids if not (self._folder.controller(i) / MEMBER_NAME).exists()]
        if 2 * len(lost) >= len(ids):
            raise SystemFailure(
                f"{len(lost)} of {len(ids)} controllers have lost their disks: {lost}; the others "
                "are not a majority, and metadata may be lost",
                remedy="restore their folders, or start a new cluster in another folder",
            )
        return lost

    def _on_records(self, records: list[Record], is_snapshot: bool) -> None:
        if is_snapshot:
            self.state = ClusterState()
        for record in records:
            self.state.apply(record)

    async def start(self) -> None:
        """Wait for an active controller, and report processes of a former supervisor as ended."""
        self._link.start()
        if self._folder.ports:
            # Answered once the local metadata has everything before it.
            await self.submit(ReportBrokerExits({}))
            dead = {
                broker.broker_id: broker.incarnation
                for broker in self.state.brokers.values()
                if not broker.shutting_down
            }
            await self.submit(ReportBrokerExits(dead))

    async def submit(self, request: ControllerRequest[A]) -> A:
        """The answer, once its records are committed; `ApiError` if the request fails."""
        return await self._link.submit(request)

    def on_brokers_exited(self, incarnations: Mapping[int, str]) -> None:
        """Report ended broker processes; those seen together are reported together."""
        if incarnations:
            # If the report fails, their sessions time out.
            work = self._report_exits(dict(incarnations))
            task = run_once("report of ended brokers", work, on_failure=log_only)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _report_exits(self, incarnations: dict[int, str]) -> None:
        try:
            await self.submit(ReportBrokerExits(incarnations))
        except ApiError as refused:
            # The controller fences them when their sessions time out.
            _logger.warning(
                "could not report the exit of brokers %s to the controller: %s",
                list(incarnations),
                refused,
            )

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()

    # The quorum itself

    async def describe_as_json(self) -> dict[str, Any] | None:
        """The result of `describe` as JSON."""
        found = await self.describe()
        return None if found is None else quorum_to_json(found)

    async def describe(self) -> QuorumDescription | None:
        """The quorum as its leader sees it; None while it has no leader."""
        try:
            body = await self._ask(ApiKey.DESCRIBE_QUORUM, 2, {"topics": []})
        except (ClientError, TimeoutError):
            return None
        partition = body.topics[0].partitions[0]
        if partition.error_code != Code.NONE:
            return None
        return QuorumDescription(
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
        """Give a stopped controller an empty disk, and remove it from the voters.

        When it has been started and has caught up, it asks to become a voter again.
        """
        try:
            async with asyncio.timeout(_CHANGE_TIMEOUT_S):
                await self._remove_voter(controller_id)
                description = await self.describe()
                while description is None:
                    await asyncio.sleep(_RETRY_S)
                    description = await self.describe()
        except TimeoutError:
            raise _replacement_timed_out(controller_id) from None
        known = {peer.node_id: peer for peer in self.controllers}
        voters = Voters(
            Voter(member.id, member.directory, *known[member.id][1:])
            for member in description.voters
        )
        disk = self._folder.controller(controller_id)
        shutil.rmtree(disk, ignore_errors=True)
        format_storage(disk, ReplicaKey(controller_id, uuid.uuid4()), voters)

    async def _remove_voter(self, controller_id: int) -> None:
        while True:
            description = await self.describe()
            voter = None
            if description is not None:
                voter = next((v for v in description.voters if v.id == controller_id), None)
                if voter is None:
                    return
            if voter is not None:
                key = ReplicaKey(voter.id, voter.directory)
                await request_voter_removal(key, self._folder.cluster_id, self.controllers)
            await asyncio.sleep(_RETRY_S)

    async def wait_for_vote(self, controller_id: int) -> None:
        """Wait until a started controller is a voter; it asks for its vote itself."""
        key, _ = read_member(self._folder.controller(controller_id))
        try:
            async with asyncio.timeout(_CHANGE_TIMEOUT_S):
                while not await self._is_voter(key):  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise _replacement_timed_out(controller_id) from None

    async def _is_voter(self, key: ReplicaKey) -> bool:
        description = await self.describe()
        voters = () if description is None else description.voters
        return any((voter.id, voter.directory) == key for voter in voters)


def quorum_to_json(description: QuorumDescription) -> dict[str, Any]:
    def members(found: tuple[QuorumReplica, ...]) -> list[dict[str, Any]]:
        return [
            {
                "id": member.id,
                "directory": member.directory.hex,
                "log_end_offset": member.log_end_offset,
                "lag": description.log_end_offset - member.log_end_offset,
                "last_fetch_ms": member.last_fetch_ms,
            }
            for member in found
        ]

    return {
        "leader": description.leader_id,
        "epoch": description.epoch,
        "high_watermark": description.high_watermark,
        "log_end_offset": description.log_end_offset,
        "voters": members(description.voters),
        "observers": members(description.observers),
    }


def _member(state: Any) -> QuorumReplica:
    return QuorumReplica(
        int(state.replica_id),
        state.replica_directory_id or UUID(int=0),
        state.log_end_offset,
        state.last_fetch_timestamp,
    )


def _replacement_timed_out(controller_id: int) -> SystemFailure:
    return SystemFailure(
        f"controller {controller_id} was not replaced within {_CHANGE_TIMEOUT_S:.0f} s",
        remedy="make sure that a majority of the controllers is running, and try again",
    )


def controller_ids(folder: ClusterFolder, wanted: int | None) -> list[int]:
    """The ids of the controller processes: those of the folder, or as many as are wanted."""
    if folder.controllers:
        if wanted not in {None, len(folder.controllers)}:
            raise UsageError(
                f"{folder.path} has {len(folder.controllers)} controllers, not {wanted}",
                remedy="leave out the number of controllers",
            )
        return sorted(folder.controllers)
    if wanted and folder.ports:
        raise UsageError(
            f"{folder.path} has its controller inside the supervisor",
            remedy="leave out the number of controllers, or choose another folder",
        )
    return list(range(FIRST_ID, FIRST_ID + (wanted or 0)))
