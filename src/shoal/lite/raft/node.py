"""One member of the quorum: messages and time in, actions out.

    unattached    knows no leader; waits for one, or for its election time-out
    prospective   asks whether it would be elected (pre-vote); its epoch stays as it is
    candidate     a majority would elect it: it has started a new epoch and asks for votes
    leader        a majority has voted for it
    follower      fetches from the leader

    follower ──no answer──► prospective ──majority──► candidate ──majority──► leader
       ▲                        ▲   │                     │                     │
       └────leader is known─────┼───┘                     │     resigns, or quorum lost
    unattached ────time is up───┴──────time is up─────────┘                     │
       ▲────────────────────────────────────────────────────────────────────────┘

    any role ──higher epoch──► unattached, or follower if its leader is named

Rules of this file:
- Pure: no clock, no disk, no network, no randomness but `random`. Every input takes the time,
  and appends actions to a list, which `take_actions` returns.
- A member votes once per epoch, for a candidate whose log is not behind its own, and persists
  the vote before it sends it. A pre-vote promises nothing; a member that hears from a leader
  rejects it, so that a member that was partitioned cannot end a working leadership when it
  returns.
- A member that cannot connect to its leader does not wait for the fetch time-out: it asks for
  an election at once, but only once. If the others still hear the leader, they reject it.
- A member that is not a voter is an observer. It follows the leader, and never asks for an
  election.
- A request of a node with the id of a voter and another directory id is answered with an error,
  and changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Any

from shoal.lite.raft.actions import Action, ResignedLeader, VoterRejected
from shoal.lite.raft.config import DEFAULT_CONFIG, RaftConfig
from shoal.lite.raft.election import Ballot
from shoal.lite.raft.errors import NotLeader
from shoal.lite.raft.follower import RaftFollower, fetch_request
from shoal.lite.raft.leader import RaftLeader, ReplicaProgress
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochResponse,
    EndQuorumEpoch,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftCode,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftMessage,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from shoal.lite.raft.model import QuorumState, ReplicaKey, StoredState, Voter, Voters
from shoal.lite.raft.replica import RaftReplica


class RaftRole(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"


class RaftNode:
    """A member, from one start of its process to the next."""

    def __init__(
        self,
        key: ReplicaKey,
        stored: StoredState,
        *,
        now_ms: int,
        random: Random,
        config: RaftConfig = DEFAULT_CONFIG,
    ) -> None:
        self._replica = RaftReplica(key, stored, config, random)
        self._replica.now_ms = now_ms
        self.role = RaftRole.UNATTACHED
        self._leader: RaftLeader | None = None
        self._follower: RaftFollower | None = None
        self._ballot: Ballot | None = None
        # While no leader is known: when to ask for an election, or to look for a leader.
        self._deadline_ms = now_ms
        # Whether the others rejected a pre-vote: then the leader works, and only this member cannot
        # reach it. Until the leader answers again, only the full fetch time-out counts.
        self._was_pre_vote_rejected = False
        # The next voter to ask for the leader: one after the other, from a random one on.
        self._next_voter_index = random.randrange(1000)
        self._handlers: dict[type[RaftMessage], Callable[[int, Any], None]] = {
            VoteRequest: self._on_vote_request,
            VoteResponse: self._on_vote_response,
            BeginQuorumEpoch: self._on_begin,
            BeginQuorumEpochResponse: self._on_epoch_response,
            EndQuorumEpoch: self._on_end,
            EndQuorumEpochResponse: self._on_epoch_response,
            RaftFetchRequest: self._on_fetch,
            RaftFetchResponse: self._on_fetch_response,
            FetchSnapshotRequest: self._on_fetch_snapshot,
            FetchSnapshotResponse: self._on_snapshot_response,
        }
        self._start()

    def _start(self) -> None:
        replica = self._replica
        leader_id = replica.quorum.leader_id
        if replica.is_voter and len(replica.voters) == 1:
            self._become_candidate()
        elif leader_id is not None and leader_id != replica.key.id:
            self._become_follower(replica.epoch, leader_id)
        else:
            # A leader that restarts does not lead on: its log may have lost its tail.
            self._become_unattached(replica.epoch)

    # State

    @property
    def key(self) -> ReplicaKey:
        return self._replica.key

    @property
    def id(self) -> int:
        return self._replica.key.id

    @property
    def epoch(self) -> int:
        return self._replica.epoch

    @property
    def leader_id(self) -> int | None:
        """The leader of this epoch, if known."""
        return self._replica.quorum.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and takes proposals."""
        return self._leader is not None and self._leader.is_established

    @property
    def is_voter(self) -> bool:
        return self._replica.is_voter

    @property
    def voters(self) -> Voters:
        return self._replica.voters

    @property
    def log(self) -> RaftLog:
        """Read-only for callers."""
        return self._replica.log

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed."""
        return self._replica.high_watermark

    @property
    def quorum_state(self) -> QuorumState:
        return self._replica.quorum

    @property
    def progress(self) -> Mapping[int, ReplicaProgress]:
        """The progress of the other replicas, if this node leads; else empty."""
        return {} if self._leader is None else self._leader.progress

    # Input

    def take_actions(self) -> list[Action]:
        """Return and clear the pending actions, in order. See `actions` for the rules."""
        return self._replica.take_actions()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None if only a message can change that."""
        if self._leader is not None:
            return self._leader.next_deadline_ms()
        if self._follower is not None:
            return self._follower.next_deadline_ms()
        return self._deadline_ms

    def tick(self, now_ms: int) -> None:
        """Do what is due at `now_ms`."""
        self._replica.now_ms = now_ms
        if self._leader is not None:
            self._leader.tick()
            deadline_ms = self._leader.quorum_deadline_ms
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._resign(self._leader)
        elif self._follower is not None:
            if self._follower.deadline_ms <= now_ms:
                self._on_leader_silent()
            else:
                self._follower.fetch_if_due()
        elif self._deadline_ms <= now_ms:
            self._on_deadline()

    def receive(self, now_ms: int, sender: int, message: RaftMessage) -> None:
        """Handle a message of another member."""
        self._replica.now_ms = now_ms
        self._handlers[type(message)](sender, message)

    def campaign(self, now_ms: int) -> None:
        """Ask for an election now, if no leader is known."""
        self._replica.now_ms = now_ms
        if self._replica.is_voter and self.role is RaftRole.UNATTACHED:
            self._become_prospective()

    def on_unreachable(self, now_ms: int, peer: int) -> None:
        """A connection to `peer` was refused or lost: most likely its process has ended."""
        replica = self._replica
        replica.now_ms = now_ms
        follower = self._follower
        if follower is not None and follower.leader_id == peer:
            if self._was_pre_vote_rejected:
                follower.back_off()
            else:
                self._on_leader_silent()
        elif not replica.is_voter:
            self._retry_soon()

    def on_persisted(self, now_ms: int, end_offset: int) -> None:
        """Everything below `end_offset` of the log is on the disk."""
        replica = self._replica
        replica.now_ms = now_ms
        end_offset = min(end_offset, replica.log.end_offset)
        if end_offset <= replica.durable_end:
            return
        replica.durable_end = end_offset
        if self._leader is not None:
            self._leader.advance()
        elif self._follower is not None:
            self._follower.fetch_if_due()

    def propose(self, now_ms: int, records: Sequence[bytes]) -> int:
        """Append records that belong together. They are committed once the high watermark reaches
        the returned offset. Raises `NotLeader`."""
        self._replica.now_ms = now_ms
        return self._require_leader().propose(tuple(records))

    def add_voter(self, now_ms: int, voter: Voter) -> int:
        """Make an observer a voter; like `propose`. Raises `VoterChangeRefused` too."""
        self._replica.now_ms = now_ms
        return self._require_leader().add_voter(voter)

    def remove_voter(self, now_ms: int, key: ReplicaKey) -> int:
        """Remove a voter; like `propose`. Raises `VoterChangeRefused` too."""
        self._replica.now_ms = now_ms
        return self._require_leader().remove_voter(key)

    def save_snapshot(self, end_offset: int, records: Sequence[bytes]) -> None:
        """`records` make the state after the first `end_offset` records, which are committed."""
        self._replica.save_snapshot(end_offset, tuple(records))

    def resign(self, now_ms: int) -> None:
        """Stop leading, if this node leads, and let the others elect a leader at once."""
        self._replica.now_ms = now_ms
        if self._leader is not None:
            self._resign(self._leader)

    def _require_leader(self) -> RaftLeader:
        if self._leader is None or not self._leader.is_established:
            raise NotLeader(None if self._leader is not None else self.leader_id)
        return self._leader

    # Roles

    def _leave_role(self) -> None:
        leader = self._leader
        self._leader = None
        self._follower = None
        self._ballot = None
        if leader is None:
            return
        if leader.is_established:
            self._replica.emit(ResignedLeader(leader.epoch))
        for sender, request in leader.close():
            self._send_fetch_error(sender, request, RaftCode.NOT_LEADER_OR_FOLLOWER)

    def _become_unattached(self, epoch: int) -> None:
        replica = self._replica
        if epoch > replica.epoch:
            replica.set_quorum_state(QuorumState(epoch))
        self._forget_leader()
        self._leave_role()
        self.role = RaftRole.UNATTACHED
        # An observer looks for a leader at once.
        self._deadline_ms = replica.now_ms
        if replica.is_voter:
            self._deadline_ms += self._election_timeout_ms()

    def _forget_leader(self) -> None:
        # The stored leader may stay: it did lead this epoch, and a fetch to it does no harm.
        self._replica.quorum = replace(self._replica.quorum, leader_id=None)

    def _become_follower(self, epoch: int, leader_id: int) -> None:
        replica = self._replica
        if epoch > replica.epoch:
            replica.set_quorum_state(QuorumState(epoch, leader_id=leader_id))
        else:
            replica.set_quorum_state(replace(replica.quorum, leader_id=leader_id))
        self._leave_role()
        self.role = RaftRole.FOLLOWER
        self._was_pre_vote_rejected = False
        self._follower = RaftFollower(replica, leader_id)

    def _become_prospective(self) -> None:
        self._leave_role()
        self.role = RaftRole.PROSPECTIVE
        self._ask_for_votes(pre_vote=True)

    def _become_candidate(self) -> None:
        self._leave_role()
        self.role = RaftRole.CANDIDATE
        replica = self._replica
        replica.set_quorum_state(QuorumState(replica.epoch + 1, voted_for=replica.key))
        self._ask_for_votes(pre_vote=False)

    def _become_leader(self, granting: frozenset[int]) -> None:
        self._leave_role()
        self.role = RaftRole.LEADER
        replica = self._replica
        replica.set_quorum_state(replace(replica.quorum, leader_id=replica.key.id))
        self._leader = RaftLeader(replica, granting)

    def _resign(self, leader: RaftLeader) -> None:
        replica = self._replica
        message = EndQuorumEpoch(replica.epoch, replica.key.id, leader.successors())
        for voter_id in replica.other_voters():
            replica.send(voter_id, message)
        self._become_unattached(replica.epoch)

    # Time-outs

    def _election_timeout_ms(self) -> int:
        least_ms = self._replica.config.election_timeout_ms
        return least_ms + self._replica.random.randrange(least_ms)

    def _on_leader_silent(self) -> None:
        if self._replica.is_voter:
            self._become_prospective()
        else:
            self._become_unattached(self.epoch)

    def _on_deadline(self) -> None:
        if not self._replica.is_voter:
            self._look_for_leader()
        elif self.role is RaftRole.PROSPECTIVE and self.leader_id is not None:
            self._follow_after_rejection(self.leader_id)
        else:
            self._become_prospective()

    def _follow_after_rejection(self, leader_id: int) -> None:
        """The pre-vote was rejected: the leader works, and only this member does not hear it."""
        self._become_follower(self.epoch, leader_id)
        self._was_pre_vote_rejected = True

    def _retry_soon(self) -> None:
        """Ask the next voter for the leader soon: the last one does not know it."""
        soon_ms = self._replica.now_ms + self._replica.config.retry_backoff_ms
        self._deadline_ms = min(self._deadline_ms, soon_ms)

    def _look_for_leader(self) -> None:
        replica = self._replica
        # The leader may hold the fetch that long; any other voter answers at once, or is down.
        self._deadline_ms = replica.now_ms + replica.config.fetch_max_wait_ms
        others = replica.other_voters()
        if others:
            replica.send(others[self._next_voter_index % len(others)], fetch_request(replica))
            self._next_voter_index += 1

    # Elections

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        replica = self._replica
        self._deadline_ms = replica.now_ms + self._election_timeout_ms()
        self._ballot = Ballot(replica.voters, pre_vote=pre_vote)
        for voter in replica.voters:
            if voter.key == replica.key:
                continue
            request = VoteRequest(
                epoch=replica.epoch,
                candidate_id=replica.key.id,
                candidate_directory=replica.key.directory,
                voter_directory=voter.directory,
                last_epoch=replica.log.last_epoch,
                last_offset=replica.log.end_offset,
                pre_vote=pre_vote,
            )
            replica.send(voter.id, request)
        self._count_vote(replica.key.id, granted=True)

    def _count_vote(self, voter_id: int, *, granted: bool) -> None:
        ballot = self._ballot
        if ballot is None:
            return
        ballot.count(voter_id, granted=granted)
        if ballot.is_won and ballot.pre_vote:
            self._become_candidate()
        elif ballot.is_won:
            self._become_leader(ballot.granting)
        elif ballot.is_lost and ballot.pre_vote and self.leader_id is not None:
            self._follow_after_rejection(self.leader_id)

    def _on_vote_request(self, sender: int, request: VoteRequest) -> None:
        replica = self._replica
        candidate = ReplicaKey(request.candidate_id, request.candidate_directory)
        error = RaftCode.NONE
        granted = False
        if request.voter_directory != replica.key.directory:
            error = RaftCode.INVALID_VOTER_KEY
        elif replica.voters.has_other_directory(candidate):
            error = RaftCode.VOTER_NOT_FOUND
        elif request.epoch < replica.epoch:
            error = RaftCode.FENCED_LEADER_EPOCH
        else:
            if request.epoch > replica.epoch:
                self._become_unattached(request.epoch)
            granted = self._should_grant(request, candidate)
            if granted and not request.pre_vote:
                self._vote_for(candidate)
        replica.send(
            sender,
            VoteResponse(replica.epoch, self.leader_id, granted, request.pre_vote, error),
        )

    def _should_grant(self, request: VoteRequest, candidate: ReplicaKey) -> bool:
        replica = self._replica
        ours = (replica.log.last_epoch, replica.log.end_offset)
        if (request.last_epoch, request.last_offset) < ours:
            return False
        if request.pre_vote:
            follower = self._follower
            return self._leader is None and (follower is None or not follower.has_fetched)
        if replica.quorum.voted_for is not None:
            return replica.quorum.voted_for == candidate
        return self.leader_id is None

    def _vote_for(self, candidate: ReplicaKey) -> None:
        replica = self._replica
        replica.set_quorum_state(replace(replica.quorum, voted_for=candidate))
        # Give the candidate the time to win.
        self._become_unattached(replica.epoch)

    def _on_vote_response(self, sender: int, response: VoteResponse) -> None:
        if self._handle_voter_rejection(sender, response) or self._adopt_newer_epoch(response):
            return
        if (ballot := self._ballot) is None:
            return
        if (response.epoch, response.pre_vote) == (self.epoch, ballot.pre_vote):
            self._count_vote(sender, granted=response.granted)

    # Who leads

    def _handle_voter_rejection(self, sender: int, response: RaftResponse) -> bool:
        if response.error is RaftCode.VOTER_NOT_FOUND:
            self._replica.emit(VoterRejected(sender, response.error))
        return response.error in {RaftCode.VOTER_NOT_FOUND, RaftCode.INVALID_VOTER_KEY}

    def _adopt_newer_epoch(self, response: RaftResponse) -> bool:
        """Follow a newer epoch or a new leader that a response names; whether it named one."""
        epoch, leader_id = response.epoch, response.leader_id
        if leader_id == self.id:
            # A response to this node from before its last start.
            leader_id = None
        if epoch < self.epoch or (epoch == self.epoch and self._knows_leader(leader_id)):
            return False
        if leader_id is None:
            self._become_unattached(epoch)
        else:
            self._become_follower(epoch, leader_id)
        return True

    def _knows_leader(self, leader_id: int | None) -> bool:
        """Whether this node already knows this leader of the current epoch."""
        if leader_id is None or not self._is_leaderless():
            return True
        # A prospective node may know the leader without hearing from it.
        return leader_id == self.leader_id

    def _is_leaderless(self) -> bool:
        return self._leader is None and self._follower is None

    def _on_begin(self, sender: int, request: BeginQuorumEpoch) -> None:
        replica = self._replica
        error = RaftCode.NONE
        is_meant = request.voter_directory == replica.key.directory
        if not is_meant or request.leader_id == replica.key.id:
            error = RaftCode.INVALID_VOTER_KEY
        elif request.epoch < replica.epoch:
            error = RaftCode.FENCED_LEADER_EPOCH
        elif request.epoch > replica.epoch or self._is_leaderless():
            self._become_follower(request.epoch, request.leader_id)
        replica.send(sender, BeginQuorumEpochResponse(replica.epoch, self.leader_id, error))

    def _on_end(self, sender: int, request: EndQuorumEpoch) -> None:
        replica = self._replica
        error = RaftCode.NONE
        if request.epoch < replica.epoch:
            error = RaftCode.FENCED_LEADER_EPOCH
        elif request.epoch > replica.epoch or self.role in {
            RaftRole.FOLLOWER,
            RaftRole.PROSPECTIVE,
        }:
            self._become_unattached(request.epoch)
            if replica.is_voter and request.preferred[:1] == (replica.key.id,):
                self._become_prospective()
        replica.send(sender, EndQuorumEpochResponse(replica.epoch, self.leader_id, error))

    def _on_epoch_response(
        self, sender: int, response: BeginQuorumEpochResponse | EndQuorumEpochResponse
    ) -> None:
        if not self._handle_voter_rejection(sender, response):
            self._adopt_newer_epoch(response)

    # Fetching

    def _on_fetch(self, sender: int, request: RaftFetchRequest) -> None:
        error = self._fetch_error(request)
        if self._leader is not None and error is RaftCode.NONE:
            self._leader.fetch(sender, request)
        else:
            self._send_fetch_error(sender, request, error)

    def _on_fetch_snapshot(self, sender: int, request: FetchSnapshotRequest) -> None:
        error = self._fetch_error(request)
        if self._leader is not None and error is RaftCode.NONE:
            self._leader.fetch_snapshot(sender, request)
            return
        response = FetchSnapshotResponse(
            self.epoch, self.leader_id, request.snapshot, request.position, error=error
        )
        self._replica.send(sender, response)

    def _fetch_error(self, request: RaftFetchRequest | FetchSnapshotRequest) -> RaftCode:
        key = ReplicaKey(request.replica_id, request.replica_directory)
        if self._replica.voters.has_other_directory(key):
            return RaftCode.VOTER_NOT_FOUND
        if request.epoch < self.epoch:
            return RaftCode.FENCED_LEADER_EPOCH
        if request.epoch > self.epoch:
            return RaftCode.UNKNOWN_LEADER_EPOCH
        return RaftCode.NONE if self._leader is not None else RaftCode.NOT_LEADER_OR_FOLLOWER

    def _send_fetch_error(self, sender: int, request: RaftFetchRequest, error: RaftCode) -> None:
        response = RaftFetchResponse(
            epoch=self.epoch,
            leader_id=self.leader_id,
            offset=request.offset,
            last_fetched_epoch=request.last_fetched_epoch,
            error=error,
        )
        self._replica.send(sender, response)

    def _on_fetch_response(self, sender: int, response: RaftFetchResponse) -> None:
        if self._handle_voter_rejection(sender, response) or self._adopt_newer_epoch(response):
            return
        follower = self._follower_for(sender, response)
        if follower is not None:
            follower.on_fetch_response(response)
            self._was_pre_vote_rejected = self._was_pre_vote_rejected and not follower.has_fetched
        elif not self._replica.is_voter:
            self._retry_soon()

    def _on_snapshot_response(self, sender: int, response: FetchSnapshotResponse) -> None:
        if self._handle_voter_rejection(sender, response) or self._adopt_newer_epoch(response):
            return
        follower = self._follower_for(sender, response)
        if follower is not None:
            follower.on_snapshot_response(response)

    def _follower_for(
        self, sender: int, response: RaftFetchResponse | FetchSnapshotResponse
    ) -> RaftFollower | None:
        """The follower state, if the response is of the current leader and epoch."""
        follower = self._follower
        if follower is None or follower.leader_id != sender or response.epoch != self.epoch:
            return None
        if response.error is RaftCode.NOT_LEADER_OR_FOLLOWER:
            # It has resigned or was restarted: this epoch no longer has a leader.
            self._become_unattached(self.epoch)
            return None
        return follower
