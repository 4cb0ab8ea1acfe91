"""The in-sync set as the controller last confirmed it, and the one change that is on its way.

Rules of this file:
- While a change is on its way, nobody knows which of the two sets is the truth. Whatever needs
  all in-sync replicas then needs those of both: the maximal set.
- The controller takes a change only from the partition epoch that it was made for. So news of
  a higher partition epoch settle a change that is on its way, one way or the other; news of the
  same epoch tell nothing about it.
- A change without an answer is sent again as it is, never another one in its place.
"""

from dataclasses import dataclass
from enum import Enum, auto

from shoal.lite.codes import Code
from shoal.lite.replication.messages import AlterIsr, IsrAnswer, ReplicationSettings

# The partition epoch was right and nothing was changed: the confirmed set is the truth.
_REFUSED = {Code.INELIGIBLE_REPLICA, Code.OPERATION_NOT_ATTEMPTED}
# The metadata that says why, and what is so now, is on its way here.
_OUTDATED = {
    Code.FENCED_LEADER_EPOCH,
    Code.INVALID_REQUEST,
    Code.INVALID_UPDATE_VERSION,
    Code.UNKNOWN_TOPIC_ID,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
}


class _Next(Enum):
    """What happens to a pending change when its time has come."""

    RESEND = auto()
    FORGET = auto()
    # Only metadata can settle it.
    NOTHING = auto()


@dataclass(slots=True)
class _Pending:
    proposal: AlterIsr
    next: _Next
    due_ms: int
    copies: int = 1


class InSyncSet:
    """Members of the in-sync set: `confirmed`, and `maximal` with the pending change."""

    def __init__(
        self, partition_epoch: int, members: frozenset[int], settings: ReplicationSettings
    ) -> None:
        self.settings = settings
        self.partition_epoch = partition_epoch
        self.confirmed = members
        self.maximal = members
        self._pending: _Pending | None = None
        self._is_to_send = False
        self._pause_until_ms = 0

    @property
    def free_from_ms(self) -> int | None:
        """When the next change may be proposed; None while one is pending.

        One change at a time, and none right after a refusal.
        """
        return self._pause_until_ms if self._pending is None else None

    def may_propose(self, now_ms: int) -> bool:
        return self._pending is None and now_ms >= self._pause_until_ms

    def propose(self, now_ms: int, proposal: AlterIsr) -> None:
        due_ms = now_ms + self.settings.controller_request_timeout_ms
        self._pending = _Pending(proposal, _Next.RESEND, due_ms)
        self._is_to_send = True
        self.maximal = self.confirmed | proposal.members

    def take_proposal(self) -> AlterIsr | None:
        """The proposal to send now, once per sending."""
        if self._pending is None or not self._is_to_send:
            return None
        self._is_to_send = False
        return self._pending.proposal

    def confirm(self, partition_epoch: int, members: frozenset[int]) -> None:
        """The controller says so. Nothing is pending any more."""
        self.partition_epoch = partition_epoch
        self.confirmed = self.maximal = members
        self._pending = None

    def answered(self, now_ms: int, proposal: AlterIsr, answer: IsrAnswer) -> None:
        """Take note of the controller's answer to a proposal."""
        pending = self._pending
        if pending is None or pending.proposal != proposal:
            return
        if answer.code == Code.NONE:
            is_ours = answer.leader_epoch == proposal.leader_epoch
            if is_ours and answer.partition_epoch >= self.partition_epoch:
                self.confirm(answer.partition_epoch, frozenset(answer.isr))
            else:
                pending.next = _Next.NOTHING
        elif answer.code in _OUTDATED:
            pending.next = _Next.NOTHING
        elif answer.code not in _REFUSED:
            pending.next = _Next.RESEND
            pending.due_ms = now_ms + self.settings.controller_retry_backoff_ms
        elif pending.copies == 1:
            self._forget(now_ms)
        else:
            # Another copy may still be on its way, and the controller may see it differently.
            pending.next = _Next.FORGET
            pending.due_ms = now_ms + self.settings.controller_request_timeout_ms

    def tick(self, now_ms: int) -> None:
        pending = self._pending
        if pending is None or pending.next is _Next.NOTHING or now_ms < pending.due_ms:
            return
        if pending.next is _Next.FORGET:
            self._forget(now_ms)
            return
        pending.copies += 1
        pending.due_ms = now_ms + self.settings.controller_request_timeout_ms
        self._is_to_send = True

    def _forget(self, now_ms: int) -> None:
        self._pending = None
        self._is_to_send = False
        self._pause_until_ms = now_ms + self.settings.controller_retry_backoff_ms
        self.maximal = self.confirmed

    @property
    def next_deadline_ms(self) -> int | None:
        """When the pending change needs a tick."""
        if self._pending is None or self._pending.next is _Next.NOTHING:
            return None
        return self._pending.due_ms
