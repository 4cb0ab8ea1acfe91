"""Controllers at their ports, in one process: what a node asks them, over real sockets."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self
from uuid import UUID

import pytest

from shoal.client.errors import ConnectionLost
from shoal.client.transport.connection import connect
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.dial import NodeAddress
from shoal.lite.metadata.data.records import Record
from shoal.lite.metadata.data.requests import CreateTopic, Heartbeat, NewTopicSpec, RegisterBroker
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.server.host import ControllerHost
from shoal.lite.metadata.server.link import ControllerLink
from shoal.lite.nodes.embedded_controller import format_alone
from shoal.lite.raft.model import ReplicaKey, Voter, Voters
from shoal.lite.raft.storage.storage import format_storage
from shoal.net.ports import free_ports

pytestmark = pytest.mark.slow

CLUSTER = "east"
HOST = "127.0.0.1"
REGISTRATION = RegisterBroker(1, uuid.uuid4().hex, "h", 9092, "boot", uuid.uuid4().hex)


class Observer:
    """A node that follows the metadata."""

    def __init__(
        self, node_id: int, controllers: list[NodeAddress], cluster_id: str = CLUSTER
    ) -> None:
        self.state = ClusterState()
        self.loaded = 0
        key = ReplicaKey(node_id, uuid.uuid4())
        self.link = ControllerLink(key, cluster_id, controllers, self._on_records)

    def _on_records(self, records: list[Record], begins_anew: bool) -> None:
        if begins_anew:
            self.state = ClusterState()
            self.loaded += 1
        for record in records:
            self.state.apply(record)

    async def __aenter__(self) -> Self:
        self.link.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()


@asynccontextmanager
async def alone(folder: Path, snapshot_records: int = 1000) -> AsyncIterator[list[NodeAddress]]:
    """A quorum of one; where it is found."""
    format_alone(folder, 100)
    host = ControllerHost(folder, CLUSTER, {}, snapshot_records=snapshot_records)
    port = host.bind(HOST, 0)
    await host.start(HOST, port)
    try:
        yield [NodeAddress(100, HOST, port)]
    finally:
        await host.close()


async def await_registration(observer: Observer) -> None:
    epoch = (await observer.link.submit(REGISTRATION)).broker_epoch
    await observer.link.submit(Heartbeat(1, epoch, observer.state.applied_count))


async def test_an_answer_comes_when_its_effect_is_seen(tmp_path: Path) -> None:
    async with alone(tmp_path) as peers, Observer(1, peers) as observer:
        await await_registration(observer)
        topic_id = UUID(int=5)
        await observer.link.submit(CreateTopic(NewTopicSpec("t", 3, 1), topic_id))
        assert len(observer.state.topics["t"].partitions) == 3
        # Asked again, as after a controller's death: it is done, and once.
        await observer.link.submit(CreateTopic(NewTopicSpec("t", 3, 1), topic_id))
        with pytest.raises(ApiError) as refused:
            await observer.link.submit(CreateTopic(NewTopicSpec("t", 3, 1), UUID(int=6)))
        assert refused.value.code == Code.TOPIC_ALREADY_EXISTS


async def test_who_comes_late_loads_a_snapshot(tmp_path: Path) -> None:
    async with (
        alone(tmp_path, snapshot_records=20) as peers,
        Observer(1, peers) as first,
    ):
        await await_registration(first)
        for number in range(30):
            await first.link.submit(CreateTopic(NewTopicSpec(f"t{number}", 1, 1), uuid.uuid4()))
        async with Observer(2, peers) as late:
            await late.link.submit(CreateTopic(NewTopicSpec("last", 1, 1), uuid.uuid4()))
            assert late.loaded == 1
            assert late.state.topics.keys() == {f"t{n}" for n in range(30)} | {"last"}


async def test_many_calls_at_once_are_all_answered(tmp_path: Path) -> None:
    async with alone(tmp_path) as peers, Observer(1, peers) as observer:
        await await_registration(observer)
        wishes = [CreateTopic(NewTopicSpec(f"t{n}", 1, 1), uuid.uuid4()) for n in range(200)]
        await asyncio.gather(*map(observer.link.submit, wishes))
        assert len(observer.state.topics) == 200


async def test_another_cluster_is_not_followed(tmp_path: Path) -> None:
    async with alone(tmp_path) as peers, Observer(1, peers, "west") as stranger:
        with pytest.raises(ApiError) as refused:
            await stranger.link.submit(REGISTRATION)
        assert refused.value.code == Code.INCONSISTENT_CLUSTER_ID
        assert stranger.state.applied_count == 0


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x00\x00\x00\x00",
        b"\x00\x34\x00\x02\x00\x00\x00\x01\xff\xff\x00",
        b"\x00\x01\x00\x04\x00\x00\x00\x01\xff\xff",
        b"\x27\x0f\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x3a\x00\x00\x00\x00\x00\x01\xff\xff\x00\x06rubbi\x01\x01\x00",
    ],
)
async def test_rubbish_costs_the_connection_and_no_more(tmp_path: Path, rubbish: bytes) -> None:
    async with alone(tmp_path) as peers:
        connection = await connect(HOST, peers[0].port, max_in_flight=1, limit_bytes=1000)
        with pytest.raises(ConnectionLost):
            await connection.request(lambda _: [rubbish], name="rubbish", timeout_s=10)
        await connection.close()
        async with Observer(1, peers) as observer:
            await await_registration(observer)


async def test_three_elect_one_and_again_when_it_resigns(tmp_path: Path) -> None:
    ports = free_ports(3)
    peers = [
        NodeAddress(node_id, HOST, port) for node_id, port in zip((1, 2, 3), ports, strict=True)
    ]
    voters = Voters(Voter(peer.node_id, uuid.uuid4(), HOST, peer.port) for peer in peers)
    hosts = {}
    for voter in voters:
        folder = tmp_path / str(voter.id)
        format_storage(folder, voter.key, voters)
        host = hosts[voter.id] = ControllerHost(folder, CLUSTER, {})
        await host.start(HOST, host.bind(HOST, voter.port))
    try:
        async with Observer(11, peers) as observer:
            await await_registration(observer)
            first = observer.link.active
            assert first is not None
            epoch = hosts[first.node_id].node.raft.epoch
            await hosts[first.node_id].resign()
            await observer.link.submit(CreateTopic(NewTopicSpec("t", 1, 1), uuid.uuid4()))
            second = observer.link.active
            assert second is not None
            # Another one, or the same that was elected again: in any case by a new election.
            assert hosts[second.node_id].node.raft.epoch > epoch
            assert "t" in observer.state.topics
    finally:
        for host in hosts.values():
            await host.close()
