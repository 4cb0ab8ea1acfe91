"""A controller's process: the node of production, and the messages and the disk around it.

Rules of this file:
- What production's `ControllerNode` does is not done here: the quorum, the active controller, the
  replies and their timers are its own.
- Here are the calls of brokers and clients, the judge, and what mischief does to a controller.
"""

from random import Random
from typing import TYPE_CHECKING, Any

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.requests import ReportBrokerExits
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.controller import Controller
from shoal.lite.metadata.server.node import ControllerNode
from shoal.lite.raft.actions import Action, Committed, StorageAction, VoterRejected
from shoal.lite.simulation.errors import Violation
from shoal.lite.simulation.messages import ControllerCall, ControllerReply
from shoal.lite.simulation.process import Process
from shoal.lite.simulation.scheduler import SimulatedScheduler

if TYPE_CHECKING:
    from shoal.lite.simulation.world import ControllerMachine, World

CLUSTER_ID = "simulated"


class ControllerProcess(Process):
    """One start of a controller. The storage of its node, which the judge sees through."""

    def __init__(self, world: "World", machine: "ControllerMachine", random: Random) -> None:
        super().__init__(world, machine.id, machine.clock)
        self.disk = machine.disk
        self.scheduler = SimulatedScheduler(lambda: self.now_ms)
        stored = self.disk.load_state()
        self.raft = world.parts.raft_node(
            machine.key, stored, now_ms=self.now_ms, random=random, config=world.setup.raft
        )
        self.node = _JudgedNode(
            self,
            self.raft,
            self,
            stored,
            cluster_id=CLUSTER_ID,
            new_controller=self._new_controller,
            scheduler=self.scheduler,
            send=self.send,
            on_failed=self._on_failed,
        )

    @property
    def state(self) -> ClusterState:
        """What is committed, as far as this controller knows."""
        return self.node.state

    @property
    def controller(self) -> Controller | None:
        return self.node.controller

    def start(self) -> None:
        self.node.start()

    def _new_controller(self, state: ClusterState) -> Controller:
        self.world.judge.on_controller_active(self)
        return self.world.parts.controller(self.world, state)

    def _on_failed(self, reason: str) -> None:
        raise Violation("NoException", f"controller {self.id} has failed: {reason}")

    # Events

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, ControllerCall):
            self._on_call(sender, message)
        elif not isinstance(message, ControllerReply):
            self.node.receive(sender, message)

    def _on_call(self, sender: int, call: ControllerCall) -> None:
        def on_reply(reply: Reply) -> None:
            code = Code.NONE if reply.refused is None else reply.refused.code
            self.send(sender, ControllerReply(call.number, code, reply.answer))

        self.node.submit(call.request, on_reply)

    def on_broker_died(self, request: ReportBrokerExits) -> None:
        """The embedded controller has seen a process end."""

        def on_reply(reply: Reply) -> None:
            if reply.refused is not None and reply.refused.code != Code.NOT_CONTROLLER:
                raise reply.refused

        self.node.submit(request, on_reply)

    def wake(self) -> None:
        self.scheduler.call_due(self.now_ms)

    def next_deadline_ms(self) -> int | None:
        return self.scheduler.next_deadline_ms()

    # The storage

    @property
    def end_offset(self) -> int:
        return self.disk.end_offset

    def perform(self, action: StorageAction) -> None:
        """Put something on the disk."""
        self.world.judge.will_store(self, action)
        self.disk.perform(action)


class _JudgedNode(ControllerNode):
    """The node of production, with a judge who hears what is committed."""

    def __init__(self, process: ControllerProcess, *arguments: Any, **named: Any) -> None:
        self._process = process
        super().__init__(*arguments, **named)

    def alarm(self) -> None:
        """Take the leader for dead; without one, ask for an election now."""
        leader_id = self.raft.leader_id
        if leader_id is not None:
            self.on_unreachable(leader_id)
        else:
            self.raft.campaign(self._now_ms())
            self._process_actions()

    def save_snapshot(self) -> None:
        """Keep the state instead of the log so far."""
        if self.raft.high_watermark > self.raft.log.start_offset:
            self._save_snapshot()
            self._process_actions()

    def _perform(self, action: Action) -> None:
        judge = self._process.world.judge
        if isinstance(action, Committed):
            judge.on_committed(self._process, action.base_offset, action.entries)
        elif isinstance(action, VoterRejected):
            judge.on_unexpected_action(self._process, action)
        super()._perform(action)

    def _apply_encoded(self, records: tuple[bytes, ...]) -> None:
        # Each record is decoded once in a history.
        for data in records:
            self.state.apply(self._process.world.decode_record(data))
