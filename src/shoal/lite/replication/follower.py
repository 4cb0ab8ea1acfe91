"""A follower of a partition: what to fetch next, and what to do with the answer.

Rules of this file:
- One fetch at a time. An answer is used only if leader, epoch and log are unchanged since the
  fetch was sent.
- Every fetch contains the epoch of the last record. If the leader answers with a diverging epoch,
  the follower truncates its log and fetches again until the logs agree; only then it appends.
- The high watermark is the leader's, limited by the follower's log end offset. It moves back only
  with the log end offset, which does not happen under a cleanly elected leader.
- A fenced follower waits for metadata. All other errors are retried after a pause, which grows
  with repeated failures; a change of leader ends both.
"""

from shoal.lite.base.codes import Code
from shoal.lite.replication.history import check_epoch, divergence, truncation_point
from shoal.lite.replication.messages import (
    NO_LEADER,
    AdvanceStart,
    AppendFetched,
    EpochEndOffset,
    FetchAnswer,
    FollowerAction,
    PartitionState,
    ReplicaFetch,
    ReplicatedLog,
    ReplicationSettings,
    TruncateFully,
    TruncateTo,
)

# The first failures are usually those of an election, which is short. A partition that keeps
# failing must not cost the other partitions a request per retry.
_SHORT_PAUSES = 5
_LONGEST_PAUSE_MS = 1000


class FollowerPartition:
    """A replica that does not lead; without a leader it waits for metadata."""

    leader: int
    leader_epoch: int
    partition_epoch: int

    def __init__(
        self,
        assignment: PartitionState,
        log: ReplicatedLog,
        *,
        settings: ReplicationSettings,
        high_watermark: int,
    ) -> None:
        """`high_watermark` is the last one that this replica knew."""
        self.log = log
        self._settings = settings
        self._leader_high_watermark = high_watermark
        self._follow(assignment)

    @property
    def high_watermark(self) -> int:
        """The offset below which consumers may read."""
        reached = min(self._leader_high_watermark, self.log.end_offset)
        return max(self.log.start_offset, reached)

    def check_epoch(self, known_epoch: int) -> None:
        """Raise `ApiError` if a client's leader epoch is older or newer than this one."""
        check_epoch(known_epoch, self.leader_epoch)

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
        """Return where a reader's log diverges from this one; `ApiError` if it is out of range."""
        return divergence(self.log, offset, last_fetched_epoch)

    def on_assignment(self, assignment: PartitionState) -> None:
        """Apply changed metadata while this replica still does not lead."""
        if assignment.partition_epoch <= self.partition_epoch:
            return
        if assignment.leader_epoch > self.leader_epoch:
            self._follow(assignment)
        self.partition_epoch = assignment.partition_epoch

    def configure(self, settings: ReplicationSettings) -> None:
        """Apply new settings."""
        self._settings = settings

    def _follow(self, assignment: PartitionState) -> None:
        self.leader = assignment.leader
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        # The earlier leader's high watermark beyond the own log does not apply to the next leader.
        self._leader_high_watermark = min(self._leader_high_watermark, self.log.end_offset)
        self._is_fenced = False
        self._retry_ms: int | None = None
        self._failures_in_a_row = 0
        self._failed_offset = -1

    # Fetching

    def next_fetch(self, now_ms: int) -> ReplicaFetch | None:
        """Return the fetch to send now; None if the follower must wait."""
        if self.leader == NO_LEADER or self._is_fenced:
            return None
        if self._retry_ms is not None and now_ms < self._retry_ms:
            return None
        return self._position()

    def next_deadline_ms(self) -> int | None:
        """Return when to call `next_fetch` again after a failure."""
        return None if self._is_fenced else self._retry_ms

    def _position(self) -> ReplicaFetch:
        return ReplicaFetch(
            offset=self.log.end_offset,
            leader_epoch=self.leader_epoch,
            # This may be an epoch in which this replica led and wrote nothing. The leader then
            # answers with a diverging epoch, so the entry is removed from the history before
            # records of lower epochs are appended.
            last_fetched_epoch=self.log.epochs.latest,
            log_start_offset=self.log.start_offset,
        )

    def on_fetch_failed(self, now_ms: int, fetch: ReplicaFetch) -> None:
        """Schedule a retry: the fetch got no answer and will not get one."""
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

    def on_fetch_answer(
        self, now_ms: int, fetch: ReplicaFetch, answer: FetchAnswer
    ) -> list[FollowerAction]:
        """Return the changes to apply to the log, immediately and in order."""
        if self._is_fenced or not self._is_current(fetch):
            return []
        self._retry_ms = None
        if answer.code == Code.NONE and answer.first_offset is None:
            # With records it is no success yet: if they are damaged, they are fetched again.
            self._failures_in_a_row = 0
        if answer.code == Code.OFFSET_OUT_OF_RANGE:
            return self._restart_log_at(answer.log_start_offset)
        if answer.code == Code.FENCED_LEADER_EPOCH:
            self._is_fenced = True
            return []
        if answer.code != Code.NONE:
            self.on_fetch_failed(now_ms, fetch)
            return []
        if self.log.lacks_start and answer.log_start_offset < self.log.start_offset:
            return self._restart_log_at(answer.log_start_offset)
        if answer.diverging is not None:
            return self._truncate(answer.diverging, answer.log_start_offset)
        return self._append(now_ms, fetch, answer)

    def _is_current(self, fetch: ReplicaFetch) -> bool:
        # Offset, leader epoch, and the epoch of the last record.
        return fetch[:3] == self._position()[:3]

    def _restart_log_at(self, start_offset: int) -> list[FollowerAction]:
        """Restart the log: nothing on the leader connects to its present end."""
        self._leader_high_watermark = min(self._leader_high_watermark, start_offset)
        return [TruncateFully(start_offset)]

    def _truncate(self, diverging: EpochEndOffset, leader_start: int) -> list[FollowerAction]:
        offset = truncation_point(self.log, diverging)
        if offset <= leader_start:
            # Of epochs deleted on the leader only the end is known, not whether their records equal
            # the follower's. The rest would lie below the leader's log start and must not stay.
            return self._restart_log_at(leader_start)
        if offset < self.log.start_offset:
            # Only after an unclean election: the leader will reuse offsets that are deleted here.
            return self._restart_log_at(offset)
        self._leader_high_watermark = min(self._leader_high_watermark, offset)
        return [TruncateTo(offset)]

    def _append(
        self, now_ms: int, fetch: ReplicaFetch, answer: FetchAnswer
    ) -> list[FollowerAction]:
        log, actions = self.log, list[FollowerAction]()
        if answer.first_offset is None or answer.first_offset >= log.end_offset:
            if answer.log_start_offset > log.start_offset or log.lacks_start:
                # Before the append, so that a crash cannot leave committed records next to records
                # that the leader deleted before they could be compared.
                actions.append(AdvanceStart(min(answer.log_start_offset, log.end_offset)))
            if answer.first_offset is not None:
                actions.append(AppendFetched())
        elif log.end_offset == max(log.start_offset, answer.log_start_offset):
            # The leader's log starts within a batch, and batches are sent whole. The follower's
            # records are deleted on the leader, so they cannot be compared.
            actions += [TruncateFully(answer.first_offset), AppendFetched()]
            actions.append(AdvanceStart(fetch.offset))
        else:
            # Not the offset that was fetched; appending it would corrupt the log.
            self.on_fetch_failed(now_ms, fetch)
            return actions
        self._leader_high_watermark = max(self._leader_high_watermark, answer.high_watermark)
        return actions
