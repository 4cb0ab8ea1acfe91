"""Who of a group reads which partition: what its leader decides. Pure.

Rules of this file:
- Every partition of a topic that anybody wants goes to one member that wants it; with
  `cooperative-sticky` one that must move goes to nobody first, until its owner has let go of it.
- `range` and `roundrobin` give what Apache Kafka's assignors give, to the partition, racks aside:
  members may be led by any client.
- `cooperative-sticky` shares as evenly as the subscriptions allow, and moves only what must move.
  Where several shares are as good, Kafka's assignor may choose another one.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shoal.client.groups.protocol import Subscription
from shoal.model.topics import TopicPartition


class Wish(NamedTuple):
    """A member of a group, and what it wants."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Static members come first, by the names that they keep."""
        return self.instance_id is None, self.instance_id or self.member_id


Shares = dict[str, set[TopicPartition]]
# How many partitions each topic has; topics that there are not are missing.
Counts = Mapping[str, int]
Assign = Callable[[list[Wish], Counts], Shares]


class Assignor(NamedTuple):
    """A way to share, by the name that members agree on."""

    name: str
    assign: Assign
    # Whether members keep what they have while they join again.
    is_cooperative: bool = False


def assign_ranges(wishes: list[Wish], counts: Counts) -> Shares:
    """Topic by topic, in rows."""
    shares: Shares = {wish.member_id: set() for wish in wishes}
    for topic in sorted(counts):
        takers = sorted((w for w in wishes if topic in w.subscription.topics), key=_order)
        if not takers:
            continue
        each, rest = divmod(counts[topic], len(takers))
        start = 0
        for place, wish in enumerate(takers):
            end = start + each + (place < rest)
            shares[wish.member_id] |= {TopicPartition(topic, i) for i in range(start, end)}
            start = end
    return shares


def assign_round_robin(wishes: list[Wish], counts: Counts) -> Shares:
    """Partition by partition, to one after the other."""
    shares: Shares = {wish.member_id: set() for wish in wishes}
    circle = sorted(wishes, key=_order)
    place = 0
    for topic in sorted(counts):
        if not any(topic in wish.subscription.topics for wish in circle):
            continue
        for index in range(counts[topic]):
            while topic not in circle[place % len(circle)].subscription.topics:
                place += 1
            shares[circle[place % len(circle)].member_id].add(TopicPartition(topic, index))
            place += 1
    return shares


def assign_sticky(wishes: list[Wish], counts: Counts) -> Shares:
    """As even as can be, with as little movement as that allows; what moves is given up first."""
    owned = _owned(wishes, counts)
    shares = _balanced(wishes, counts, owned)
    for member_id, share in shares.items():
        share -= {tp for tp in share if owned.get(tp, member_id) != member_id}
    return shares


def _order(wish: Wish) -> tuple[bool, str]:
    return wish.order


def _owned(wishes: list[Wish], counts: Counts) -> dict[TopicPartition, str]:
    """Whose each partition is: claims of the newest generation, if nobody else makes them."""
    owners: dict[TopicPartition, tuple[int, str | None]] = {}
    for wish in wishes:
        generation = wish.subscription.generation
        for tp in wish.subscription.owned:
            if tp.partition >= counts.get(tp.topic, 0):
                continue
            known_generation, known = owners.get(tp, (-2, None))
            if generation > known_generation:
                owners[tp] = (generation, wish.member_id)
            elif generation == known_generation and known != wish.member_id:
                owners[tp] = (generation, None)
    return {tp: owner for tp, (_, owner) in owners.items() if owner is not None}


def _balanced(wishes: list[Wish], counts: Counts, owned: Mapping[TopicPartition, str]) -> Shares:
    circle = sorted(wishes, key=_order)
    takers = {
        topic: [wish.member_id for wish in circle if topic in wish.subscription.topics]
        for topic in sorted(counts)
    }
    shares: Shares = {wish.member_id: set() for wish in circle}
    free: list[TopicPartition] = []
    for topic, members in takers.items():
        for index in range(counts[topic] if members else 0):
            tp = TopicPartition(topic, index)
            owner = owned.get(tp)
            if owner in members and owner is not None:
                shares[owner].add(tp)
            else:
                free.append(tp)
    # What few members want first, so that there is someone left for it.
    for tp in sorted(free, key=lambda tp: (len(takers[tp.topic]), tp)):
        shares[_poorest(takers[tp.topic], shares)].add(tp)
    _even_out(takers, shares)
    return shares


def _poorest(members: list[str], shares: Shares) -> str:
    return min(members, key=lambda member_id: len(shares[member_id]))


def _even_out(takers: Mapping[str, list[str]], shares: Shares) -> None:
    """Move partitions from who has most to who has less, until no move helps.

    Always from who has most at that moment: whoever gives too much must be given back to,
    and every partition that changes hands is a pause for its readers.
    """
    is_moving = True
    while is_moving:
        is_moving = False
        givers = set(shares)
        while givers:
            giver = max(sorted(givers), key=lambda member_id: len(shares[member_id]))
            topics = sorted({tp.topic for tp in shares[giver]})
            offers = [(len(shares[_poorest(takers[topic], shares)]), topic) for topic in topics]
            if not offers or min(offers)[0] + 1 >= len(shares[giver]):
                givers.remove(giver)
                continue
            topic = min(offers)[1]
            moved = max(tp for tp in shares[giver] if tp.topic == topic)
            shares[_poorest(takers[topic], shares)].add(moved)
            shares[giver].remove(moved)
            is_moving = True


ASSIGNORS = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_ranges),
        Assignor("roundrobin", assign_round_robin),
        Assignor("cooperative-sticky", assign_sticky, is_cooperative=True),
    )
}
