"""The state machine of a transactional producer. Pure.

              begin            commit, abort            ended
    READY ──────────► OPEN ───────────────────► ENDING ───────► READY
                       │ a batch or call failed    │ no answer
                       ▼                           ▼
                     BROKEN ── abort ──► ENDING   DEAD

Rules of this file:
- A broken transaction can only be aborted. A dead producer can do nothing: it was fenced, or the
  outcome of its last transaction is unknown; a new producer must ask the coordinator.
- A call in the wrong phase is a usage error that names the phase.
"""

from enum import Enum

from shoal.client.codes import Code
from shoal.client.errors import ClientError, ProducerFenced, TransactionFailed
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition


class Phase(Enum):
    """The phase of a transactional producer; the value completes "the producer …"."""

    NEW = "is not started"
    READY = "has no open transaction"
    OPEN = "has an open transaction"
    BROKEN = "has a transaction that can only be aborted"
    ENDING = "is ending its transaction"
    DEAD = "can no longer be used"


class TransactionState:
    """The phase, and the parts of the transaction that the coordinator knows."""

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        self.failure: ClientError | None = None
        # Whether the coordinator may know this transaction.
        self.may_be_known = False

    def mark_ready(self) -> None:
        self.phase = Phase.READY
        self._clear()

    def begin(self) -> None:
        self._must_be(Phase.READY, "begin")
        self._clear()
        self.phase = Phase.OPEN

    def check_open(self) -> None:
        """Raise unless a transaction is open."""
        if self.phase is Phase.BROKEN:
            raise self.abortable_error()
        self._must_be(Phase.OPEN, "send")

    def fail(self, error: ClientError) -> None:
        """Record that a part of the transaction has finally failed."""
        if self.phase is Phase.OPEN:
            self.phase = Phase.BROKEN
        self.failure = self.failure or error

    def mark_dead(self, error: ClientError) -> None:
        self.phase = Phase.DEAD
        self.failure = error

    def end(self, *, is_commit: bool) -> None:
        """Start to commit or abort."""
        if is_commit and self.phase is Phase.BROKEN:
            raise self.abortable_error()
        if not is_commit and self.phase is Phase.BROKEN:
            self.phase = Phase.OPEN
        self._must_be(Phase.OPEN, "commit" if is_commit else "abort")
        self.phase = Phase.ENDING

    def mark_ended(self) -> None:
        self.phase = Phase.READY
        self._clear()

    def abortable_error(self) -> TransactionFailed:
        """The error for a transaction that can only be aborted."""
        error = TransactionFailed(
            Code.TRANSACTION_ABORTABLE,
            message=f"the transaction can only be aborted, because: {self.failure}",
        )
        error.__cause__ = self.failure
        return error

    def _must_be(self, phase: Phase, call: str) -> None:
        if self.phase is phase:
            return
        if self.phase is Phase.DEAD:
            if isinstance(self.failure, ProducerFenced):
                raise self.failure
            raise ClientError(
                f"the producer {self.phase.value}: {self.failure}",
                remedy="create a new session with the same transactional.id",
            )
        raise UsageError(f"cannot call {call}(): the producer {self.phase.value}")

    def _clear(self) -> None:
        self.partitions = set()
        self.groups = set()
        self.failure = None
        self.may_be_known = False
