"""Sharing partitions: each to one, evenly, and moved only for a reason."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.client.groups.assignors import (
    ASSIGNORS,
    Assignments,
    MemberSubscription,
    assign_ranges,
    assign_round_robin,
    assign_sticky,
)
from shoal.client.groups.protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from shoal.model.topics import TopicPartition

TOPICS = ("a", "b", "c")
topics = st.frozensets(st.sampled_from(TOPICS))
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
places = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9))
subscriptions = st.builds(
    Subscription, topics, st.frozensets(places, max_size=8), st.integers(-1, 3)
)
groups = st.dictionaries(st.sampled_from("uvwxyz"), subscriptions, min_size=1).map(
    lambda members: [MemberSubscription(name, wish) for name, wish in members.items()]
)


def wish(name: str, *wanted: str, instance: str | None = None) -> MemberSubscription:
    return MemberSubscription(name, Subscription(frozenset(wanted)), instance)


def places_of(text: str) -> set[TopicPartition]:
    """`a0 b1` as partitions."""
    return {TopicPartition(word[0], int(word[1:])) for word in text.split()}


def owners_of(shares: Assignments) -> Counter[TopicPartition]:
    return Counter(tp for share in shares.values() for tp in share)


def find_wanted(members: list[MemberSubscription], sizes: Mapping[str, int]) -> set[TopicPartition]:
    wanted = {topic for member in members for topic in member.subscription.topics}
    return {TopicPartition(t, i) for t, n in sizes.items() if t in wanted for i in range(n)}


@given(groups, counts, st.sampled_from(sorted(ASSIGNORS)))
def test_everything_goes_to_one_who_wants_it(
    members: list[MemberSubscription], sizes: dict[str, int], name: str
) -> None:
    assignor = ASSIGNORS[name]
    shares = assignor.assign(members, sizes)
    owners = owners_of(shares)
    assert set(shares) == {member.member_id for member in members}
    assert set(owners.values()) <= {1}
    for member in members:
        assert {tp.topic for tp in shares[member.member_id]} <= member.subscription.topics
    if not assignor.is_cooperative:
        assert owners.keys() == find_wanted(members, sizes)


def rebalance_until_settled(
    members: list[MemberSubscription], sizes: dict[str, int]
) -> tuple[list[MemberSubscription], Assignments]:
    """The group after it has rebalanced until nothing moves any more."""
    generation = max(member.subscription.generation for member in members)
    for _ in range(4):
        generation += 1
        shares = assign_sticky(members, sizes)
        members = [
            member._replace(
                subscription=Subscription(
                    member.subscription.topics, frozenset(shares[member.member_id]), generation
                )
            )
            for member in members
        ]
    return members, shares


@given(groups, counts)
def test_cooperation_comes_to_rest_with_everything_shared_evenly(
    members: list[MemberSubscription], sizes: dict[str, int]
) -> None:
    rested, shares = rebalance_until_settled(members, sizes)
    assert owners_of(shares).keys() == find_wanted(members, sizes)
    assert assign_sticky(rested, sizes) == shares
    for giver in rested:
        for taker in rested:
            surplus = len(shares[giver.member_id]) - len(shares[taker.member_id])
            common = {tp for tp in shares[giver.member_id] if tp.topic in taker.subscription.topics}
            assert surplus <= 1 or not common


@given(groups, counts)
def test_what_moves_is_given_up_first(
    members: list[MemberSubscription], sizes: dict[str, int]
) -> None:
    rested, before = rebalance_until_settled(members, sizes)
    newcomer = wish("new", *TOPICS)
    after = assign_sticky([*rested, newcomer], sizes)
    for member_id, share in before.items():
        assert after[member_id] <= share


@given(st.integers(1, 6), counts)
@example(6, {"a": 7, "b": 7, "c": 7})
def test_a_newcomer_takes_its_share_and_nothing_else_moves(
    member_count: int, sizes: dict[str, int]
) -> None:
    rested, before = rebalance_until_settled(
        [wish(f"m{n}", *TOPICS) for n in range(member_count)], sizes
    )
    after = assign_sticky([*rested, wish("new", *TOPICS)], sizes)
    total = sum(sizes.values())
    taken = total - sum(len(after[name]) for name in before)
    assert taken == total // (member_count + 1)


def test_ranges() -> None:
    members = [wish("m2", "a", "b"), wish("m1", "a", "b"), wish("m3", "b")]
    assert assign_ranges(members, {"a": 3, "b": 4}) == {
        "m1": places_of("a0 a1 b0 b1"),
        "m2": places_of("a2 b2"),
        "m3": places_of("b3"),
    }


def test_static_members_come_first_by_their_names() -> None:
    members = [wish("a", "a"), wish("z-2", "a", instance="i2"), wish("z-1", "a", instance="i1")]
    shares = assign_ranges(members, {"a": 3})
    assert (shares["z-1"], shares["z-2"], shares["a"]) == (
        places_of("a0"),
        places_of("a1"),
        places_of("a2"),
    )


def test_round_robin() -> None:
    members = [wish("m1", "a"), wish("m2", "a", "b"), wish("m3", "a", "b", "c")]
    assert assign_round_robin(members, {"a": 1, "b": 2, "c": 3}) == {
        "m1": places_of("a0"),
        "m2": places_of("b0"),
        "m3": places_of("b1 c0 c1 c2"),
    }


def test_claims_of_an_older_generation_do_not_count() -> None:
    held = frozenset(places_of("a0"))
    old = MemberSubscription("old", Subscription(frozenset("a"), held, generation=1))
    new = MemberSubscription("new", Subscription(frozenset("a"), held, generation=2))
    assert assign_sticky([old, new], {"a": 1}) == {"old": set(), "new": places_of("a0")}


@given(subscriptions)
def test_subscriptions_come_back(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(st.frozensets(places))
def test_assignments_come_back(partitions: frozenset[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(partitions)) == partitions


@pytest.mark.parametrize("version", [0, 1, 9])
def test_members_of_other_ages_are_understood(version: int) -> None:
    data = bytes([0, version]) + encode_subscription(Subscription(frozenset("a")))[2:]
    assert decode_subscription(data).topics == {"a"}


def test_who_gets_nothing_at_all() -> None:
    assert decode_assignment(b"") == frozenset()
