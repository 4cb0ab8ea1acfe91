"""What a leader does, for as long as it leads one epoch.

Rules of this file:
- It begins with an entry of its own. Only when a majority has that one does anything count as
  committed: an entry of an older epoch may be on a majority and still be replaced by another
  leader that does not have it.
- A follower has what it fetches behind, provided that its log is a beginning of ours.
- A fetch that finds nothing is held until there is something, or its time is up.
- A leader from which no majority has fetched for a while has lost its quorum, and must resign:
  there may be another one, and whoever waits for us waits in vain.
"""

from dataclasses import dataclass

from shoal.lite.raft.actions import BecameLeader
from shoal.lite.raft.errors import NotLeader, VoterChangeRefused
from shoal.lite.raft.messages import (
    BeginQuorumEpoch,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
)
from shoal.lite.raft.model import Entry, EntryKind, EpochEnd, ReplicaKey, Voter, Voters
from shoal.lite.raft.replica import Replica
from shoal.lite.raft.storage.codec import encode_leader_change, encode_voters

# Observers whose progress is remembered. More of them can fetch; they are not shown.
_MOST_OBSERVERS = 1000


@dataclass(slots=True)
class Progress:
    """What a leader knows about another member."""

    key: ReplicaKey
    # Up to where its log is ours, and on its disk.
    end_offset: int
    # When it last asked for anything, and when we last told it who leads.
    fetched_ms: int
    begun_ms: int


@dataclass(frozen=True, slots=True)
class HeldFetch:
    """A fetch that waits for something to give."""

    request: FetchRequest
    until_ms: int


