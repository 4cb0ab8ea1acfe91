"""The in-sync set as the controller last confirmed it, and the one change that is on its way.

Rules of this file:
- While a change is on its way, nobody knows which of the two sets is the truth. Whatever needs
  all in-sync replicas then needs those of both: the maximal set.
- The controller takes a change only from the partition epoch that it was made for. So news of
  a higher partition epoch settle a change that is on its way, one way or the other; news of the
  same epoch tell nothing about it.
- A change without an answer is sent again as it is, never another one in its place.
- One copy that is refused says nothing about the others, which may arrive later and be granted.
  Then the leader withdraws: it proposes the set that is confirmed. The controller gives every
  proposal that it grants a new partition epoch, also one that changes nothing, and after that
  no copy can be granted any more.
"""

from dataclasses import dataclass, replace

from shoal.lite.base.codes import Code
from shoal.lite.replication.messages import AlterIsr, IsrAnswer, ReplicationSettings

# The partition epoch was right and nothing was changed.
_REFUSED = {Code.INELIGIBLE_REPLICA, Code.OPERATION_NOT_ATTEMPTED}
# The metadata that says why, and what is so now, is on its way here.
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
    """Without a time for sending it again, only metadata can settle it."""

    proposal: AlterIsr
    resend_ms: int | None
    copies: int = 1
    is_withdrawal: bool = False


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
        # Whether there is a proposal to take.
        self.is_to_send = False
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
        self.maximal = self.confirmed | proposal.members
        self._send(_Pending(proposal, now_ms + self.settings.controller_request_timeout_ms))

    def _send(self, pending: _Pending) -> None:
        self._pending = pending
        self.is_to_send = True

    def take_proposal(self) -> AlterIsr | None:
        """The proposal to send now, once per sending."""
        if self._pending is None or not self.is_to_send:
            return None
        self.is_to_send = False
        return self._pending.proposal

    def confirm(self, partition_epoch: int, members: frozenset[int]) -> None:
        """The controller says so. Nothing is pending any more."""
        self.partition_epoch = partition_epoch
        self.confirmed = self.maximal = members
        self._pending = None
        self.is_to_send = False

    def answered(self, now_ms: int, proposal: AlterIsr, answer: IsrAnswer) -> None:
        """Take note of the controller's answer to a proposal."""
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
            self.is_to_send = False
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
            self.is_to_send = True

    @property
    def next_deadline_ms(self) -> int | None:
        """When the pending change needs a tick."""
        return None if self._pending is None else self._pending.resend_ms
