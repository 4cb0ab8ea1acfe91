"""Partition assignors: which member of a group reads which partition. Pure.

Rules of this file:
- Every partition of a subscribed topic is assigned to one member that subscribes to the topic.
  With `cooperative-sticky` a partition that must move is first assigned to no member, until its
  owner has revoked it.
- `range` and `roundrobin` give exactly the assignments of Apache Kafka's assignors, except for
  racks: any client may be the leader of a group.
- `cooperative-sticky` balances as evenly as the subscriptions allow, and moves only what must move.
  Where several assignments are equally good, Kafka's assignor may choose another one.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shoal.client.groups.protocol import Subscription
from shoal.model.topics import TopicPartition


class MemberSubscription(NamedTuple):
    """A member of a group and its subscription."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Static members come first, by their `group.instance.id`."""
        return self.instance_id is None, self.instance_id or self.member_id


Assignments = dict[str, set[TopicPartition]]
# How many partitions each topic has; topics that do not exist are missing.
Counts = Mapping[str, int]
Assign = Callable[[list[MemberSubscription], Counts], Assignments]


class Assignor(NamedTuple):
    """An assignment strategy, with the name that members agree on."""

    name: str
    assign: Assign
    # Whether members keep their partitions during a rebalance.
    is_cooperative: bool = False


def assign_ranges(members: list[MemberSubscription], counts: Counts) -> Assignments:
    """For each topic, a contiguous range of partitions for each member."""
    assignments: Assignments = {member.member_id: set() for member in members}
    for topic in sorted(counts):
        subscribers = sorted((w for w in members if topic in w.subscription.topics), key=_order)
        if not subscribers:
            continue
        each, rest = divmod(counts[topic], len(subscribers))
        start = 0
        for place, member in enumerate(subscribers):
            end = start + each + (place < rest)
            assignments[member.member_id] |= {TopicPartition(topic, i) for i in range(start, end)}
            start = end
    return assignments


def assign_round_robin(members: list[MemberSubscription], counts: Counts) -> Assignments:
    """One partition after the other to one member after the other."""
    assignments: Assignments = {member.member_id: set() for member in members}
    ordered = sorted(members, key=_order)
    place = 0
    for topic in sorted(counts):
        if not any(topic in member.subscription.topics for member in ordered):
            continue
        for index in range(counts[topic]):
            while topic not in ordered[place % len(ordered)].subscription.topics:
                place += 1
            assignments[ordered[place % len(ordered)].member_id].add(TopicPartition(topic, index))
            place += 1
    return assignments


def assign_sticky(members: list[MemberSubscription], counts: Counts) -> Assignments:
    """Balance with the fewest moves; a partition that moves is not assigned until it is revoked."""
    owned = _find_owners(members, counts)
    assignments = _balance(members, counts, owned)
    for member_id, share in assignments.items():
        share -= {tp for tp in share if owned.get(tp, member_id) != member_id}
    return assignments


def _order(member: MemberSubscription) -> tuple[bool, str]:
    return member.order


def _find_owners(members: list[MemberSubscription], counts: Counts) -> dict[TopicPartition, str]:
    """The owner of each partition: the only member that claims it in the newest generation."""
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        generation = member.subscription.generation
        for tp in member.subscription.owned:
            if tp.partition >= counts.get(tp.topic, 0):
                continue
            known_generation, known = owners.get(tp, (-2, None))
            if generation > known_generation:
                owners[tp] = (generation, member.member_id)
            elif generation == known_generation and known != member.member_id:
                owners[tp] = (generation, None)
    return {tp: owner for tp, (_, owner) in owners.items() if owner is not None}


def _balance(
    members: list[MemberSubscription], counts: Counts, owned: Mapping[TopicPartition, str]
) -> Assignments:
    ordered = sorted(members, key=_order)
    subscribers = {
        topic: [member.member_id for member in ordered if topic in member.subscription.topics]
        for topic in sorted(counts)
    }
    assignments: Assignments = {member.member_id: set() for member in ordered}
    free: list[TopicPartition] = []
    for topic, member_ids in subscribers.items():
        for index in range(counts[topic] if member_ids else 0):
            tp = TopicPartition(topic, index)
            owner = owned.get(tp)
            if owner in member_ids and owner is not None:
                assignments[owner].add(tp)
            else:
                free.append(tp)
    # Topics with few subscribers first, while those members still have few partitions.
    for tp in sorted(free, key=lambda tp: (len(subscribers[tp.topic]), tp)):
        assignments[_least_loaded(subscribers[tp.topic], assignments)].add(tp)
    _move_to_balance(subscribers, assignments)
    return assignments


def _least_loaded(member_ids: list[str], assignments: Assignments) -> str:
    return min(member_ids, key=lambda member_id: len(assignments[member_id]))


def _move_to_balance(subscribers: Mapping[str, list[str]], assignments: Assignments) -> None:
    """Move partitions from the most loaded to less loaded members, until no move helps.

    Always from the member with the most partitions at that moment: a member that gave too many
    would need some back, and every move pauses the reading of a partition.
    """
    is_moving = True
    while is_moving:
        is_moving = False
        candidates = set(assignments)
        while candidates:
            most_loaded = max(sorted(candidates), key=lambda member_id: len(assignments[member_id]))
            topics = sorted({tp.topic for tp in assignments[most_loaded]})
            offers = [
                (len(assignments[_least_loaded(subscribers[topic], assignments)]), topic)
                for topic in topics
            ]
            if not offers or min(offers)[0] + 1 >= len(assignments[most_loaded]):
                candidates.remove(most_loaded)
                continue
            topic = min(offers)[1]
            moved = max(tp for tp in assignments[most_loaded] if tp.topic == topic)
            assignments[_least_loaded(subscribers[topic], assignments)].add(moved)
            assignments[most_loaded].remove(moved)
            is_moving = True


ASSIGNORS = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_ranges),
        Assignor("roundrobin", assign_round_robin),
        Assignor("cooperative-sticky", assign_sticky, is_cooperative=True),
    )
}
