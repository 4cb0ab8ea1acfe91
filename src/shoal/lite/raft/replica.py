"""What a member of the quorum knows, whatever its role; and the few ways to change it.

Rules of this file:
- Epochs only rise. In one epoch at most one vote is given, and it is never taken back.
- The high watermark only rises, and the log is never cut below it.
- Every change of what must survive is put into the list of actions at the moment it is made,
  so that everything that is said later is said behind it.
"""

from random import Random

from shoal.lite.raft.actions import (
    Action,
    AppendEntries,
    Committed,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    Send,
    TruncateTo,
)
from shoal.lite.raft.config import RaftConfig
from shoal.lite.raft.errors import require
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.messages import Message
from shoal.lite.raft.model import (
    Entry,
    QuorumState,
    ReplicaKey,
    Snapshot,
    SnapshotId,
    StoredState,
    Voters,
)
from shoal.lite.raft.storage.codec import SnapshotContent, encode_snapshot


class Replica:
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
            f"the log is of epoch {self.log.last_epoch}, but the votes that are remembered end "
            f"with epoch {self.quorum.epoch}: some were lost",
        )
        self.high_watermark = self.log.start_offset
        # What of the log would survive a power loss.
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
        """Ask for something; what the disk can do in one step is joined."""
        last = self._actions[-1] if self._actions else None
        if isinstance(action, PersistVote) and isinstance(last, PersistVote):
            self._actions[-1] = action
        elif isinstance(action, AppendEntries) and isinstance(last, AppendEntries):
            self._actions[-1] = AppendEntries(last.base_offset, last.entries + action.entries)
        else:
            self._actions.append(action)

    def send(self, to: int, message: Message) -> None:
        self.emit(Send(to, message))

    def take_actions(self) -> list[Action]:
        actions = self._actions
        self._actions = []
        return actions

    # What must survive

    def remember(self, state: QuorumState) -> None:
        """Change epoch, vote or leader."""
        now = self.quorum
        require(state.epoch >= now.epoch, f"epoch {state.epoch} after {now.epoch}")
        if state.epoch == now.epoch and now.voted_for is not None:
            require(state.voted_for == now.voted_for, f"a second vote in epoch {now.epoch}")
        if state != now:
            self.quorum = state
            self.emit(PersistVote(state))

    def append(self, entries: tuple[Entry, ...]) -> None:
        base_offset = self.log.end_offset
        for entry in entries:
            self.log.append(entry)
        self.emit(AppendEntries(base_offset, entries))

    def truncate_to(self, offset: int) -> None:
        require(
            offset >= self.high_watermark,
            f"the log would be cut at {offset}, but is committed up to {self.high_watermark}",
        )
        self.log.truncate_to(offset)
        self.durable_end = min(self.durable_end, offset)
        self.emit(TruncateTo(offset))

    def advance_high_watermark(self, offset: int) -> bool:
        """Entries below `offset` are committed; says whether that is news."""
        if offset <= self.high_watermark:
            return False
        base_offset = self.high_watermark
        entries = self.log.between(base_offset, offset)
        self.high_watermark = offset
        self.emit(Committed(base_offset, entries, offset))
        return True

    def save_snapshot(self, end_offset: int, records: tuple[bytes, ...]) -> None:
        """Keep the state after `end_offset` records instead of them."""
        require(
            self.log.start_offset < end_offset <= self.high_watermark,
            f"a snapshot at {end_offset}, with {self.log.start_offset} in the last one and "
            f"{self.high_watermark} committed",
        )
        epoch = self.log.epoch_before(end_offset)
        data = encode_snapshot(self.log.voters_at(end_offset), records, epoch)
        snapshot = Snapshot(SnapshotId(end_offset, epoch), data)
        self.log.compact(snapshot)
        self.emit(SaveSnapshot(snapshot))

    def load_snapshot(self, snapshot: Snapshot, content: SnapshotContent) -> None:
        """Give up our log for what the leader has in its place."""
        end_offset = snapshot.id.end_offset
        require(
            end_offset >= self.high_watermark,
            f"a snapshot up to {end_offset}, but {self.high_watermark} is committed",
        )
        self.log.replace(snapshot, content.voters)
        self.durable_end = end_offset
        self.high_watermark = end_offset
        self.emit(LoadSnapshot(snapshot, content.records))
