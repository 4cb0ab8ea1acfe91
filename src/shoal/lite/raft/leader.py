"""The leader role: the leadership of one epoch.

Rules of this file:
- A leader first appends an entry of its own epoch. Nothing is committed before a majority has
  that entry: an entry of an older epoch may be on a majority and still be replaced by another
  leader that does not have it.
- A fetch acknowledges everything below its offset, provided that the follower's log is a prefix
  of the leader's.
- A fetch without new data is held until there is some, or its wait time is over.
- A leader from which no majority has fetched for a while has lost its quorum, and resigns:
  there may be another leader, and requests that wait for this one would wait in vain.
"""

from dataclasses import dataclass

from shoal.lite.raft.actions import BecameLeader
from shoal.lite.raft.errors import NotLeader, VoterChangeRefused
from shoal.lite.raft.messages import (
    BeginQuorumEpoch,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
    RaftFetchRequest,
    RaftFetchResponse,
)
from shoal.lite.raft.model import EntryKind, RaftEntry, RaftEpochEnd, ReplicaKey, Voter, Voters
from shoal.lite.raft.replica import RaftReplica
from shoal.lite.raft.storage.codec import encode_leader_change, encode_voters

# How many observers' progress is kept. More can fetch; they are not described.
_MAX_OBSERVERS = 1000


@dataclass(slots=True)
class ReplicaProgress:
    """What a leader knows about another member."""

    key: ReplicaKey
    # Up to where its log equals the leader's and is on its disk.
    end_offset: int
    # When it last fetched, and when it was last sent BeginQuorumEpoch.
    fetched_ms: int
    notified_ms: int


@dataclass(frozen=True, slots=True)
class HeldQuorumFetch:
    """A fetch that waits for new data."""

    request: RaftFetchRequest
    until_ms: int