class Leader:
    """The leadership of one epoch."""

    def __init__(self, replica: Replica, granting: frozenset[int]) -> None:
        self._replica = replica
        # By id: all other voters, and observers that fetch.
        self.progress: dict[int, Progress] = {}
        self._held: dict[int, HeldFetch] = {}
        # Whether everything that former leaders wrote is committed.
        self.is_established = False
        self.epoch = replica.epoch
        self.start_offset = replica.log.end_offset
        self._watch_voters()
        change = encode_leader_change(replica.key.id, replica.voters, granting)
        self._append(Entry(replica.epoch, (change,), EntryKind.LEADER_CHANGE))
        for voter_id in replica.other_voters():
            self._tell_to_fetch(voter_id)

    def _watch_voters(self) -> None:
        now_ms = self._replica.now_ms
        for voter in self._replica.voters:
            if voter.id == self._replica.key.id:
                continue
            known = self.progress.get(voter.id)
            if known is None or known.key != voter.key:
                # As if it had just fetched: it gets the time that everybody gets.
                self.progress[voter.id] = Progress(voter.key, 0, now_ms, now_ms)

    # Writing

    def propose(self, records: tuple[bytes, ...]) -> int:
        """Append records as one entry; returns the offset behind them."""
        self._require_established()
        self._append(Entry(self._replica.epoch, records))
        return self._replica.log.end_offset

    def add_voter(self, voter: Voter) -> int:
        """Let an observer vote that has caught up; returns the offset behind the new set."""
        voters = self._changeable_voters()
        known = self.progress.get(voter.id)
        if voters.get(voter.id) is not None:
            raise VoterChangeRefused(f"node {voter.id} votes already", remedy="remove it first")
        is_fresh = known is not None and known.key == voter.key and not self._is_overdue(known)
        if known is None or not is_fresh or known.end_offset < self._replica.high_watermark:
            raise VoterChangeRefused(
                f"node {voter.id} has not caught up", remedy="start it and wait until it has"
            )
        return self._change_voters(voters.with_voter(voter))

    def remove_voter(self, key: ReplicaKey) -> int:
        """Take a vote away; returns the offset behind the new set."""
        voters = self._changeable_voters()
        if key == self._replica.key:
            # If we died before anybody else had it, we alone would know that we do not vote: too
            # far ahead to vote for others, and no candidate ourselves.
            raise VoterChangeRefused(f"node {key.id} leads", remedy="let it resign first")
        if not voters.has(key):
            raise VoterChangeRefused(f"node {key.id} with directory {key.directory} does not vote")
        return self._change_voters(voters.without(key.id))

    def _changeable_voters(self) -> Voters:
        # One at a time: the majorities of two sets that differ by one voter always overlap.
        self._require_established()
        log = self._replica.log
        if log.voters_offset >= self._replica.high_watermark:
            raise VoterChangeRefused(
                "another change of the voters is not committed yet", remedy="try again"
            )
        return log.voters

    def _change_voters(self, voters: Voters) -> int:
        entry = Entry(self._replica.epoch, (encode_voters(voters),), EntryKind.VOTERS)
        self._append(entry)
        self._watch_voters()
        self.advance()
        return self._replica.log.end_offset

    def _require_established(self) -> None:
        if not self.is_established:
            raise NotLeader(None)

    def _append(self, entry: Entry) -> None:
        self._replica.append((entry,))
        self._answer_held()

    # Committing

    def advance(self) -> None:
        """Commit what a majority has on its disks."""
        replica = self._replica
        ends = sorted(map(self._durable_end, replica.voters.ids), reverse=True)
        end_offset = ends[replica.voters.majority - 1]
        if not self._may_commit(end_offset) or not replica.advance_high_watermark(end_offset):
            return
        if not self.is_established:
            self.is_established = True
            replica.emit(BecameLeader(replica.epoch))
        self._answer_held()

    def _durable_end(self, voter_id: int) -> int:
        if voter_id == self._replica.key.id:
            return self._replica.durable_end
        return self.progress[voter_id].end_offset

    def _may_commit(self, end_offset: int) -> bool:
        """Only with an entry of this epoch among it."""
        return end_offset > self.start_offset

    # Answering

    def fetch(self, sender: int, request: FetchRequest) -> None:
        """A member of this epoch wants what follows its log."""
        replica = self._replica
        key = ReplicaKey(request.replica_id, request.replica_directory)
        progress = self._heard_of(key)
        parting = replica.log.parting(request.offset, request.last_fetched_epoch)
        if parting is None and replica.log.has_boundary(request.offset):
            progress.end_offset = max(progress.end_offset, request.offset)
            self.advance()
        # The answer to an earlier fetch would be ignored.
        earlier = self._held.pop(sender, None)
        if self._has_news(request):
            self._answer(sender, request)
        else:
            # Whoever asks again does not wait from the start: one who is less patient than we are
            # would never hear of us.
            until_ms = replica.now_ms + replica.config.fetch_max_wait_ms
            until_ms = until_ms if earlier is None else earlier.until_ms
            self._held[sender] = HeldFetch(request, until_ms)

    def _heard_of(self, key: ReplicaKey) -> Progress:
        now_ms = self._replica.now_ms
        progress = self.progress.get(key.id)
        if progress is None or progress.key != key:
            progress = Progress(key, 0, now_ms, now_ms)
            self.progress[key.id] = progress
            self._forget_an_observer()
        progress.fetched_ms = now_ms
        return progress

    def _forget_an_observer(self) -> None:
        observers = [p for p in self.progress.values() if not self._replica.voters.has(p.key)]
        if len(observers) > _MOST_OBSERVERS:
            del self.progress[min(observers, key=lambda p: p.fetched_ms).key.id]

    def _has_news(self, request: FetchRequest) -> bool:
        log = self._replica.log
        if request.offset != log.end_offset or request.last_fetched_epoch != log.last_epoch:
            return True
        return request.high_watermark < self._replica.high_watermark

    def _answer(self, sender: int, request: FetchRequest) -> None:
        replica = self._replica
        log = replica.log
        parting = log.parting(request.offset, request.last_fetched_epoch)
        entries: tuple[Entry, ...] = ()
        error = RaftCode.NONE
        if parting is None:
            if log.has_boundary(request.offset):
                entries = log.read(request.offset, replica.config.fetch_max_bytes)
            else:
                error = RaftCode.OFFSET_OUT_OF_RANGE
        response = FetchResponse(
            epoch=replica.epoch,
            leader_id=replica.key.id,
            offset=request.offset,
            last_fetched_epoch=request.last_fetched_epoch,
            entries=entries,
            high_watermark=replica.high_watermark,
            diverging=parting if isinstance(parting, EpochEnd) else None,
            snapshot=None if isinstance(parting, EpochEnd) else parting,
            error=error,
        )
        replica.send(sender, response)

    def _answer_held(self) -> None:
        for sender, held in list(self._held.items()):
            if self._has_news(held.request):
                del self._held[sender]
                self._answer(sender, held.request)

    def fetch_snapshot(self, sender: int, request: FetchSnapshotRequest) -> None:
        """A member of this epoch wants a part of our snapshot."""
        replica = self._replica
        self._heard_of(ReplicaKey(request.replica_id, request.replica_directory))
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

    def close(self) -> list[tuple[int, FetchRequest]]:
        """The leadership is over; returns the fetches that still wait for an answer."""
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
            if self._begin_due_ms(self.progress[voter_id]) <= now_ms:
                self._tell_to_fetch(voter_id)

    @property
    def quorum_deadline_ms(self) -> int | None:
        """When the quorum is lost, unless somebody fetches; None for a voter of its own."""
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
            self._begin_due_ms(self.progress[voter_id]) for voter_id in self._replica.other_voters()
        ]
        if (quorum_deadline_ms := self.quorum_deadline_ms) is not None:
            deadlines.append(quorum_deadline_ms)
        return min(deadlines, default=None)

    def _begin_due_ms(self, progress: Progress) -> int:
        last_ms = max(progress.fetched_ms, progress.begun_ms)
        return last_ms + self._replica.config.begin_interval_ms

    def _is_overdue(self, progress: Progress) -> bool:
        patience_ms = self._replica.config.fetch_timeout_ms
        return progress.fetched_ms + patience_ms < self._replica.now_ms

    def _tell_to_fetch(self, voter_id: int) -> None:
        replica = self._replica
        progress = self.progress[voter_id]
        progress.begun_ms = replica.now_ms
        message = BeginQuorumEpoch(replica.epoch, replica.key.id, progress.key.directory)
        replica.send(voter_id, message)
