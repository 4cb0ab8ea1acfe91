"""The state of a quorum member that does not depend on its role, and the ways to change it.

Rules of this file:
- Epochs only increase. A member votes at most once per epoch, and never withdraws a vote.
- The high watermark only increases, and the log is never truncated below it.
- Every change of persistent state is emitted as an action at the moment it is made, so that
  messages emitted later are sent after it is on the disk.
"""

from random import Random

from shoal.lite.raft.actions import (
    Action,
    AppendEntries,
    Committed,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    SendToPeer,
    TruncateEntries,
)
from shoal.lite.raft.config import RaftConfig
from shoal.lite.raft.errors import require
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.messages import RaftMessage
from shoal.lite.raft.model import (
    QuorumState,
    RaftEntry,
    RaftSnapshot,
    RaftSnapshotId,
    ReplicaKey,
    StoredState,
    Voters,
)
from shoal.lite.raft.storage.codec import SnapshotContent, encode_snapshot


class RaftReplica:
    """The state that leader, follower and elections share."""

    def __init__(
        self, key: ReplicaKey, stored: StoredState, config: RaftConfig, random: Random
    ) -> None:
        self.key = key
        self.config = config
        self.random = random
        self.log = RaftLog(stored)
        self.quorum = stored.quorum
        require(
            self.quorum.epoch >= self.log.last_epoch,
            f"the log is of epoch {self.log.last_epoch}, but the stored quorum state is of epoch "
            f"{self.quorum.epoch}: a newer quorum state was lost",
        )
        self.high_watermark = self.log.start_offset
        # The end of the part of the log that would survive a power loss.
        self.durable_end = self.log.end_offset
        self.now_ms = 0
        self._actions: list[Action] = []

    @property
    def epoch(self) -> int:
        return self.quorum.epoch

    @property
    def voters(self) -> Voters:
        return self.log.voters

    @property
    def is_voter(self) -> bool:
        return self.voters.has(self.key)

    def other_voters(self) -> list[int]:
        return [voter_id for voter_id in self.voters.ids if voter_id != self.key.id]

    # Actions

    def emit(self, action: Action) -> None:
        """Append an action; adjacent actions that the disk can do in one step are merged."""
        last = self._actions[-1] if self._actions else None
        if isinstance(action, PersistVote) and isinstance(last, PersistVote):
            self._actions[-1] = action
        elif isinstance(action, AppendEntries) and isinstance(last, AppendEntries):
            self._actions[-1] = AppendEntries(last.base_offset, last.entries + action.entries)
        else:
            self._actions.append(action)

    def send(self, to: int, message: RaftMessage) -> None:
        self.emit(SendToPeer(to, message))

    def take_actions(self) -> list[Action]:
        actions = self._actions
        self._actions = []
        return actions

    # Persistent state

    def set_quorum_state(self, state: QuorumState) -> None:
        """Change epoch, vote or leader."""
        now = self.quorum
        require(state.epoch >= now.epoch, f"epoch {state.epoch} follows epoch {now.epoch}")
        if state.epoch == now.epoch and now.voted_for is not None:
            require(
                state.voted_for == now.voted_for, f"a second vote was cast in epoch {now.epoch}"
            )
        if state != now:
            self.quorum = state
            self.emit(PersistVote(state))

    def append(self, entries: tuple[RaftEntry, ...]) -> None:
        base_offset = self.log.end_offset
        for entry in entries:
            self.log.append(entry)
        self.emit(AppendEntries(base_offset, entries))

    def truncate_to(self, offset: int) -> None:
        require(
            offset >= self.high_watermark,
            f"the log would be truncated to {offset}, but is committed up to {self.high_watermark}",
        )
        self.log.truncate_to(offset)
        self.durable_end = min(self.durable_end, offset)
        self.emit(TruncateEntries(offset))

    def advance_high_watermark(self, offset: int) -> bool:
        """Commit the entries below `offset`; False if they already were."""
        if offset <= self.high_watermark:
            return False
        base_offset = self.high_watermark
        entries = self.log.entries_between(base_offset, offset)
        self.high_watermark = offset
        self.emit(Committed(base_offset, entries, offset))
        return True

    def save_snapshot(self, end_offset: int, records: tuple[bytes, ...]) -> None:
        """Replace the first `end_offset` records by a snapshot of the state after them."""
        require(
            self.log.start_offset < end_offset <= self.high_watermark,
            f"a snapshot at {end_offset} is not after the last one at {self.log.start_offset} and "
            f"up to the high watermark {self.high_watermark}",
        )
        epoch = self.log.epoch_before(end_offset)
        data = encode_snapshot(self.log.voters_at(end_offset), records, epoch)
        snapshot = RaftSnapshot(RaftSnapshotId(end_offset, epoch), data)
        self.log.compact(snapshot)
        self.emit(SaveSnapshot(snapshot))

    def load_snapshot(self, snapshot: RaftSnapshot, content: SnapshotContent) -> None:
        """Replace the log by a snapshot of the leader."""
        end_offset = snapshot.id.end_offset
        require(
            end_offset >= self.high_watermark,
            f"the snapshot ends at {end_offset}, but {self.high_watermark} is already committed",
        )
        self.log.replace(snapshot, content.voters)
        self.durable_end = end_offset
        self.high_watermark = end_offset
        self.emit(LoadSnapshot(snapshot, content.records))
