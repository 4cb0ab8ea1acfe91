"""Group members that a test controls step by step, each over its own connection.

Sending a request and receiving its answer are two steps, because JoinGroup and SyncGroup are
answered only after other members have acted.
"""

from collections.abc import Sequence
from struct import pack
from typing import Any, Self

from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.messages import decode_response, encode_request, request_class, response_class
from support.lite.client import PlainClient
from support.lite.clusters import eventually

SESSION_MS = 10_000
REBALANCE_MS = 20_000
_LOADING = 14
_NOT_COORDINATOR = 16


def subscription(*topics: str) -> bytes:
    """Return the metadata that a consumer sends when it joins."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


class Talker(PlainClient):
    """A client that can receive the answer to a request later."""

    def ask(self, key: ApiKey, version: int, /, **values: Any) -> None:
        message = build(request_class(key, version), values)
        self.send_frame(encode_request(message, correlation_id=1, client_id="test"))

    def receive(self, key: ApiKey, version: int) -> Any:
        return decode_response(self.receive_frame(), response_class(key, version))[1]


def find_coordinator(bootstrap: str, group: str) -> None:
    """Wait until the only broker of a cluster coordinates a group."""
    with Talker(bootstrap) as client:

        def is_there() -> bool:
            found = client.request(ApiKey.FIND_COORDINATOR, 3, key=group, key_type=0)
            if found.error_code:
                return False
            described = client.request(
                ApiKey.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False
            )
            return described.groups[0].error_code not in {_LOADING, _NOT_COORDINATOR}

        eventually(is_there)


class Member:
    """A member, or a client that is about to join."""

    def __init__(self, bootstrap: str, group: str, instance: str | None = None) -> None:
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.client = Talker(bootstrap)
        self._version = 9

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    # Joining

    def send_join(
        self,
        *,
        version: int = 9,
        protocol_type: str = "consumer",
        protocols: Sequence[tuple[str, bytes]] = (("range", b""),),
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        self._version = version
        self.client.ask(
            ApiKey.JOIN_GROUP,
            version,
            group_id=self.group,
            session_timeout=session_ms,
            rebalance_timeout=rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=protocol_type,
            protocols=[{"name": name, "metadata": metadata} for name, metadata in protocols],
            reason=None,
        )

    def receive_join(self) -> Any:
        answer = self.client.receive(ApiKey.JOIN_GROUP, self._version)
        if answer.error_code in {0, 79}:
            self.member_id = answer.member_id
            self.generation = answer.generation_id
        return answer

    def join(self, **values: Any) -> Any:
        """Join with the id that the coordinator assigns; return when the generation begins."""
        self.send_join(**values)
        answer = self.receive_join()
        if answer.error_code == 79:
            self.send_join(**values)
            answer = self.receive_join()
        return answer

    def enter(self, **values: Any) -> Any:
        """Get an id, and send the JoinGroup that is answered when the generation begins."""
        self.send_join(**values)
        if not self.member_id and self.instance is None and values.get("version", 9) >= 4:
            assert self.receive_join().error_code == 79
            self.send_join(**values)

    # Assignments

    def send_sync(self, *, version: int = 5, **values: Any) -> None:
        defaults = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        }
        given = values.pop("assignments", {})
        wanted = [{"member_id": who, "assignment": what} for who, what in given.items()]
        self.client.ask(ApiKey.SYNC_GROUP, version, **(defaults | {"assignments": wanted} | values))
        self._sync_version = version

    def receive_sync(self) -> Any:
        return self.client.receive(ApiKey.SYNC_GROUP, self._sync_version)

    def sync(self, **values: Any) -> Any:
        self.send_sync(**values)
        return self.receive_sync()

    # The rest

    def heartbeat(self, **values: Any) -> int:
        defaults = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        answer = self.client.request(ApiKey.HEARTBEAT, 4, **(defaults | values))
        return int(answer.error_code)

    def leave(self, *leaving: tuple[str, str | None], group: str | None = None) -> Any:
        members = [
            {"member_id": member_id, "group_instance_id": instance, "reason": None}
            for member_id, instance in leaving or [(self.member_id, self.instance)]
        ]
        group_id = self.group if group is None else group
        return self.client.request(ApiKey.LEAVE_GROUP, 5, group_id=group_id, members=members)

    def commit(self, topic: str, offset: int, *, version: int = 8, **values: Any) -> int:
        """The error of the one partition; None stands for its first."""
        partition = {
            "partition_index": values.pop("partition", 0),
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": values.pop("metadata", ""),
        }
        defaults = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        answer = self.client.request(ApiKey.OFFSET_COMMIT, version, **(defaults | values))
        return int(answer.topics[0].partitions[0].error_code)

    def read_committed(self, topic: str, partition: int = 0) -> tuple[int, str | None, int]:
        """Offset, metadata and error."""
        wanted = [{"name": topic, "partition_indexes": [partition]}]
        answer = self.client.request(
            ApiKey.OFFSET_FETCH,
            8,
            groups=[{"group_id": self.group, "topics": wanted}],
            require_stable=True,
        ).groups[0]
        [found] = answer.topics[0].partitions
        return found.committed_offset, found.metadata, int(answer.error_code or found.error_code)

    def describe_group(self, version: int = 5) -> Any:
        [group] = self.client.request(
            ApiKey.DESCRIBE_GROUPS,
            version,
            groups=[self.group],
            include_authorized_operations=False,
        ).groups
        return group

    def delete_group(self) -> int:
        answer = self.client.request(ApiKey.DELETE_GROUPS, 2, groups_names=[self.group])
        return int(answer.results[0].error_code)

    def delete_offset(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The error of the whole, and of the partition."""
        answer = self.client.request(
            ApiKey.OFFSET_DELETE,
            0,
            group_id=self.group,
            topics=[{"name": topic, "partitions": [{"partition_index": partition}]}],
        )
        inner = answer.topics[0].partitions[0].error_code if answer.topics else 0
        return int(answer.error_code), int(inner)


def stable_pair(bootstrap: str, group: str, *topics: str) -> tuple[Member, Member]:
    """A leader and a follower in a stable group: `a` has the assignment A, `b` has B."""
    leader, follower = Member(bootstrap, group), Member(bootstrap, group)
    protocols = [("range", subscription(*topics))]
    assert leader.join(protocols=protocols).error_code == 0
    follower.enter(protocols=protocols)
    eventually(lambda: leader.heartbeat() == 27)
    leader.send_join(protocols=protocols)
    assert leader.receive_join().leader == leader.member_id
    assert follower.receive_join().error_code == 0
    follower.send_sync()
    given = {leader.member_id: b"A", follower.member_id: b"B"}
    assert leader.sync(assignments=given).assignment == b"A"
    assert follower.receive_sync().assignment == b"B"
    return leader, follower
