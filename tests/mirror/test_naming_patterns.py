"""Which names a mirror takes and gives: expressions, exclusions and the two policies."""

from pathlib import Path

import pytest

from shoal.mirror.mm2.naming import Naming, is_internal
from shoal.mirror.mm2.patterns import (
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    Patterns,
    Selection,
    parse_list,
)
from shoal.mirror.mm2.properties import read_mirror_file
from shoal.model.errors import ConfigError


@pytest.mark.parametrize(
    ("include", "name", "taken"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "my-orders", False),
        ("ord.*, pay[0-9]+", "pay17", True),
        ("ord.*, pay[0-9]+", "payments", False),
        ("a|b", "b", True),
        (".*", "mm2-offsets.A.internal", False),
        (".*", "B.topic.replica", False),
        (".*", "__consumer_offsets", False),
        ("__consumer_offsets", "__consumer_offsets", False),
        (".*", "app-internal-things", True),
    ],
)
def test_topics_are_taken_as_mirrormaker_takes_them(include: str, name: str, taken: bool) -> None:
    assert Selection(parse_list(include), TOPICS_EXCLUDE).includes(name) is taken


def test_groups_of_tools_are_left_out() -> None:
    groups = Selection((".*",), GROUPS_EXCLUDE)
    names = ("app", "console-consumer-123", "connect-sink", "__internal")
    assert [name for name in names if groups.includes(name)] == ["app"]


def test_an_expression_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'\(' is not a valid regular expression") as caught:
        Patterns(["good", "("])
    assert caught.value.remedy


def test_the_default_policy_puts_the_alias_before_the_name() -> None:
    naming = Naming("default", source_alias="us", target_alias="eu")
    assert naming.target_of("orders") == "us.orders"
    assert naming.target_of("asia.orders") == "us.asia.orders"
    assert Naming("default", "us", "eu", separator="_").target_of("orders") == "us_orders"


def test_what_came_from_the_target_does_not_go_back() -> None:
    naming = Naming("default", source_alias="us", target_alias="eu")
    cycles = ("eu.orders", "asia.eu.orders", "eu.heartbeats")
    fine = ("orders", "asia.orders", "europe.orders", "orders.eu")
    assert all(naming.is_cycle(topic) for topic in cycles)
    assert not any(naming.is_cycle(topic) for topic in fine)
    # With kept names nothing tells, but heartbeats carry the alias all the same.
    keeping = Naming("identity", source_alias="us", target_alias="eu")
    assert not keeping.is_cycle("eu.orders")
    assert keeping.is_cycle("eu.heartbeats")


def test_the_identity_policy_keeps_names_but_those_of_heartbeats_and_renamed_ones() -> None:
    naming = Naming("identity", "us", "eu", renames={"orders": "bestellungen"})
    names = ("payments", "orders", "heartbeats")
    assert [naming.target_of(name) for name in names] == [
        "payments",
        "bestellungen",
        "us.heartbeats",
    ]


def test_internal_topics_are_known_by_their_names() -> None:
    internal = ("__consumer_offsets", "__shoal_mirror_x", ".hidden", "a.internal", "b-internal")
    assert all(is_internal(topic) for topic in internal)
    assert not any(is_internal(topic) for topic in ("orders", "internal", "internal.orders"))


def test_a_policy_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="'other' is not a valid replication policy"):
        Naming("other")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("__consumer_offsets", "internal topic"),
        ("__shoal_mirror_m", "internal topic"),
        ("mm2-offsets.internal", "internal topic"),
        ("", "not a valid topic name"),
        ("..", "not a valid topic name"),
        ("a b", "not a valid topic name"),
        ("a" * 250, "not a valid topic name"),
    ],
)
def test_a_topic_is_not_renamed_to_an_internal_or_invalid_one(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Naming(renames={"a": name})
    assert caught.value.remedy


def test_copies_are_known_within_one_cluster() -> None:
    naming = Naming("default", source_alias="us", renames={"old": "new"})
    assert all(naming.is_own_copy(topic) for topic in ("us.orders", "us.us.orders", "new"))
    assert not any(naming.is_own_copy(topic) for topic in ("orders", "usage", "old"))
    assert not Naming().is_own_copy("source.orders")


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("orders", "orders", "orders"),
        ("orders,a", "pay.*,a", "a"),
        ("orders", "ord.*", "orders"),
        ("ord.*", "ord.*", "ord.*"),
        (".*", "ord.*", ".*"),
        ("orders", "payments", ""),
        ("ord.*", "pay.*", ""),
        ("__secret", "__secret", ""),
    ],
)
def test_what_two_selections_have_in_common(one: str, other: str, common: str) -> None:
    first, second = (Selection(parse_list(each), TOPICS_EXCLUDE) for each in (one, other))
    assert first.find_common(second) == common
    assert bool(second.find_common(first)) == bool(common)


@pytest.mark.parametrize(
    ("more", "is_refused"),
    [
        ("replication.policy.class=IdentityReplicationPolicy", True),
        ("replication.policy.class=IdentityReplicationPolicy\nb->a.topics=payments", False),
        ("replication.policy.class=DefaultReplicationPolicy", False),
        ("replication.policy.class=IdentityReplicationPolicy\nb->a.enabled=false", False),
    ],
)
def test_a_file_that_copies_in_a_cycle_is_refused(
    tmp_path: Path, more: str, is_refused: bool
) -> None:
    file = tmp_path / "mm2.properties"
    lines = ["clusters=a,b", "a.bootstrap.servers=one:1", "b.bootstrap.servers=two:1"]
    lines += ["a->b.enabled=true", "b->a.enabled=true", "topics=orders", more]
    file.write_text("\n".join(lines))
    if is_refused:
        with pytest.raises(ConfigError, match="orders in both directions with the same name"):
            read_mirror_file(file)
    else:
        assert read_mirror_file(file).flows
