"""A broker gets its share of the replicas, or gives its own away, so that it can leave.

Rules of this file:
- No partition ever has fewer replicas than before: where there is nobody to take one over, the
  broker stays, and the message names the partition.
- Replicas go only to brokers that serve; the others could not take over anything.
- What moves is decided by the controller, on what is committed; here is only asked and waited.
"""

import asyncio
from typing import Protocol, TypeVar

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data.requests import Reassign, Request, UnregisterBroker
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.placement import drain, share
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.topics import TopicPartition

A = TypeVar("A")
_POLL_S = 0.02
# Replicas that move have to be copied; whoever waits longer than this should ask again.
MOVE_PATIENCE_S = 120.0


class Controllers(Protocol):
    """Whoever knows the metadata and takes requests."""

    @property
    def state(self) -> ClusterState: ...
    async def submit(self, request: Request[A]) -> A: ...


async def give_share(controllers: Controllers, broker_id: int) -> None:
    """Let a new broker have as many replicas as the others; they move when this returns."""
    targets = share(controllers.state, broker_id)
    if targets:
        await controllers.submit(Reassign(targets))


async def move_away(controllers: Controllers, broker_id: int) -> None:
    """Give the replicas of a broker to others; returns when it has none any more."""
    targets = _targets(controllers.state, broker_id)
    if not targets:
        return
    answers = await controllers.submit(Reassign(targets))
    for answer in answers:
        if answer.code != Code.NONE:
            raise SystemFailure(f"{answer.partition} cannot be moved: {answer.message}")
    try:
        async with asyncio.timeout(MOVE_PATIENCE_S):
            while controllers.state.hosted[broker_id]:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        left = controllers.state.hosted[broker_id]
        raise SystemFailure(
            f"{left} replica(s) of broker {broker_id} are still moving after "
            f"{MOVE_PATIENCE_S:.0f} s",
            remedy="see that the other brokers run, and remove it again",
        ) from None


async def unregister(controllers: Controllers, broker_id: int) -> bool:
    """Forget a broker that has ended; False if it got replicas meanwhile."""
    try:
        await controllers.submit(UnregisterBroker(broker_id))
    except Refused as refused:
        if controllers.state.hosted[broker_id]:
            return False
        if refused.code != Code.BROKER_ID_NOT_REGISTERED:
            raise SystemFailure(f"broker {broker_id} cannot be removed: {refused}") from refused
    return True


def _targets(state: ClusterState, broker_id: int) -> dict[TopicPartition, tuple[int, ...]]:
    try:
        targets = drain(state, broker_id)
    except Refused as refused:
        raise UsageError(
            f"broker {broker_id} cannot be removed: {refused}",
            remedy="add a broker first, or delete the topic",
        ) from refused
    for partition, replicas in targets.items():
        before = state.topics[partition.topic].partitions[partition.partition].replicas
        dead = [b for b in replicas if b not in before and not state.is_active(b)]
        if dead:
            raise UsageError(
                f"broker {broker_id} cannot be removed: only broker {dead[0]} could take over "
                f"{partition}, and it does not run",
                remedy=f"restart broker {dead[0]}, or add one",
            )
    return targets
