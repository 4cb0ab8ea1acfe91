"""A controller's node: a member of the metadata quorum, and the active controller while it leads.

A thin shell over `RaftNode`, its storage and `Controller`. A single node leads at once: that is the
controller inside a supervisor. Messages arrive by `receive` and leave by `send`.

Rules of this file:
- Clock, timers, storage and network are given from outside, so that a simulation can drive the
  node; nothing here knows an event loop.
- Records are proposed as they are decided. A reply is given when everything before it is
  committed, errors too: they are based on records that may yet be lost.
- A `Controller` is created from the committed state when the node becomes leader, and discarded
  when it no longer leads; pending requests get NOT_CONTROLLER.
- If the disk fails, or the quorum rejects this node, the node has failed permanently: `on_failed`
  is called, and the process should end.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.hooks import tracer
from shoal.lite.base.scheduler import Scheduler, Timer
from shoal.lite.metadata.data.records import Record, decode_record, encode_record
from shoal.lite.metadata.data.requests import ControllerRequest
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.controller import Controller
from shoal.lite.metadata.server.decisions import trace_decisions
from shoal.lite.raft.actions import (
    Action,
    BecameLeader,
    Committed,
    LoadSnapshot,
    ResignedLeader,
    SendToPeer,
)
from shoal.lite.raft.errors import NotLeader, StorageFailed, VoterChangeRefused
from shoal.lite.raft.messages import RaftMessage
from shoal.lite.raft.model import EntryKind, ReplicaKey, StoredState, Voter
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.lite.raft.storage.driver import Storage, perform_actions
from shoal.model.errors import SystemFailure
from shoal.runtime.tasks import record_failure

MessageSender = Callable[[int, RaftMessage], None]
OnReply = Callable[[Reply], None]

# A snapshot is saved after so many records.
SNAPSHOT_RECORDS = 20_000
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _PendingReply:
    """A reply that is given when the log is committed up to its `end_offset`."""

    reply: Reply
    on_reply: OnReply


class _RejectedByQuorum(SystemFailure):
    """The quorum has a voter with the id of this node and another directory id."""


class ControllerNode:
    """The running node. An `on_reply` is called within a method of it, and must not call it."""

    def __init__(
        self,
        raft: RaftNode,
        storage: Storage,
        stored: StoredState,
        *,
        cluster_id: str,
        new_controller: Callable[[ClusterState], Controller],
        scheduler: Scheduler,
        send: MessageSender,
        on_failed: Callable[[str], None] | None = None,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ) -> None:
        """`raft` was made from `stored`. `send` delivers a message to a member or an observer, or
        loses it."""
        self.raft = raft
        self._storage = storage
        self._cluster_id = cluster_id
        self._new_controller = new_controller
        self._scheduler = scheduler
        self._now_ms = scheduler.now_ms
        self._send = send
        self._on_failed = on_failed
        self._snapshot_records = snapshot_records
        # The committed state. The controller has its own copy, which may be ahead.
        self.state = ClusterState()
        if stored.snapshot is not None:
            self._apply_encoded(decode_snapshot(stored.snapshot.data).records)
        self.controller: Controller | None = None
        # A former leader, or the first voter of a new quorum, asks for an election at once.
        is_first = raft.epoch == 0 and raft.id == min(raft.voters.ids)
        self._should_campaign = is_first or stored.quorum.leader_id == raft.id
        self._must_activate = False
        self._pending: deque[_PendingReply] = deque()
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._failure: str | None = None

    @property
    def key(self) -> ReplicaKey:
        return self.raft.key

    def start(self) -> None:
        """Start; a single node leads when this returns."""
        if self._should_campaign:
            self.raft.campaign(self._now_ms())
        self._process_actions()
        if self._failure is not None:
            raise SystemFailure(self._failure)
        if self.state.cluster_id not in {"", self._cluster_id}:
            raise SystemFailure(
                f"the metadata log belongs to cluster {self.state.cluster_id}, not to "
                f"{self._cluster_id}",
                remedy="start it with the id of its cluster, or with another folder",
            )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._deactivate()

    # Input

    def submit(self, request: ControllerRequest[Any], on_reply: OnReply) -> None:
        """Handle a request; `on_reply` gets the reply once its records are committed."""
        if self.controller is None:
            message = self._failure or "this controller is not active"
            self._refuse(Code.NOT_CONTROLLER, message, on_reply)
            return
        answer, error = None, None
        try:
            outcome = self.controller.handle(self._now_ms(), request)
        except ApiError as refused:
            error = refused
        else:
            answer = outcome.answer
            self._propose(outcome.records)
        reply = Reply(answer, error, self.raft.log.end_offset)
        self._pending.append(_PendingReply(reply, on_reply))
        self._process_actions()

    def add_voter(self, voter: Voter, on_reply: OnReply) -> None:
        """Make a caught-up observer a voter; done when the change is committed."""
        self._change_voters(lambda now_ms: self.raft.add_voter(now_ms, voter), on_reply)

    def remove_voter(self, key: ReplicaKey, on_reply: OnReply) -> None:
        """Remove a voter. A leader that is to remove itself resigns and gives an error."""
        if key == self.key:
            self.resign()
        self._change_voters(lambda now_ms: self.raft.remove_voter(now_ms, key), on_reply)

    def _change_voters(self, change: Callable[[int], int], on_reply: OnReply) -> None:
        try:
            end_offset = change(self._now_ms())
        except VoterChangeRefused as error:
            self._refuse(Code.INVALID_REQUEST, str(error), on_reply)
        except NotLeader as error:
            self._refuse(Code.NOT_CONTROLLER, str(error), on_reply)
        else:
            self._pending.append(_PendingReply(Reply(None, None, end_offset), on_reply))
            self._process_actions()

    def _refuse(self, code: Code, message: str, on_reply: OnReply) -> None:
        on_reply(Reply(None, ApiError(code, message), self.raft.high_watermark))

    def resign(self) -> None:
        """Stop being the active controller, if this one is."""
        self.raft.resign(self._now_ms())
        self._process_actions()

    def receive(self, sender: int, message: RaftMessage) -> None:
        """Handle a message of another member or of an observer."""
        if self._failure is None:
            self.raft.receive(self._now_ms(), sender, message)
            self._process_actions()

    def on_unreachable(self, peer: int) -> None:
        """A connection to a member was refused or lost."""
        if self._failure is None:
            self.raft.on_unreachable(self._now_ms(), peer)
            self._process_actions()

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._run_due_work()
        except Exception as error:  # noqa: BLE001 - see _fail_unexpectedly
            self._fail_unexpectedly(error)

    def _run_due_work(self) -> None:
        now_ms = self._now_ms()
        deadline_ms = self.raft.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self.raft.tick(now_ms)
            self._process_actions()
        controller = self.controller
        if controller is not None:
            deadline_ms = controller.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._propose(controller.tick(now_ms).records)
        self._process_actions()

    # Processing

    def _propose(self, records: tuple[Record, ...]) -> None:
        if tracer.current is not None:
            trace_decisions(tracer.current, self.state, records)
        if records:
            self.raft.propose(self._now_ms(), [encode_record(record) for record in records])

    def _process_actions(self) -> None:
        try:
            self._perform_actions()
            while self._must_activate:
                self._must_activate = False
                self._activate()
                self._perform_actions()
            self._save_snapshot_if_due()
        except (StorageFailed, _RejectedByQuorum) as error:
            self._fail(str(error))
            return
        except Exception as error:  # noqa: BLE001 - see _fail_unexpectedly
            self._fail_unexpectedly(error)
            return
        self._give_committed_replies()
        self._arm()

    def _perform_actions(self) -> None:
        perform_actions(self.raft, self._storage, self._perform, self._now_ms())

    def _fail_unexpectedly(self, error: Exception) -> None:
        """Fail-stop: the state in memory may differ from what the quorum has committed."""
        record_failure("controller", error, "this controller stops")
        self._fail(f"internal error: {error!r}")

    def _fail(self, reason: str) -> None:
        _logger.error("this controller has failed and stops: %s", reason)
        self._failure = reason
        self._deactivate()
        if self._on_failed is not None:
            self._on_failed(reason)

    def _activate(self) -> None:
        state = ClusterState()
        for record in self.state.snapshot():
            state.apply(record)
        self.controller = self._new_controller(state)
        self._propose(self.controller.activate(self._now_ms(), self._cluster_id).records)

    def _deactivate(self) -> None:
        self.controller = None
        self._must_activate = False
        while self._pending:
            on_reply = self._pending.popleft().on_reply
            self._refuse(Code.NOT_CONTROLLER, "this controller is no longer active", on_reply)

    def _give_committed_replies(self) -> None:
        committed = self.raft.high_watermark
        while self._pending and self._pending[0].reply.end_offset <= committed:
            pending = self._pending.popleft()
            pending.on_reply(pending.reply)

    def _arm(self) -> None:
        """Set one timer for the earlier deadline of Raft and the controller."""
        deadline_ms = self.raft.next_deadline_ms()
        if self.controller is not None:
            other_ms = self.controller.next_deadline_ms()
            if deadline_ms is None or (other_ms is not None and other_ms < deadline_ms):
                deadline_ms = other_ms
        if self._timer is not None:
            if deadline_ms == self._timer_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            when_ms = max(deadline_ms, self._now_ms() + 1)
            self._timer = self._scheduler.call_at_ms(when_ms, self._on_timer)

    def _save_snapshot_if_due(self) -> None:
        if self.raft.high_watermark - self.raft.log.start_offset >= self._snapshot_records:
            self._save_snapshot()

    def _save_snapshot(self) -> None:
        records = [encode_record(record) for record in self.state.snapshot()]
        self.raft.save_snapshot(self.raft.high_watermark, records)
        self._perform_actions()

    # Actions of the quorum member

    def _perform(self, action: Action) -> None:
        match action:
            case SendToPeer(to, message):
                self._send(to, message)
            case Committed(_, entries):
                for entry in entries:
                    if entry.kind is EntryKind.DATA:
                        self._apply_encoded(entry.records)
            case LoadSnapshot(_, records):
                self.state = ClusterState()
                self._apply_encoded(records)
            case BecameLeader():
                self._must_activate = True
                if tracer.current is not None:
                    tracer.current.event(f"is the active controller in epoch {self.raft.epoch}")
            case ResignedLeader():
                self._deactivate()
            case _:
                raise _RejectedByQuorum(
                    f"controller {self.key.id} is known to the quorum by another disk",
                    remedy="remove that voter from the quorum first; then this disk can be added",
                )

    def _apply_encoded(self, records: tuple[bytes, ...]) -> None:
        for data in records:
            self.state.apply(decode_record(data))
