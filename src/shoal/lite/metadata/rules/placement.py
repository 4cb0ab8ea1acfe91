"""Which brokers get the replicas of new partitions, and of those that move.

Rules of this file:
- The leader of a new partition is the active broker that leads the fewest, then the one with
  the fewest replicas, then the one with the smallest id. The other replicas go to the racks
  that have none yet, then to the brokers with the fewest replicas, then round the circle of ids
  from the leader on. Brokers that are not active come last, when there are not enough others.
- A broker without a rack is a rack of its own.
- Moving changes as little as possible.
"""

from collections import Counter
from collections.abc import Sequence

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data.state import ClusterState
from shoal.model.topics import TopicPartition


def place(state: ClusterState, count: int, factor: int) -> list[tuple[int, ...]]:
    """The replicas of `count` new partitions; the first of each leads."""
    if factor < 1 or factor > len(state.brokers):
        message = f"a replication factor of {factor} with {len(state.brokers)} broker(s)"
        raise Refused(Code.INVALID_REPLICATION_FACTOR, message)
    active = [broker for broker in state.brokers if state.is_active(broker)]
    if not active:
        raise Refused(Code.INVALID_REPLICATION_FACTOR, "all brokers are fenced")
    led, hosted = Counter(state.led), Counter(state.hosted)
    placed = []
    for _ in range(count):
        leader = min(active, key=lambda broker: (led[broker], hosted[broker], broker))
        replicas = [leader]
        while len(replicas) < factor:
            replicas.append(_next_replica(state, replicas, hosted))
        led[leader] += 1
        hosted.update(replicas)
        placed.append(tuple(replicas))
    return placed


def checked_replicas(state: ClusterState, replicas: Sequence[int]) -> tuple[int, ...]:
    """Replicas as someone wants them; `Refused` if they cannot be."""
    unknown = [broker for broker in replicas if broker not in state.brokers]
    if not replicas or unknown or len(set(replicas)) != len(replicas):
        message = f"replicas {list(replicas)}: each must be a broker of the cluster, and be new"
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return tuple(replicas)


def drain(
    state: ClusterState, broker_id: int, *, keep_factor: bool = True
) -> dict[TopicPartition, tuple[int, ...]]:
    """Where the replicas of a broker can go, so that it can leave.

    Where no other broker is left, `Refused`, or without `keep_factor` one replica fewer.
    """
    hosted = Counter(state.hosted)
    hosted[broker_id] = 0
    targets = {}
    for key, replicas in _assignments(state).items():
        if broker_id not in replicas:
            continue
        remaining = [broker for broker in replicas if broker != broker_id]
        if set(state.brokers) > set(replicas):
            stand_in = _next_replica(state, remaining, hosted, never=broker_id)
            hosted[stand_in] += 1
            remaining.insert(replicas.index(broker_id), stand_in)
        elif keep_factor or not remaining:
            message = f"{key} has {len(replicas)} replica(s), and there is no other broker"
            raise Refused(Code.INVALID_REPLICATION_FACTOR, message)
        targets[key] = tuple(remaining)
    return targets


def share(state: ClusterState, broker_id: int) -> dict[TopicPartition, tuple[int, ...]]:
    """Which replicas a new broker can take over, so that it has as many as the others."""
    hosted = Counter(state.hosted)
    fair = sum(hosted.values()) // len(state.brokers)
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for key, replicas in _assignments(state).items():
        if hosted[broker_id] >= fair:
            break
        # Of several with equally many the last: the first is the preferred leader.
        donor = max(replicas, key=lambda broker: (hosted[broker], replicas.index(broker)))
        if broker_id in replicas or hosted[donor] <= fair:
            continue
        targets[key] = tuple(broker_id if broker == donor else broker for broker in replicas)
        hosted[donor] -= 1
        hosted[broker_id] += 1
    return targets


def _assignments(state: ClusterState) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(topic.name, index): partition.target_replicas
        for topic in state.topics.values()
        for index, partition in topic.partitions.items()
    }


def _next_replica(
    state: ClusterState, replicas: Sequence[int], hosted: Counter[int], never: int | None = None
) -> int:
    """The broker that should get one more replica of a partition."""
    circle = sorted(state.brokers)
    start = circle.index(replicas[0]) if replicas else 0
    racks = Counter(_rack(state, broker) for broker in replicas)

    def preference(broker: int) -> tuple[bool, int, int, int]:
        steps = (circle.index(broker) - start) % len(circle)
        return not state.is_active(broker), racks[_rack(state, broker)], hosted[broker], steps

    candidates = [b for b in circle if b not in replicas and b != never]
    return min(candidates, key=preference)


def _rack(state: ClusterState, broker_id: int) -> str | int:
    return state.brokers[broker_id].rack or broker_id