class RaftLeader:
    """The leadership of one epoch."""

    def __init__(self, replica: RaftReplica, granting: frozenset[int]) -> None:
        self._replica = replica
        # By id: all other voters, and observers that fetch.
        self.progress: dict[int, ReplicaProgress] = {}
        self._held: dict[int, HeldQuorumFetch] = {}
        # Whether everything that former leaders wrote is committed.
        self.is_established = False
        self.epoch = replica.epoch
        self.start_offset = replica.log.end_offset
        self._track_voters()
        change = encode_leader_change(replica.key.id, replica.voters, granting)
        self._append(RaftEntry(replica.epoch, (change,), EntryKind.LEADER_CHANGE))
        for voter_id in replica.other_voters():
            self._send_begin_quorum_epoch(voter_id)

    def _track_voters(self) -> None:
        now_ms = self._replica.now_ms
        for voter in self._replica.voters:
            if voter.id == self._replica.key.id:
                continue
            known = self.progress.get(voter.id)
            if known is None or known.key != voter.key:
                # As if it had just fetched, so that it gets the full time-out.
                self.progress[voter.id] = ReplicaProgress(voter.key, 0, now_ms, now_ms)

    # Writing

    def propose(self, records: tuple[bytes, ...]) -> int:
        """Append records as one entry; returns the offset after them."""
        self._require_established()
        self._append(RaftEntry(self._replica.epoch, records))
        return self._replica.log.end_offset

    def add_voter(self, voter: Voter) -> int:
        """Make a caught-up observer a voter; returns the offset after the new voter set."""
        voters = self._require_committed_voters()
        known = self.progress.get(voter.id)
        if voters.get(voter.id) is not None:
            raise VoterChangeRefused(
                f"node {voter.id} is already a voter", remedy="remove it first"
            )
        is_fresh = known is not None and known.key == voter.key and not self._is_silent(known)
        if known is None or not is_fresh or known.end_offset < self._replica.high_watermark:
            raise VoterChangeRefused(
                f"node {voter.id} has not caught up",
                remedy="start it and wait until it has caught up",
            )
        return self._change_voters(voters.with_voter(voter))

    def remove_voter(self, key: ReplicaKey) -> int:
        """Remove a voter; returns the offset after the new voter set."""
        voters = self._require_committed_voters()
        if key == self._replica.key:
            # If the leader died before another node had the new set, it alone would know that it
            # is no voter: its log too far ahead to vote for others, and no candidate itself.
            raise VoterChangeRefused(f"node {key.id} is the leader", remedy="let it resign first")
        if not voters.has(key):
            raise VoterChangeRefused(f"node {key.id} with directory {key.directory} is not a voter")
        return self._change_voters(voters.without(key.id))

    def _require_committed_voters(self) -> Voters:
        # One at a time: the majorities of two sets that differ by one voter always overlap.
        self._require_established()
        log = self._replica.log
        if log.voters_offset >= self._replica.high_watermark:
            raise VoterChangeRefused(
                "the previous change of the voter set is not committed yet", remedy="try again"
            )
        return log.voters

    def _change_voters(self, voters: Voters) -> int:
        entry = RaftEntry(self._replica.epoch, (encode_voters(voters),), EntryKind.VOTERS)
        self._append(entry)
        self._track_voters()
        self.advance()
        return self._replica.log.end_offset

    def _require_established(self) -> None:
        if not self.is_established:
            raise NotLeader(None)

    def _append(self, entry: RaftEntry) -> None:
        self._replica.append((entry,))
        self._answer_held()

    # Committing

    def advance(self) -> None:
        """Commit what a majority has on its disks."""
        replica = self._replica
        ends = sorted(map(self._durable_end, replica.voters.ids), reverse=True)
        end_offset = ends[replica.voters.majority - 1]
        if not self._can_commit(end_offset) or not replica.advance_high_watermark(end_offset):
            return
        if not self.is_established:
            self.is_established = True
            replica.emit(BecameLeader(replica.epoch))
        self._answer_held()

    def _durable_end(self, voter_id: int) -> int:
        if voter_id == self._replica.key.id:
            return self._replica.durable_end
        return self.progress[voter_id].end_offset

    def _can_commit(self, end_offset: int) -> bool:
        """Whether the committed part would include an entry of this epoch."""
        return end_offset > self.start_offset

    # Answering

    def fetch(self, sender: int, request: RaftFetchRequest) -> None:
        """Handle a fetch of a member of this epoch."""
        replica = self._replica
        key = ReplicaKey(request.replica_id, request.replica_directory)
        progress = self._track_fetch(key)
        divergence = replica.log.find_divergence(request.offset, request.last_fetched_epoch)
        if divergence is None and replica.log.has_boundary(request.offset):
            progress.end_offset = max(progress.end_offset, request.offset)
            self.advance()
        # The sender would ignore the response to an earlier fetch.
        earlier = self._held.pop(sender, None)
        if self._has_data_for(request):
            self._answer(sender, request)
        else:
            # A repeated fetch keeps the deadline of the first: a sender with a shorter time-out
            # would otherwise never get a response.
            until_ms = replica.now_ms + replica.config.fetch_max_wait_ms
            until_ms = until_ms if earlier is None else earlier.until_ms
            self._held[sender] = HeldQuorumFetch(request, until_ms)

    def _track_fetch(self, key: ReplicaKey) -> ReplicaProgress:
        now_ms = self._replica.now_ms
        progress = self.progress.get(key.id)
        if progress is None or progress.key != key:
            progress = ReplicaProgress(key, 0, now_ms, now_ms)
            self.progress[key.id] = progress
            self._evict_oldest_observer()
        progress.fetched_ms = now_ms
        return progress

    def _evict_oldest_observer(self) -> None:
        observers = [p for p in self.progress.values() if not self._replica.voters.has(p.key)]
        if len(observers) > _MAX_OBSERVERS:
            del self.progress[min(observers, key=lambda p: p.fetched_ms).key.id]

    def _has_data_for(self, request: RaftFetchRequest) -> bool:
        log = self._replica.log
        if request.offset != log.end_offset or request.last_fetched_epoch != log.last_epoch:
            return True
        return request.high_watermark < self._replica.high_watermark

    def _answer(self, sender: int, request: RaftFetchRequest) -> None:
        replica = self._replica
        log = replica.log
        divergence = log.find_divergence(request.offset, request.last_fetched_epoch)
        entries: tuple[RaftEntry, ...] = ()
        error = RaftCode.NONE
        if divergence is None:
            if log.has_boundary(request.offset):
                entries = log.read(request.offset, replica.config.fetch_max_bytes)
            else:
                error = RaftCode.OFFSET_OUT_OF_RANGE
        response = RaftFetchResponse(
            epoch=replica.epoch,
            leader_id=replica.key.id,
            offset=request.offset,
            last_fetched_epoch=request.last_fetched_epoch,
            entries=entries,
            high_watermark=replica.high_watermark,
            diverging=divergence if isinstance(divergence, RaftEpochEnd) else None,
            snapshot=None if isinstance(divergence, RaftEpochEnd) else divergence,
            error=error,
        )
        replica.send(sender, response)

    def _answer_held(self) -> None:
        for sender, held in list(self._held.items()):
            if self._has_data_for(held.request):
                del self._held[sender]
                self._answer(sender, held.request)

    def fetch_snapshot(self, sender: int, request: FetchSnapshotRequest) -> None:
        """Handle a request of a member of this epoch for a part of the snapshot."""
        replica = self._replica
        self._track_fetch(ReplicaKey(request.replica_id, request.replica_directory))
        snapshot = replica.log.snapshot
        error = RaftCode.NONE
        data = b""
        size = 0
        if snapshot is None or snapshot.id != request.snapshot:
            error = RaftCode.SNAPSHOT_NOT_FOUND
        elif not 0 <= request.position < len(snapshot.data):
            error = RaftCode.POSITION_OUT_OF_RANGE
        else:
            size = len(snapshot.data)
            end = request.position + replica.config.snapshot_chunk_bytes
            data = snapshot.data[request.position : end]
        response = FetchSnapshotResponse(
            epoch=replica.epoch,
            leader_id=replica.key.id,
            snapshot=request.snapshot,
            position=request.position,
            size=size,
            data=data,
            error=error,
        )
        replica.send(sender, response)

    def close(self) -> list[tuple[int, RaftFetchRequest]]:
        """End the leadership; returns the fetches that are still held."""
        held = [(sender, held.request) for sender, held in self._held.items()]
        self._held.clear()
        return held

    def successors(self) -> tuple[int, ...]:
        """The other voters, those with the longest logs first."""
        return tuple(
            sorted(
                self._replica.other_voters(),
                key=lambda voter_id: (-self.progress[voter_id].end_offset, voter_id),
            )
        )

    # Time

    def tick(self) -> None:
        now_ms = self._replica.now_ms
        for sender, held in list(self._held.items()):
            if held.until_ms <= now_ms:
                del self._held[sender]
                self._answer(sender, held.request)
        for voter_id in self._replica.other_voters():
            if self._notify_due_ms(self.progress[voter_id]) <= now_ms:
                self._send_begin_quorum_epoch(voter_id)

    @property
    def quorum_deadline_ms(self) -> int | None:
        """When the quorum is lost unless a voter fetches; None for a single voter."""
        replica = self._replica
        needed = replica.voters.majority - 1
        if needed == 0:
            return None
        times = sorted(
            (self.progress[voter_id].fetched_ms for voter_id in replica.other_voters()),
            reverse=True,
        )
        return times[needed - 1] + replica.config.check_quorum_ms

    def next_deadline_ms(self) -> int | None:
        deadlines = [held.until_ms for held in self._held.values()]
        deadlines += [
            self._notify_due_ms(self.progress[voter_id])
            for voter_id in self._replica.other_voters()
        ]
        if (quorum_deadline_ms := self.quorum_deadline_ms) is not None:
            deadlines.append(quorum_deadline_ms)
        return min(deadlines, default=None)

    def _notify_due_ms(self, progress: ReplicaProgress) -> int:
        last_ms = max(progress.fetched_ms, progress.notified_ms)
        return last_ms + self._replica.config.begin_interval_ms

    def _is_silent(self, progress: ReplicaProgress) -> bool:
        patience_ms = self._replica.config.fetch_timeout_ms
        return progress.fetched_ms + patience_ms < self._replica.now_ms

    def _send_begin_quorum_epoch(self, voter_id: int) -> None:
        replica = self._replica
        progress = self.progress[voter_id]
        progress.notified_ms = replica.now_ms
        message = BeginQuorumEpoch(replica.epoch, replica.key.id, progress.key.directory)
        replica.send(voter_id, message)
