"""The classic group protocol, request by request: what each state answers to each request.

Plain sockets, so that also what no sane client would send is sent. The codes are Apache Kafka's:
`make test-apache` runs the same tests against it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.wire.api_keys import ApiKey
from support.coordinator.group_members import (
    Member,
    Talker,
    find_coordinator,
    stable_pair,
    subscription,
)
from support.lite.clusters import eventually

OK = 0
UNKNOWN_TOPIC = 3
METADATA_TOO_LARGE = 12
ILLEGAL_GENERATION = 22
INCONSISTENT_PROTOCOL = 23
INVALID_GROUP = 24
UNKNOWN_MEMBER = 25
INVALID_SESSION = 26
REBALANCING = 27
NON_EMPTY = 68
NOT_FOUND = 69
ID_REQUIRED = 79
FENCED = 82
SUBSCRIBED = 86


@pytest.fixture
def group(bootstrap: str, new_name: Callable[[str], str]) -> str:
    """The name of a group that there is not yet, and whose coordinator is ready."""
    name = new_name("group")
    find_coordinator(bootstrap, name)
    return name


@contextmanager
def pair(bootstrap: str, group: str, *topics: str) -> Iterator[tuple[Member, Member]]:
    leader, follower = stable_pair(bootstrap, group, *topics)
    with leader, follower:
        yield leader, follower


def test_a_member_joins_and_gets_what_the_leader_assigned(bootstrap: str, group: str) -> None:
    with Member(bootstrap, group) as member:
        member.send_join(protocols=[("range", b"meta"), ("other", b"")])
        asked = member.receive_join()
        assert (asked.error_code, asked.generation_id) == (ID_REQUIRED, -1)
        assert member.member_id.startswith("test-")
        joined = member.join(protocols=[("range", b"meta"), ("other", b"")])
        assert (joined.error_code, joined.generation_id) == (OK, 1)
        assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
        assert joined.leader == joined.member_id == member.member_id
        [described] = joined.members
        assert (described.member_id, described.metadata) == (member.member_id, b"meta")
        assert member.describe_group().group_state == "CompletingRebalance"
        synced = member.sync(assignments={member.member_id: b"mine"})
        assert (synced.error_code, synced.assignment) == (OK, b"mine")
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
        assert member.heartbeat() == OK
        seen = member.describe_group()
        assert (seen.group_state, seen.protocol_type, seen.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        [one] = seen.members
        assert (one.client_id, one.client_host) == ("test", "/127.0.0.1")
        assert (one.member_metadata, one.member_assignment) == (b"meta", b"mine")
        answer = member.leave()
        assert (answer.error_code, answer.members[0].error_code) == (OK, OK)
        eventually(lambda: member.describe_group().group_state == "Empty")
        assert member.heartbeat() == UNKNOWN_MEMBER


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_joining(bootstrap: str, group: str, version: int) -> None:
    with Member(bootstrap, group) as member:
        member.send_join(version=version)
        first = member.receive_join()
        assert first.error_code == (ID_REQUIRED if version >= 4 else OK)
        if version >= 4:
            member.send_join(version=version)
            first = member.receive_join()
        assert (first.error_code, first.generation_id, first.protocol_name) == (OK, 1, "range")
        assert member.sync(assignments={member.member_id: b"A"}).assignment == b"A"


def test_nobody_is_a_member_of_a_group_that_there_is_not(
    bootstrap: str, group: str, topic: str
) -> None:
    with Member(bootstrap, group) as member:
        member.member_id, member.generation = "nobody", 1
        member.send_join()
        assert member.receive_join().error_code == UNKNOWN_MEMBER
        assert member.sync().error_code == UNKNOWN_MEMBER
        assert member.heartbeat() == UNKNOWN_MEMBER
        left = member.leave()
        assert (left.error_code, left.members[0].error_code) == (OK, UNKNOWN_MEMBER)
        old = member.client.request(ApiKey.LEAVE_GROUP, 2, group_id=group, member_id="nobody")
        assert old.error_code == UNKNOWN_MEMBER
        assert member.commit(topic, 1) == ILLEGAL_GENERATION
        assert member.commit(topic, 1, version=9) == NOT_FOUND
        assert member.read_committed(topic) == (-1, "", OK)
        assert member.delete_group() == NOT_FOUND
        assert member.delete_offset(topic) == (NOT_FOUND, OK)
        known = member.describe_group(5)
        assert (known.error_code, known.group_state) == (OK, "Dead")
        assert member.describe_group(6).error_code == NOT_FOUND


def test_a_group_that_has_members_needs_a_name(bootstrap: str) -> None:
    find_coordinator(bootstrap, "")
    with Member(bootstrap, "") as member:
        member.send_join()
        assert member.receive_join().error_code == INVALID_GROUP
        assert member.sync().error_code == INVALID_GROUP
        assert member.heartbeat() == INVALID_GROUP
        assert member.leave().error_code == INVALID_GROUP


@pytest.mark.parametrize("session_ms", [0, 5_999, 1_800_001])
def test_sessions_have_limits(bootstrap: str, group: str, session_ms: int) -> None:
    with Member(bootstrap, group) as member:
        member.send_join(session_ms=session_ms)
        assert member.receive_join().error_code == INVALID_SESSION
        assert member.describe_group().group_state == "Dead"


def test_members_have_a_protocol_in_common(bootstrap: str, group: str) -> None:
    with Member(bootstrap, group) as first, Member(bootstrap, group) as other:
        empty: list[dict[str, Any]] = [{"protocols": []}, {"protocol_type": ""}]
        for values in empty:
            other.send_join(**values)
            assert other.receive_join().error_code == INCONSISTENT_PROTOCOL
        assert first.join(protocols=[("a", b""), ("b", b"")]).error_code == OK
        alien: list[dict[str, Any]] = [{"protocols": [("c", b"")]}, {"protocol_type": "connect"}]
        for values in alien:
            other.send_join(**values)
            assert other.receive_join().error_code == INCONSISTENT_PROTOCOL
        other.enter(protocols=[("b", b"2"), ("c", b"")])
        eventually(lambda: first.heartbeat() == REBALANCING)
        first.send_join(protocols=[("a", b""), ("b", b"1")])
        joined = first.receive_join()
        assert (joined.generation_id, joined.protocol_name) == (2, "b")
        assert {member.metadata for member in joined.members} == {b"1", b"2"}
        assert other.receive_join().members == ()


def test_a_follower_waits_for_its_assignment_and_can_ask_again(bootstrap: str, group: str) -> None:
    with pair(bootstrap, group) as (leader, follower):
        assert follower.sync().assignment == b"B"
        assert leader.sync().assignment == b"A"
        assert {leader.heartbeat(), follower.heartbeat()} == {OK}


def test_who_speaks_for_another_generation_is_told(bootstrap: str, group: str, topic: str) -> None:
    with pair(bootstrap, group) as (leader, _):
        assert leader.heartbeat(generation_id=1) == ILLEGAL_GENERATION
        assert leader.heartbeat(member_id="nobody") == UNKNOWN_MEMBER
        assert leader.sync(generation_id=7).error_code == ILLEGAL_GENERATION
        assert leader.sync(member_id="nobody").error_code == UNKNOWN_MEMBER
        assert leader.sync(protocol_name="other").error_code == INCONSISTENT_PROTOCOL
        assert leader.sync(protocol_type="connect").error_code == INCONSISTENT_PROTOCOL
        assert leader.sync(protocol_name=None).error_code == INCONSISTENT_PROTOCOL
        assert leader.sync(version=4).assignment == b"A"
        assert leader.commit(topic, 5, generation_id_or_member_epoch=1) == ILLEGAL_GENERATION
        assert leader.commit(topic, 5, member_id="nobody") == UNKNOWN_MEMBER
        assert leader.commit(topic, 5, group_instance_id="x") == UNKNOWN_MEMBER
        # An administrator, while there are members.
        nobody: dict[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": ""}
        assert leader.commit(topic, 5, **nobody) == UNKNOWN_MEMBER
        assert leader.read_committed(topic) == (-1, "", OK)
        assert leader.commit(topic, 5, metadata="m") == OK
        assert leader.read_committed(topic) == (5, "m", OK)


def test_while_a_group_rebalances(bootstrap: str, group: str, topic: str) -> None:
    with pair(bootstrap, group) as (leader, follower), Member(bootstrap, group) as third:
        third.enter()
        eventually(lambda: leader.heartbeat() == REBALANCING)
        assert leader.describe_group().group_state == "PreparingRebalance"
        assert {member.member_metadata for member in leader.describe_group().members} == {b""}
        assert leader.sync().error_code == REBALANCING
        # Who is still in the last generation may commit what it has done.
        assert follower.commit(topic, 3) == OK
        leader.send_join()
        follower.send_join()
        assert [member.receive_join().generation_id for member in (leader, follower, third)] == [
            3,
            3,
            3,
        ]
        assert leader.describe_group().group_state == "CompletingRebalance"
        assert leader.heartbeat() == OK
        assert follower.commit(topic, 4) == REBALANCING
        assert follower.read_committed(topic)[0] == 3
        third.send_sync()
        # Someone leaves: the assignment is not to come any more.
        follower.leave()
        assert third.receive_sync().error_code == REBALANCING


def test_joining_again(bootstrap: str, group: str) -> None:
    meta = [("range", subscription())]
    with pair(bootstrap, group) as (leader, follower):
        follower.send_join(protocols=meta)
        again = follower.receive_join()
        assert (again.error_code, again.generation_id) == (OK, 2)
        assert (again.leader, again.members) == (leader.member_id, ())
        assert leader.heartbeat() == OK
        # The leader wants another assignment.
        leader.send_join(protocols=meta)
        eventually(lambda: follower.heartbeat() == REBALANCING)
        follower.send_join(protocols=meta)
        assert follower.receive_join().generation_id == 3
        assert len(leader.receive_join().members) == 2
        # The answer was lost: the same again, in the same generation.
        leader.send_join(protocols=meta)
        assert leader.receive_join().generation_id == 3
        follower.send_join(protocols=[("range", subscription("changed"))])
        eventually(lambda: leader.heartbeat() == REBALANCING)
        leader.send_join(protocols=meta)
        assert leader.receive_join().generation_id == follower.receive_join().generation_id == 4


def test_who_does_not_join_again_is_out(bootstrap: str, group: str) -> None:
    with Member(bootstrap, group) as slow, Member(bootstrap, group) as quick:
        slow.join(rebalance_ms=300)
        slow.sync(assignments={slow.member_id: b"A"})
        quick.enter(rebalance_ms=300)
        joined = quick.receive_join()
        assert (joined.generation_id, joined.leader) == (2, quick.member_id)
        assert slow.heartbeat() == UNKNOWN_MEMBER


def test_who_does_not_ask_for_its_assignment_is_out(bootstrap: str, group: str) -> None:
    with Member(bootstrap, group) as member:
        assert member.join(rebalance_ms=300).error_code == OK
        eventually(lambda: member.heartbeat() == UNKNOWN_MEMBER)
        eventually(lambda: member.describe_group().group_state == "Empty")


def test_a_session_ends_and_the_others_rebalance(bootstrap: str, group: str) -> None:
    with Member(bootstrap, group) as silent, Member(bootstrap, group) as other:
        silent.join(session_ms=6_000)
        other.enter(session_ms=60_000, rebalance_ms=60_000)
        eventually(lambda: silent.heartbeat() == REBALANCING)
        silent.send_join(session_ms=6_000)
        assert silent.receive_join().generation_id == other.receive_join().generation_id == 2
        other.send_sync()
        silent.sync(assignments={other.member_id: b"B"})
        assert other.receive_sync().assignment == b"B"
        eventually(lambda: other.heartbeat() == REBALANCING)
        assert silent.heartbeat() == UNKNOWN_MEMBER


def test_whoever_is_no_member_commits_for_groups_without_members(
    bootstrap: str, group: str, topic: str
) -> None:
    with Member(bootstrap, group) as admin:
        assert admin.commit(topic, 7, metadata="by hand") == OK
        assert admin.read_committed(topic) == (7, "by hand", OK)
        seen = admin.describe_group()
        assert (seen.group_state, seen.protocol_type) == ("Empty", "")
        assert admin.commit(topic, 8, version=9, metadata=None) == OK
        assert admin.read_committed(topic) == (8, "", OK)
        assert admin.commit(topic, 9, generation_id_or_member_epoch=1) == UNKNOWN_MEMBER
        assert admin.delete_offset(topic) == (OK, OK)
        assert admin.read_committed(topic) == (-1, "", OK)


def test_what_cannot_be_committed_does_not_keep_the_rest_from_it(
    bootstrap: str, group: str, topic: str
) -> None:
    def partition(index: int, metadata: str | None) -> dict[str, Any]:
        return {
            "partition_index": index,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }

    with Member(bootstrap, group) as admin:
        answer = admin.client.request(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {"name": "nowhere", "partitions": [partition(0, "")]},
                {"name": topic, "partitions": [partition(0, "x" * 4097)]},
                {"name": topic, "partitions": [partition(0, "x" * 4096), partition(9, "")]},
            ],
        )
        codes = {
            (item.name, inner.partition_index, int(inner.error_code))
            for item in answer.topics
            for inner in item.partitions
        }
        assert {("nowhere", 0, UNKNOWN_TOPIC), (topic, 0, METADATA_TOO_LARGE)} <= codes
        assert admin.read_committed(topic)[0] == 1


def test_deleting(bootstrap: str, group: str, new_topic: Callable[..., str]) -> None:
    wanted, unwanted = new_topic(), new_topic()
    with pair(bootstrap, group, wanted) as (leader, follower):
        assert leader.commit(wanted, 1) == leader.commit(unwanted, 2) == OK
        assert leader.delete_group() == NON_EMPTY
        assert leader.delete_offset(wanted) == (OK, SUBSCRIBED)
        assert leader.delete_offset(unwanted) == (OK, OK)
        assert leader.delete_offset("nowhere") == (OK, UNKNOWN_TOPIC)
        assert (leader.read_committed(wanted)[0], leader.read_committed(unwanted)[0]) == (1, -1)
        leader.leave((leader.member_id, None), (follower.member_id, None))
        eventually(lambda: leader.describe_group().group_state == "Empty")
        assert leader.delete_group() == OK
        assert leader.read_committed(wanted)[0] == -1
        assert leader.describe_group().group_state == "Dead"
        assert leader.delete_group() == NOT_FOUND


def test_members_that_are_no_consumers(bootstrap: str, group: str, topic: str) -> None:
    with Member(bootstrap, group) as worker:
        worker.join(protocol_type="connect", protocols=[("default", b"\x00")])
        assert worker.delete_offset(topic) == (NON_EMPTY, OK)


def test_groups_are_listed_by_state_and_type(bootstrap: str, group: str, topic: str) -> None:
    def list_groups(version: int, **filters: Any) -> dict[str, Any]:
        with Talker(bootstrap) as client:
            answer = client.request(ApiKey.LIST_GROUPS, version, **filters)
        assert answer.error_code == OK
        return {item.group_id: item for item in answer.groups}

    everything: dict[str, Any] = {"states_filter": [], "types_filter": []}
    with pair(bootstrap, group), Member(bootstrap, f"{group}-simple") as admin:
        admin.commit(topic, 1)
        assert list_groups(0)[group].protocol_type == "consumer"
        assert list_groups(4, states_filter=["stable"])[group].group_state == "Stable"
        simple = list_groups(5, **everything)[f"{group}-simple"]
        assert (simple.protocol_type, simple.group_state) == ("", "Empty")
        assert simple.group_type == "classic"
        assert group not in list_groups(5, **(everything | {"states_filter": ["Empty"]}))
        assert group not in list_groups(5, **(everything | {"types_filter": ["consumer"]}))
        assert group in list_groups(5, **(everything | {"types_filter": ["Classic"]}))


# Static members


@pytest.mark.parametrize("version", [8, 9])
def test_a_static_leader_comes_back_unnoticed(
    bootstrap: str, group: str, topic: str, version: int
) -> None:
    with (
        Member(bootstrap, group, "i1") as leader,
        Member(bootstrap, group, "i2") as follower,
        Member(bootstrap, group, "i1") as reborn,
    ):
        leader.join()
        follower.enter()
        eventually(lambda: leader.heartbeat() == REBALANCING)
        leader.send_join()
        leader.receive_join()
        follower.receive_join()
        follower.send_sync()
        leader.sync(assignments={leader.member_id: b"A", follower.member_id: b"B"})
        assert follower.receive_sync().assignment == b"B"
        assert leader.member_id.startswith("i1-")
        reborn.send_join(version=version)
        joined = reborn.receive_join()
        assert (joined.error_code, joined.generation_id) == (OK, 2)
        assert joined.member_id not in {"", leader.member_id}
        if version >= 9:
            assert joined.skip_assignment
            assert (joined.leader, len(joined.members)) == (reborn.member_id, 2)
        else:
            assert (joined.leader, joined.members) == (leader.member_id, ())
        assert reborn.sync().assignment == b"A"
        assert follower.heartbeat() == reborn.heartbeat() == OK
        # The one whose place was taken.
        assert leader.heartbeat() == FENCED
        assert leader.sync().error_code == FENCED
        assert leader.commit(topic, 1) == FENCED
        leader.send_join()
        assert leader.receive_join().error_code == FENCED
        left = leader.leave()
        assert (left.error_code, left.members[0].error_code) == (OK, FENCED)
        assert reborn.heartbeat(group_instance_id="unknown") == UNKNOWN_MEMBER


def test_a_static_member_with_another_wish_rebalances(bootstrap: str, group: str) -> None:
    with Member(bootstrap, group, "i1") as member, Member(bootstrap, group, "i1") as reborn:
        member.join(protocols=[("range", b""), ("other", b"")])
        member.sync(assignments={member.member_id: b"A"})
        joined = reborn.join(protocols=[("other", b"")])
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (OK, 2, "other")


def test_a_static_member_that_joins_twice_at_once(bootstrap: str, group: str) -> None:
    with (
        Member(bootstrap, group) as first,
        Member(bootstrap, group, "i") as waiting,
        Member(bootstrap, group, "i") as second,
    ):
        first.join()
        waiting.enter()
        eventually(lambda: first.heartbeat() == REBALANCING)
        second.enter()
        assert waiting.receive_join().error_code == FENCED
        first.send_join()
        assert first.receive_join().generation_id == second.receive_join().generation_id == 2


def test_static_members_are_removed_by_their_names(bootstrap: str, group: str) -> None:
    with Member(bootstrap, group, "i1") as member:
        member.join()
        member.sync(assignments={member.member_id: b"A"})
        answer = member.leave(("", "unknown"), ("", "i1"), ("", None))
        codes = [int(one.error_code) for one in answer.members]
        assert codes == [UNKNOWN_MEMBER, OK, UNKNOWN_MEMBER]
        eventually(lambda: member.describe_group().group_state == "Empty")
