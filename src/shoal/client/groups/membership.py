"""Membership of a group: joining, heartbeats, rebalances, leaving.

Rules of this file:
- JoinGroup waits for other members, so each membership has two connections of its own: one for
  joining and one for heartbeats.
- A member whose id or generation is no longer known has lost its partitions: other members may
  already have them. A static member that is replaced by another instance is fenced, which is final.
- Heartbeats run in the background. `needs_join` is set when the group rebalances; the owner must
  call `join`, after it has revoked partitions.
- A member whose owner does not poll leaves the group (`max.poll.interval.ms`), so that other
  members read its partitions.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.errors import ClientError, ConnectionLost, KafkaError, RequestTimedOut
from shoal.client.groups.assignors import ASSIGNORS, Assignor, MemberSubscription
from shoal.client.groups.group_offsets import NO_MEMBER
from shoal.client.groups.protocol import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from shoal.client.transport.backoff import Backoff
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_once
from shoal.wire.api_keys import ApiKey

# A coordinator answers JoinGroup within the rebalance timeout; this is extra time for the answer.
_JOIN_GRACE_S: Final = 5.0
_NOT_A_MEMBER: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION})
_JAVA_NAMES: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_numbers = itertools.count(1)


class JoinResult(NamedTuple):
    """The assignment of this member in a generation."""

    generation: int
    protocol: str
    partitions: frozenset[TopicPartition]


class Membership:
    """One member of one group; call `join` when `needs_join` is set, heartbeats are automatic."""

    def __init__(self, core: Core) -> None:
        config = core.config
        if not config.group_id:
            raise ConfigError("group.id is missing", remedy="name the group to be a member of")
        self.assignors = _assignors(config.partition_assignment_strategy)
        self.coordinator = Coordinator(core, CoordinatorType.GROUP, config.group_id)
        # Set when the group rebalances or the membership has ended.
        self.needs_join = asyncio.Event()
        self.needs_join.set()
        self.is_lost = False
        self.member = NO_MEMBER._replace(instance_id=config.group_instance_id or None)
        self._core = core
        self._group_id = config.group_id
        self._channel = f"group {next(_numbers)}"
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None
        self._is_joining = False
        # The partition counts when this member, as the leader, made the assignment.
        self._counts: dict[str, int] | None = None
        self._wanted: set[str] = set()
        self._polled_at = asyncio.get_running_loop().time()

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances."""
        return all(assignor.is_cooperative for assignor in self.assignors)

    def on_poll(self) -> None:
        """Record that the owner has polled; raises the error that ended the membership."""
        self._polled_at = asyncio.get_running_loop().time()
        if self._failure is not None:
            raise self._failure

    # Joining

    async def join(self, subscription: Subscription) -> JoinResult:
        """Join the next generation; returns the assignment.

        `is_lost` is set if the coordinator removed this member: its partitions are lost.
        """
        self._is_joining = True  # without heartbeats, whose answers would be errors
        try:
            joined = await self._join_until_done(subscription)
        finally:
            self._is_joining = False
        self._start_heartbeats()
        return joined

    async def _join_until_done(self, subscription: Subscription) -> JoinResult:
        backoff = Backoff(
            self._core.config.retry_backoff_ms, self._core.config.retry_backoff_max_ms
        )
        while True:
            self.on_poll()
            self.needs_join.clear()
            try:
                return await self._join_once(subscription)
            except (ConnectionLost, RequestTimedOut):
                await asyncio.sleep(backoff.next_wait_s())
            except KafkaError as error:
                if self._needs_pause(error):
                    await asyncio.sleep(backoff.next_wait_s())
                if self.is_lost:
                    subscription = Subscription(subscription.topics)

    def _needs_pause(self, error: KafkaError) -> bool:
        """Whether to wait before the next attempt; raises a final error."""
        if error.code in _NOT_A_MEMBER:
            self._lose()
            return False
        if error.code == Code.REBALANCE_IN_PROGRESS:
            return False
        if not error.retriable:
            self._failure = error
            raise error
        return True

    async def _join_once(self, subscription: Subscription) -> JoinResult:
        config = self._core.config
        metadata = encode_subscription(subscription)
        values = {
            "group_id": self._group_id,
            "session_timeout": config.session_timeout_ms,
            "rebalance_timeout": config.max_poll_interval_ms,
            "group_instance_id": self.member.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [
                {"name": assignor.name, "metadata": metadata} for assignor in self.assignors
            ],
            "reason": None,
        }
        response = await self._ask_join(values)
        self.member = self.member._replace(
            generation_id=int(response.generation_id), member_id=response.member_id
        )
        assignments: Mapping[str, bytes] = {}
        is_leader = response.leader == response.member_id
        if is_leader and not getattr(response, "skip_assignment", False):
            assignments = await self._assign_partitions(response)
        partitions = await self._sync(response.protocol_name, assignments)
        return JoinResult(self.member.generation_id, response.protocol_name, partitions)

    async def _ask_join(self, values: Mapping[str, Any]) -> Any:
        timeout_s = self._core.config.max_poll_interval_ms / 1000 + _JOIN_GRACE_S
        while True:
            response = await self.coordinator.ask(
                ApiKey.JOIN_GROUP,
                {**values, "member_id": self.member.member_id},
                channel=f"{self._channel} joins",
                timeout_s=timeout_s,
                accepts={Code.MEMBER_ID_REQUIRED},
            )
            if response.error_code == Code.NONE:
                return response
            # The coordinator requires a second JoinGroup with this member id (KIP-394).
            self.member = self.member._replace(member_id=response.member_id)

    async def _assign_partitions(self, response: Any) -> Mapping[str, bytes]:
        """Make the assignment of the group, as its leader."""
        members = [
            MemberSubscription(
                member.member_id,
                decode_subscription(bytes(member.metadata)),
                getattr(member, "group_instance_id", None),
            )
            for member in response.members
        ]
        wanted = {topic for member in members for topic in member.subscription.topics}
        await self._core.metadata(wanted, refresh=True)
        counts = self._counts = self._count_partitions(wanted)
        self._wanted = wanted
        shares = ASSIGNORS[response.protocol_name].assign(members, counts)
        return {member_id: encode_assignment(share) for member_id, share in shares.items()}

    def _count_partitions(self, topics: Iterable[str]) -> dict[str, int]:
        known = self._core.cluster.topics
        return {
            topic: len(known[topic].partitions)
            for topic in topics
            if topic in known and known[topic].error == Code.NONE
        }

    async def _sync(
        self, protocol: str, assignments: Mapping[str, bytes]
    ) -> frozenset[TopicPartition]:
        values = {
            **self._identity(),
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": protocol,
            "assignments": [
                {"member_id": member_id, "assignment": assignment}
                for member_id, assignment in assignments.items()
            ],
        }
        timeout_s = self._core.config.max_poll_interval_ms / 1000 + _JOIN_GRACE_S
        response = await self.coordinator.ask(
            ApiKey.SYNC_GROUP, values, channel=f"{self._channel} joins", timeout_s=timeout_s
        )
        return decode_assignment(bytes(response.assignment))

    # Heartbeats

    def _start_heartbeats(self) -> None:
        if self._heartbeat_task is None:
            self._heartbeat_task = run_once(
                "group heartbeat", self._send_heartbeats(), on_failure=self._fail
            )

    def _fail(self, error: Exception) -> None:
        """Without heartbeats the coordinator removes this member: the next poll raises."""
        self._failure = ClientError(
            f"internal error: the heartbeats of group {self._group_id} have stopped: {error!r}",
            remedy="create a new consumer; the log has the traceback",
        )
        self.is_lost = True
        self.needs_join.set()

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until the membership is closed."""
        config = self._core.config
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(config.heartbeat_interval_ms / 1000)
            if self.needs_join.is_set() or self._is_joining:
                # No heartbeats are needed while the member is about to join.
                continue
            if self._counts is not None and self._counts != self._count_partitions(self._wanted):
                # A topic has more partitions, or has been created: assign again.
                self.needs_join.set()
                continue
            if loop.time() - self._polled_at > config.max_poll_interval_ms / 1000:
                await self._send_leave()
                self._lose()
                continue
            with contextlib.suppress(ConnectionLost, RequestTimedOut):
                await self._send_heartbeat()

    async def _send_heartbeat(self) -> None:
        known = self.member
        try:
            await self.coordinator.ask(ApiKey.HEARTBEAT, self._identity(), channel=self._channel)
        except KafkaError as error:
            if known != self.member or self._is_joining:
                # The member has joined meanwhile; this error is about its old generation.
                return
            if error.code == Code.REBALANCE_IN_PROGRESS:
                self.needs_join.set()
            elif error.code in _NOT_A_MEMBER:
                self._lose()
            elif not error.retriable:
                self._failure = error
                self.is_lost = True
                self.needs_join.set()

    def _lose(self) -> None:
        self.member = NO_MEMBER._replace(instance_id=self.member.instance_id)
        self.is_lost = True
        self.needs_join.set()

    def on_commit_refused(self, error: KafkaError) -> None:
        """Process the error of a refused commit, which means the same as for a heartbeat."""
        if error.code == Code.REBALANCE_IN_PROGRESS:
            self.needs_join.set()
        elif error.code in _NOT_A_MEMBER:
            self._lose()

    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self._group_id,
            "generation_id": self.member.generation_id,
            "member_id": self.member.member_id,
            "group_instance_id": self.member.instance_id,
        }

    # Leaving

    async def close(self) -> None:
        """Leave the group; a static member stays until its session expires."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heartbeat_task
            self._heartbeat_task = None
        if self._failure is None:
            await self._send_leave()

    async def _send_leave(self) -> None:
        member_id = self.member.member_id
        if not member_id or self.member.instance_id is not None:
            return
        values = {
            "group_id": self._group_id,
            "member_id": member_id,
            "members": [
                {
                    "member_id": member_id,
                    "group_instance_id": self.member.instance_id,
                    "reason": None,
                }
            ],
        }
        with contextlib.suppress(ClientError):
            await self.coordinator.ask(ApiKey.LEAVE_GROUP, values, channel=self._channel)


def _assignors(names: tuple[str, ...]) -> list[Assignor]:
    found = []
    for name in names:
        short = _JAVA_NAMES.get(name.rpartition(".")[2], name)
        if short not in ASSIGNORS:
            raise ConfigError(
                f"{name!r} in partition.assignment.strategy is unknown",
                remedy=f"use one of {', '.join(ASSIGNORS)}",
            )
        found.append(ASSIGNORS[short])
    if not found:
        raise ConfigError(
            "partition.assignment.strategy is empty", remedy=f"use one of {', '.join(ASSIGNORS)}"
        )
    return found
