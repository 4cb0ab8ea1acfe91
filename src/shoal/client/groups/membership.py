"""Membership of a group: joining it, hearing of rebalances, leaving it.

Rules of this file:
- JoinGroup waits for other members, so each membership has connections of its own: one on which
  it joins and one on which it sends heartbeats.
- A member whose id or generation is not known any more has lost its partitions: others may have
  them already. Who took the place of a static member has fenced it, which is the end.
- Heartbeats go on by themselves. `needs_join` is set when the group rebalances; joining is up
  to the owner, who must let go of partitions first.
- A member whose owner does not poll leaves the group (`max.poll.interval.ms`), so that others
  read its partitions.
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
from shoal.client.groups.assignors import ASSIGNORS, Assignor, Wish
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

# A coordinator answers a JoinGroup within the rebalance time-out, and needs a moment for it.
_JOIN_GRACE_S: Final = 5.0
_OUT: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION})
_JAVA_NAMES: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_numbers = itertools.count(1)


class Joined(NamedTuple):
    """What a generation has for us."""

    generation: int
    protocol: str
    partitions: frozenset[TopicPartition]


class Membership:
    """One member of one group; `join` whenever `needs_join` is set, then it stays by itself."""

    def __init__(self, core: Core) -> None:
        config = core.config
        if not config.group_id:
            raise ConfigError("group.id is missing", remedy="name the group to be a member of")
        self.assignors = _assignors(config.partition_assignment_strategy)
        self.coordinator = Coordinator(core, CoordinatorType.GROUP, config.group_id)
        # Set when there is something to do: a rebalance, or the end of the membership.
        self.needs_join = asyncio.Event()
        self.needs_join.set()
        self.is_lost = False
        self.member = NO_MEMBER._replace(instance_id=config.group_instance_id or None)
        self._core = core
        self._group_id = config.group_id
        self._channel = f"group {next(_numbers)}"
        self._heart: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None
        self._is_joining = False
        # How many partitions there were when this member, as the leader, shared them.
        self._counts: dict[str, int] | None = None
        self._wanted: set[str] = set()
        self._polled_at = asyncio.get_running_loop().time()

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances."""
        return all(assignor.is_cooperative for assignor in self.assignors)

    def polled(self) -> None:
        """The owner is alive; raises what ended the membership."""
        self._polled_at = asyncio.get_running_loop().time()
        if self._failure is not None:
            raise self._failure

    # Joining

    async def join(self, subscription: Subscription) -> Joined:
        """Be a member of the next generation; returns what it has for us.

        `is_lost` is set if this member was forgotten on the way: what it had may be another's.
        """
        backoff = Backoff(
            self._core.config.retry_backoff_ms, self._core.config.retry_backoff_max_ms
        )
        while True:
            self.polled()
            self.needs_join.clear()
            try:
                joined = await self._join_once(subscription)
            except (ConnectionLost, RequestTimedOut):
                await asyncio.sleep(backoff.failed())
            except KafkaError as error:
                if self._must_wait(error):
                    await asyncio.sleep(backoff.failed())
                if self.is_lost:
                    subscription = Subscription(subscription.topics)
            else:
                self._live()
                return joined

    def _must_wait(self, error: KafkaError) -> bool:
        """Whether to pause before the next try; raises what no try can mend."""
        if error.code in _OUT:
            self._lose()
            return False
        if error.code == Code.REBALANCE_IN_PROGRESS:
            return False
        if not error.retriable:
            self._failure = error
            raise error
        return True

    async def _join_once(self, subscription: Subscription) -> Joined:
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
            assignments = await self._assigned(response)
        partitions = await self._sync(response.protocol_name, assignments)
        return Joined(self.member.generation_id, response.protocol_name, partitions)

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
            # It wants us to come back with the id that it gives (KIP-394).
            self.member = self.member._replace(member_id=response.member_id)

    async def _assigned(self, response: Any) -> Mapping[str, bytes]:
        """What this member, as the leader, decides."""
        wishes = [
            Wish(
                member.member_id,
                decode_subscription(bytes(member.metadata)),
                getattr(member, "group_instance_id", None),
            )
            for member in response.members
        ]
        wanted = {topic for wish in wishes for topic in wish.subscription.topics}
        await self._core.metadata(wanted, refresh=True)
        counts = self._counts = self._counted(wanted)
        self._wanted = wanted
        shares = ASSIGNORS[response.protocol_name].assign(wishes, counts)
        return {member_id: encode_assignment(share) for member_id, share in shares.items()}

    def _counted(self, topics: Iterable[str]) -> dict[str, int]:
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

    # Staying

    def _live(self) -> None:
        if self._heart is None:
            self._heart = run_once("group heartbeat", self._beat(), on_failure=self._fail)

    def _fail(self, error: Exception) -> None:
        """Without heartbeats the group would go on without this member: let the next poll raise."""
        self._failure = ClientError(
            f"the heartbeats of group {self._group_id} have stopped: {error!r}",
            remedy="create the consumer again; the log has the traceback",
        )
        self.is_lost = True
        self.needs_join.set()

    async def _beat(self) -> None:
        """Until the membership ends; `join` begins it anew."""
        config = self._core.config
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(config.heartbeat_interval_ms / 1000)
            if self.needs_join.is_set() or self._is_joining:
                # Who waits to join need not be heard of.
                continue
            if self._counts is not None and self._counts != self._counted(self._wanted):
                # A topic has grown, or is there at last: share again.
                self.needs_join.set()
                continue
            if loop.time() - self._polled_at > config.max_poll_interval_ms / 1000:
                await self._send_leave()
                self._lose()
                continue
            with contextlib.suppress(ConnectionLost, RequestTimedOut):
                await self._beat_once()

    async def _beat_once(self) -> None:
        known = self.member
        try:
            await self.coordinator.ask(ApiKey.HEARTBEAT, self._identity(), channel=self._channel)
        except KafkaError as error:
            if known != self.member or self._is_joining:
                # It was joining meanwhile, and this is about who it was before.
                return
            if error.code == Code.REBALANCE_IN_PROGRESS:
                self.needs_join.set()
            elif error.code in _OUT:
                self._lose()
            elif not error.retriable:
                self._failure = error
                self.is_lost = True
                self.needs_join.set()

    def _lose(self) -> None:
        self.member = NO_MEMBER._replace(instance_id=self.member.instance_id)
        self.is_lost = True
        self.needs_join.set()

    def refused_commit(self, error: KafkaError) -> None:
        """A commit was refused, which tells the same as a heartbeat would."""
        if error.code == Code.REBALANCE_IN_PROGRESS:
            self.needs_join.set()
        elif error.code in _OUT:
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
        """Leave the group; a static member keeps its place until its session ends."""
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
            self._heart = None
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
                f"{name!r} in partition.assignment.strategy is not known",
                remedy=f"use one of {', '.join(ASSIGNORS)}",
            )
        found.append(ASSIGNORS[short])
    if not found:
        raise ConfigError("partition.assignment.strategy is empty")
    return found
