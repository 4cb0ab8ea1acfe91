"""The in-sync replica set (ISR) that the controller last confirmed, and the one pending change.

Rules of this file:
- While a change is pending, the leader cannot know which of the two sets is in force. Everything
  that needs all in-sync replicas then needs those of both sets: the maximal set.
- The controller accepts a change only for the partition epoch that it was made for. So a state
  with a higher partition epoch settles a pending change, whether it was accepted or not; a state
  with the same epoch says nothing about it.
- A change without an answer is sent again unchanged, never replaced by another one.
- A rejected copy says nothing about the other copies, which may arrive later and be accepted. So
  the leader then withdraws the change: it proposes the confirmed set. The controller raises the
  partition epoch with every accepted proposal, even one that changes nothing; after that no copy
  can be accepted.
"""

from dataclasses import dataclass, replace

from shoal.lite.base.codes import Code
from shoal.lite.replication.messages import AlterIsr, IsrAnswer, ReplicationSettings

# The partition epoch matched, and the controller changed nothing.
_REFUSED = {Code.INELIGIBLE_REPLICA, Code.OPERATION_NOT_ATTEMPTED}
# The leader's state is outdated; the metadata that explains why is about to arrive.
_OUTDATED = {
    Code.FENCED_LEADER_EPOCH,
    Code.INVALID_REQUEST,
    Code.INVALID_UPDATE_VERSION,
    Code.NEW_LEADER_ELECTED,
    Code.UNKNOWN_TOPIC_ID,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
}


@dataclass(slots=True)
class _Pending:
    """A proposal. Without a time to send it again, only metadata can settle it."""

    proposal: AlterIsr
    resend_ms: int | None
    copies: int = 1
    is_withdrawal: bool = False


class InSyncSet:
    """Members of the ISR: `confirmed`, and `maximal`, which includes the pending change."""

    def __init__(
        self, partition_epoch: int, members: frozenset[int], settings: ReplicationSettings
    ) -> None:
        self.settings = settings
        self.partition_epoch = partition_epoch
        self.confirmed = members
        self.maximal = members
        self._pending: _Pending | None = None
        self.has_unsent_proposal = False
        self._pause_until_ms = 0

    @property
    def next_proposal_ms(self) -> int | None:
        """When the next change may be proposed; None while one is pending.

        Only one change is pending at a time, and none directly after a rejection.
        """
        return self._pause_until_ms if self._pending is None else None

    def can_propose(self, now_ms: int) -> bool:
        return self._pending is None and now_ms >= self._pause_until_ms

    def propose(self, now_ms: int, proposal: AlterIsr) -> None:
        self.maximal = self.confirmed | proposal.members
        self._send(_Pending(proposal, now_ms + self.settings.controller_request_timeout_ms))

    def _send(self, pending: _Pending) -> None:
        self._pending = pending
        self.has_unsent_proposal = True

    def take_proposal(self) -> AlterIsr | None:
        """Return the proposal to send now; each transmission is returned once."""
        if self._pending is None or not self.has_unsent_proposal:
            return None
        self.has_unsent_proposal = False
        return self._pending.proposal

    def confirm(self, partition_epoch: int, members: frozenset[int]) -> None:
        """Apply the ISR of the controller. It settles a pending change."""
        self.partition_epoch = partition_epoch
        self.confirmed = self.maximal = members
        self._pending = None
        self.has_unsent_proposal = False

    def on_answer(self, now_ms: int, proposal: AlterIsr, answer: IsrAnswer) -> None:
        """Handle the controller's answer to a proposal."""
        pending = self._pending
        if pending is None or pending.proposal != proposal:
            return
        if answer.code == Code.NONE and answer.partition_epoch > self.partition_epoch:
            self.confirm(answer.partition_epoch, frozenset(answer.isr))
        elif answer.code in _OUTDATED:
            pending.resend_ms = None
        elif answer.code in _REFUSED and not pending.is_withdrawal:
            self._on_refused(now_ms, pending)
        else:
            pending.resend_ms = now_ms + self.settings.controller_retry_backoff_ms

    def _on_refused(self, now_ms: int, pending: _Pending) -> None:
        proposal = pending.proposal
        if pending.copies == 1 or proposal.members <= self.confirmed:
            self._pending = None
            self.has_unsent_proposal = False
            self._pause_until_ms = now_ms + self.settings.controller_retry_backoff_ms
            self.maximal = self.confirmed
            return
        confirmed = tuple(member for member in proposal.isr if member[0] in self.confirmed)
        withdrawal = replace(proposal, isr=confirmed)
        resend_ms = now_ms + self.settings.controller_request_timeout_ms
        self._send(_Pending(withdrawal, resend_ms, is_withdrawal=True))

    def tick(self, now_ms: int) -> None:
        pending = self._pending
        if pending is not None and pending.resend_ms is not None and now_ms >= pending.resend_ms:
            pending.copies += 1
            pending.resend_ms = now_ms + self.settings.controller_request_timeout_ms
            self.has_unsent_proposal = True

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the pending change needs a tick."""
        return None if self._pending is None else self._pending.resend_ms
