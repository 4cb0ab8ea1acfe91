"""A controller's process: a member of the quorum, and the active controller while it leads.

A thin shell over `RaftNode` and `Controller`, by the rules that these have for their shells:
records are proposed as they are decided, answers leave when everything before them is
committed, and a controller is made from what is committed and thrown away with its leadership.
"""

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import encode_record
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.raft.actions import (
    Action,
    BecameLeader,
    Committed,
    LoadSnapshot,
    ResignedLeader,
    SendToPeer,
)
from shoal.lite.raft.model import EntryKind
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.lite.raft.storage.driver import perform_actions
from shoal.lite.simulation.messages import ControllerCall, ControllerReply
from shoal.lite.simulation.process import Process

if TYPE_CHECKING:
    from shoal.lite.metadata.rules.controller import Controller
    from shoal.lite.simulation.world import ControllerNode, World

CLUSTER_ID = "simulated"


class ControllerProcess(Process):
    """One start of a controller."""

    def __init__(self, world: "World", node: "ControllerNode", random: Random) -> None:
        super().__init__(world, node.id, node.clock)
        self.disk = node.disk
        stored = self.disk.load_state()
        self.raft = world.parts.raft_node(
            node.key, stored, now_ms=self.now_ms, random=random, config=world.setup.raft
        )
        self.state = ClusterState()
        if stored.snapshot is not None:
            self._load(decode_snapshot(stored.snapshot.data).records)
        self.controller: Controller | None = None
        self._must_begin = False
        # Answers, by the end of the log that must be committed first.
        self._answers: deque[tuple[int, int, ControllerReply]] = deque()

    def start(self) -> None:
        """Do what the node wants at its start."""
        self._settle()

    # Events

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, ControllerCall):
            self._on_call(sender, message)
        elif not isinstance(message, ControllerReply):
            self.raft.receive(self.now_ms, sender, message)
        self._settle()

    def wake(self) -> None:
        now_ms = self.now_ms
        deadline_ms = self.raft.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self.raft.tick(now_ms)
            self._settle()
        controller = self.controller
        if controller is not None:
            deadline_ms = controller.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._propose(controller.tick(now_ms).records)
                self._settle()

    def next_deadline_ms(self) -> int | None:
        deadline_ms = self.raft.next_deadline_ms()
        if self.controller is not None:
            other_ms = self.controller.next_deadline_ms()
            if deadline_ms is None or (other_ms is not None and other_ms < deadline_ms):
                return other_ms
        return deadline_ms

    def resign(self) -> None:
        """Stop leading the quorum, if it does."""
        self.raft.resign(self.now_ms)
        self._settle()

    def alarm(self) -> None:
        """Take the leader for dead; without one, ask for an election now."""
        leader_id = self.raft.leader_id
        if leader_id is None:
            self.raft.campaign(self.now_ms)
        else:
            self.raft.on_unreachable(self.now_ms, leader_id)
        self._settle()

    def save_snapshot(self) -> None:
        """Keep the state instead of the log so far."""
        if self.raft.high_watermark > self.raft.log.start_offset:
            records = [encode_record(record) for record in self.state.snapshot()]
            self.raft.save_snapshot(self.raft.high_watermark, records)
            self._settle()

    # The active controller

    def _on_call(self, sender: int, call: ControllerCall) -> None:
        if self.controller is None:
            self.send(sender, ControllerReply(call.number, Code.NOT_CONTROLLER))
            return
        try:
            outcome = self.controller.handle(self.now_ms, call.request)
        except ApiError as refused:
            reply = ControllerReply(call.number, refused.code)
        else:
            self._propose(outcome.records)
            reply = ControllerReply(call.number, Code.NONE, outcome.answer)
        self._answers.append((self.raft.log.end_offset, sender, reply))

    def on_broker_died(self, request: Any) -> None:
        """The embedded controller has seen a process end."""
        if self.controller is not None:
            self._propose(self.controller.handle(self.now_ms, request).records)
            self._settle()

    def _propose(self, records: tuple[Any, ...]) -> None:
        if records:
            self.raft.propose(self.now_ms, [encode_record(record) for record in records])

    def _begin(self) -> None:
        state = ClusterState()
        for record in self.state.snapshot():
            state.apply(record)
        self.controller = self.world.parts.controller(self.world, state)
        self.world.judge.on_controller_active(self)
        self._propose(self.controller.activate(self.now_ms, CLUSTER_ID).records)

    def _on_resigned(self) -> None:
        self.controller = None
        self._must_begin = False
        while self._answers:
            _, sender, reply = self._answers.popleft()
            self.send(sender, ControllerReply(reply.number, Code.NOT_CONTROLLER))

    # What the member of the quorum wants done

    def _settle(self) -> None:
        perform_actions(self.raft, self, self._perform, self.now_ms)
        while self._must_begin:
            self._must_begin = False
            self._begin()
            perform_actions(self.raft, self, self._perform, self.now_ms)
        committed = self.raft.high_watermark
        while self._answers and self._answers[0][0] <= committed:
            _, sender, reply = self._answers.popleft()
            self.send(sender, reply)

    @property
    def end_offset(self) -> int:
        return self.disk.end_offset

    def perform(self, action: Any) -> None:
        """Put something on the disk."""
        self.world.judge.will_store(self, action)
        self.disk.perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case SendToPeer(to, message):
                self.send(to, message)
            case Committed(base_offset, entries):
                self.world.judge.on_committed(self, base_offset, entries)
                for entry in entries:
                    if entry.kind is EntryKind.DATA:
                        for data in entry.records:
                            self.state.apply(self.world.decode_record(data))
            case LoadSnapshot(_, records):
                self.state = ClusterState()
                self._load(records)
            case BecameLeader():
                self._must_begin = True
            case ResignedLeader():
                self._on_resigned()
            case _:
                self.world.judge.on_unexpected_action(self, action)

    def _load(self, records: tuple[bytes, ...]) -> None:
        for data in records:
            self.state.apply(self.world.decode_record(data))
