"""A controller's node: a member of the metadata quorum, and the active controller while it leads.

A thin shell over `RaftNode`, its files and `Controller`. A single node leads at once: that is the
controller inside a supervisor. Messages arrive by `receive` and leave by `send`.

Rules of this file:
- Records are proposed as they are decided. An answer is sent when everything before it is
  committed, errors too: they are based on records that may yet be lost.
- A `Controller` is created from the committed state when the node becomes leader, and discarded
  when it no longer leads; pending requests get NOT_CONTROLLER.
- If the disk fails, or the quorum rejects this node, the node has failed permanently: `on_failed`
  is called, and the process should end.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Generic, TypeVar

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.hooks import tracer
from shoal.lite.metadata.data.records import Record, decode_record, encode_record
from shoal.lite.metadata.data.requests import ControllerRequest
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.controller import Controller, ControllerSettings
from shoal.lite.metadata.server.decisions import trace_decisions
from shoal.lite.raft.actions import (
    Action,
    BecameLeader,
    Committed,
    LoadSnapshot,
    ResignedLeader,
    SendToPeer,
)
from shoal.lite.raft.config import DEFAULT_CONFIG, RaftConfig
from shoal.lite.raft.errors import NotLeader, StorageFailed, VoterChangeRefused
from shoal.lite.raft.messages import RaftMessage
from shoal.lite.raft.model import EntryKind, ReplicaKey, Voter
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.lite.raft.storage.driver import perform_actions
from shoal.lite.raft.storage.storage import FileStorage
from shoal.model.errors import SystemFailure
from shoal.runtime.tasks import record_failure

A = TypeVar("A")
MessageSender = Callable[[int, RaftMessage], None]

# A snapshot is saved after so many records.
SNAPSHOT_RECORDS = 20_000
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedAnswer(Generic[A]):
    """An answer, and the end of the metadata log on which it is based."""

    answer: A
    end_offset: int


class CommittedError(ApiError):
    """An error, and the end of the metadata log on which it is based."""

    def __init__(self, refused: ApiError, end_offset: int) -> None:
        super().__init__(refused.code, str(refused))
        self.end_offset = end_offset


@dataclass(slots=True)
class _PendingAnswer:
    """An answer that is sent when the log is committed up to `end_offset`."""

    end_offset: int
    future: "asyncio.Future[CommittedAnswer[Any]]"
    answer: Any = None
    refused: ApiError | None = None


class _RejectedByQuorum(SystemFailure):
    """The quorum has a voter with the id of this node and another directory id."""


class ControllerNode:
    """The running node. Lives in the event loop in which `start` was called."""

    def __init__(
        self,
        folder: Path,
        cluster_id: str,
        settings: ControllerSettings,
        *,
        send: MessageSender,
        on_failed: Callable[[str], None] | None = None,
        raft_config: RaftConfig = DEFAULT_CONFIG,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ) -> None:
        """Open the disk. `send` delivers a message to a member or an observer, or loses it."""
        self._storage, stored = FileStorage.open(folder)
        self._cluster_id = cluster_id
        self._settings = settings
        self._send = send
        self._on_failed = on_failed
        self._snapshot_records = snapshot_records
        # The committed state. The controller has its own copy, which may be ahead.
        self.state = ClusterState()
        if stored.snapshot is not None:
            self._apply_encoded(decode_snapshot(stored.snapshot.data).records)
        random = Random()  # noqa: S311 - spreads elections, keeps no secrets
        self.raft = RaftNode(
            self._storage.key, stored, now_ms=_now_ms(), random=random, config=raft_config
        )
        self.controller: Controller | None = None
        # A former leader, or the first voter of a new quorum, asks for an election at once.
        is_first = self.raft.epoch == 0 and self.key.id == min(self.raft.voters.ids)
        self._should_campaign = is_first or stored.quorum.leader_id == self.key.id
        self._must_activate = False
        self._waiting: deque[_PendingAnswer] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._failure: str | None = None

    @property
    def key(self) -> ReplicaKey:
        return self._storage.key

    def start(self) -> None:
        """Start; a single node leads when this returns."""
        if self._should_campaign:
            self.raft.campaign(_now_ms())
        self._process_actions()
        if self._failure is not None:
            raise SystemFailure(self._failure)
        if self.state.cluster_id not in {"", self._cluster_id}:
            raise SystemFailure(
                f"the metadata log belongs to cluster {self.state.cluster_id}, not to "
                f"{self._cluster_id}"
            )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._deactivate()
        self._storage.close()

    # Input

    def submit(self, request: ControllerRequest[A]) -> "asyncio.Future[CommittedAnswer[A]]":
        """A future of the answer, set once its records are committed; or of `CommittedError`."""
        future: asyncio.Future[CommittedAnswer[A]] = asyncio.get_running_loop().create_future()
        if self.controller is None:
            message = self._failure or "this controller is not active"
            refused = ApiError(Code.NOT_CONTROLLER, message)
            future.set_exception(CommittedError(refused, self.raft.high_watermark))
            return future
        waiting = _PendingAnswer(0, future)
        try:
            outcome = self.controller.handle(_now_ms(), request)
        except ApiError as refused:
            waiting.refused = refused
        else:
            waiting.answer = outcome.answer
            self._propose(outcome.records)
        waiting.end_offset = self.raft.log.end_offset
        self._waiting.append(waiting)
        self._process_actions()
        return future

    def add_voter(self, voter: Voter) -> "asyncio.Future[CommittedAnswer[None]]":
        """Make a caught-up observer a voter; done when the change is committed."""
        return self._change_voters(lambda: self.raft.add_voter(_now_ms(), voter))

    def remove_voter(self, key: ReplicaKey) -> "asyncio.Future[CommittedAnswer[None]]":
        """Remove a voter. A leader that is to remove itself resigns and returns an error."""
        if key == self.key:
            self.resign()
        return self._change_voters(lambda: self.raft.remove_voter(_now_ms(), key))

    def _change_voters(self, change: Callable[[], int]) -> "asyncio.Future[CommittedAnswer[None]]":
        future: asyncio.Future[CommittedAnswer[None]] = asyncio.get_running_loop().create_future()
        try:
            end_offset = change()
        except (NotLeader, VoterChangeRefused) as error:
            is_leader = isinstance(error, VoterChangeRefused)
            code = Code.INVALID_REQUEST if is_leader else Code.NOT_CONTROLLER
            future.set_exception(
                CommittedError(ApiError(code, str(error)), self.raft.high_watermark)
            )
            return future
        self._waiting.append(_PendingAnswer(end_offset, future))
        self._process_actions()
        return future

    def resign(self) -> None:
        """Stop being the active controller, if this one is."""
        self.raft.resign(_now_ms())
        self._process_actions()

    def receive(self, sender: int, message: RaftMessage) -> None:
        """Handle a message of another member or of an observer."""
        if self._failure is None:
            self.raft.receive(_now_ms(), sender, message)
            self._process_actions()

    def on_unreachable(self, peer: int) -> None:
        """A connection to a member was refused or lost."""
        if self._failure is None:
            self.raft.on_unreachable(_now_ms(), peer)
            self._process_actions()

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._run_due_work()
        except Exception as error:  # noqa: BLE001 - see _fail_unexpectedly
            self._fail_unexpectedly(error)

    def _run_due_work(self) -> None:
        now_ms = _now_ms()
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
            self.raft.propose(_now_ms(), [encode_record(record) for record in records])

    def _process_actions(self) -> None:
        try:
            perform_actions(self.raft, self._storage, self._perform, _now_ms())
            while self._must_activate:
                self._must_activate = False
                self._activate()
                perform_actions(self.raft, self._storage, self._perform, _now_ms())
            self._save_snapshot_if_due()
        except (StorageFailed, _RejectedByQuorum) as error:
            self._fail(str(error))
            return
        except Exception as error:  # noqa: BLE001 - see _fail_unexpectedly
            self._fail_unexpectedly(error)
            return
        self._answer()
        self._arm()

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
        self.controller = Controller(state, self._settings)
        self._propose(self.controller.activate(_now_ms(), self._cluster_id).records)

    def _deactivate(self) -> None:
        self.controller = None
        self._must_activate = False
        refused = ApiError(Code.NOT_CONTROLLER, "this controller is no longer active")
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.future.done():
                waiting.future.set_exception(CommittedError(refused, self.raft.high_watermark))

    def _answer(self) -> None:
        committed = self.raft.high_watermark
        while self._waiting and self._waiting[0].end_offset <= committed:
            waiting = self._waiting.popleft()
            if waiting.future.done():
                continue
            if waiting.refused is not None:
                refused = CommittedError(waiting.refused, waiting.end_offset)
                waiting.future.set_exception(refused)
            else:
                waiting.future.set_result(CommittedAnswer(waiting.answer, waiting.end_offset))

    def _arm(self) -> None:
        """Set one timer for the earlier deadline of Raft and the controller."""
        times = [self.raft.next_deadline_ms()]
        if self.controller is not None:
            times.append(self.controller.next_deadline_ms())
        deadline_ms = min((time_ms for time_ms in times if time_ms is not None), default=None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            delay_s = max(1, deadline_ms - _now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _save_snapshot_if_due(self) -> None:
        raft = self.raft
        if raft.high_watermark - raft.log.start_offset >= self._snapshot_records:
            records = [encode_record(record) for record in self.state.snapshot()]
            raft.save_snapshot(raft.high_watermark, records)
            perform_actions(raft, self._storage, self._perform, _now_ms())

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


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
