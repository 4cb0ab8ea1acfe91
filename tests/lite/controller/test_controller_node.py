"""A controller alone in its quorum: what it answered for survives, and observers hear of it."""

from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.scheduler import EventLoopScheduler
from shoal.lite.metadata.data.requests import (
    AllocateProducerIds,
    ControllerRequest,
    CreateTopic,
    Heartbeat,
    NewTopicSpec,
    RegisterBroker,
)
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.rules import commands
from shoal.lite.metadata.rules.controller import Controller, ControllerSettings
from shoal.lite.metadata.server.node import ControllerNode
from shoal.lite.nodes.embedded_controller import format_alone
from shoal.lite.raft.actions import StorageAction
from shoal.lite.raft.errors import StorageFailed
from shoal.lite.raft.messages import RaftFetchRequest, RaftFetchResponse, RaftMessage
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage.storage import FileStorage
from shoal.model.errors import SystemFailure

TOPIC_ID = UUID(int=7)
REGISTRATION = RegisterBroker(1, "x", "localhost", 9092, "boot", "folder")


class Sent:
    """What the node sent to observers."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, RaftMessage]] = []

    def __call__(self, to: int, message: RaftMessage) -> None:
        self.messages.append((to, message))


def open_node(
    folder: Path, cluster_id: str = "cluster", sent: Sent | None = None
) -> ControllerNode:
    format_alone(folder, 100)
    settings = ControllerSettings(balance_delay_ms=None)
    scheduler = EventLoopScheduler()
    storage, stored = FileStorage.open(folder)
    raft = RaftNode(storage.key, stored, now_ms=scheduler.now_ms(), random=Random(1))
    node = ControllerNode(
        raft,
        storage,
        stored,
        cluster_id=cluster_id,
        new_controller=lambda state: Controller(state, settings),
        scheduler=scheduler,
        send=sent or Sent(),
        snapshot_records=30,
    )
    node.start()
    return node


def submit(node: ControllerNode, request: ControllerRequest[Any]) -> Reply:
    """The reply of a node that is alone, and so commits at once."""
    replies: list[Reply] = []
    node.submit(request, replies.append)
    [reply] = replies
    if reply.refused is not None:
        raise reply.refused
    return reply


async def test_the_metadata_survives_its_process(tmp_path: Path) -> None:
    node = open_node(tmp_path)
    epoch = submit(node, REGISTRATION).answer.broker_epoch
    submit(node, Heartbeat(1, epoch, node.state.applied_count))
    created = submit(node, CreateTopic(NewTopicSpec("t", 3, 1), TOPIC_ID))
    assert created.end_offset == node.raft.high_watermark
    block = submit(node, AllocateProducerIds(1, epoch)).answer
    assert (block.first, block.count) == (0, commands.PRODUCER_ID_BLOCK)
    with pytest.raises(ApiError) as refused:
        submit(node, CreateTopic(NewTopicSpec("t", 3, 1), uuid4()))
    assert refused.value.code == Code.TOPIC_ALREADY_EXISTS
    # Not closed: the process is gone, and the last write was torn.
    log = next((tmp_path / "__cluster_metadata-0").glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:70])
    again = open_node(tmp_path)
    assert again.state.topics["t"].partitions.keys() == {0, 1, 2}
    assert again.state.next_producer_id == commands.PRODUCER_ID_BLOCK
    assert again.state.brokers == node.state.brokers
    again.close()
    with pytest.raises(SystemFailure, match="belongs to cluster cluster"):
        open_node(tmp_path, "another")
    node.close()


async def test_a_controller_that_cannot_write_has_failed_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(_storage: FileStorage, _action: StorageAction) -> None:
        raise StorageFailed("no space left")

    node = open_node(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(FileStorage, "perform", full_disk)
        with pytest.raises(ApiError) as refused:
            submit(node, REGISTRATION)
    assert refused.value.code == Code.NOT_CONTROLLER
    with pytest.raises(ApiError, match="no space left"):
        submit(node, REGISTRATION)
    node.close()


async def test_observers_hear_what_is_committed_and_many_records_become_a_snapshot(
    tmp_path: Path,
) -> None:
    sent = Sent()
    node = open_node(tmp_path, sent=sent)
    epoch = submit(node, REGISTRATION).answer.broker_epoch
    submit(node, Heartbeat(1, epoch, node.state.applied_count))
    fetch = RaftFetchRequest(node.raft.epoch, 1, UUID(int=1), 0, 0, 0)
    node.receive(1, fetch)
    [(to, answer)] = sent.messages
    assert to == 1
    assert isinstance(answer, RaftFetchResponse)
    assert answer.entries
    for number in range(20):
        submit(node, CreateTopic(NewTopicSpec(f"t{number}", 1, 1), uuid4()))
    sent.messages.clear()
    node.receive(1, fetch)
    [(_, answer)] = sent.messages
    assert isinstance(answer, RaftFetchResponse)
    assert answer.snapshot is not None
    node.close()
    again = open_node(tmp_path)
    assert len(again.state.topics) == 20
    again.close()
