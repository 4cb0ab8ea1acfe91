"""Groups on several brokers: committed offsets survive, and failed commits have no effect."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.lite.coordinator.topics import GROUP_TOPIC, partition_of
from shoal.wire.api_keys import ApiKey
from support.coordinator.group_members import Member, Talker, find_coordinator
from support.lite.clusters import admin_of, create_topic, eventually

pytestmark = pytest.mark.slow

NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
GROUP = "group"
DAY_MS = 86_400_000


def address(cluster: LiteCluster, node_id: int) -> str:
    node = next(node for node in cluster.status() if node.id == node_id)
    return f"{node.host}:{node.port}"


def coordinator(cluster: LiteCluster, group: str) -> int:
    """The broker that coordinates a group, when it does."""
    found = -1

    def is_found() -> bool:
        nonlocal found
        alive = next(node for node in cluster.status() if node.state == "running")
        with Talker(f"{alive.host}:{alive.port}") as client:
            answer = client.request(ApiKey.FIND_COORDINATOR, 3, key=group, key_type=0)
        found = int(answer.node_id)
        if answer.error_code or found == -1:
            return False
        try:
            with Member(address(cluster, found), group) as member:
                return bool(member.describe_group().error_code == 0)
        except OSError:
            # It was killed, and not every broker knows it yet.
            return False

    eventually(is_found)
    return found


@contextmanager
def member_of(cluster: LiteCluster, group: str) -> Iterator[Member]:
    with Member(address(cluster, coordinator(cluster, group)), group) as member:
        yield member


def test_groups_and_offsets_survive_a_restart_of_everything() -> None:
    with LiteCluster(3) as cluster:
        create_topic(cluster, "t", 1, 3)
        with member_of(cluster, GROUP) as member:
            member.join()
            member.sync(assignments={member.member_id: b"A"})
            assert member.commit("t", 7, metadata="kept") == 0
            for node in (1, 2, 3):
                cluster.kill(node)
            for node in (1, 2, 3):
                cluster.restart(node)
            with member_of(cluster, GROUP) as again:
                assert again.read_committed("t") == (7, "kept", 0)
                again.member_id, again.generation = member.member_id, member.generation
                assert again.heartbeat() == 0
                assert again.sync().assignment == b"A"
                assert again.describe_group().members[0].client_host == "/127.0.0.1"


def test_only_one_broker_coordinates_a_group() -> None:
    with LiteCluster(3) as cluster:
        create_topic(cluster, "t", 1, 3)
        chosen = coordinator(cluster, GROUP)
        for node in {1, 2, 3} - {chosen}:
            with Member(address(cluster, node), GROUP) as member:
                member.send_join()
                assert member.receive_join().error_code == NOT_COORDINATOR
                assert member.commit("t", 1) == NOT_COORDINATOR
                assert member.heartbeat() == NOT_COORDINATOR
                assert member.describe_group().error_code == NOT_COORDINATOR
                assert member.delete_group() == NOT_COORDINATOR


def test_below_min_insync_offsets_are_read_and_not_committed() -> None:
    with LiteCluster(3) as cluster:
        create_topic(cluster, "t", 1, 3)
        with member_of(cluster, GROUP) as member:
            assert member.commit("t", 5) == 0
            chosen = coordinator(cluster, GROUP)
            for node in {1, 2, 3} - {chosen}:
                cluster.kill(node)
            # Before the in-sync set shrinks a commit would wait, and might count in the end.
            index = partition_of(GROUP, len(topic_of(cluster).partitions))
            eventually(lambda: topic_of(cluster).partitions[index].isrs == [chosen])
            assert member.commit("t", 6) == NOT_AVAILABLE
            assert member.read_committed("t") == (5, "", 0)
            # A generation whose record cannot be committed does not begin.
            member.join()
            assert member.sync(assignments={member.member_id: b"A"}).error_code == NOT_AVAILABLE
            for node in {1, 2, 3} - {chosen}:
                cluster.restart(node)

            def is_in_again() -> bool:
                if member.join().error_code:
                    return False
                synced = member.sync(assignments={member.member_id: b"A"})
                return bool(synced.assignment == b"A")

            eventually(is_in_again)
            # Nothing of the failed commits took effect.
            assert member.read_committed("t")[0] == 5


def topic_of(cluster: LiteCluster) -> Any:
    with admin_of(cluster) as admin:
        return admin.list_topics(GROUP_TOPIC.name, timeout=60).topics[GROUP_TOPIC.name]


def test_offsets_expire_and_empty_groups_with_them() -> None:
    settings = {"offsets.retention.check.interval.ms": "50"}
    with LiteCluster(properties=settings) as cluster:
        create_topic(cluster, "t", 2, 1)
        find_coordinator(cluster.bootstrap, GROUP)

        with Member(cluster.bootstrap, GROUP) as member, Talker(cluster.bootstrap) as client:
            member.join(protocol_type="other")
            member.sync(assignments={member.member_id: b"A"}, protocol_type="other")
            commit_for(client, "soon", kept_ms=1)
            commit_for(client, "late", kept_ms=DAY_MS)
            commit_for(client, GROUP, kept_ms=1, member=member)

            def list_group_ids() -> set[str]:
                groups = client.request(ApiKey.LIST_GROUPS, 0).groups
                return {str(item.group_id) for item in groups}

            eventually(lambda: list_group_ids() == {"late", GROUP})
            # It stays while the group has members that may need it.
            assert member.read_committed("t")[0] == 3
            member.leave()
            eventually(lambda: list_group_ids() == {"late"})
            with Member(cluster.bootstrap, "late") as late:
                assert late.read_committed("t")[0] == 3


def commit_for(client: Talker, group: str, *, kept_ms: int, member: Member | None = None) -> None:
    """Commit offset 3 as old clients do, with a retention time."""
    partition = {"partition_index": 0, "committed_offset": 3, "committed_metadata": None}
    answer = client.request(
        ApiKey.OFFSET_COMMIT,
        2,
        group_id=group,
        generation_id_or_member_epoch=-1 if member is None else member.generation,
        member_id="" if member is None else member.member_id,
        retention_time=kept_ms,
        topics=[{"name": "t", "partitions": [partition]}],
    )
    assert answer.topics[0].partitions[0].error_code == 0


def test_offsets_of_deleted_topics_go() -> None:
    with LiteCluster(3) as cluster:
        create_topic(cluster, "gone", 1, 3)
        create_topic(cluster, "stays", 1, 3)
        with member_of(cluster, GROUP) as member:
            assert member.commit("gone", 1) == member.commit("stays", 2) == 0
            with admin_of(cluster) as admin:
                admin.delete_topics(["gone"])["gone"].result(60)
            eventually(lambda: member.read_committed("gone")[0] == -1)
            assert member.read_committed("stays")[0] == 2


def test_many_groups_are_spread_over_the_brokers() -> None:
    groups = [f"group-{number}" for number in range(200)]
    with LiteCluster(3) as cluster:
        create_topic(cluster, "t", 1, 3)
        coordinator(cluster, groups[0])
        homes = {}
        with Talker(address(cluster, 1)) as client:
            found = client.request(
                ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=groups
            ).coordinators
        homes = {item.key: int(item.node_id) for item in found}
        assert set(homes.values()) == {1, 2, 3}
        for node in (1, 2, 3):
            with Member(address(cluster, node), "") as member:
                mine = [group for group in groups if homes[group] == node]
                for number, group in enumerate(mine):
                    member.group = group
                    eventually(lambda: member.commit("t", number) == 0)  # noqa: B023
                list_group_ids = member.client.request(ApiKey.LIST_GROUPS, 0)
                assert {item.group_id for item in list_group_ids.groups} >= set(mine)
        # Each is still known when its broker has gone.
        cluster.kill(1)
        with member_of(cluster, next(group for group in groups if homes[group] == 1)) as member:
            assert member.read_committed("t")[0] == 0
