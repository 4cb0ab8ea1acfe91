"""A follower of a partition: what to fetch next, and what to do with the answer.

Rules of this file:
- One fetch at a time; an answer counts only if leader, epoch and log are still as they were
  when it was asked for.
- Every fetch tells the epoch of the last record. Where the leader says that the logs part, the
  follower cuts its log there and asks again, until they agree; only then it appends.
- The high watermark is the leader's, as far as the own log goes. It goes back only with the end
  of the log, which a leader that was elected cleanly never asks for.
- A fenced follower waits for metadata. Everything else is tried again after a pause, which grows
  when it fails again and again; a change of leader ends both.
"""

from shoal.lite.base.codes import Code
from shoal.lite.replication.history import check_epoch, divergence, truncation_point
from shoal.lite.replication.messages import (
    NO_LEADER,
    AdvanceStart,
    AppendFetched,
    Assignment,
    EpochEnd,
    FetchAnswer,
    FollowerAction,
    Log,
    ReplicaFetch,
    ReplicationSettings,
    TruncateFully,
    TruncateTo,
)

# The first failures are those of an election, which is over in a moment. A partition that keeps
# failing must not cost the others a request for each of its tries.
_SHORT_PAUSES = 5
_LONGEST_PAUSE_MS = 1000


class FollowerPartition:
    """A replica that does not lead; without a leader it waits for one."""

    leader: int
    leader_epoch: int
    partition_epoch: int

    def __init__(
        self,
        assignment: Assignment,
        log: Log,
        *,
        settings: ReplicationSettings,
        high_watermark: int,
    ) -> None:
        """`high_watermark` is the last that this replica heard of."""
        self.log = log
        self._settings = settings
        self._heard_high_watermark = high_watermark
        self._follow(assignment)

    @property
    def high_watermark(self) -> int:
        """Consumers may read up to here."""
        reached = min(self._heard_high_watermark, self.log.end_offset)
        return max(self.log.start_offset, reached)

    def check_epoch(self, known_epoch: int) -> None:
        """Refuse a client whose idea of the leader is older or newer than ours."""
        check_epoch(known_epoch, self.leader_epoch)

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's history parts from this log; `Refused` if he is out of range."""
        return divergence(self.log, offset, last_fetched_epoch)

    def reassigned(self, assignment: Assignment) -> None:
        """The metadata changed, and this replica still does not lead."""
        if assignment.partition_epoch <= self.partition_epoch:
            return
        if assignment.leader_epoch > self.leader_epoch:
            self._follow(assignment)
        self.partition_epoch = assignment.partition_epoch

    def configure(self, settings: ReplicationSettings) -> None:
        """Follow new settings."""
        self._settings = settings

    def _follow(self, assignment: Assignment) -> None:
        self.leader = assignment.leader
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        # What an earlier leader said of records that are not here does not bind the next one.
        self._heard_high_watermark = min(self._heard_high_watermark, self.log.end_offset)
        self._is_fenced = False
        self._retry_ms: int | None = None
        self._failures_in_a_row = 0
        self._failed_offset = -1

    # Fetching

    def next_fetch(self, now_ms: int) -> ReplicaFetch | None:
        """What to ask the leader now; None if it is not the time."""
        if self.leader == NO_LEADER or self._is_fenced:
            return None
        if self._retry_ms is not None and now_ms < self._retry_ms:
            return None
        return self._position()

    def next_deadline_ms(self) -> int | None:
        """When to ask for `next_fetch` again after a failure."""
        return None if self._is_fenced else self._retry_ms

    def _position(self) -> ReplicaFetch:
        return ReplicaFetch(
            offset=self.log.end_offset,
            leader_epoch=self.leader_epoch,
            # Also that of a term of our own without a record: the leader will call it foreign,
            # and it leaves the history before records of lower epochs are appended.
            last_fetched_epoch=self.log.epochs.latest,
            log_start_offset=self.log.start_offset,
        )

    def failed(self, now_ms: int, fetch: ReplicaFetch) -> None:
        """There is no answer to a fetch, and there will be none."""
        if fetch.leader_epoch == self.leader_epoch:
            is_same = fetch.offset == self._failed_offset
            self._failures_in_a_row = self._failures_in_a_row + 1 if is_same else 1
            self._failed_offset = fetch.offset
            self._retry_ms = now_ms + self._pause_ms()

    def _pause_ms(self) -> int:
        first_ms = self._settings.replica_fetch_backoff_ms
        doublings = max(0, self._failures_in_a_row - _SHORT_PAUSES)
        longest_ms = max(first_ms, _LONGEST_PAUSE_MS)
        return min(longest_ms, first_ms << min(doublings, 16))

    def answered(
        self, now_ms: int, fetch: ReplicaFetch, answer: FetchAnswer
    ) -> list[FollowerAction]:
        """What to do to the log, at once and in order."""
        if self._is_fenced or not self._is_current(fetch):
            return []
        self._retry_ms = None
        if answer.code == Code.NONE and answer.first_offset is None:
            # Records may turn out to be damaged; then the next fetch is for the same offset.
            self._failures_in_a_row = 0
        if answer.code == Code.OFFSET_OUT_OF_RANGE:
            return self._begin_again(answer.log_start_offset)
        if answer.code == Code.FENCED_LEADER_EPOCH:
            self._is_fenced = True
            return []
        if answer.code != Code.NONE:
            self.failed(now_ms, fetch)
            return []
        if self.log.lacks_begin and answer.log_start_offset < self.log.start_offset:
            return self._begin_again(answer.log_start_offset)
        if answer.diverging is not None:
            return self._truncate(answer.diverging, answer.log_start_offset)
        return self._append(now_ms, fetch, answer)

    def _is_current(self, fetch: ReplicaFetch) -> bool:
        # Offset, leader epoch, and the epoch of the last record.
        return fetch[:3] == self._position()[:3]

    def _begin_again(self, start_offset: int) -> list[FollowerAction]:
        """The leader has nothing that would connect to our log."""
        self._heard_high_watermark = min(self._heard_high_watermark, start_offset)
        return [TruncateFully(start_offset)]

    def _truncate(self, diverging: EpochEnd, leader_start: int) -> list[FollowerAction]:
        offset = truncation_point(self.log, diverging)
        if offset <= leader_start:
            # Of epochs that are deleted on the leader only the end is known, not whether they
            # are ours. What is left would lie below the leader's start; it must not stay.
            return self._begin_again(leader_start)
        if offset < self.log.start_offset:
            # Only after an unclean election: the leader will write again what is deleted here.
            return self._begin_again(offset)
        self._heard_high_watermark = min(self._heard_high_watermark, offset)
        return [TruncateTo(offset)]

    def _append(
        self, now_ms: int, fetch: ReplicaFetch, answer: FetchAnswer
    ) -> list[FollowerAction]:
        log, actions = self.log, list[FollowerAction]()
        if answer.first_offset is None or answer.first_offset >= log.end_offset:
            if answer.log_start_offset > log.start_offset or log.lacks_begin:
                # First, so that a crash cannot leave both what is committed and what was
                # deleted before anyone could compare it.
                actions.append(AdvanceStart(min(answer.log_start_offset, log.end_offset)))
            if answer.first_offset is not None:
                actions.append(AppendFetched())
        elif log.end_offset == max(log.start_offset, answer.log_start_offset):
            # The leader's log starts within a batch, and batches come whole. Whatever we have is
            # deleted there, and nobody can tell whether it was the same.
            actions += [TruncateFully(answer.first_offset), AppendFetched()]
            actions.append(AdvanceStart(fetch.offset))
        else:
            # Not what was asked for; appending it would break the log.
            self.failed(now_ms, fetch)
            return actions
        self._heard_high_watermark = max(self._heard_high_watermark, answer.high_watermark)
        return actions
