"""Placement of the replicas of new partitions, and of replicas that move.

Rules of this file:
- The leader of a new partition is the active broker that leads the fewest, then the one with
  the fewest replicas, then the one with the smallest id. The other replicas go to the racks
  with the fewest replicas of the partition, then to the brokers with the fewest replicas, then in
  the order of ids from the leader on, wrapping around. Inactive brokers come last.
- A broker without a rack counts as its own rack.
- Moves change as few replicas as possible.
"""

from collections import Counter
from collections.abc import Sequence

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.state import ClusterState
from shoal.model.topics import TopicPartition


def place_replicas(state: ClusterState, count: int, factor: int) -> list[tuple[int, ...]]:
    """Choose the replicas of `count` new partitions; the first of each is the leader."""
    if factor < 1 or factor > len(state.brokers):
        message = f"replication factor {factor} is not possible with {len(state.brokers)} broker(s)"
        raise ApiError(Code.INVALID_REPLICATION_FACTOR, message)
    active = [broker for broker in state.brokers if state.is_active(broker)]
    if not active:
        raise ApiError(Code.INVALID_REPLICATION_FACTOR, "all brokers are fenced")
    leader_counts, replica_counts = Counter(state.leader_counts), Counter(state.replica_counts)
    placed = []
    for _ in range(count):
        leader = min(
            active, key=lambda broker: (leader_counts[broker], replica_counts[broker], broker)
        )
        replicas = [leader]
        while len(replicas) < factor:
            replicas.append(_next_replica(state, replicas, replica_counts))
        leader_counts[leader] += 1
        replica_counts.update(replicas)
        placed.append(tuple(replicas))
    return placed


def validate_replicas(state: ClusterState, replicas: Sequence[int]) -> tuple[int, ...]:
    """The replicas of a request; `ApiError` unless they are distinct brokers of the cluster."""
    unknown = [broker for broker in replicas if broker not in state.brokers]
    if not replicas or unknown or len(set(replicas)) != len(replicas):
        message = f"replicas {list(replicas)} must be distinct brokers of the cluster"
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return tuple(replicas)


def plan_drain(
    state: ClusterState, broker_id: int, *, keep_factor: bool = True
) -> dict[TopicPartition, tuple[int, ...]]:
    """Plan where the replicas of a broker move, so that it can be removed.

    Where no other broker is left: `ApiError`, or, without `keep_factor`, one replica fewer.
    """
    replica_counts = Counter(state.replica_counts)
    replica_counts[broker_id] = 0
    targets = {}
    for key, replicas in _assignments(state).items():
        if broker_id not in replicas:
            continue
        remaining = [broker for broker in replicas if broker != broker_id]
        if set(state.brokers) > set(replicas):
            stand_in = _next_replica(state, remaining, replica_counts, never=broker_id)
            replica_counts[stand_in] += 1
            remaining.insert(replicas.index(broker_id), stand_in)
        elif keep_factor or not remaining:
            message = f"{key} has {len(replicas)} replica(s), and no other broker can take one"
            raise ApiError(Code.INVALID_REPLICATION_FACTOR, message)
        targets[key] = tuple(remaining)
    return targets


def plan_share(state: ClusterState, broker_id: int) -> dict[TopicPartition, tuple[int, ...]]:
    """Plan which replicas move to a new broker, so that it has as many as the others."""
    replica_counts = Counter(state.replica_counts)
    fair = sum(replica_counts.values()) // len(state.brokers)
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for key, replicas in _assignments(state).items():
        if replica_counts[broker_id] >= fair:
            break
        # Among equals the last replica: the first one is the preferred leader.
        donor = max(replicas, key=lambda broker: (replica_counts[broker], replicas.index(broker)))
        if broker_id in replicas or replica_counts[donor] <= fair:
            continue
        targets[key] = tuple(broker_id if broker == donor else broker for broker in replicas)
        replica_counts[donor] -= 1
        replica_counts[broker_id] += 1
    return targets


def _assignments(state: ClusterState) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(topic.name, index): partition.target_replicas
        for topic in state.topics.values()
        for index, partition in topic.partitions.items()
    }


def _next_replica(
    state: ClusterState,
    replicas: Sequence[int],
    replica_counts: Counter[int],
    never: int | None = None,
) -> int:
    """The broker that should get one more replica of a partition."""
    circle = sorted(state.brokers)
    start = circle.index(replicas[0]) if replicas else 0
    racks = Counter(_rack(state, broker) for broker in replicas)

    def preference(broker: int) -> tuple[bool, int, int, int]:
        steps = (circle.index(broker) - start) % len(circle)
        return (
            not state.is_active(broker),
            racks[_rack(state, broker)],
            replica_counts[broker],
            steps,
        )

    candidates = [b for b in circle if b not in replicas and b != never]
    return min(candidates, key=preference)


def _rack(state: ClusterState, broker_id: int) -> str | int:
    return state.brokers[broker_id].rack or broker_id
