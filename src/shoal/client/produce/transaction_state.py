"""What a transactional producer may do next. Pure.

              begin            commit, abort            ended
    READY ──────────► OPEN ───────────────────► ENDING ───────► READY
                       │ a batch or call failed    │ no answer
                       ▼                           ▼
                     BROKEN ── abort ──► ENDING   DEAD

Rules of this file:
- A broken transaction can only be aborted. A dead producer can do nothing: it was fenced, or
  nobody knows how its last transaction ended; a new one must ask the coordinator.
- Calls out of turn are mistakes of the caller and say which call is due.
"""

from enum import Enum

from shoal.client.codes import Code
from shoal.client.errors import ClientError, ProducerFenced, TransactionFailed
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition


class Phase(Enum):
    """Where a transactional producer stands; the value is how to say so."""

    NEW = "was not started"
    READY = "has no open transaction"
    OPEN = "is in the middle of a transaction"
    BROKEN = "has a transaction that can only be aborted"
    ENDING = "is ending its transaction"
    DEAD = "can do nothing any more"


class TransactionState:
    """The phase, and what the coordinator knows of the transaction."""

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        self.failure: ClientError | None = None
        # Whether the coordinator may know of this transaction at all.
        self.is_touched = False

    def started(self) -> None:
        self.phase = Phase.READY
        self._clear()

    def begin(self) -> None:
        self._must_be(Phase.READY, "begin")
        self._clear()
        self.phase = Phase.OPEN

    def check_open(self) -> None:
        """Raise unless the transaction takes more."""
        if self.phase is Phase.BROKEN:
            raise self.failed()
        self._must_be(Phase.OPEN, "send")

    def fail(self, error: ClientError) -> None:
        """Something of the transaction failed for good."""
        if self.phase is Phase.OPEN:
            self.phase = Phase.BROKEN
        self.failure = self.failure or error

    def die(self, error: ClientError) -> None:
        self.phase = Phase.DEAD
        self.failure = error

    def end(self, *, is_commit: bool) -> None:
        """Begin to commit or abort."""
        if is_commit and self.phase is Phase.BROKEN:
            raise self.failed()
        if not is_commit and self.phase is Phase.BROKEN:
            self.phase = Phase.OPEN
        self._must_be(Phase.OPEN, "commit" if is_commit else "abort")
        self.phase = Phase.ENDING

    def ended(self) -> None:
        self.phase = Phase.READY
        self._clear()

    def failed(self) -> TransactionFailed:
        """The error of a transaction that can only be aborted."""
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
                remedy="make a new session with the same transactional.id",
            )
        raise UsageError(f"{call}() is not for a producer that {self.phase.value}")

    def _clear(self) -> None:
        self.partitions = set()
        self.groups = set()
        self.failure = None
        self.is_touched = False
