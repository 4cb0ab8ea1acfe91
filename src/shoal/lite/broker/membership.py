"""Moves replicas to a broker that joined, or away from a broker that is to be removed.

Rules of this file:
- No partition loses a replica: if no other broker can take one over, the broker is not removed,
  and the error names the partition.
- Replicas move only to active brokers; the others could not take over anything.
- The controller decides each move from committed metadata; this module only requests moves and
  waits for them.
"""

import asyncio
from typing import Protocol, TypeVar

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.requests import ControllerRequest, Reassign, UnregisterBroker
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.placement import plan_drain, plan_share
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.topics import TopicPartition

A = TypeVar("A")
_POLL_S = 0.02
# Moving replicas are copied; a caller that needs more time than this asks again.
MOVE_PATIENCE_S = 120.0


class ControllerClient(Protocol):
    """Access to the metadata and the controller."""

    @property
    def state(self) -> ClusterState: ...
    async def submit(self, request: ControllerRequest[A]) -> A: ...


async def move_share_to(controller: ControllerClient, broker_id: int) -> None:
    """Start to move replicas to a new broker until it has as many as the others."""
    targets = plan_share(controller.state, broker_id)
    if targets:
        await controller.submit(Reassign(targets))


async def drain_broker(controller: ControllerClient, broker_id: int) -> None:
    """Move all replicas of a broker to others; return when it has none."""
    targets = _plan_drain(controller.state, broker_id)
    if not targets:
        return
    answers = await controller.submit(Reassign(targets))
    for answer in answers:
        if answer.code != Code.NONE:
            raise SystemFailure(
                f"cannot move partition {answer.partition} away from broker {broker_id}: "
                f"{answer.message}",
                remedy="correct that, then remove the broker again",
            )
    try:
        async with asyncio.timeout(MOVE_PATIENCE_S):
            while controller.state.replica_counts[broker_id]:  # noqa: ASYNC110 - no event exists for it
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        left = controller.state.replica_counts[broker_id]
        raise SystemFailure(
            f"{left} replica(s) of broker {broker_id} are still moving after "
            f"{MOVE_PATIENCE_S:.0f} s",
            remedy="check that the other brokers run, then remove the broker again",
        ) from None


async def unregister(controller: ControllerClient, broker_id: int) -> bool:
    """Unregister a stopped broker; return False if it was assigned replicas meanwhile."""
    try:
        await controller.submit(UnregisterBroker(broker_id))
    except ApiError as error:
        if controller.state.replica_counts[broker_id]:
            return False
        if error.code != Code.BROKER_ID_NOT_REGISTERED:
            raise SystemFailure(f"broker {broker_id} cannot be removed: {error}") from error
    return True


def _plan_drain(state: ClusterState, broker_id: int) -> dict[TopicPartition, tuple[int, ...]]:
    try:
        targets = plan_drain(state, broker_id)
    except ApiError as error:
        raise UsageError(
            f"broker {broker_id} cannot be removed: {error}",
            remedy="add a broker first, or delete the topic",
        ) from error
    for partition, replicas in targets.items():
        before = state.topics[partition.topic].partitions[partition.partition].replicas
        dead = [b for b in replicas if b not in before and not state.is_active(b)]
        if dead:
            raise UsageError(
                f"broker {broker_id} cannot be removed: only broker {dead[0]} could take over "
                f"{partition}, and it is not running",
                remedy=f"restart broker {dead[0]}, or add another broker",
            )
    return targets
